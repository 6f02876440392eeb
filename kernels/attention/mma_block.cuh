// How kernels with mma.sync divide a tile among the warps of a block, and what lies where in the block's shared memory.
//
// The kernel's macros choose the sizes; 3_mma.cu explains them. VALUE_DIM is HEAD_DIM if a space has no features.
//
// Archs      sm_80 and later.
#pragma once

#include "async_copy.cuh"
#include "choices.cuh"
#include "element.cuh"
#include "row_features.h"
#include "shared_rows.cuh"

namespace {

constexpr bool kBfloat16 = DTYPE == DTYPE_BFLOAT16;
constexpr int kThreads = 32 * WARPS_Q * WARPS_KV;
constexpr int kRowTiles = BLOCK_M / (16 * WARPS_Q);  // tiles of 16 rows per warp
constexpr int kKeyTiles = BLOCK_N / (8 * WARPS_KV);  // tiles of 8 keys per warp
constexpr int kDimTiles = HEAD_DIM / 8;
constexpr int kValueTiles = VALUE_DIM / 8;
constexpr int kWarpRows = 16 * kRowTiles;
constexpr int kWarpKeys = 8 * kKeyTiles;

static_assert(BLOCK_M % (16 * WARPS_Q) == 0 && BLOCK_N % (16 * WARPS_KV) == 0, "warps have whole tiles");
static_assert(Q_IN_REGS || !SHARE_QK_SMEM, "Q must leave before K arrives");

using Rows = SharedRows<kDimTiles, SWIZZLE>;  // of Q, K, and `out`
using ValueRows = SharedRows<kValueTiles, SWIZZLE>;
using KeyPolicy = CopyPolicy<KV_EVICTION == KV_EVICTION_FIRST>;

// Shared memory: Q, later `out`, and behind it the stages (K, V, K, V, ...).
constexpr unsigned kQueryBytes = BLOCK_M * Rows::kRowBytes;
constexpr unsigned kKeyBytes = BLOCK_N * Rows::kRowBytes;
constexpr unsigned kStageBytes = kKeyBytes + BLOCK_N * ValueRows::kRowBytes;
constexpr unsigned kStagesAt = SHARE_QK_SMEM ? 0 : kQueryBytes;
extern __shared__ __align__(1024) unsigned char shared_memory[];

}  // namespace
