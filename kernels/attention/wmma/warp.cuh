// One multiplying warp's work on a tile of attention: Q K^T, softmax and P V of its rows and its keys.
//
// 2_wmma.cu explains how the pieces fit together. A warp's scores and weights lie in an area of shared memory of its
// own, so that __syncwarp() is all it needs between them.
//
// Archs      sm_80 and later.
// References CUDA C++ Programming Guide, "Warp Matrix Functions"; Milakov & Gimelshein 2018 (online softmax).
#pragma once

#include <mma.h>

#include "../parts/arithmetic.cuh"
#include "../parts/async_copy.cuh"
#include "block.cuh"

namespace {

constexpr float kLowest = -1e30f;  // first running maximum: finite, so that -inf scores never meet -inf - -inf

namespace wmma = nvcuda::wmma;
using Accumulator = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;
using RowFragment = wmma::fragment<wmma::matrix_a, 16, 16, 16, Number, wmma::row_major>;     // Q, P
using KeyFragment = wmma::fragment<wmma::matrix_b, 16, 16, 16, Number, wmma::col_major>;     // rows of K are columns
using ValueFragment = wmma::fragment<wmma::matrix_b, 16, 16, 16, Number, wmma::row_major>;

struct Warp {
  static constexpr int kGroup =  // tiles of keys at a time: independent products hide each other's latency
      kOwnTiles % 4 == 0 && kRowTiles == 1 ? 4 : kOwnTiles % 2 == 0 && kRowTiles <= 2 ? 2 : 1;
  static constexpr int kElements = Accumulator::num_elements;  // of an accumulator, per lane

  const int lane, warp_q, warp_kv;
  const Number *const query_rows, *const stages;
  float* const scores;    // kWarpRows x kWarpKeys, kScoreStride apart; at the end the part: see finish_tile()
  Number* const weights;  // kWarpRows x kWarpKeys, kWeightStride apart
  int place[kElements];   // 16 * row + column of this lane's elements of an accumulator
  bool pairs;             // whether place[2 i + 1] is right of place[2 i], at an even column
  int first_row, seq_len_k;
  // Of row lane / 2 of each row tile: the scaled maximum, and the sum of this lane's weights.
  float maximum[kRowTiles], sum[kRowTiles];
  Accumulator output[kRowTiles][kDimTiles];
  RowFragment query[kRowTiles][Q_IN_REGS ? kDimTiles : 1];

  __device__ __forceinline__ explicit Warp(unsigned char* memory)
      : lane(threadIdx.x % 32), warp_q(threadIdx.x / 32 / kWarpsKv), warp_kv(threadIdx.x / 32 % kWarpsKv),
        query_rows(reinterpret_cast<const Number*>(memory + kQueryAt) + Rows::tile(warp_q * kRowTiles, 0)),
        stages(reinterpret_cast<const Number*>(memory)),
        scores(reinterpret_cast<float*>(memory + kAreasAt + threadIdx.x / 32 * kAreaBytes)),
        weights(reinterpret_cast<Number*>(scores + kWarpRows * kScoreStride)), pairs(true) {
    // Only WMMA knows which elements of an accumulator a lane holds. A matrix that counts its elements shows it.
#pragma unroll
    for (int i = 0; i < 8; ++i) scores[lane * 8 + i] = static_cast<float>(lane * 8 + i);
    __syncwarp();
    Accumulator count;
    wmma::load_matrix_sync(count, scores, 16, wmma::mem_row_major);
#pragma unroll
    for (int i = 0; i < kElements; ++i) place[i] = static_cast<int>(count.x[i]);
#pragma unroll
    for (int i = 0; i < kElements; i += 2) pairs = pairs && place[i] % 2 == 0 && place[i + 1] == place[i] + 1;
    __syncwarp();
  }

  // Two lanes keep a row's values. This fetches the value for the row of element i of this lane's accumulators.
  __device__ __forceinline__ float of_row(float value, int i) const {
    return __shfl_sync(~0u, value, place[i] / 16 * 2);
  }

