// C = A B (+ alpha C) for cache-sized blocks: ROWS x COLS accumulators in registers per step of the depth.
//
// Per step it loads a few vectors of B, broadcasts a few scalars of A, and updates every accumulator.
// Archs      any that parts/simd.h has vectors for.
// Tunables   ROWS and COLS (template arguments), UNROLL, PARTS, PREFETCH. See 2_simd.cpp.
// Reference  Goto & van de Geijn 2008, "Anatomy of high-performance matrix multiplication"; BLIS.
#pragma once

#include <cstddef>

#include "simd.h"

namespace {

constexpr int kUnroll = UNROLL;  // the pragma takes a constant, it does not expand macros

// One product C = A B. Element (row, step) of A is a[row * a_row + step * a_step], B has a row of columns per step.
// Everything is inlined into the two callers. Their strides are constants, except those of unpacked rows of a tensor.
struct Product {
  const float* a;
  std::ptrdiff_t a_row;
  int a_step;
  const float* b;
  std::ptrdiff_t b_step;
  float* c;
  int c_row;
  const float* alpha;  // the old C is scaled by alpha[row] and added to; nullptr: C is overwritten
  int depth;
  bool a_streams;  // true: A comes from far and is prefetched (K as it lies); false: B is (K packed, V)
};

// The depth is summed in PARTS runs, each from zero: shorter chains of additions round less.
template <int ROWS, int COLS>
[[gnu::always_inline]] inline void tile(const Product& p) {
  constexpr int L = lanes_for(COLS);
  constexpr int N = COLS / L;
  for (int part = 0; part < PARTS; ++part) {
    Vec<L> sum[ROWS][N] = {};
#pragma GCC unroll kUnroll
    for (int step = part * p.depth / PARTS; step < (part + 1) * p.depth / PARTS; ++step) {
      if constexpr (PREFETCH > 0)
        __builtin_prefetch(p.a_streams ? p.a + PREFETCH * p.a_row + step * ROWS : p.b + (step + PREFETCH) * p.b_step);
      Vec<L> column[N];
      for (int n = 0; n < N; ++n) column[n] = load<L>(p.b + step * p.b_step + n * L);
      for (int row = 0; row < ROWS; ++row) {
        const Vec<L> scalar = broadcast<L>(p.a[row * p.a_row + step * p.a_step]);
        for (int n = 0; n < N; ++n) sum[row][n] = multiply_add(scalar, column[n], sum[row][n]);
      }
    }
    for (int row = 0; row < ROWS; ++row)
      for (int n = 0; n < N; ++n) {
        float* c = p.c + row * p.c_row + n * L;
        if (part > 0) sum[row][n] += load<L>(c);
        if (part == 0 && p.alpha) sum[row][n] = multiply_add(broadcast<L>(p.alpha[row]), load<L>(c), sum[row][n]);
        store<L>(c, sum[row][n]);
      }
  }
}

// The last rows, fewer than a tile has: a tile of just that many.
template <int ROWS, int COLS>
[[gnu::always_inline]] inline void last_tile(const Product& p, int rows) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS) return tile<ROWS, COLS>(p);
    last_tile<ROWS - 1, COLS>(p, rows);
  }
}

template <int ROWS, int COLS>
[[gnu::always_inline]] inline void column_of_tiles(Product p, int rows) {
  for (; rows >= ROWS; rows -= ROWS) {
    tile<ROWS, COLS>(p);
    p.a += ROWS * p.a_row;
    p.c += ROWS * p.c_row;
    if (p.alpha) p.alpha += ROWS;
  }
  last_tile<ROWS - 1, COLS>(p, rows);
}

// Panels of COLS columns, and a narrower last one where COLS does not divide ALL_COLS. `panel` is the distance between
// columns that are not in the same panel: 1 in row-major storage, the number of stored steps in packed storage.
template <int ROWS, int COLS, int ALL_COLS>
[[gnu::always_inline]] inline void multiply(Product p, int rows, int cols, int panel) {
  const bool packed = panel != 1;
  for (int first = 0; first < ALL_COLS / COLS && first * COLS < cols; ++first) {
    if (packed) p.b_step = COLS;
    column_of_tiles<ROWS, COLS>(p, rows);
    p.b += COLS * panel;
    p.c += COLS;
  }
  constexpr int rest = ALL_COLS % COLS;
  if constexpr (rest != 0) {
    if (packed) p.b_step = rest;
    if (cols > ALL_COLS - rest) column_of_tiles<ROWS, rest>(p, rows);
  }
}

}  // namespace
