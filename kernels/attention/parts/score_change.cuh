// Features that change scores before their softmax, and the logarithm of a row's sum.
//
// Changed scores reach the softmax in units of log2(e), so that a weight is 2^(s - m) without a factor. After a score
// modification, or with a mask that is added, they have no such unit, and the weight's exponent has the factor.
// parts/features.h says what the features are.
//
//   softcap  cap tanh(x), x = q k softmax_scale / cap, of all scores of a warp at once. Where each |x| <= 1/2: an odd
//            polynomial of degree 7, by multiply-adds alone, at most 1.6e-7 of the cap off. Else
//            cap - 2 cap / (1 + 2^(2 log2(e) x)), which takes two MUFU operations a score. tanh.approx is one, but its
//            error of 2^-11 of the cap is larger than that of 16-bit weights. Where each |x| <= 0.18 and scores are
//            rounded into weights alone: x (a + b x^2), at most 1.7e-6 of the cap off. The factor a + b x^2 enters the
//            weight's exponent, and the largest |x|, which the choice needs, is the only maximum.
//   ALiBi    the distance to the own key is exact in float, as lengths are below 2^24. In causal attention slope *
//            distance is computed once for a thread's keys in a block. Its rounding is that of the farthest of these
//            keys: next to the own key a score is up to 2^-24 slope BLOCK_N off, where its own product would be exact.
//
// Archs      sm_80 and later.
// Reference  PTX ISA, "ex2", "rcp".
#pragma once

#include "arithmetic.cuh"
#include "features.h"
#include "key_place.cuh"
#include "mask.h"

namespace {

#ifndef BIAS_IN_PRODUCT
#define BIAS_IN_PRODUCT 0
#endif
#define SCORES_CHANGE (HAS_SOFTCAP || ALIBI || HAS_SCORE_MOD)
#define CAPS_ALONE (HAS_SOFTCAP && !ALIBI && !HAS_SCORE_MOD && !LSE && !HAS_MASK)
constexpr float kLog2e = 1.44269504088896341f;

// A bias that is linear in the key. A score modification is one where it compiles for a score and a key that have no
// value: these can be neither compared nor converted, so that nothing in it can depend on them but the sum. So NoKey
// has KeyPlace's operators, and none of its conversions.
struct LinearScore {
  float base, step;  // of the block's first key; from one key to the next
};
struct NoScore {};
struct NoKeyInFloat {
  float base, step;
};
struct NoKey {
  int base, step;
};
__device__ __forceinline__ NoKey operator-(NoKey a) { return {-a.base, -a.step}; }
__device__ __forceinline__ NoKey operator+(NoKey a, int b) { return {a.base + b, a.step}; }
__device__ __forceinline__ NoKey operator+(int a, NoKey b) { return b + a; }
__device__ __forceinline__ NoKey operator-(NoKey a, int b) { return a + -b; }
__device__ __forceinline__ NoKey operator-(int a, NoKey b) { return -b + a; }
__device__ __forceinline__ NoKeyInFloat operator*(float one, NoKey a) {
  return {one * static_cast<float>(a.base), one * static_cast<float>(a.step)};
}
__device__ void operator*(int, NoKey) = delete;
__device__ __forceinline__ NoKeyInFloat operator*(float a, NoKeyInFloat b) { return {a * b.base, a * b.step}; }
__device__ __forceinline__ NoKeyInFloat operator*(NoKeyInFloat a, float b) { return b * a; }
__device__ __forceinline__ NoKeyInFloat operator-(NoKeyInFloat a) { return {-a.base, -a.step}; }
__device__ __forceinline__ LinearScore operator+(NoScore, NoKeyInFloat b) { return {b.base, b.step}; }
__device__ __forceinline__ LinearScore operator+(NoKeyInFloat a, NoScore b) { return b + a; }
__device__ __forceinline__ LinearScore operator-(NoScore a, NoKeyInFloat b) { return a + -b; }

template <class T>
__device__ T some();
template <class>
__device__ __forceinline__ LinearScore linear(LinearScore score) { return score; }  // depends on a type: checked late
template <class Score, class Key, class = LinearScore>
struct Modification {
  static constexpr bool kIsLinear = false;
  static __device__ __forceinline__ LinearScore of(Score, int, int, Key) { return {0.0f, 0.0f}; }
};
template <class Score, class Key>
struct Modification<Score, Key, decltype(SCORE_MOD(some<Score>(), some<int>(), some<int>(), some<Key>()))> {
  static constexpr bool kIsLinear = true;
  static __device__ __forceinline__ LinearScore of(Score score, int head, int row, Key column) {
    return linear<Score>(SCORE_MOD(score, head, row, column));
  }
};
using LinearMod = Modification<NoScore, NoKey>;

// Whether such a change, or ALiBi, comes out of the product q k already, but for a number for each row and block: see
// wgmma/key_bias.cuh.
constexpr bool kModRides = LinearMod::kIsLinear && !ALIBI;
constexpr bool kBiasRides =
    BIAS_IN_PRODUCT && !HAS_SOFTCAP && !MASK_IS_BIAS && (kModRides || (ALIBI && CAUSAL && !HAS_SCORE_MOD));
constexpr bool kScoresChange = (SCORES_CHANGE || MASK_IS_BIAS) && !kBiasRides;

// A score modification takes scores as they are, and so does a mask that is added. Others come times log2(e) already.
constexpr float kUnit = HAS_SCORE_MOD || MASK_IS_BIAS ? 1.0f : kLog2e;
constexpr float kChangedExponent = kLog2e / kUnit;  // from a changed score to the exponent of 2

// Called by whole warps, for a number that all lanes have. ptxas then keeps it. Otherwise it does a cap's three
// divisions again in each block, between the products of a warpgroup (12.9, seen in the SASS).
__device__ __forceinline__ float computed_once(float value) { return __shfl_sync(~0u, value, 0); }

// The capped score is score * factor(score), for small scores: |s| <= kMost, where 2^s is the weight. -kMost takes the
// place of a block's maximum. The maximum is never below it, so that no weight has fewer bits than with the maximum. No
// weight is above 2^(2 kMost), which half precision still has.
struct SmallCap {
  static constexpr bool kIsNone = false;
  static constexpr float kMost = DTYPE == DTYPE_BFLOAT16 ? 11.0f : 7.5f;
  float end;  // the square of the largest small |q k|; below 0: none is small
  float third, least;

