// Features that change scores before their softmax, and the logarithm of a row's sum.
//
// Where scores change, the softmax meets them in units of log2(e), so that a weight is 2^(s - m) without a factor.
// row_features.h says what the features are.
//
//   softcap  cap tanh(x) = cap - 2 cap / (1 + 2^(2 log2(e) x)): two MUFU operations a score. tanh.approx is one, but
//            its error of 2^-11 of the cap is larger than that of 16-bit weights.
//   ALiBi    the distance to the own key is exact in float, as lengths are below 2^24
//
// Archs      sm_80 and later.
// Reference  PTX ISA, "ex2", "rcp".
#pragma once

#include "mma_sync.cuh"
#include "row_features.h"

namespace {

#define SCORES_CHANGE (HAS_SOFTCAP || ALIBI || HAS_SCORE_MOD)
constexpr bool kScoresChange = SCORES_CHANGE;
constexpr float kLog2e = 1.44269504088896341f;

// The changes of one row's scores. Built anew for each block of keys, of numbers that the compiler keeps.
struct ScoreChange {
  float scale;     // from q k to the argument of 2^x in the cap's tanh, or to the score
  float cap;       // softcap
  float slope;     // of the row's head
  float distance;  // from key `first` to the row's own key
  int head, row, first;

  // A score modification takes scores as they are, the softmax takes them times log2(e).
  static constexpr float kUnit = HAS_SCORE_MOD ? 1.0f : kLog2e;

  // The score of key first + further.
  __device__ __forceinline__ float operator()(float score, int further) const {
    score *= scale;
    if constexpr (HAS_SOFTCAP) score = fmaf(-2.0f * cap, reciprocal_approximate(1.0f + exp2_approximate(score)), cap);
    if constexpr (ALIBI) {
      const float off = distance - static_cast<float>(further);
      score = fmaf(-slope, CAUSAL ? off : fabsf(off), score);  // causal masks hide all keys behind the own one
    }
    if constexpr (HAS_SCORE_MOD) score = kLog2e * SCORE_MOD(score, head, row, first + further);
    return score;
  }

  // Without what differs from row to row.
  __device__ static __forceinline__ ScoreChange of(const Features& features, float softmax_scale) {
    ScoreChange change;
    change.scale = HAS_SOFTCAP ? 2.0f * kLog2e * softmax_scale / features.softcap : kUnit * softmax_scale;
    change.cap = kUnit * features.softcap;
    return change;
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