  __device__ __forceinline__ void start_tile(const Tile& tile) {
    first_row = tile.first_row + warp_q * kWarpRows;
    seq_len_k = tile.seq_len_k;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      maximum[r] = kLowest, sum[r] = 0.0f;
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) wmma::fill_fragment(output[r][d], 0.0f);
      if constexpr (Q_IN_REGS)
#pragma unroll
        for (int d = 0; d < kDimTiles; ++d) load_query(query[r][d], r, d);
    }
  }
  __device__ __forceinline__ void load_query(RowFragment& fragment, int row_tile, int d) const {
    wmma::load_matrix_sync(fragment, query_rows + Rows::tile(row_tile, d), Rows::kLeading);
  }

  // ---- which keys ----

  __device__ __forceinline__ int keys_seen(int row) const {  // by a row of the warp
    return CAUSAL ? min(seq_len_k, first_row + row + 1) : seq_len_k;
  }
  __device__ __forceinline__ bool sees(int key) const { return key < keys_seen(kWarpRows - 1); }

  // The tiles of 16 keys of a block go round the kWarpsKv warps. A stage with fewer tiles leaves some warps idle.
  __device__ __forceinline__ bool shares(int stage_of_block) const {
    return kStageTiles >= kWarpsKv || stage_of_block * kStageTiles % kWarpsKv == warp_kv / kStageTiles * kStageTiles;
  }
  __device__ __forceinline__ int tile_of_stage(int own) const {
    return kStageTiles >= kWarpsKv ? own * kWarpsKv + warp_kv : warp_kv % kStageTiles;
  }
  // The first column of a stage's tiles in the warp's area.
  __device__ __forceinline__ int column_of_stage(int stage_of_block) const {
    return 16 * (kStageTiles >= kWarpsKv ? stage_of_block * kOwnTiles : stage_of_block * kStageTiles / kWarpsKv);
  }

  // ---- S = Q K^T, of one stage: it begins with `key` ----

  __device__ __forceinline__ void multiply_keys(int stage, int key, int stage_of_block) {
    if (!shares(stage_of_block)) return;
    const Number* rows = stages + stage * (kStageBytes / 2);
    float* to = scores + column_of_stage(stage_of_block);
#pragma unroll
    for (int own = 0; own < kOwnTiles; own += kGroup) {
      if (!sees(key + 16 * tile_of_stage(own))) return;  // scores that are not written will be masked
      Accumulator products[kRowTiles][kGroup];
#pragma unroll
      for (int i = 0; i < kRowTiles * kGroup; ++i) wmma::fill_fragment(products[i / kGroup][i % kGroup], 0.0f);
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) {
        if constexpr (!Q_IN_REGS)
#pragma unroll
          for (int r = 0; r < kRowTiles; ++r) load_query(query[r][0], r, d);
#pragma unroll
        for (int g = 0; g < kGroup; ++g) {
          KeyFragment keys;
          wmma::load_matrix_sync(keys, rows + Rows::tile(tile_of_stage(own + g), d), Rows::kLeading);
#pragma unroll
          for (int r = 0; r < kRowTiles; ++r)
            wmma::mma_sync(products[r][g], query[r][Q_IN_REGS ? d : 0], keys, products[r][g]);
        }
      }
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
        for (int g = 0; g < kGroup; ++g)
          wmma::store_matrix_sync(to + r * 16 * kScoreStride + (own + g) * 16, products[r][g], kScoreStride,
                                  wmma::mem_row_major);
    }
  }

  // ---- P = 2^(c S - m), of one block ----

  __device__ __forceinline__ void weigh_block(int block, float scale_log2) {
    if (!sees(block)) return;
    __syncwarp();  // all scores are there, and all lanes have read the last weights
    float alpha[kRowTiles];  // by how much older weights were too large
    bool grew = false;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      if (block + BLOCK_N > keys_seen(0))
        alpha[r] = weigh_rows<true>(r, block, scale_log2);
      else
        alpha[r] = weigh_rows<false>(r, block, scale_log2);
      grew = grew || alpha[r] != 1.0f;
    }
    __syncwarp();
    if (!__any_sync(~0u, grew)) return;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        const float factor = of_row(alpha[r], i);
