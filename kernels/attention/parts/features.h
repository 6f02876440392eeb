// The features of attention that a space compiles in, for kernels in C++ and CUDA: each is 0 where a space has none.
//
// A space that has features names them all under `define:` (value_dim, bottom_right, has_window, has_softcap, alibi,
// sinks, lse) and gives the further arguments FEATURE_ARGUMENTS, last. Pointers of absent tensors are null.
//
//   VALUE_DIM     elements of a row of v and out; HEAD_DIM if it is not given
//   BOTTOM_RIGHT  row i's own key is i + seq_len_k - seq_len_q, else i. Masks, windows and ALiBi count from there.
//   HAS_WINDOW    a row sees window_left keys before its own one and window_right behind it; below 0: all of them
//   HAS_SOFTCAP   scores become softcap * tanh(score / softcap), after the scale and before all else
//   ALIBI         scores become score - alibi_slopes[head] * |own key - key|
//   SCORE_MOD     a macro (score, head, row, column) that is the score from there on; a space names `score_mod`
//   SINKS         sinks[head] is a logit that joins each row's sum of exponentials, and has no value; -inf is none
//   LSE           lse (batch, heads, seq_len_q), contiguous, gets the logarithm of that sum; -inf where it is 0
//
// Types  alibi_slopes, sinks (heads) and lse in float32. A row that sees no key is a row of zeros.
// Archs  any.
#pragma once

#ifdef LSE
#define FEATURE_ARGUMENTS                                                                                       \
  , const float *alibi_slopes, const float *sinks, float *lse, int window_left, int window_right, float softcap
#define FEATURES_GIVEN {alibi_slopes, sinks, lse, window_left, window_right, softcap}
#else
#define VALUE_DIM HEAD_DIM
#define BOTTOM_RIGHT 0
#define HAS_WINDOW 0
#define HAS_SOFTCAP 0
#define ALIBI 0
#define SINKS 0
#define LSE 0
#define FEATURE_ARGUMENTS
#define FEATURES_GIVEN {}
#endif

#ifndef SCORE_MOD
#define SCORE_MOD(score, head, row, column) (score)
#define HAS_SCORE_MOD 0
#else
#define HAS_SCORE_MOD 1
#endif

#ifdef __CUDACC__
#define FEATURE_FUNCTION __device__ __forceinline__
#else
#define FEATURE_FUNCTION inline
#endif

namespace {

struct Features {
  const float* alibi_slopes;
  const float* sinks;
  float* lse;
  int window_left, window_right;
  float softcap;

  FEATURE_FUNCTION static int least(int a, int b) { return a < b ? a : b; }

  FEATURE_FUNCTION static int own_key(int row, int queries, int keys) {
    return BOTTOM_RIGHT ? row + keys - queries : row;
  }

  // The keys that a row sees are [first_key, end_key); there are none where the end is not behind the first.
  FEATURE_FUNCTION int first_key(int own) const {
    return HAS_WINDOW && window_left >= 0 && own > window_left ? own - window_left : 0;
  }

  FEATURE_FUNCTION int end_key(int own, int keys) const {
    if (CAUSAL) return least(keys, own + 1);
    return HAS_WINDOW && window_right >= 0 ? least(keys, own + window_right + 1) : keys;
  }
};

}  // namespace
