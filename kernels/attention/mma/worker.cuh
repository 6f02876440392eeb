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
//              position(row), query_head(row) for SCORES_CHANGE; own_key(row) for ALIBI; mask_row(row) for HAS_MASK
//              row_at() and keys_at() if STRIDED, else offset<DIM>(row) and keys_offset<DIM>(): where rows and keys lie
//            attend_all() leaves the sums over a split's keys in `part`. store_rows() divides and stores them, or a
//            kernel merges them with other parts first (parts/merge.cuh).
//
// Archs      sm_80 and later.
// References Milakov & Gimelshein 2018 (online softmax); FlashAttention-2, Dao 2023.
#pragma once

#include "../parts/arithmetic.cuh"
#include "../parts/async_copy.cuh"
#include "../parts/mask.cuh"
#include "../parts/merge.cuh"
#include "../parts/score_change.cuh"
#include "../parts/strides.cuh"
#include "block.cuh"
#include "shared_rows.cuh"

namespace {

constexpr bool kReverse = KV_ORDER == KV_ORDER_REVERSE;
constexpr bool kWaitEarly = STAGES > 1 && V_WAIT == V_WAIT_EARLY;
constexpr bool kKeepsFirst = MASK_IS_PADDING && SPLIT_KV == 1 && !kReverse;  // its copies begin before padding is read
constexpr bool kMaskAhead = MASK_AHEAD && !MASK_IS_PADDING;
constexpr float kLowest = kFirstMaximum;

// The keys that a lane addresses for load_matrix() of two tiles of 8 keys, as in parts/mask.cuh. Macros, since calls
// change the machine code of kernels without masks.
#if LANE_KEYS == 2
#define KEY_ROW lane % 8 + lane / 16 * 8
#define VALUE_ROW lane % 16
#else
#define KEY_ROW column_key(lane / 16, lane % 8)
#define VALUE_ROW column_key(lane / 8 % 2, lane % 8)
#endif

// A warp's share of a tile.
template <class Tile>
struct Worker {
  const Tile& tile;
  const int lane, warp_q, warp_kv;
  const unsigned shared, query_at, keys_at, values_at;  // addresses of this lane's rows for ldmatrix
  int first_block, blocks;        // of the split
  int loaded, stage, load_stage;  // blocks whose copies have begun; the stage that is worked on; that of the next copy
  const RowCopy<kDimTiles, kThreads, Rows> copier;
  const RowCopy<kDimTiles, kThreads, KeyRows, KeyPolicy> key_copier;
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
#if MASK_IS_PADDING
  SeenBlocks<BLOCK_N> seen_blocks;
  PaddingBits<kKeyTiles> padding;  // of this warp's keys
#elif HAS_MASK
  const char* mask_at[kRowTiles][2];  // where this lane's rows of the mask begin
  MaskRow<kKeyTiles> mask[kRowTiles][2];
#if !MASK_IS_BIAS
  MaskBits<kKeyTiles> mask_bits[kRowTiles][2];
#endif
#endif
#if ALIBI
  float slopes[kRowTiles][2];  // of this lane's rows, in the unit of scores
#endif

  __device__ __forceinline__ Worker(const Tile& of, unsigned base)
      : tile(of), lane(threadIdx.x % 32), warp_q(threadIdx.x / 32 % WARPS_Q), warp_kv(threadIdx.x / 32 / WARPS_Q),
        shared(base), query_at(base + Rows::offset(warp_q * kWarpRows + lane % 16, lane / 16)),
        keys_at(base + kStagesAt + KeyRows::offset(warp_kv * kWarpKeys + KEY_ROW, lane / 8 % 2)),
        values_at(base + kStagesAt + kKeyBytes + ValueRows::offset(warp_kv * kWarpKeys + VALUE_ROW, lane / 16)),
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
#if HAS_MASK && !MASK_IS_PADDING
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        mask_at[i][half] = of.mask_row(row_of(i, half)) + (warp_kv * kWarpKeys + lane % 4 * LANE_KEYS) * kMaskBytes;
#endif
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
    const int block = kReverse ? first_block + blocks - 1 - step : first_block + step;
#if MASK_IS_PADDING
    return seen_blocks.number(block) * BLOCK_N;
#else
    return block * BLOCK_N;
#endif
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
  // divisions: then the first K goes ahead of Q. Padding says which blocks there are, and is read under these copies.
  __device__ __forceinline__ void begin(int split) {
    constexpr bool keys_first = PACK_GQA && !SHARE_QK_SMEM && !MASK_IS_PADDING;
    constexpr int groups = (STAGES == 1 ? 2 : 2 * (STAGES - 1)) - keys_first;  // closed after Q's group
    if constexpr (keys_first) load_keys(0, 0);
    load_query();
    if constexpr (MASK_IS_PADDING && !kKeepsFirst) choose_blocks(split);
    if constexpr (SHARE_QK_SMEM) take_query<0>();
    if constexpr (SHARE_QK_SMEM) __syncthreads();
    if constexpr (!keys_first) load_keys(0, 0);
    load_values(0, 0);
    if constexpr (kKeepsFirst) choose_blocks(split);
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

  // Whether no row of the warp sees any of the keys of tiles n and n + 1. The keys from `seen` on are hidden from all
  // rows by the causal mask, the first `hidden` by the window.
  template <bool MASKED>
  __device__ static __forceinline__ bool skips(int n, int seen, int hidden) {
    const int first = LANE_KEY(n, 0), end = LANE_KEY(n + 1, 1) + 3 * LANE_KEYS + 1;
    return MASKED && SKIP_MASKED && (first >= seen || (HAS_WINDOW && end <= hidden));
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
        load_matrix(key, KeyRows::along(from, 2 * d) + LANE_KEY(n, 0) * KeyRows::kRowBytes);
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
        const int seen = MASKED ? tile.keys_seen(row) - key - lane % 4 * LANE_KEYS : 0;
        const int hidden = hidden_of<MASKED>(row, key) - lane % 4 * LANE_KEYS;
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (exists && !(MASKED && (LANE_KEY(n, e) >= seen || (HAS_WINDOW && LANE_KEY(n, e) < hidden))))
              largest = fmaxf(largest, fabsf(scores[i][n][2 * half + e]));
      }
    const float softcap = tile.problem.features.softcap;
    const SoftCap cap = SoftCap::of(softcap, tile.problem.softmax_scale / softcap);
    cap(reinterpret_cast<float(&)[sizeof(Scores) / sizeof(float)]>(scores), largest);
  }
#endif

#if HAS_MASK
  // ---- the mask ----

