// The online softmax of a block of scores, in the accumulator registers of the MMA.
//
// A thread has two rows, `half` 0 and 1, and of each a quarter of the columns. The other three quarters are in the
// lanes next to it. The running sum stays spread over the four lanes until the end.
//
// MUFU computes 2^x, 16 results a clock and multiprocessor: with head_dim 64 it is as slow as the tensor cores' MMA. So
// EXP2_FMA_SHARE sixteenths of the unmasked weights are computed by multiply-adds. With n = round(x) and
// f = x - n in [-1/2, 1/2], 2^x = 2^n p(f); adding 1.5 * 2^23 rounds, and leaves n in the low bits, from where a
// shift takes it to the exponent. p has degree 3: its relative error is at most 7.5e-5, less than a sixth of a float16
// weight's rounding (2^-11). The sum adds up the same weights, so that the error does not shift the mean.
// MUFU makes NaN of NaN and of inf - inf, as PyTorch does; the polynomial makes 2^-126 of them. So a row's maximum
// becomes NaN by any score that is NaN, and the sum becomes NaN by a maximum that is no finite number.
//
// Archs      sm_80 and later.
// Reference  Milakov & Gimelshein 2018 (online softmax).
#pragma once

#include "../parts/arithmetic.cuh"
#include "../parts/features.h"
#include "../parts/mask.cuh"
#include "../parts/score_change.cuh"
#include "choices.cuh"

namespace {

// KEEP_MAXIMUM: the most that the weights of a thread's columns may add up to. float16 holds each of them (up to
// 65504). With RESCALE_LOG2 8 weights up to 256 leave the maximum as it is, so that as many as there are columns must
// pass.
__device__ __forceinline__ constexpr float most_added(int columns) { return columns > 32 ? 256.0f * columns : 8192.0f; }

// |x| <= 126; below -126 the result is about 2^-126.
__device__ __forceinline__ float exp2_polynomial(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
  x = fmaxf(x, -126.0f);
  const float shifted = x + kRound;
  const float f = x - (shifted - kRound);
  const float p = fmaf(fmaf(fmaf(0.05517167f, f, 0.24261113f), f, 0.69326099f), f, 0.99992807f);
  return __int_as_float(__float_as_int(p) + (__float_as_int(shifted) << 23));
}

// Whether the polynomial computes weight `i` of a thread. These weights are spread evenly.
__device__ __forceinline__ constexpr bool by_polynomial(int i) {
  return (i + 1) * EXP2_FMA_SHARE / 16 != i * EXP2_FMA_SHARE / 16;
}

__device__ __forceinline__ float greater_score(float a, float b) {
  return EXP2_FMA_SHARE > 0 ? maximum_or_nan(a, b) : fmaxf(a, b);
}

template <int COUNT>
__device__ __forceinline__ float largest_of(const float (&scores)[COUNT]) {
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) largest = greater_score(largest, fabsf(scores[i]));
  return largest;
}

// The columns of one of a thread's two rows that a mask lets through. The thread's columns are 0, 1, 8, 9, 16, ...
template <int COUNT, bool HAS_TWO_ENDS>
struct Mask {
  int seen;
  __device__ __forceinline__ Mask(int seen, int) : seen(seen) {}
  __device__ __forceinline__ bool hides(int column) const { return column >= seen; }
};

// A window's mask has two ends, and one of bytes has any. With a bit for each of the thread's COUNT / 2 columns, a score
// needs no comparison: R2P moves bits into predicates.
template <int COUNT>
struct Mask<COUNT, true> {
  static constexpr int kWords = (COUNT / 2 + 31) / 32;
  unsigned visible[kWords];

  // All columns.
  __device__ __forceinline__ Mask() {
#pragma unroll
    for (unsigned& word : visible) word = ~0u;
  }
  // The columns from `hidden` on, before `seen`; both may be negative, or beyond the last column.
  __device__ __forceinline__ Mask(int seen, int hidden) {
    const int end = columns_before(seen), begin = columns_before(hidden);
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      const int from = max(begin - 32 * word, 0);
      visible[word] = bit_range(from, max(end - 32 * word - from, 0));
    }
  }
  // Whether it hides any column of the first half of the block (PART 0), or of the second.
  template <int PART>
  __device__ __forceinline__ bool hides_some() const {
    bool some = false;
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      const int from = max(PART * (COUNT / 4) - 32 * word, 0), end = max((PART + 1) * (COUNT / 4) - 32 * word, 0);
      some |= (~visible[word] & bit_range(from, max(end - from, 0))) != 0;
    }
    return some;
  }
  __device__ __forceinline__ bool hides(int column) const {
    const int bit = column / 8 * 2 + column % 8;
    return !(visible[bit / 32] >> bit % 32 & 1);
  }

 private:
  // How many of the thread's columns lie before this one; below 0 and beyond the last one as if it had more.
  static __device__ __forceinline__ int columns_before(int column) { return (column >> 3) * 2 + min(column & 7, 2); }
};

// The masks of a thread's two rows, and whether any row of its warp has hidden columns in the first half of the block,
// or in the second.
template <int COUNT>
struct RowMasks {
  Mask<COUNT, true> rows[2] = {{0, 0}, {0, 0}};
  bool hides[2] = {};

  __device__ __forceinline__ RowMasks() {}
  // `seen`: how many columns of each row, from the thread's first one on, are visible, without the first `hidden`.
  __device__ __forceinline__ RowMasks(const int (&seen)[2], const int (&hidden)[2])
      : rows{{seen[0], hidden[0]}, {seen[1], hidden[1]}} {
    look();
  }
  // Called by whole warps, when the rows are known.
  __device__ __forceinline__ void look() {
    hides[0] = __any_sync(~0u, rows[0].template hides_some<0>() || rows[1].template hides_some<0>());
    hides[1] = __any_sync(~0u, rows[0].template hides_some<1>() || rows[1].template hides_some<1>());
  }
};

