// One warp's work on a tile of attention: it copies (tile_copies.cuh), multiplies and weighs, block of keys by block of
// keys.
//
// 3_mma.cu explains how the pieces fit together. A Tile has rows and the keys that they see, as in mma_tile.cuh:
//   problem, first_row, rows, last_row(), keys_seen(row); first_seen(row) for HAS_WINDOW; total() for SINKS and LSE
//   position(row), query_head(row) for SCORES_CHANGE; own_key(row) for ALIBI
//   row_at() and keys_at() if STRIDED, else offset<DIM>(row) and keys_offset<DIM>(): where rows and keys lie in memory
// Of a warp's keys in a block, those from `seen` on are masked, and the first `hidden` lie before the window. Changed
// scores are in units of kUnit: log2(e), or 1 with a score modification. kChangedExponent makes them exponents of 2.
//
// Archs      sm_80 and later.
// References Milakov & Gimelshein 2018 (online softmax); FlashAttention-2, Dao 2023.
#pragma once

#include "async_copy.cuh"
#include "element.cuh"
#include "mma_block.cuh"
#include "mma_sync.cuh"
#include "part_merge.cuh"
#include "score_change.cuh"
#include "tile_copies.cuh"

namespace {

constexpr bool kWaitEarly = STAGES > 1 && V_WAIT == V_WAIT_EARLY;
constexpr float kLowest = -1e30f;  // finite, so that a row of -inf scores does not compute -inf - (-inf) = NaN

// A warp's share of a tile.
template <class Tile>
struct Worker : TileCopies<Tile> {
  using Copies = TileCopies<Tile>;
  using Copies::tile, Copies::lane, Copies::warp_q, Copies::warp_kv, Copies::row_of, Copies::key_of;
  using Copies::query_at, Copies::keys_at, Copies::values_at, Copies::first_block, Copies::blocks, Copies::stage;
  using Copies::load_query, Copies::load_keys, Copies::load_values, Copies::load_next_stage;
  using Copies::loaded, Copies::load_stage, Copies::shared;
  PartFragments<kRowTiles, kValueTiles> part;
  unsigned query[kRowTiles][Q_IN_REGS ? HEAD_DIM / 16 : 1][4];
#if ALIBI
  float slopes[kRowTiles][2];  // of this lane's rows, in the unit of scores
#endif

  __device__ __forceinline__ Worker(const Tile& of, unsigned base) : Copies(of, base) {
    part.begin(kLowest);
#if ALIBI
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        slopes[i][half] = kUnit * of.problem.features.alibi_slopes[of.query_head(row_of(i, half))];
#endif
  }

  // How many keys from `key` on a window hides from a row.
  template <bool MASKED>
  __device__ __forceinline__ int hidden_of(int row, int key) const {
    if constexpr (MASKED && HAS_WINDOW) return tile.first_seen(row) - key;
    return 0;
  }

  // ---- copies ----

  // Starts the copies of Q and of the first blocks, and loads Q's fragments into registers. To find packed rows needs
  // divisions: then the first K goes ahead of Q.
  __device__ __forceinline__ void begin() {
    constexpr bool keys_first = PACK_GQA && !SHARE_QK_SMEM;
    constexpr int groups = (STAGES == 1 ? 2 : 2 * (STAGES - 1)) - keys_first;  // closed after Q's group
    if constexpr (keys_first) load_keys(0, 0);
    load_query();
    if constexpr (SHARE_QK_SMEM) take_query<0>();
    if constexpr (SHARE_QK_SMEM) __syncthreads();
    if constexpr (!keys_first) load_keys(0, 0);
    load_values(0, 0);
    loaded = load_stage = 1;
#pragma unroll
    for (int i = 1; i < STAGES - 1; ++i) load_next_stage();
    if constexpr (Q_IN_REGS && !SHARE_QK_SMEM) take_query<groups>();
  }

  template <int GROUPS>
  __device__ __forceinline__ void take_query() {
    wait_copy_groups<GROUPS>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int d = 0; d < HEAD_DIM / 16; ++d)
        load_matrix(query[i][Q_IN_REGS ? d : 0], Rows::along(query_at, 2 * d) + i * 16 * Rows::kRowBytes);
  }

