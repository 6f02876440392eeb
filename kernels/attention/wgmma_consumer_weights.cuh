// The scores of a block become weights, in a consumer warpgroup: changes of scores, masks, the softmax.
//
// KEEP_MAXIMUM: weights are relative to the maximum of the blocks before, so that a block waits for no maximum of its
// own. Scores that are far above that show in the sum of their weights. Then the warp computes its scores once more, by
// itself, and looks for their maximum; until this is decided the keys stay in shared memory. A tile's first block has no
// maximum before it. A block with a mask looks for its own one, too, since registers spill otherwise, unless its hidden
// scores become -inf first (kHidesApart). The 16 rows of a warp go the same way, so the last bits of a row depend on the
// other 15.
//
// Archs      sm_90a.
#pragma once

#include "mma_sync.cuh"
#include "score_change.cuh"
#include "wgmma_consumer_stores.cuh"
#include "wgmma_key_bias.cuh"
#include "wgmma_rings.cuh"
#include "wgmma_tile.cuh"

namespace {

// With a window a block's hidden scores become -inf before the softmax, so that blocks with and without a mask are the
// same code. Else the mask is part of the softmax, where it costs less.
constexpr bool kHidesApart = HAS_WINDOW && !kScoresChange && EXP2_FMA_SHARE == 0;

struct ConsumerWeights : ConsumerStores {
  using ConsumerStores::ConsumerStores;

#if SCORES_CHANGE
  // For the scores of one of this thread's rows with the keys from `first` on.
  __device__ __forceinline__ ScoreChange change_of(const Place& place, int half, int query, int first) const {
    ScoreChange change;
    change.scale = kUnit * problem.softmax_scale;
#if ALIBI
    change.slope = slopes[half];
    change.distance = static_cast<float>(place.own_key(query) - first);
#endif
    change.head = place.head_of(row_of(half)), change.row = query, change.first = first;
    return change;
  }
#endif

  // kBiasRides: the bias of one of this thread's rows, in units of q k.
  __device__ __forceinline__ LinearScore bias_of(const Place& place, int half, int first) const {
    const int query = place.query_of(group, row_of(half));
    const float of_score = 1.0f / problem.softmax_scale;
#if ALIBI
    const float rise = slopes[half] / kUnit * of_score;
    return {rise * static_cast<float>(first - place.own_key(query)), rise};
#else
    const LinearScore bias = LinearMod::of({}, place.head_of(row_of(half)), query, {first, 1});
    return {of_score * bias.base, of_score * bias.step};
#endif
  }

#if HAS_WINDOW
  RowMasks<BLOCK_N / 2> block_masks;
  RowMasks<BLOCK_N / 4> half_masks;

  template <Part PART>
  __device__ __forceinline__ RowMasks<keys_of(PART) / 2>& masks_of() {
    if constexpr (PART == kWhole)
      return block_masks;
    else
      return half_masks;
  }
#endif

  // kHidesApart: finds the hidden keys of a block. They depend on no score, so this is done while a product runs.
  template <Part PART>
  __device__ __forceinline__ void find_masks(const Place& place, int step, bool masked) {
#if HAS_WINDOW
    if constexpr (kHidesApart) {
      masks_of<PART>() = {};
      if (!masked) return;
      const int first = place.first_key(step) + first_of(PART) + lane % 4 * 2;
      int seen[2], hidden[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = place.query_of(group, row_of(half));
        seen[half] = place.keys_seen(query) - first, hidden[half] = place.first_seen(query) - first;
      }
      masks_of<PART>() = {seen, hidden};
    }
#endif
  }

  // FIRST: of the first block, which has no maximum before it. kHidesApart: find_masks() came before; `masked` is as
  // there, and unused with FIRST.
  template <bool MASKED, Part PART, bool FIRST = false>
  __device__ __forceinline__ void weigh(const Place& place, int step, bool masked = MASKED) {
    const int first = place.first_key(step) + first_of(PART);
    auto& part = scores_of<PART>();
    int seen[2], hidden[2] = {};
    ScoreChange change[2];
    float offset[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      seen[half] = place.keys_seen(place.query_of(group, row_of(half))) - first - lane % 4 * 2;
#if HAS_WINDOW
      hidden[half] = place.first_seen(place.query_of(group, row_of(half))) - first - lane % 4 * 2;
#endif
      if constexpr (kBiasRides) offset[half] = bias_of(place, half, place.first_key(step)).base;
#if SCORES_CHANGE
      change[half] = change_of(place, half, place.query_of(group, row_of(half)), first + lane % 4 * 2);
#endif
    }
#if HAS_SOFTCAP
    // Rows and keys that do not exist are zeros: tensor maps fill them in.
    const float largest = largest_of(part);
#if CAPS_ALONE
    if (!MASKED && !__any_sync(~0u, !small_cap.is_small(largest))) {  // NaN is not small
      softmax.weigh<false>(part, seen, hidden, change, offset, problem.exponent_scale(), small_cap);
      return;
    }
#endif
    SoftCap::of(problem.features.softcap, cap_scale)(part, largest);
#endif
    constexpr bool kKeeps = KEEPS_MAXIMUM && !FIRST && (kHidesApart || !MASKED);
#if HAS_WINDOW
    if constexpr (kHidesApart) softmax.hide(part, masks_of<PART>());
#endif
    if constexpr (kKeeps) {
      if (softmax.weigh_kept(part, change, offset, problem.exponent_scale())) return;
      scores_again();
#if HAS_WINDOW
      find_masks<PART>(place, step, masked);  // again, so that no register holds them until here
      if constexpr (kHidesApart) softmax.hide(part, masks_of<PART>());
#endif
    }
    softmax.weigh<MASKED && !kHidesApart>(part, seen, hidden, change, offset, problem.exponent_scale(), NoCap());
  }

  template <int SET, Part PART>
  __device__ __forceinline__ void pack_weights() {
#pragma unroll
    for (int i = first_of(PART) / 4; i < (first_of(PART) + keys_of(PART)) / 4; ++i)
      weights[SET][i] = pack<kBfloat16>(scores[2 * i], scores[2 * i + 1]);
  }
};

}  // namespace