  // Loads this lane's part of the mask for the block of step `step`, if there is one. `key`: the warp's first key.
  __device__ __forceinline__ void load_mask(int step) {
    const int key = key_of(step);
#if MASK_IS_PADDING
    const int own = key + warp_kv * kWarpKeys;
    padding.load(tile.mask_row(0) + own, tile.problem.seq_len_k - own);
#else
    const int own = key + warp_kv * kWarpKeys + lane % 4 * LANE_KEYS;
    const int exist = step < blocks ? tile.problem.seq_len_k - own : 0;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        mask[i][half].load(mask_at[i][half] + static_cast<long long>(key) * kMaskBytes, exist);
#endif
  }

  // The loaded bytes become bits. False if they hide all keys from all rows of the warp.
  __device__ __forceinline__ bool take_mask() {
#if MASK_IS_PADDING
    padding.seal();
    return padding.sees_any();
#elif !MASK_IS_BIAS
    bool any = false;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        mask_bits[i][half] = MaskBits<kKeyTiles>(mask[i][half]);
        any |= mask_bits[i][half].sees_any();
      }
    return __any_sync(~0u, any);
#else
    return true;
#endif
  }

  // Scores that the mask hides become -inf, and a bias is added, after all other changes. `key` as in weigh().
  template <bool MASKED>
  __device__ __forceinline__ void mask_scores(Scores& scores, int key) {
#if !MASK_IS_BIAS && !MASK_IS_PADDING
    bool all = true;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) all &= mask_bits[i][0].sees_all() && mask_bits[i][1].sees_all();
    all = !__any_sync(~0u, !all);
#endif
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto score = [&](int number) -> float& { return scores[i][number / 2][2 * half + number % 2]; };
#if SCORES_CHANGE
        const ScoreChange change = change_of(i, half, key + lane % 4 * LANE_KEYS);
#pragma unroll
        for (int number = 0; number < 2 * kKeyTiles; ++number)
          score(number) = change(score(number), lane_key(number));
#endif
#if MASK_IS_BIAS
#pragma unroll
        for (int number = 0; number < 2 * kKeyTiles; ++number) {
          const float bias = mask[i][half].bias(number);
          score(number) = SCORES_CHANGE ? score(number) + bias : fmaf(score(number), tile.problem.softmax_scale, bias);
        }
#elif MASK_IS_PADDING
        if constexpr (MASKED) padding.hide(score);
#else
        if (!all) mask_bits[i][half].hide(score);
#endif
      }
  }

#if MASK_IS_BIAS
  // Subtracts the rows' maxima from the scores, if that of any row of the warp is far from 0.
  __device__ __forceinline__ bool subtract_far_maxima(Scores& scores) const {
    bool far = false;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) far |= is_far(part.maximum[i][0]) || is_far(part.maximum[i][1]);
    far = kReachesFar && __any_sync(~0u, far);
    if (far)
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) scores[i][n][e] -= part.maximum[i][e / 2];
    return far;
  }
