// How kernels with mma.sync divide a tile among the warps of a block, and what lies where in the block's shared memory.
//
// The kernel's macros choose the sizes; 3_mma.cu explains them. VALUE_DIM is HEAD_DIM if a space has no features.
//
// A space may leave a choice out. Its constants (V_WAIT_EARLY, SWIZZLE_XOR, ...), with which the kernels compare, then
// become 0 here. A space numbers its choices from 1, so a comparison with 0 is false. STRIDED is 0 unless a binary is
// for views. Q_ROW to VIEW_KV_HEADS are 0 unless it is for one set of distances between rows and numbers of heads.
//
// Layout     Q, later `out`, and behind it the stages (K, V, K, V, ...); SHARE_QK_SMEM: the stages begin where Q does.
//            Rows lie as SharedRows says.
//
// Archs      sm_80 and later.
#pragma once

#ifndef STRIDED
#define STRIDED 0
#endif
#ifndef Q_ROW
#define Q_ROW 0
#endif
#ifndef K_ROW
#define K_ROW 0
#endif
#ifndef V_ROW
#define V_ROW 0
#endif
#ifndef OUT_ROW
#define OUT_ROW 0
#endif
#ifndef VIEW_HEADS
#define VIEW_HEADS 0
#endif
#ifndef VIEW_KV_HEADS
#define VIEW_KV_HEADS 0
#endif
#ifndef V_WAIT_EARLY
#define V_WAIT_EARLY 0
#endif
#ifndef SWIZZLE_XOR
#define SWIZZLE_XOR 0
#endif
#ifndef SWIZZLE_PAD
#define SWIZZLE_PAD 0
#endif
#ifndef KV_ORDER_REVERSE
#define KV_ORDER_REVERSE 0
#endif
#ifndef KV_EVICTION_FIRST
#define KV_EVICTION_FIRST 0
#endif
#ifndef MERGE_CLUSTER
#define MERGE_CLUSTER 0
#endif
#ifndef MERGE_KERNEL
#define MERGE_KERNEL 0
#endif
#ifndef TILE_ORDER_BY_ROW_DESCENDING
#define TILE_ORDER_BY_ROW_DESCENDING 0
#endif
#ifndef TILE_ORDER_BY_HEAD
#define TILE_ORDER_BY_HEAD 0
#endif
#ifndef TILE_ORDER_BY_HEAD_DESCENDING
#define TILE_ORDER_BY_HEAD_DESCENDING 0
#endif

#include "../parts/arithmetic.cuh"
#include "../parts/async_copy.cuh"
#include "../parts/features.h"
#include "../parts/mask.cuh"
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
static_assert(kWarpKeys % (4 * LANE_KEYS) == 0 || LANE_KEYS == 2, "a warp has whole groups of keys");
static_assert(Q_IN_REGS || !SHARE_QK_SMEM, "Q must leave before K arrives");

using Rows = SharedRows<kDimTiles, SWIZZLE>;  // of Q and `out`
using KeyRows = SharedRows<kDimTiles, SWIZZLE, LANE_KEYS>;
using ValueRows = SharedRows<kValueTiles, SWIZZLE, LANE_KEYS>;
using KeyPolicy = CopyPolicy<KV_EVICTION == KV_EVICTION_FIRST>;

// Shared memory: Q, later `out`, and behind it the stages (K, V, K, V, ...).
constexpr unsigned kQueryBytes = BLOCK_M * Rows::kRowBytes;
constexpr unsigned kKeyBytes = BLOCK_N * Rows::kRowBytes;
constexpr unsigned kStageBytes = kKeyBytes + BLOCK_N * ValueRows::kRowBytes;
constexpr unsigned kStagesAt = SHARE_QK_SMEM ? 0 : kQueryBytes;
extern __shared__ __align__(1024) unsigned char shared_memory[];

}  // namespace