  // ---- one block of keys ----

  using Scores = float[kRowTiles][kKeyTiles][4];

  // Whether no row of the warp sees any of the 16 keys from number n * 8 on. The keys from `seen` on are hidden from
  // all rows by the mask, the first `hidden` by the window.
  template <bool MASKED>
  __device__ static __forceinline__ bool skips(int n, int seen, int hidden) {
    return MASKED && SKIP_MASKED && (n * 8 >= seen || (HAS_WINDOW && n * 8 + 16 <= hidden));
  }

  // Multiplies 16 keys at a time, unless they are skipped. Those scores stay undefined here: the mask replaces them.
  template <bool MASKED>
  __device__ __forceinline__ void multiply_keys(Scores& scores, int seen, int hidden = 0) {
    const unsigned from = keys_at + stage * kStageBytes;
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; ++d) {
      if constexpr (!Q_IN_REGS)
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i)
          load_matrix(query[i][0], Rows::along(query_at, 2 * d) + i * 16 * Rows::kRowBytes);
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) {
        if (skips<MASKED>(n, seen, hidden)) continue;
        unsigned key[4];
        load_matrix(key, Rows::along(from, 2 * d) + n * 8 * Rows::kRowBytes);
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          const unsigned(&q)[4] = query[i][Q_IN_REGS ? d : 0];
          if (d == 0) {
            multiply<kBfloat16>(scores[i][n], q, key[0], key[1]);
            multiply<kBfloat16>(scores[i][n + 1], q, key[2], key[3]);
          } else {
            multiply_add<kBfloat16>(scores[i][n], q, key[0], key[1]);
            multiply_add<kBfloat16>(scores[i][n + 1], q, key[2], key[3]);
          }
        }
      }
    }
  }

#if SCORES_CHANGE
  // For the scores of one of this lane's rows with the keys from `first` on.
  __device__ __forceinline__ ScoreChange change_of(int row_tile, int half, int first) const {
    const int row = row_of(row_tile, half), position = tile.position(row);
    ScoreChange change;
    change.scale = kUnit * tile.problem.softmax_scale;
#if ALIBI
    change.slope = slopes[row_tile][half];
    change.distance = static_cast<float>(tile.own_key(row) - first);
#endif
    change.head = tile.query_head(row), change.row = position, change.first = first;
    return change;
  }
#endif

#if HAS_SOFTCAP
  // Scores of rows and keys that do not exist come from left-overs of other launches in shared memory. They must not
  // choose the formula: see SoftCap.
  template <bool MASKED>
  __device__ __forceinline__ void cap_scores(Scores& scores, int key) const {
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_of(i, half);
        const bool exists = row < tile.rows;
        const int seen = MASKED ? tile.keys_seen(row) - key - lane % 4 * 2 : 0;
        const int hidden = hidden_of<MASKED>(row, key) - lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (exists && !(MASKED && (n * 8 + e >= seen || (HAS_WINDOW && n * 8 + e < hidden))))
              largest = fmaxf(largest, fabsf(scores[i][n][2 * half + e]));
      }
    const float softcap = tile.problem.features.softcap;
    const SoftCap cap = SoftCap::of(softcap, tile.problem.softmax_scale / softcap);
    cap(reinterpret_cast<float(&)[sizeof(Scores) / sizeof(float)]>(scores), largest);
  }
