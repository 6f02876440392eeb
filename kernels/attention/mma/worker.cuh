// One warp's work on a tile of attention: it copies, multiplies and weighs, block of keys by block of keys. All threads
// of a block take part in the copies of the tile's Q, keys and values to shared memory.
//
// 3_mma.cu explains how the pieces fit together. Steps count the blocks of a split in the order in which they are
// worked on; KV_ORDER reverse begins with the last. Of a warp's keys in a block, those from `seen` on are masked, and
// the first `hidden` lie before the window. Changed scores are in units of kUnit: log2(e), or 1 with a score
// modification. kChangedExponent makes them exponents of 2.
//
// Contract   A Tile has rows and the keys that they see, as in mma/tile.cuh:
//              problem, first_row, rows, last_row(), keys_seen(row); first_seen(row) for HAS_WINDOW; total() for SINKS
//              and LSE
//              position(row), query_head(row) for SCORES_CHANGE; own_key(row) for ALIBI
//              row_at() and keys_at() if STRIDED, else offset<DIM>(row) and keys_offset<DIM>(): where rows and keys lie
//            attend_all() leaves the sums over a split's keys in `part`. store_rows() divides and stores them, or a
//            kernel merges them with other parts first (parts/merge.cuh).
//
// Archs      sm_80 and later.
// References Milakov & Gimelshein 2018 (online softmax); FlashAttention-2, Dao 2023.
#pragma once

#include "../parts/arithmetic.cuh"
#include "../parts/async_copy.cuh"
#include "../parts/merge.cuh"
#include "../parts/score_change.cuh"
#include "../parts/strides.cuh"
#include "block.cuh"
#include "shared_rows.cuh"

namespace {

constexpr bool kReverse = KV_ORDER == KV_ORDER_REVERSE;
constexpr bool kWaitEarly = STAGES > 1 && V_WAIT == V_WAIT_EARLY;
constexpr float kLowest = -1e30f;  // finite, so that a row of -inf scores does not compute -inf - (-inf) = NaN

// A warp's share of a tile.
template <class Tile>
struct Worker {
  const Tile& tile;
  const int lane, warp_q, warp_kv;
  const unsigned shared, query_at, keys_at, values_at;  // addresses of this lane's rows for ldmatrix
  int first_block, blocks;        // of the split
  int loaded, stage, load_stage;  // blocks whose copies have begun; the stage that is worked on; that of the next copy
  const RowCopy<kDimTiles, kThreads, Rows> copier;
  const RowCopy<kDimTiles, kThreads, Rows, KeyPolicy> key_copier;
#if VALUE_DIM != HEAD_DIM
  const RowCopy<kValueTiles, kThreads, ValueRows, KeyPolicy> value_copier;
#define VALUE_COPIER value_copier
#define VALUES_FROM value_copier
#else
#define VALUE_COPIER key_copier  // macros: a C++ reference would change the machine code
#define VALUES_FROM copier
#endif
  const Element *keys, *values;  // where this thread copies from, at block 0
  PartFragments<kRowTiles, kValueTiles> part;
  unsigned query[kRowTiles][Q_IN_REGS ? HEAD_DIM / 16 : 1][4];
#if ALIBI
  float slopes[kRowTiles][2];  // of this lane's rows, in the unit of scores
#endif

  __device__ __forceinline__ Worker(const Tile& of, unsigned base)
      : tile(of), lane(threadIdx.x % 32), warp_q(threadIdx.x / 32 % WARPS_Q), warp_kv(threadIdx.x / 32 / WARPS_Q),
        shared(base), query_at(base + Rows::offset(warp_q * kWarpRows + lane % 16, lane / 16)),
        keys_at(base + kStagesAt + Rows::offset(warp_kv * kWarpKeys + lane % 8 + lane / 16 * 8, lane / 8 % 2)),
        values_at(base + kStagesAt + kKeyBytes + ValueRows::offset(warp_kv * kWarpKeys + lane % 16, lane / 16)),
        loaded(0), stage(0), load_stage(0) {
#if STRIDED
    keys = copier.start_of(of.keys_at(of.problem.k, of.problem.k_strides), of.problem.k_strides);
    values = VALUES_FROM.start_of(of.keys_at(of.problem.v, of.problem.v_strides), of.problem.v_strides);
#else
    const long long from = of.template keys_offset<HEAD_DIM>() + copier.start();
    keys = of.problem.k + from;
    values = of.problem.v +
             (VALUE_DIM == HEAD_DIM ? from : of.template keys_offset<VALUE_DIM>() + VALUES_FROM.start());
#endif
    part.begin(kLowest);
#if ALIBI
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        slopes[i][half] = kUnit * of.problem.features.alibi_slopes[of.query_head(row_of(i, half))];
#endif
  }

