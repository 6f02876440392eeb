// The shared memory of a block of linear.cu: a ring of stages, each with columns of A and B, and their mbarriers.
//
// A stage has 64 rows of A after the other, and then B, in panels of 64 columns. Its mbarriers are `full`, which counts
// bytes, and `empty`, which counts the warps that gave it back.
//
// Archs      sm_90a.
#pragma once

#include "../attention/wgmma/panels.cuh"
#include "linear_tiles.cuh"

namespace {

using Columns = Panels<BLOCK_K>;
constexpr int kConsumersOfTile = PINGPONG ? 1 : CONSUMER_WARPGROUPS;
constexpr int kTilesOfA = ROW_TILES * kConsumersOfTile;

constexpr unsigned kTileBytes = 128 * BLOCK_K;  // 64 rows of A
constexpr unsigned kStageBytes = 2 * BLOCK_K * (BLOCK_M + BLOCK_N);
constexpr unsigned kBarriersAt = STAGES * kStageBytes;
constexpr unsigned kSharedBytes = kBarriersAt + 16 * STAGES;
static_assert(BLOCK_N % 16 == 0 && BLOCK_N >= 16 && BLOCK_N <= 256, "an MMA has up to 256 columns");
static_assert(BLOCK_N % (8 * CLUSTER) == 0, "each block loads whole repeats of the swizzle");
extern __shared__ __align__(1024) unsigned char shared_memory[];

__device__ __forceinline__ unsigned shared_at(unsigned offset) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared_memory)) + offset;
}
__device__ __forceinline__ unsigned a_at(int stage, int tile) {
  return shared_at(stage * kStageBytes + tile * kTileBytes);
}
__device__ __forceinline__ unsigned b_at(int stage) { return a_at(stage, kTilesOfA); }
__device__ __forceinline__ unsigned full(int stage) { return shared_at(kBarriersAt + 16 * stage); }
__device__ __forceinline__ unsigned empty(int stage) { return full(stage) + 8; }

}  // namespace