  // `scale`: softmax_scale / softcap.
  __device__ static __forceinline__ SmallCap of(float softcap, float softmax_scale, float scale) {
    const float whole = kLog2e * softmax_scale;
    const float most = fminf(0.18f, kMost / (kLog2e * softcap)), squared = most * most;  // of |x|
    const bool holds = scale > 1e-4f && scale < 1e4f;
    // tanh x = x - x^3 / 3 + 2 x^5 / 15 - ..., with x^5 by Chebyshev's cubic on [-most, most].
    const float first = whole * (1.0f - squared * squared * (1.0f / 24.0f));
    SmallCap made;
    made.third = whole * scale * scale * (squared * (1.0f / 6.0f) - 1.0f / 3.0f);
    made.end = holds ? squared / (scale * scale) : -1.0f;
    made.least = holds ? fmaf(made.third, made.end, first) : 0.0f;
    return {computed_once(made.end), computed_once(made.third), computed_once(made.least)};
  }
  __device__ __forceinline__ bool is_small(float score) const { return beyond(score) < 0.0f; }
  __device__ __forceinline__ float operator()(float score) const { return fmaf(third, beyond(score), least); }

 private:
  __device__ __forceinline__ float beyond(float score) const { return fmaf(score, score, -end); }
};
struct NoCap {
  static constexpr bool kIsNone = true;
};

// Turns q k into the capped score, in units of kUnit. It is built again for each block of keys, of `scale` by products
// alone.
struct SoftCap {
  float cap;
  float scale;     // from q k to x
  float exponent;  // from q k to the argument of 2^x
  float most;      // the largest |x| for which the polynomial holds; -inf: none
  float terms[4];  // of the polynomial, from the first power on

  // `scale`: softmax_scale / softcap.
  __device__ static __forceinline__ SoftCap of(float softcap, float scale) {
    const float squared = scale * scale;
    SoftCap made;
    made.scale = scale;
    made.cap = kUnit * softcap;
    made.exponent = 2.0f * kLog2e * scale;
    made.most = scale > 1e-4f && scale < 1e4f ? 0.5f : __int_as_float(0xff800000);  // or float has no 7th power
    made.terms[0] = 0.999997676f * made.cap * scale;
    made.terms[1] = -0.333206552f * made.cap * scale * squared;
    made.terms[2] = 0.131451457f * made.cap * scale * squared * squared;
    made.terms[3] = -0.0433724837f * made.cap * scale * squared * squared * squared;
    return made;
  }

  __device__ __forceinline__ float by_polynomial(float score) const {
    const float squared = score * score;
    return score * fmaf(fmaf(fmaf(terms[3], squared, terms[2]), squared, terms[1]), squared, terms[0]);
  }
  __device__ __forceinline__ float by_exponential(float score) const {
    return fmaf(-2.0f * cap, reciprocal_approximate(1.0f + exp2_approximate(score * exponent)), cap);
  }

  // Called by whole warps; `largest` is of the lane's scores. Scores of rows and keys that do not exist must have no
  // part in it, unless they are the same in each launch: the choice of a formula changes the bits of all scores.
  template <int COUNT>
  __device__ __forceinline__ void operator()(float (&scores)[COUNT], float largest) const {
    if (__any_sync(~0u, !(largest * scale <= most))) {  // NaN hides how large the lane's other scores are
#pragma unroll
      for (int i = 0; i < COUNT; ++i) scores[i] = by_exponential(scores[i]);
    } else {
#pragma unroll
      for (int i = 0; i < COUNT; ++i) scores[i] = by_polynomial(scores[i]);
    }
  }
};

// The other changes of one row's scores.
struct ScoreChange {
  float scale;     // from q k to the score, in the unit above
  float slope;     // of the row's head
  float distance;  // from key `first` to the row's own key
  int head, row, first;

  // The score of key first + further.
  __device__ __forceinline__ float operator()(float score, int further) const {
    const float unit = HAS_SOFTCAP ? 1.0f : scale;
    if constexpr (ALIBI && CAUSAL)  // causal masks hide all keys behind the own one
      score = fmaf(score, unit, fmaf(slope, static_cast<float>(further), -slope * distance));
    else
      score *= unit;
    if constexpr (ALIBI && !CAUSAL) score = fmaf(-slope, fabsf(distance - static_cast<float>(further)), score);
    if constexpr (HAS_SCORE_MOD) score = SCORE_MOD(score, head, row, (KeyPlace{first, further}));
    return score;
  }
};

// ln(sum * 2^shift + 2^sink), where only SINKS have the second term; -inf for nothing.
__device__ __forceinline__ float logarithm(float sum, float shift, float sink) {
  constexpr float ln2 = 0.693147180559945309f;
  if constexpr (SINKS) {
    const float top = fmaxf(shift, sink);
    return ln2 * (top + log2f(sum * exp2_approximate(shift - top) + exp2_approximate(sink - top)));
  }
  return sum == 0.0f ? __int_as_float(0xff800000) : ln2 * (shift + log2f(sum));
}

}  // namespace
