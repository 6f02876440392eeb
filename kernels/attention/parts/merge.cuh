// Merging parts of an attention row that saw different keys.
//
// A part of a tile has, for each row, the maximum m of its scores, the sum l of 2^(scale (s - m)), and the same sum
// weighted by v, o. Parts merge like the blocks of online softmax: M = max m, weights w = 2^(scale (m - M)),
// l = sum w l, o = sum w o. The parts are added in their order, so the result does not depend on which finished first.
//
// Of warps   in shared memory (PartLayout): the fragments of o as float4 [16-row tile of BLOCK_M][8-column tile][lane],
//            then float2 {m, l} [BLOCK_M]. The reader has the same lane, so that a warp moves 512 bytes at once. In a
//            cluster each block merges some columns; the others send it these columns of the rows that exist.
// Of splits  in global memory (SplitPart): o as float [ROWS][COLUMNS], then float2 {m, l} [ROWS]. Rows that do not
//            exist are neither written nor read: a tile of decode has few. The merging threads share the rows' cells of
//            four columns among them. All loads of a cell are under way together, since one load takes as long as the
//            whole merge should take.
//
// Archs      sm_80 and later; send_part sm_90.
// Reference  Milakov & Gimelshein 2018 (merging softmax).
#pragma once

#include "arithmetic.cuh"
#include "blocks.cuh"
#include "mask.cuh"

namespace {

template <int ROWS, int COLUMNS>
struct PartLayout {
  static constexpr int kFloats = ROWS * (COLUMNS + 2);
  // In floats from the part's base.
  __device__ static __forceinline__ int fragment(int row_tile, int column_tile, int lane) {
    return ((row_tile * (COLUMNS / 8) + column_tile) * 32 + lane) * 4;
  }
  __device__ static __forceinline__ int statistics(int row) { return ROWS * COLUMNS + 2 * row; }
  // The bytes that send_part sends of a part, whose first `rows` rows exist: a lane's rows g and g + 8 go together.
  __device__ static __forceinline__ int sent_bytes(int rows) {
    const int pairs = rows >= ROWS ? ROWS / 2 : rows / 16 * 8 + min(rows % 16, 8);
    return pairs * 8 * (COLUMNS + 2);
  }
};

// A lane's registers of its warp's part: rows g and g + 8 of ROW_TILES row tiles, with TILES column tiles each.
template <int ROW_TILES, int TILES>
struct PartFragments {
  float output[ROW_TILES][TILES][4];
  float maximum[ROW_TILES][2];
  float sum[ROW_TILES][2];

  // Before the first key.
  __device__ __forceinline__ void begin(float lowest) {
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) maximum[i][half] = lowest, sum[i][half] = 0.0f;
#pragma unroll
      for (int n = 0; n < TILES; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) output[i][n][e] = 0.0f;
    }
  }
};

template <class Layout, int ROW_TILES, int TILES>
__device__ __forceinline__ void store_part(const PartFragments<ROW_TILES, TILES>& part, float* base,
                                           int first_row_tile) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
    for (int n = 0; n < TILES; ++n) {
      const float(&o)[4] = part.output[i][n];
      float* to = base + Layout::fragment(first_row_tile + i, n, lane);
      *reinterpret_cast<float4*>(to) = make_float4(o[0], o[1], o[2], o[3]);
    }
    if (lane % 4 == 0)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * (first_row_tile + i) + 8 * half + lane / 4;
        *reinterpret_cast<float2*>(base + Layout::statistics(row)) =
            make_float2(part.maximum[i][half], part.sum[i][half]);
      }
  }
}

// Sends each block of the cluster, also this one (number `own`), the columns of this warp's part that the block merges,
// as part `number` of the parts that lie there at `parts`. Rows that do not exist are not sent: of a part, a block gets
// Layout::sent_bytes(rows) bytes.
template <class Layout, int BLOCKS, int ROW_TILES, int TILES>
__device__ __forceinline__ void send_part(const PartFragments<ROW_TILES, TILES>& part, unsigned parts, int number,
                                          int own, unsigned inbox, int first_row_tile, int rows) {
  const int lane = threadIdx.x % 32;
  const unsigned base = parts + number * Layout::kFloats * 4;
  constexpr int tiles = TILES / BLOCKS;
#pragma unroll
  for (int block = 0; block < BLOCKS; ++block) {
    const bool stays = block == own;
    const unsigned to = stays ? base : in_block(base, block), there = in_block(inbox, block);
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) {
      if (16 * (first_row_tile + i) + lane / 4 >= rows) continue;
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
        const float(&o)[4] = part.output[i][block * tiles + n];
        send(to + 4 * Layout::fragment(first_row_tile + i, n, lane), there, stays, o[0], o[1], o[2], o[3]);
      }
      if (lane % 4 == 0)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = 16 * (first_row_tile + i) + 8 * half + lane / 4;
          send(to + 4 * Layout::statistics(row), there, stays, part.maximum[i][half], part.sum[i][half]);
        }
    }
  }
}

// merged = parts 0 .. PARTS - 1; part(p) is the base of part p. `scale` turns scores into exponents of 2.
template <class Layout, int PARTS, int ROW_TILES, int TILES, class Part>
__device__ __forceinline__ void merge_parts(PartFragments<ROW_TILES, TILES>& merged, Part part, int first_row_tile,
                                            int first_column_tile, float scale) {
  constexpr int kUnroll = PARTS < 16 ? PARTS : 8;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < ROW_TILES; ++i) {
    const auto statistics = [&](int p, int half) {
      const int row = 16 * (first_row_tile + i) + 8 * half + lane / 4;
      return *reinterpret_cast<const float2*>(part(p) + Layout::statistics(row));
    };
    float(&top)[2] = merged.maximum[i], (&sum)[2] = merged.sum[i];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half] = statistics(0, half).x;
      sum[half] = 0.0f;
#pragma unroll kUnroll
      for (int p = 1; p < PARTS; ++p) top[half] = fmaxf(top[half], statistics(p, half).x);
    }
#pragma unroll
    for (int n = 0; n < TILES; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) merged.output[i][n][e] = 0.0f;
#pragma unroll kUnroll
    for (int p = 0; p < PARTS; ++p) {
      float weight[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 theirs = statistics(p, half);
        weight[half] = exp2_approximate((theirs.x - top[half]) * scale);
        sum[half] += weight[half] * theirs.y;
      }
#pragma unroll
      for (int n = 0; n < TILES; ++n) {
        const float* from = part(p) + Layout::fragment(first_row_tile + i, first_column_tile + n, lane);
        const float4 theirs = *reinterpret_cast<const float4*>(from);
        float(&o)[4] = merged.output[i][n];
        o[0] += weight[0] * theirs.x;
        o[1] += weight[0] * theirs.y;
        o[2] += weight[1] * theirs.z;
        o[3] += weight[1] * theirs.w;
      }
    }
  }
}

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
      top[c] = kFirstMaximum;  // like the part of a split without keys
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
