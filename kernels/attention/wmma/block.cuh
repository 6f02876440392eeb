// How 2_wmma.cu divides a tile among the warps of a block, what lies where in shared memory, and which keys a tile
// sees.
//
// The kernel's macros choose the sizes; 2_wmma.cu explains them.
//
// Rows       of Q, K and V in shared memory as WMMA can load them. load_matrix_sync takes a 16 x 16 tile as one address
//            and one distance between its rows (the leading dimension). The compiler makes it an ldmatrix: eight rows
//            at a time, 16 bytes of each, without bank conflicts if they lie in eight different places modulo 128
//            bytes. A XOR swizzle moves chunks within a row differently from row to row: its tiles have no leading
//            dimension, so WMMA cannot load them. WMMA can load:
//              none  rows as they are: eight rows of 64, 128, 192 or 256 bytes share one or two places; conflicts of 4
//                    or 8 ways
//              pad   16 bytes more a row: no conflicts, more memory
//              tile  every 16 x 16 tile for itself, 512 bytes, rows 32 bytes apart: conflicts of 2 ways, no more memory
//            Tiles begin at multiples of 32 bytes, as WMMA demands, if the rows begin at one.
// Memory     the stages, Q, an area for each multiplying warp, mbarriers.
// Tiles      A tile is BLOCK_M rows of one head. A Walk is the order in which the stages of its keys and values pass.
//
// Archs      sm_80 and later.
// References CUDA C++ Programming Guide, "Warp Matrix Functions"; PTX ISA, "wmma.load", "ldmatrix".
#pragma once

#include <mma.h>

#include "../parts/arithmetic.cuh"
#include "../parts/async_copy.cuh"

namespace {

template <int SWIZZLE_KIND>
struct WmmaRows {
  static constexpr bool kTiled = SWIZZLE_KIND == SWIZZLE_TILE;
  static constexpr int kElements = HEAD_DIM + (SWIZZLE_KIND == SWIZZLE_PAD ? 8 : 0);  // per row in memory
  static constexpr int kLeading = kTiled ? 16 : kElements;

  // In elements, where a 16 x 16 tile begins.
  __device__ static __forceinline__ int tile(int row_tile, int column_tile) {
    return row_tile * 16 * kElements + column_tile * (kTiled ? 256 : 16);
  }
  __device__ static __forceinline__ int offset(int row, int column) {
    if constexpr (kTiled) return tile(row / 16, column / 16) + row % 16 * 16 + column % 16;
    return row * kElements + column;
  }

