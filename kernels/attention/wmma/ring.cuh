// The ring of stages through which K and V reach the warps that multiply, and the two ways to fill it.
//
// A stage holds K_TILE rows, of K or of V, in the order of Walk. A multiplying warp calls acquire(), works on the stage
// that it returns, and calls release(). start_tile() waits for the tile's rows of Q, release_query() gives their memory
// back.
//
// Archs      sm_80 and later.
// References PTX ISA: "cp.async", "mbarrier".
#pragma once

#include "../parts/async_copy.cuh"
#include "block.cuh"

namespace {

__device__ __forceinline__ void copy_query(const Tile& tile, unsigned shared, int thread) {
  copy_rows<Rows, BLOCK_M, kLoaders>(shared + kQueryAt, tile.query, tile.rows, thread);
}

__device__ __forceinline__ void copy_stage(const Tile& tile, const Walk& walk, unsigned shared, int stage, int thread) {
  const Element* from = (walk.values ? tile.values : tile.keys) + static_cast<long long>(walk.key) * HEAD_DIM;
  copy_rows<Rows, K_TILE, kLoaders>(shared + stage * kStageBytes, from, tile.seq_len_k - walk.key, thread);
}

// PRODUCER_WARPS == 0: every thread copies, STAGES - 1 stages ahead. One barrier of the block per stage says both that
// the next stage is there and that the stage before it may be overwritten.
struct OwnRing {
  const Problem& problem;
  const unsigned shared;
  int number;  // of the tile that is being copied: it may be ahead
  Tile tile;
  Walk walk;
  int stage;

  __device__ __forceinline__ OwnRing(const Problem& of, unsigned base)
      : problem(of), shared(base), number(blockIdx.x), tile(of, blockIdx.x), walk(tile.keys_seen), stage(0) {
    copy_query(tile, shared, threadIdx.x);
    if constexpr (STAGES == 1) close_copy_group();
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) load_next(i);  // Q shares the group of the first stage
  }

  // Copies the next stage, if there is one. Closes a group either way, so that waits can count them.
  __device__ __forceinline__ void load_next(int to) {
    if (walk.more()) {
      copy_stage(tile, walk, shared, to, threadIdx.x);
      walk.next();
      if (PERSISTENT && !walk.more()) {
        number += gridDim.x;
        if (number < problem.tiles) {
          tile = Tile(problem, number);
          walk = Walk(tile.keys_seen);
        }
      }
    }
    close_copy_group();
  }

  __device__ __forceinline__ void start_tile(const Tile& started, bool first) {
    if (first) {
      wait_copy_groups<(STAGES > 1 ? STAGES - 2 : 0)>();
    } else {  // all warps are done with the last tile's Q: they have passed a barrier for V since then
      copy_query(started, shared, threadIdx.x);
      close_copy_group();
      wait_copy_groups<0>();
    }
    __syncthreads();
  }
  __device__ __forceinline__ void release_query() {}

  __device__ __forceinline__ int acquire() {
    if constexpr (STAGES == 1) {
      __syncthreads();
      load_next(0);
      wait_copy_groups<0>();
      __syncthreads();
      return 0;
    } else {
      wait_copy_groups<STAGES - 2>();
      __syncthreads();
      const int acquired = stage;
      load_next(stage == 0 ? STAGES - 1 : stage - 1);
      stage = stage == STAGES - 1 ? 0 : stage + 1;
      return acquired;
    }
  }
  __device__ __forceinline__ void release() {}
};

// PRODUCER_WARPS > 0. Stage i has two mbarriers: `full` ends a phase when all producer threads' copies have landed,
// `empty` when all multiplying warps have released it. Q is one more stage, number STAGES. The block needs no barrier.
__device__ __forceinline__ unsigned full_at(unsigned shared, int stage) { return shared + kBarriersAt + 16 * stage; }
__device__ __forceinline__ unsigned empty_at(unsigned shared, int stage) { return full_at(shared, stage) + 8; }

__device__ __forceinline__ void start_barriers(unsigned shared) {
  if (threadIdx.x == 0)
#pragma unroll
    for (int i = 0; i <= STAGES; ++i) {
      start_mbarrier(full_at(shared, i), 32 * PRODUCER_WARPS);
      start_mbarrier(empty_at(shared, i), WARPS);
    }
  __syncthreads();
}

// A ring's position: which stage, and the parity of its phase.
struct Position {
  int stage = 0;
  unsigned parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

// The work of the producer warps; `thread` counts among them.
__device__ __forceinline__ void produce(const Problem& problem, unsigned shared, int thread) {
  Position at;
  unsigned tile_parity = 0;
  int number = blockIdx.x;
  do {
    const Tile tile(problem, number);
    wait_mbarrier(empty_at(shared, STAGES), tile_parity ^ 1);  // passes the first time
    copy_query(tile, shared, thread);
    arrive_when_copied(full_at(shared, STAGES));
    for (Walk walk(tile.keys_seen); walk.more(); walk.next()) {
      wait_mbarrier(empty_at(shared, at.stage), at.parity ^ 1);
      copy_stage(tile, walk, shared, at.stage, thread);
      arrive_when_copied(full_at(shared, at.stage));
      at.next();
    }
    tile_parity ^= 1;
    number += gridDim.x;
  } while (PERSISTENT && number < problem.tiles);
  close_copy_group();
  wait_copy_groups<0>();  // no thread leaves with copies under way
}

struct FedRing {
  const unsigned shared;
  Position at;
  unsigned tile_parity = 0;

  __device__ __forceinline__ FedRing(const Problem&, unsigned base) : shared(base) {}

  __device__ __forceinline__ void start_tile(const Tile&, bool) {
    wait_mbarrier(full_at(shared, STAGES), tile_parity);
    tile_parity ^= 1;
  }
  __device__ __forceinline__ void release_query() { arrive_as_warp(empty_at(shared, STAGES)); }

  __device__ __forceinline__ int acquire() {
    wait_mbarrier(full_at(shared, at.stage), at.parity);
    return at.stage;
  }
  __device__ __forceinline__ void release() {
    arrive_as_warp(empty_at(shared, at.stage));
    at.next();
  }
  __device__ __forceinline__ void arrive_as_warp(unsigned mbarrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive_at_mbarrier(mbarrier);
  }
};

}  // namespace