#endif
#endif

  // Scores become weights; maxima, sums and output follow. `key` is the warp's first key.
  template <bool MASKED>
  __device__ __forceinline__ void weigh(Scores& scores, int key) {
    const float scale = kScoresChange ? kChangedExponent : tile.problem.scale_log2;
#if HAS_SOFTCAP
    cap_scores<MASKED>(scores, key);
#endif
#if HAS_MASK
    mask_scores<MASKED>(scores, key);
#endif
    float next[kRowTiles][2];
    bool moved = RESCALE_LOG2 == 0;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int seen = MASKED ? tile.keys_seen(row_of(i, half)) - key - lane % 4 * LANE_KEYS : 0;
        const int hidden = hidden_of<MASKED>(row_of(i, half), key) - lane % 4 * LANE_KEYS;
#if SCORES_CHANGE && !HAS_MASK
        const ScoreChange change = change_of(i, half, key + lane % 4 * 2);
#endif
        const float before = part.maximum[i][half];
        float top = before;
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& score = scores[i][n][2 * half + e];
#if SCORES_CHANGE && !HAS_MASK
            score = change(score, n * 8 + e);
#endif
            if (MASKED && (LANE_KEY(n, e) >= seen || (HAS_WINDOW && LANE_KEY(n, e) < hidden)))
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
#if MASK_IS_BIAS
    const bool far = subtract_far_maxima(scores);
#endif
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#if MASK_IS_BIAS
        const float shift = far ? 0.0f : part.maximum[i][half] * scale;
#else
        const float shift = part.maximum[i][half] * scale;
#endif
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
        load_matrix_transposed(value, ValueRows::along(from, d) + LANE_KEY(n, 0) * ValueRows::kRowBytes);
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
    bool busy = !MASKED || !SKIP_MASKED || (seen > 0 && (!HAS_WINDOW || hidden < kWarpKeys));
#if HAS_MASK
    constexpr bool mask_now = MASK_IS_PADDING ? MASKED : !kMaskAhead;
    if constexpr (kMaskAhead && !MASK_IS_BIAS) busy = take_mask() && busy;
    if constexpr (mask_now) load_mask(step);
    if constexpr (kMaskAhead && !MASK_IS_BIAS) load_mask(step + 1);
#endif
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
#if HAS_MASK
    if constexpr (mask_now) busy = take_mask() && busy;
#endif
    if (busy) weigh<MASKED>(scores, key);
#if HAS_MASK
    if constexpr (kMaskAhead && MASK_IS_BIAS) load_mask(step + 1);
#endif
    if constexpr (STAGES > 1 && !kWaitEarly) {
      wait_copy_groups<2 * STAGES - 2>();
      __syncthreads();
    }
    if (busy) multiply_values<MASKED>(scores, seen, hidden);
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }

  // Whether padding hides no key of the block that begins with `key`.
  __device__ __forceinline__ bool padding_leaves(int key) const {
#if MASK_IS_PADDING
    return seen_blocks.is_whole(key / BLOCK_N);
#else
    return true;
#endif
  }

  // Finds the blocks of this split: among those that padding leaves, if there is one, else among all that a row sees.
  // kKeepsFirst: the first one alone, unless its copies have begun.
  __device__ __forceinline__ void choose_blocks(int split, bool has_first = true) {
    const int end = (tile.keys_seen(tile.last_row()) + BLOCK_N - 1) / BLOCK_N;
#if HAS_WINDOW
    const int start = tile.first_seen(tile.first_row) / BLOCK_N;  // of the first row's first key
#else
    constexpr int start = 0;
#endif
#if MASK_IS_PADDING
    if (kKeepsFirst && !has_first)
      seen_blocks = {start, end};
    else
      seen_blocks = SeenBlocks<BLOCK_N>::template of<kKeepsFirst>(tile.mask_row(0), tile.problem.seq_len_k, start, end);
    const int from = 0, count = seen_blocks.count;
#else
    const int from = start, count = HAS_WINDOW ? max(end - start, 0) : end;
#endif
    first_block = from + count * split / SPLIT_KV;
    blocks = from + count * (split + 1) / SPLIT_KV - first_block;
  }

  // Works through all blocks of one split; blocks that every row sees whole need no mask.
  __device__ __forceinline__ void attend_all(int split) {
    if constexpr (!MASK_IS_PADDING || kKeepsFirst) choose_blocks(split, false);
#if HAS_MASK
    if constexpr (kMaskAhead) load_mask(0);
#endif
#if HAS_WINDOW || MASK_IS_PADDING
    // Whole blocks lie behind the last row's first key.
#if HAS_WINDOW
    const int first_whole = (tile.first_seen(tile.last_row()) + BLOCK_N - 1) / BLOCK_N * BLOCK_N;
#else
    constexpr int first_whole = 0;
#endif
    const int end_whole = tile.keys_seen(tile.first_row) / BLOCK_N * BLOCK_N;
    begin(split);
    for (int step = 0; step < blocks; ++step) {
      const int key = key_of(step);
      if (key >= first_whole && key < end_whole && padding_leaves(key))
        attend<false>(step);
      else
        attend<true>(step);
    }
#else
    const int whole = min(max(tile.keys_seen(tile.first_row) / BLOCK_N - first_block, 0), blocks);
    begin(split);
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
