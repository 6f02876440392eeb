// Merging parts of an attention row that saw different keys.
//
// A part of a tile has, for each row, the maximum m of its scores, the sum l of 2^(scale (s - m)), and the same sum
// weighted by v, o. Parts merge like the blocks of online softmax: M = max m, weights w = 2^(scale (m - M)),
// l = sum w l, o = sum w o. The parts are added in their order, so the result does not depend on which finished first.
//
// Parts of warps, in shared memory: the fragments of o as float4 [16-row tile of BLOCK_M][8-column tile][lane] (the
// reader has the same lane, so that a warp moves 512 bytes at once), then float2 {m, l} [BLOCK_M].
// In a cluster (sm_90) each block merges some columns; the others send it these columns of the rows that exist.
// Parts of splits, in global memory: see split_merge.cuh.
//
// Archs      sm_80 and later; send_part sm_90.
// Reference  Milakov & Gimelshein 2018 (merging softmax).
#pragma once

#include "cluster_push.cuh"
#include "mma_sync.cuh"

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

}  // namespace