  __device__ __forceinline__ int row_of(int row_tile, int half) const {
    return tile.first_row + warp_q * kWarpRows + 16 * row_tile + 8 * half + lane / 4;
  }
  __device__ __forceinline__ int key_of(int step) const {
    return (kReverse ? first_block + blocks - 1 - step : first_block + step) * BLOCK_N;
  }

  // How many keys from `key` on a window hides from a row.
  template <bool MASKED>
  __device__ __forceinline__ int hidden_of(int row, int key) const {
    if constexpr (MASKED && HAS_WINDOW) return tile.first_seen(row) - key;
    return 0;
  }

  // ---- copies ----

  __device__ __forceinline__ void load_query() const {
    const int valid = tile.rows - tile.first_row;
#if STRIDED
    const auto& strides = tile.problem.q_strides;
    const auto row_at = [&](int row) { return tile.row_at(tile.problem.q, strides, tile.first_row + row); };
    if constexpr (PACK_GQA)
      copier.gather<BLOCK_M>(shared, row_at, valid);
    else
      copier.copy_strided<BLOCK_M>(shared, copier.start_of(row_at(0), strides), strides, valid);
#else
    if constexpr (PACK_GQA)
      copier.gather<BLOCK_M>(
          shared, [&](int row) { return tile.problem.q + tile.template offset<HEAD_DIM>(tile.first_row + row); },
          valid);
    else
      copier.copy<BLOCK_M>(shared, tile.problem.q + tile.template offset<HEAD_DIM>(tile.first_row) + copier.start(),
                           valid);
#endif
    close_copy_group();
  }

  // Loads the block of step `step` of K or V, if there is one. Closes a group either way, so that waits can count them.
#if STRIDED
  template <class Copier, class Distances>
  __device__ __forceinline__ void load_block(const Copier& block_copier, const Element* from, const Distances& strides,
                                             unsigned to, int step) const {
    if (step < blocks) {
      const int key = key_of(step);
      block_copier.template copy_strided<BLOCK_N>(to, strides.source(from, key), strides, tile.problem.seq_len_k - key);
    }
    close_copy_group();
  }
  __device__ __forceinline__ void load_keys(int step, int to_stage) const {
    load_block(key_copier, keys, tile.problem.k_strides, shared + kStagesAt + to_stage * kStageBytes, step);
  }
  __device__ __forceinline__ void load_values(int step, int to_stage) const {
    load_block(VALUE_COPIER, values, tile.problem.v_strides,
               shared + kStagesAt + to_stage * kStageBytes + kKeyBytes, step);
  }
#else
  template <int DIM, class Copier>
  __device__ __forceinline__ void load_block(const Copier& block_copier, const Element* from, unsigned to,
                                             int step) const {
    if (step < blocks) {
      const int key = key_of(step);
      block_copier.template copy<BLOCK_N>(to, from + static_cast<long long>(key) * DIM, tile.problem.seq_len_k - key);
    }
    close_copy_group();
  }
  __device__ __forceinline__ void load_keys(int step, int to_stage) const {
    load_block<HEAD_DIM>(key_copier, keys, shared + kStagesAt + to_stage * kStageBytes, step);
  }
  __device__ __forceinline__ void load_values(int step, int to_stage) const {
    load_block<VALUE_DIM>(VALUE_COPIER, values,
                          shared + kStagesAt + to_stage * kStageBytes + kKeyBytes, step);
  }
#endif
  __device__ __forceinline__ void load_next_stage() {
    load_keys(loaded, load_stage);
    load_values(loaded, load_stage);
    ++loaded;
    load_stage = load_stage + 1 == STAGES ? 0 : load_stage + 1;
  }

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