  // The order in which neighbouring threads copy VEC_WIDTH elements each: along a row, or with `tile` four rows of one
  // tile before the next tile. So they write 128 bytes without bank conflicts, and still read whole rows together.
  static constexpr int kVectors = HEAD_DIM / VEC_WIDTH;
  static constexpr int kTileVectors = 16 / VEC_WIDTH;
  static constexpr int kPeriod = kTiled ? 4 * kVectors : kVectors;
  __device__ static __forceinline__ int row_of(int vector) {
    return kTiled ? vector / kPeriod * 4 + vector / kTileVectors % 4 : vector / kVectors;
  }
  __device__ static __forceinline__ int column_of(int vector) {
    return (kTiled ? vector / (4 * kTileVectors) % (HEAD_DIM / 16) * kTileVectors + vector % kTileVectors
                   : vector % kVectors) *
           VEC_WIDTH;
  }
};

// THREADS threads copy ROWS contiguous rows to shared memory. Only the first `valid` exist: the others become zeros.
template <class Rows, int ROWS, int THREADS, bool ALL_EXIST, class Element>
__device__ __forceinline__ void copy_rows(unsigned shared, const Element* from, int valid, int thread) {
  constexpr int vectors = ROWS * Rows::kVectors;
  constexpr int passes = (vectors + THREADS - 1) / THREADS;
  // Where a thread stays in its column, the passes' addresses differ by constants.
  constexpr bool straight_down = THREADS % Rows::kPeriod == 0;
  constexpr int step = THREADS / Rows::kVectors;
  constexpr bool steady = straight_down && (!Rows::kTiled || step % 16 == 0);
  const int first_row = Rows::row_of(thread), first_column = Rows::column_of(thread);
  const unsigned first_to = shared + 2 * Rows::offset(first_row, first_column);
  const Element* first_from = from + first_row * HEAD_DIM + first_column;
#pragma unroll(passes <= 16 ? passes : 8)
  for (int i = 0; i < passes; ++i) {
    const int vector = thread + i * THREADS;
    if (vectors % THREADS != 0 && vector >= vectors) break;
    const int row = straight_down ? first_row + i * step : Rows::row_of(vector);
    const int column = straight_down ? first_column : Rows::column_of(vector);
    const unsigned to = steady ? first_to + i * step * 2 * Rows::kElements : shared + 2 * Rows::offset(row, column);
    const Element* at = straight_down ? first_from + i * step * HEAD_DIM : from + row * HEAD_DIM + column;
    if constexpr (ALL_EXIST)
      copy_async<2 * VEC_WIDTH>(to, at);
    else  // the first row exists
      copy_async<2 * VEC_WIDTH>(to, row < valid ? at : from, row < valid);
  }
}

template <class Rows, int ROWS, int THREADS, class Element>
__device__ __forceinline__ void copy_rows(unsigned shared, const Element* from, int valid, int thread) {
  if (valid >= ROWS)
    copy_rows<Rows, ROWS, THREADS, true>(shared, from, valid, thread);
  else
    copy_rows<Rows, ROWS, THREADS, false>(shared, from, valid, thread);
}

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

struct Problem {
  const Element *q, *k, *v;
  Element* out;
  int group, row_blocks, tiles, seq_len_q, seq_len_k;  // group: query heads per kv head
};

// BLOCK_M rows of one head. Causal: a head's longest rows come first.
struct Tile {
  const Element *query, *keys, *values;  // query: the tile's first row; keys, values: the head's first
  Element* out;
  int first_row, rows, keys_seen, seq_len_k;  // rows: from first_row to the end; keys_seen: by some row

  // `number` counts the row blocks of all heads over the batch. Without PERSISTENT the grid has both numbers already,
  // which saves the divisions.
  __device__ __forceinline__ Tile(const Problem& problem, int number) {
    const int head = PERSISTENT ? number / problem.row_blocks : blockIdx.y;
    const int row_block = PERSISTENT ? number % problem.row_blocks : blockIdx.x;
    first_row = (CAUSAL ? problem.row_blocks - 1 - row_block : row_block) * BLOCK_M;
    rows = problem.seq_len_q - first_row;
    seq_len_k = problem.seq_len_k;
    keys_seen = CAUSAL ? min(seq_len_k, first_row + min(rows, BLOCK_M)) : seq_len_k;
    const int kv_head = problem.group == 1 ? head : head / problem.group;  // divisions take long
    const long long row_at = (static_cast<long long>(head) * problem.seq_len_q + first_row) * HEAD_DIM;
    const long long keys_at = static_cast<long long>(kv_head) * seq_len_k * HEAD_DIM;
    query = problem.q + row_at;
    out = problem.out + row_at;
    keys = problem.k + keys_at;
    values = problem.v + keys_at;
  }
};

// The way through a tile's keys, block by block: first all stages of a block's K, then all stages of its V.
struct Walk {
  int keys_seen, block, key;
  bool values;

  __device__ __forceinline__ explicit Walk(int seen) : keys_seen(seen), block(0), key(0), values(false) {}
  __device__ __forceinline__ bool more() const { return block < keys_seen; }
  __device__ __forceinline__ void next() {
    key += K_TILE;
    if (key < min(block + BLOCK_N, keys_seen)) return;
    if (values) block += BLOCK_N;
    values = !values;
    key = block;
  }
};

}  // namespace
