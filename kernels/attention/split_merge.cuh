// Merging the parts of an attention row that blocks of threads with different keys left in global memory.
//
// A split's part of a tile: o as float [ROWS][COLUMNS], then float2 {m, l} [ROWS]; see part_merge.cuh for m, l, o and
// for how they merge. Rows that do not exist are neither written nor read: a tile of decode has few. The merging
// threads share the rows' cells of four columns among them. All loads of a cell are under way together, since one load
// takes as long as the whole merge should take. The parts are added in their order.
//
// Archs      sm_80 and later.
// Reference  Milakov & Gimelshein 2018 (merging softmax).
#pragma once

#include "mma_sync.cuh"
#include "part_merge.cuh"

namespace {

template <int ROWS, int COLUMNS>
struct SplitPart {
  static constexpr int kFloats = ROWS * (COLUMNS + 2);
  static constexpr int kRowCells = COLUMNS / 4;
  static constexpr int kCells = ROWS * kRowCells;
  // In floats from the part's base.
  __device__ static __forceinline__ int element(int row, int column) { return row * COLUMNS + column; }
  __device__ static __forceinline__ int statistics(int row) { return ROWS * COLUMNS + 2 * row; }
};

// Stores a warp's fragments, of the rows from 16-row tile `first_row_tile` on for which exists(row), and of the columns
// from 8-column tile `first_column_tile` on.
template <class Part, int ROW_TILES, int TILES, class Exists>
__device__ __forceinline__ void store_split_part(const PartFragments<ROW_TILES, TILES>& part, float* base,
                                                 int first_row_tile, int first_column_tile, Exists exists) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < ROW_TILES; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 16 * (first_row_tile + i) + 8 * half + lane / 4;
      if (!exists(row)) continue;
      float* to = base + Part::element(row, first_column_tile * 8 + lane % 4 * 2);
#pragma unroll
      for (int n = 0; n < TILES; ++n)
        *reinterpret_cast<float2*>(to + n * 8) =
            make_float2(part.output[i][n][2 * half], part.output[i][n][2 * half + 1]);
      if (first_column_tile == 0 && lane % 4 == 0)
        *reinterpret_cast<float2*>(base + Part::statistics(row)) =
            make_float2(part.maximum[i][half], part.sum[i][half]);
    }
}

// The divisor of a row whose sum is that of its parts.
struct OwnSum {
  __device__ __forceinline__ float operator()(int row, int column, float sum, float maximum) const { return sum; }
};

// Merges the cells first, first + stride, ... of a tile's first `rows` rows, CELLS of them at a time;
// store(row, column, values) gets o / l of four columns, where l is total(row, column, sum, maximum). `parts` are
// `count` parts, one behind the other; TOGETHER of them are loaded at once. `scale` turns scores into exponents of 2.
template <class Part, int TOGETHER, int CELLS, class Store, class Total = OwnSum>
__device__ __forceinline__ void merge_split_parts(const float* parts, int count, int rows, int first, int stride,
                                                  float scale, Store store, Total total = {}) {
  const int cells = rows * Part::kRowCells;
  for (int cell = first; cell < cells; cell += CELLS * stride) {
    const float *from[CELLS], *statistics_from[CELLS];
    float top[CELLS], sum[CELLS], o[CELLS][4];
#pragma unroll
    for (int c = 0; c < CELLS; ++c) {
      const int here = min(cell + c * stride, cells - 1);  // past the end: the last cell again, not stored
      from[c] = parts + 4 * here;
      statistics_from[c] = parts + Part::statistics(here / Part::kRowCells);
      top[c] = -1e30f;  // like the part of a split without keys
      sum[c] = o[c][0] = o[c][1] = o[c][2] = o[c][3] = 0.0f;
    }
#pragma unroll
    for (int part = 0; part < count; part += TOGETHER) {
      float2 statistics[CELLS][TOGETHER];
      float4 theirs[CELLS][TOGETHER];
#pragma unroll
      for (int c = 0; c < CELLS; ++c)
#pragma unroll
        for (int p = 0; p < TOGETHER; ++p)
          if (part + p < count) {
            const int at = (part + p) * Part::kFloats;
            statistics[c][p] = __ldcg(reinterpret_cast<const float2*>(statistics_from[c] + at));
            theirs[c][p] = __ldcg(reinterpret_cast<const float4*>(from[c] + at));
          }
#pragma unroll
      for (int c = 0; c < CELLS; ++c) {
        float next = top[c];
#pragma unroll
        for (int p = 0; p < TOGETHER; ++p)
          if (part + p < count) next = fmaxf(next, statistics[c][p].x);
        const float alpha = exp2_approximate((top[c] - next) * scale);
        top[c] = next;
        sum[c] *= alpha;
#pragma unroll
        for (int e = 0; e < 4; ++e) o[c][e] *= alpha;
#pragma unroll
        for (int p = 0; p < TOGETHER; ++p)
          if (part + p < count) {
            const float weight = exp2_approximate((statistics[c][p].x - next) * scale);
            sum[c] += weight * statistics[c][p].y;
            o[c][0] += weight * theirs[c][p].x;
            o[c][1] += weight * theirs[c][p].y;
            o[c][2] += weight * theirs[c][p].z;
            o[c][3] += weight * theirs[c][p].w;
          }
      }
    }
#pragma unroll
    for (int c = 0; c < CELLS; ++c) {
      const int here = cell + c * stride;
      if (here >= cells) continue;
      const float divisor = total(here / Part::kRowCells, here % Part::kRowCells * 4, sum[c], top[c]);
      const float inverse = divisor == 0.0f ? 0.0f : __fdividef(1.0f, divisor);
#pragma unroll
      for (int e = 0; e < 4; ++e) o[c][e] *= inverse;
      store(here / Part::kRowCells, here % Part::kRowCells * 4, o[c]);
    }
  }
}

}  // namespace
