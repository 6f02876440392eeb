// Rows of Q, K and V in shared memory as WMMA can load them, and the copies that bring them there.
//
// load_matrix_sync takes a 16 x 16 tile as one address and one distance between its rows (the leading dimension). The
// compiler makes it an ldmatrix: eight rows at a time, 16 bytes of each, without bank conflicts if they lie in eight
// different places modulo 128 bytes. A XOR swizzle moves chunks within a row differently from row to row: its tiles
// have no leading dimension, so WMMA cannot load them. WMMA can load:
//   none  rows as they are: eight rows of 64, 128, 192 or 256 bytes share one or two places; conflicts of 4 or 8 ways
//   pad   16 bytes more a row: no conflicts, more memory
//   tile  every 16 x 16 tile for itself, 512 bytes, rows 32 bytes apart: conflicts of 2 ways, no more memory
// Tiles begin at multiples of 32 bytes, as WMMA demands, if the rows begin at one.
//
// Archs      sm_80 and later.
// References CUDA C++ Programming Guide, "Warp Matrix Functions"; PTX ISA, "wmma.load", "ldmatrix".
#pragma once

#include "copy_handover.cuh"

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

}  // namespace