#endif

  // Scores become weights; maxima, sums and output follow. `key` is the warp's first key.
  template <bool MASKED>
  __device__ __forceinline__ void weigh(Scores& scores, int key) {
    const float scale = kScoresChange ? kChangedExponent : tile.problem.scale_log2;
#if HAS_SOFTCAP
    cap_scores<MASKED>(scores, key);
#endif
    float next[kRowTiles][2];
    bool moved = RESCALE_LOG2 == 0;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int seen = MASKED ? tile.keys_seen(row_of(i, half)) - key - lane % 4 * 2 : 0;
        const int hidden = hidden_of<MASKED>(row_of(i, half), key) - lane % 4 * 2;
#if SCORES_CHANGE
        const ScoreChange change = change_of(i, half, key + lane % 4 * 2);
#endif
        const float before = part.maximum[i][half];
        float top = before;
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& score = scores[i][n][2 * half + e];
#if SCORES_CHANGE
            score = change(score, n * 8 + e);
#endif
            if (MASKED && (n * 8 + e >= seen || (HAS_WINDOW && n * 8 + e < hidden)))
              score = __int_as_float(0xff800000);  // -inf
            top = fmaxf(top, score);
          }
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        if constexpr (RESCALE_LOG2 > 0) {
          if ((top - before) * scale <= static_cast<float>(RESCALE_LOG2)) top = before;
          moved |= top != before;
        }
        next[i][half] = top;
      }
    if (RESCALE_LOG2 == 0 || __any_sync(~0u, moved)) {
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float alpha = exp2_approximate((part.maximum[i][half] - next[i][half]) * scale);
          part.maximum[i][half] = next[i][half];
          part.sum[i][half] *= alpha;
#pragma unroll
          for (int n = 0; n < kValueTiles; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) part.output[i][n][2 * half + e] *= alpha;
        }
    }
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float shift = part.maximum[i][half] * scale;
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& weight = scores[i][n][2 * half + e];
            weight = exp2_approximate(fmaf(weight, scale, -shift));
            part.sum[i][half] += weight;
          }
      }
  }

  template <bool MASKED>
  __device__ __forceinline__ void multiply_values(const Scores& weights, int seen, int hidden = 0) {
    const unsigned from = values_at + stage * kStageBytes;
#pragma unroll
    for (int n = 0; n < kKeyTiles; n += 2) {
      if (skips<MASKED>(n, seen, hidden)) continue;
      unsigned weight[kRowTiles][4];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          weight[i][e] = pack<kBfloat16>(weights[i][n + e / 2][e % 2 * 2], weights[i][n + e / 2][e % 2 * 2 + 1]);
#pragma unroll
      for (int d = 0; d < kValueTiles; d += 2) {
        unsigned value[4];
        load_matrix_transposed(value, ValueRows::along(from, d) + n * 8 * ValueRows::kRowBytes);
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          multiply_add<kBfloat16>(part.output[i][d], weight[i], value[0], value[1]);
          multiply_add<kBfloat16>(part.output[i][d + 1], weight[i], value[2], value[3]);
        }
      }
    }
  }

  template <bool MASKED>
  __device__ __forceinline__ void attend(int step) {
    const int key = key_of(step) + warp_kv * kWarpKeys;
    const int last = min(tile.first_row + (warp_q + 1) * kWarpRows, tile.rows) - 1;  // the warp's last row
    const int seen = MASKED ? tile.keys_seen(last) - key : kWarpKeys;
    const int hidden = hidden_of<MASKED>(tile.first_row + warp_q * kWarpRows, key);
    const bool busy = !MASKED || !SKIP_MASKED || (seen > 0 && (!HAS_WINDOW || hidden < kWarpKeys));
    Scores scores;
    if constexpr (STAGES == 1) {
      wait_copy_groups<1>();
      __syncthreads();  // K is here, and the last V was read by all
      if (step > 0) load_values(step, 0);
    } else {
      wait_copy_groups<kWaitEarly ? 2 * STAGES - 4 : 2 * STAGES - 3>();
      __syncthreads();  // this block is here, and the last one was read by all
      load_next_stage();
    }
    if (busy) multiply_keys<MASKED>(scores, seen, hidden);
    if constexpr (STAGES == 1) {
      wait_copy_groups<0>();
      __syncthreads();  // V is here, and K was read by all
      load_keys(step + 1, 0);
      close_copy_group();  // empty, in the place of V's group at step 0, so that the first wait above fits every step
    }
    if (busy) weigh<MASKED>(scores, key);
    if constexpr (STAGES > 1 && !kWaitEarly) {
      wait_copy_groups<2 * STAGES - 2>();
      __syncthreads();
    }
    if (busy) multiply_values<MASKED>(scores, seen, hidden);
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }

  // Works through all blocks of one split; blocks that every row sees whole need no mask.
  __device__ __forceinline__ void attend_all(int split) {
    const int end = (tile.keys_seen(tile.last_row()) + BLOCK_N - 1) / BLOCK_N;
#if HAS_WINDOW
    // Windows begin at the first row's first key. Whole blocks lie behind the last row's first key.
    const int start = tile.first_seen(tile.first_row) / BLOCK_N, count = max(end - start, 0);
    first_block = start + count * split / SPLIT_KV;
    blocks = start + count * (split + 1) / SPLIT_KV - first_block;
    const int first_whole = (tile.first_seen(tile.last_row()) + BLOCK_N - 1) / BLOCK_N * BLOCK_N;
    const int end_whole = tile.keys_seen(tile.first_row) / BLOCK_N * BLOCK_N;
    begin();
    for (int step = 0; step < blocks; ++step) {
      const int key = key_of(step);
      if (key >= first_whole && key < end_whole)
        attend<false>(step);
      else
        attend<true>(step);
    }
#else
    const int count = end;
    first_block = count * split / SPLIT_KV;
    blocks = count * (split + 1) / SPLIT_KV - first_block;
    const int whole = min(max(tile.keys_seen(tile.first_row) / BLOCK_N - first_block, 0), blocks);
    begin();
    int step = 0;
    if constexpr (kReverse)
      for (; step < blocks - whole; ++step) attend<true>(step);
    for (; step < (kReverse ? blocks : whole); ++step) attend<false>(step);
    if constexpr (!kReverse)
      for (; step < blocks; ++step) attend<true>(step);
#endif
    wait_copy_groups<0>();
    if constexpr (!Q_IN_REGS)  // without a block there was no barrier yet: another thread's Q could overwrite `out`
      if (blocks == 0) __syncthreads();
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        part.sum[i][half] += __shfl_xor_sync(~0u, part.sum[i][half], 1);
        part.sum[i][half] += __shfl_xor_sync(~0u, part.sum[i][half], 2);
      }
  }

  // Stores O / l, rounded, to TILES column tiles of `out`, from `first_tile` on, through this warp's own part of shared
  // memory, so that a lane stores 16 bytes.
  template <int TILES>
  __device__ __forceinline__ void store_rows(const PartFragments<kRowTiles, TILES>& done, int first_tile) const {
    unsigned char* base = shared_memory;
#if STRIDED
    const auto& strides = tile.problem.out_strides;
    Element* out = PACK_GQA ? nullptr : tile.row_at(tile.problem.out, strides, tile.first_row);
#else
    Element* out = tile.problem.out + (PACK_GQA ? 0 : tile.template offset<VALUE_DIM>(tile.first_row));
#endif
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#if SINKS || LSE
        const int of_head = row_of(i, half);
        const bool tells = of_head < tile.rows && first_tile == 0 && lane % 4 == 0;
        const float sum = tile.total(of_head, tells, done.sum[i][half], done.maximum[i][half]);
#else
        const float sum = done.sum[i][half];
#endif
        const float scale = sum == 0.0f ? 0.0f : __fdividef(1.0f, sum);
        const int row = warp_q * kWarpRows + 16 * i + 8 * half + lane / 4;
#pragma unroll
        for (int n = 0; n < TILES; ++n) {
          const float(&o)[4] = done.output[i][n];
          *reinterpret_cast<unsigned*>(base + Rows::offset(row, first_tile + n) + lane % 4 * 4) =
              pack<kBfloat16>(o[2 * half] * scale, o[2 * half + 1] * scale);
        }
      }
    __syncwarp();
#pragma unroll
    for (int number = lane; number < kWarpRows * TILES; number += 32) {
      const int row = warp_q * kWarpRows + number / TILES, chunk = first_tile + number % TILES;
      const uint4 bits = *reinterpret_cast<const uint4*>(base + Rows::offset(row, chunk));
#if STRIDED
      if (tile.first_row + row < tile.rows) {
        Element* to = PACK_GQA ? tile.row_at(tile.problem.out, strides, tile.first_row + row)
                               : strides.further(out, row);
        *reinterpret_cast<uint4*>(to + chunk * 8) = bits;
      }
#else
      if (tile.first_row + row < tile.rows)
        *reinterpret_cast<uint4*>(
            out + (PACK_GQA ? tile.template offset<VALUE_DIM>(tile.first_row + row) : row * VALUE_DIM) + chunk * 8) =
            bits;
#endif
    }
  }
};

}  // namespace
