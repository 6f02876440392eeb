// How 2_wmma.cu divides a tile among the warps of a block, and what lies where in the block's shared memory.
//
// The kernel's macros choose the sizes; 2_wmma.cu explains them.
//
// Archs      sm_80 and later.
// Reference  CUDA C++ Programming Guide, "Warp Matrix Functions".
#pragma once

#include <mma.h>

#include "element.cuh"
#include "wmma_rows.cuh"

namespace {

constexpr bool kBfloat16 = DTYPE == DTYPE_BFLOAT16;
#if DTYPE == DTYPE_BFLOAT16
using Number = __nv_bfloat16;  // WMMA's type for an Element
#else
using Number = __half;
#endif
using Rows = WmmaRows<SWIZZLE>;

constexpr int kThreads = 32 * (WARPS + PRODUCER_WARPS);
constexpr int kLoaders = PRODUCER_WARPS > 0 ? 32 * PRODUCER_WARPS : kThreads;
constexpr int kRowTiles = BLOCK_M / 16 > WARPS ? BLOCK_M / 16 / WARPS : 1;  // tiles of 16 rows per warp
constexpr int kWarpsQ = BLOCK_M / 16 / kRowTiles;
constexpr int kWarpsKv = WARPS / kWarpsQ;
constexpr int kWarpRows = 16 * kRowTiles;
constexpr int kWarpKeys = BLOCK_N / kWarpsKv;
constexpr int kDimTiles = HEAD_DIM / 16;
constexpr int kStageTiles = K_TILE / 16;
constexpr int kOwnTiles = kStageTiles > kWarpsKv ? kStageTiles / kWarpsKv : 1;  // tiles of a stage per warp
constexpr bool kThroughParts = EPILOGUE == EPILOGUE_SHARED || kWarpsKv > 1;

static_assert(HEAD_DIM % 32 == 0 && HEAD_DIM <= 128, "HEAD_DIM is 32, 64, 96 or 128");
static_assert(16 * kRowTiles * kWarpsQ == BLOCK_M && kWarpsQ * kWarpsKv == WARPS, "warps have whole tiles of rows");
static_assert(BLOCK_N % (16 * kWarpsKv) == 0, "warps have whole tiles of keys");
static_assert(BLOCK_N % K_TILE == 0, "blocks have whole stages");
static_assert(kStageTiles % kWarpsKv == 0 || kWarpsKv % kStageTiles == 0, "stages' tiles go round evenly");

// Shared memory: the stages, Q, an area for each multiplying warp, mbarriers. Strides keep rows in different banks.
constexpr int kScoreStride = kWarpKeys + 8;   // floats
constexpr int kWeightStride = kWarpKeys + 8;  // elements
constexpr int kPartStride = HEAD_DIM + 8;     // floats
constexpr int kWorkBytes = kWarpRows * (4 * kScoreStride + 2 * kWeightStride);
constexpr int kPartBytes = kThroughParts ? 4 * kWarpRows * kPartStride : 0;
constexpr int kStageBytes = 2 * K_TILE * Rows::kElements;
constexpr int kQueryAt = STAGES * kStageBytes;
constexpr int kAreasAt = kQueryAt + 2 * BLOCK_M * Rows::kElements;
constexpr int kAreaBytes = kWorkBytes > kPartBytes ? kWorkBytes : kPartBytes;
constexpr int kBarriersAt = kAreasAt + WARPS * kAreaBytes;
extern __shared__ __align__(128) unsigned char shared_memory[];

}  // namespace