#pragma unroll
        for (int d = 0; d < kDimTiles; ++d) output[r][d].x[i] *= factor;
      }
  }

  // Two lanes work on a row, four scores each in turn.
  template <bool MASKED>
  __device__ __forceinline__ float weigh_rows(int r, int block, float scale_log2) {
    const int row = r * 16 + lane / 2, column = lane % 2 * 4;
    const int keys = keys_seen(row);
    const float masked = __int_as_float(0xff800000);  // -inf
    float score[kWarpKeys / 8][4], top = masked;
#pragma unroll
    for (int c = 0; c < kWarpKeys / 8; ++c) {
      const float4 four = *reinterpret_cast<const float4*>(scores + row * kScoreStride + 8 * c + column);
      score[c][0] = four.x, score[c][1] = four.y, score[c][2] = four.z, score[c][3] = four.w;
      const int key = block + 16 * (c / 2 * kWarpsKv + warp_kv) + c % 2 * 8 + column;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (MASKED && key + e >= keys) score[c][e] = masked;
        top = fmaxf(top, score[c][e]);
      }
    }
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    const float before = maximum[r], now = fmaxf(before, top * scale_log2);
    const float alpha = exp2_approximate(before - now);
    float weight_sum = 0.0f;
#pragma unroll
    for (int c = 0; c < kWarpKeys / 8; ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        score[c][e] = exp2_approximate(score[c][e] * scale_log2 - now);
        weight_sum += score[c][e];
      }
      *reinterpret_cast<uint2*>(weights + row * kWeightStride + 8 * c + column) =
          make_uint2(pack<kBfloat16>(score[c][0], score[c][1]), pack<kBfloat16>(score[c][2], score[c][3]));
    }
    maximum[r] = now;
    sum[r] = sum[r] * alpha + weight_sum;
    return alpha;
  }

  // ---- O += P V, of one stage ----

  __device__ __forceinline__ void multiply_values(int stage, int key, int stage_of_block) {
    if (!shares(stage_of_block)) return;
    const Number* rows = stages + stage * (kStageBytes / 2);
    const Number* from = weights + column_of_stage(stage_of_block);
#pragma unroll
    for (int own = 0; own < kOwnTiles; ++own) {
      if (!sees(key + 16 * tile_of_stage(own))) return;
      RowFragment row_weights[kRowTiles];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r)
        wmma::load_matrix_sync(row_weights[r], from + r * 16 * kWeightStride + own * 16, kWeightStride);
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) {
        ValueFragment values;
        wmma::load_matrix_sync(values, rows + Rows::tile(tile_of_stage(own), d), Rows::kLeading);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) wmma::mma_sync(output[r][d], row_weights[r], values, output[r][d]);
      }
    }
  }

  // ---- O / l, rounded, of all keys ----
  // A warp's part is its output before the division, in shared memory, with each row's maximum and sum behind the row.

  __device__ __forceinline__ const float* part(int of_warp_kv) const {
    return scores + (of_warp_kv - warp_kv) * (kAreaBytes / 4);
  }

  // The warps that have the same rows wait for each other. The barrier's number is a constant: if a register held it,
  // all 16 barriers would count as taken.
  template <int Q = 0>
  __device__ __forceinline__ void sync_rows() const {
    if constexpr (kWarpsKv == 1)
      __syncwarp();
    else if (warp_q == Q)
      sync_some<1 + Q, 32 * kWarpsKv>();
    else if constexpr (Q + 1 < kWarpsQ)
      sync_rows<Q + 1>();
  }

  // The factor of each part of a row.
  __device__ __forceinline__ void merge_row(int row, float (&factors)[kWarpsKv]) const {
    float top = kLowest, total = 0.0f;
#pragma unroll
    for (int p = 0; p < kWarpsKv; ++p) {
      factors[p] = part(p)[row * kPartStride + HEAD_DIM];
      top = fmaxf(top, factors[p]);
    }
#pragma unroll
    for (int p = 0; p < kWarpsKv; ++p) {
      factors[p] = exp2_approximate(factors[p] - top);
      total += factors[p] * part(p)[row * kPartStride + HEAD_DIM + 1];
    }
#pragma unroll
    for (int p = 0; p < kWarpsKv; ++p) factors[p] = __fdividef(factors[p], total);
  }

  __device__ __forceinline__ void finish_tile(const Tile& tile) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
    if constexpr (kThroughParts) {
      __syncwarp();  // the weights were read
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int d = 0; d < kDimTiles; ++d)
          wmma::store_matrix_sync(scores + r * 16 * kPartStride + d * 16, output[r][d], kPartStride,
                                  wmma::mem_row_major);
        const int behind = (r * 16 + lane / 2) * kPartStride + HEAD_DIM;
        if (lane % 2 == 0) scores[behind] = maximum[r], scores[behind + 1] = sum[r];
      }
      sync_rows();
    }
    if constexpr (EPILOGUE == EPILOGUE_SHARED)
      write_rows(tile);
    else
      write_tiles(tile);
    if constexpr (kThroughParts && PERSISTENT) sync_rows();  // before the next tile's scores
  }

  // Stores row after row out of the parts, 16 bytes a thread.
  __device__ __forceinline__ void write_rows(const Tile& tile) const {
    constexpr int vectors = HEAD_DIM / 8;
#pragma unroll 4
    for (int i = warp_kv * 32 + lane; i < kWarpRows * vectors; i += 32 * kWarpsKv) {
      const int row = i / vectors, column = i % vectors * 8;
      const int row_of_tile = warp_q * kWarpRows + row;
      if (row_of_tile >= tile.rows) break;
      float factors[kWarpsKv], x[8] = {};
      merge_row(row, factors);
#pragma unroll
      for (int p = 0; p < kWarpsKv; ++p) {
        const float4* from = reinterpret_cast<const float4*>(part(p) + row * kPartStride + column);
        const float4 low = from[0], high = from[1];
        x[0] += factors[p] * low.x, x[1] += factors[p] * low.y, x[2] += factors[p] * low.z, x[3] += factors[p] * low.w;
        x[4] += factors[p] * high.x, x[5] += factors[p] * high.y;
        x[6] += factors[p] * high.z, x[7] += factors[p] * high.w;
      }
      *reinterpret_cast<uint4*>(tile.out + row_of_tile * HEAD_DIM + column) =
          make_uint4(pack<kBfloat16>(x[0], x[1]), pack<kBfloat16>(x[2], x[3]), pack<kBfloat16>(x[4], x[5]),
                     pack<kBfloat16>(x[6], x[7]));
    }
  }

  // Stores out of accumulators. Where other warps have parts of the rows, each warp adds up some of the columns.
  __device__ __forceinline__ void write_tiles(const Tile& tile) const {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      float factors[kWarpsKv];
      if constexpr (kThroughParts)
        merge_row(r * 16 + lane / 2, factors);
      else
        factors[0] = __fdividef(1.0f, sum[r]);
#pragma unroll
      for (int first = 0; first < kDimTiles; first += kWarpsKv) {
        const int d = first + warp_kv;
        if (d >= kDimTiles) break;
        float x[kElements] = {};
#pragma unroll
        for (int p = 0; p < kWarpsKv; ++p) {
          Accumulator of_part;
          if constexpr (kThroughParts)
            wmma::load_matrix_sync(of_part, part(p) + r * 16 * kPartStride + d * 16, kPartStride, wmma::mem_row_major);
          else
            of_part = output[r][first];
#pragma unroll
          for (int i = 0; i < kElements; ++i) x[i] += of_part.x[i] * of_row(factors[p], i);
        }
        write_tile(tile, x, warp_q * kWarpRows + r * 16, d * 16);
      }
    }
  }

  __device__ __forceinline__ void write_tile(const Tile& tile, const float (&x)[kElements], int row, int column) const {
#pragma unroll
    for (int i = 0; i < kElements; i += 2) {
      if (pairs) {
        if (row + place[i] / 16 < tile.rows)
          *reinterpret_cast<unsigned*>(tile.out + (row + place[i] / 16) * HEAD_DIM + column + place[i] % 16) =
              pack<kBfloat16>(x[i], x[i + 1]);
      } else {
#pragma unroll
        for (int e = i; e < i + 2; ++e)
          if (row + place[e] / 16 < tile.rows)
            tile.out[(row + place[e] / 16) * HEAD_DIM + column + place[e] % 16] = to_element<kBfloat16>(x[e]);
      }
    }
  }
};

}  // namespace