struct Softmax {
  float maximum[2], sum[2];
  float alpha[2];  // factor of the sums so far, if `moved`
  bool moved;      // whether any row of the warp needs this

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      maximum[half] = kFirstMaximum;
      sum[half] = 0.0f;
    }
  }

#if HIDES_BY_BITS
  // Hidden scores become -inf. A warp whose rows see all of a half of the block leaves that half out.
  template <int COUNT>
  __device__ __forceinline__ void hide(float (&scores)[COUNT], const RowMasks<COUNT>& masks) const {
    hide_half<0>(scores, masks);
    hide_half<1>(scores, masks);
  }
  template <int PART, int COUNT>
  __device__ __forceinline__ void hide_half(float (&scores)[COUNT], const RowMasks<COUNT>& masks) const {
    if (!masks.hides[PART]) return;
#pragma unroll
    for (int i = PART * (COUNT / 2); i < (PART + 1) * (COUNT / 2); ++i)
      if (masks.rows[i / 2 % 2].hides(i / 4 * 8 + i % 2)) scores[i] = __int_as_float(0xff800000);  // -inf
  }
#endif

  // Scores become weights. `mask_of(half)`: the mask of a row. `change`: where features or a bias change the scores:
  // (half, tile, e, score). `cap`: where scores are small, not masked, and to be capped yet. `offset`: with kBiasRides,
  // what each row's scores lack.
  template <bool MASKED, class Cap, class MaskOf, class Change, int COUNT>
  __device__ __forceinline__ void weigh(float (&scores)[COUNT], const MaskOf& mask_of, Change& change,
                                        const float (&offset)[2], float scale, const Cap& cap) {
    float next[2];
    bool grown = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float before = maximum[half];
      float top = kBiasRides ? kFirstMaximum : before;
      if constexpr (Cap::kIsNone) {
        const Mask<COUNT, HIDES_BY_BITS> mask = mask_of(half);
#pragma unroll
        for (int i = 0; i < COUNT; i += 4)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& score = scores[i + 2 * half + e];
            if constexpr (kScoresChange) score = change(half, i / 4, e, score);
            if (MASKED && mask.hides(2 * i + e)) score = __int_as_float(0xff800000);  // -inf
            top = greater_score(top, score);
          }
        top = greater_score(top, __shfl_xor_sync(~0u, top, 1));
        top = greater_score(top, __shfl_xor_sync(~0u, top, 2));
        if (kBiasRides) top = greater_score(before, top + offset[half]);
        if (RESCALE_LOG2 > 0 && (top - before) * scale <= static_cast<float>(RESCALE_LOG2)) top = before;
      } else {
        top = fmaxf(before, -Cap::kMost);  // small scores need no maximum of their own
      }
      grown |= top != before;
      next[half] = top;
    }
    moved = RESCALE_LOG2 == 0 || __any_sync(~0u, grown);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      alpha[half] = exp2_approximate((maximum[half] - next[half]) * scale);
      maximum[half] = next[half];
      sum[half] *= alpha[half];
      if (EXP2_FMA_SHARE > 0) sum[half] += next[half] - next[half];
      const bool far = is_far(next[half]);
      const float shift = far ? 0.0f : (kBiasRides ? next[half] - offset[half] : next[half]) * scale;
#pragma unroll
      for (int i = 0; i < COUNT; i += 4)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& weight = scores[i + 2 * half + e];
          float factor = scale;
          if constexpr (!Cap::kIsNone) factor = cap(weight);
          if constexpr (kReachesFar) weight -= far ? next[half] : 0.0f;
          const float x = fmaf(weight, factor, -shift);
          weight = !MASKED && by_polynomial(i / 2 + e) ? exp2_polynomial(x) : exp2_approximate(x);
          sum[half] += weight;
        }
    }
  }

  // KEEP_MAXIMUM: scores become weights relative to the maximum so far, and no maximum is looked for. False if this
  // cannot be kept: a row has no maximum yet, or a weight is far above 1, infinite or no number. Then the scores are
  // lost, and nothing else has changed. Arguments: as of weigh().
  template <class Change, int COUNT>
  __device__ __forceinline__ bool weigh_kept(float (&scores)[COUNT], Change& change, const float (&offset)[2],
                                             float scale) {
    float added[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool far = is_far(maximum[half]);
      const float shift = far ? 0.0f : (kBiasRides ? maximum[half] - offset[half] : maximum[half]) * scale;
      added[half] = 0.0f;
#pragma unroll
      for (int i = 0; i < COUNT; i += 4)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& weight = scores[i + 2 * half + e];
          if constexpr (kScoresChange) weight = change(half, i / 4, e, weight);
          if constexpr (kReachesFar) weight -= far ? maximum[half] : 0.0f;
          weight = exp2_approximate(fmaf(weight, scale, -shift));
          added[half] += weight;
        }
    }
    constexpr float most = most_added(COUNT / 2);
    if (__any_sync(~0u, !(added[0] <= most && added[1] <= most))) return false;
    sum[0] += added[0], sum[1] += added[1];
    moved = false;
    return true;
  }

  // Multiplies the output so far by `alpha`, which weigh() leaves to be done.
  template <int COUNT>
  __device__ __forceinline__ void rescale(float (&output)[COUNT]) const {
    if ((RESCALE_LOG2 > 0 || KEEP_MAXIMUM) && !moved) return;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) output[i] *= alpha[i / 2 % 2];
  }

  // The sum of the whole row, over all four lanes.
  __device__ __forceinline__ float row_sum(int half) const {
    float total = sum[half];
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    return total;
  }

};

}  // namespace
