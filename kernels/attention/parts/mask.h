// The mask of attention, PyTorch's attn_mask, for kernels in C++ and CUDA: off unless a space compiles it in.
//
// A space that has masks names them all under `define:` (has_mask, mask_is_padding, mask_is_bias, mask_is_float32) and
// gives MASK_ARGUMENTS, last (in CUDA strides of tensors follow); the pointer is null for a case without a mask. A
// struct has the mask as MASK_MEMBER, its last one, which MASK_FROM initialises. Without masks both are nothing, and the
// machine code is as without them.
//
//   HAS_MASK         attn_mask[batch, head, row, key] says which keys a row sees, or what is added to its scores, after
//                    all else that changes them. Its strides are 0 where it is broadcast; keys lie side by side.
//   MASK_IS_BIAS     it is added: float with MASK_IS_FLOAT32, else the type of the inputs. Otherwise bytes of 0 and 1.
//   MASK_IS_PADDING  bytes that are the same for all heads and rows
//
// A row that sees no key is a row of zeros, whether its keys are hidden by bytes or by -inf. Where the lowest float
// hides all keys, each has the same weight, as in PyTorch: see `biased`, and in CUDA mask.cuh.
// Archs  any.
#pragma once

#include "features.h"

#ifdef HAS_MASK
#define MASK_ARGUMENTS                                                                                          \
  , const void *attn_mask, long long attn_mask_stride_batch, long long attn_mask_stride_head,                   \
      long long attn_mask_stride_row
#define MASK_GIVEN AttnMask{attn_mask, attn_mask_stride_batch, attn_mask_stride_head, attn_mask_stride_row, 0}
#define MASK_MEMBER AttnMask mask
#define MASK_FROM(...) , __VA_ARGS__
#else
#define HAS_MASK 0
#define MASK_IS_PADDING 0
#define MASK_IS_BIAS 0
#define MASK_IS_FLOAT32 0
#define MASK_ARGUMENTS
#define MASK_GIVEN
#define MASK_MEMBER static constexpr AttnMask mask{}
#define MASK_FROM(...)
#endif

namespace {

struct AttnMask {
  const void* elements;
  long long batch, head, row;
  int of_batch;

  FEATURE_FUNCTION AttnMask in_batch(int number) const { return {elements, batch, head, row, number}; }

  // A row of the mask from `key` on. T: bytes, or the type of a bias.
  template <class T>
  FEATURE_FUNCTION const T* at(int of_head, int of_row, int key) const {
    return static_cast<const T*>(elements) + of_batch * batch + of_head * head + of_row * row + key;
  }
};

}  // namespace

#ifndef __CUDACC__
#include <cstdint>
#include <limits>

namespace {

// Whether bytes hide all of these keys.
inline bool hides_all(const std::uint8_t* mask, int keys) {
  int any = 0;
  for (int j = 0; j < keys; ++j) any |= mask[j];
  return any == 0;
}

// A score with its bias. Far below every score a bias is one number, beside which the score is lost, and which scaled
// and subtracted stays finite; only -inf hides a key for good.
inline float biased(float score, float bias) {
  constexpr float infinity = std::numeric_limits<float>::infinity(), far = -0x1p96f;
  const float least = bias < far ? far : bias;  // NaN stays NaN
  return score + (bias == -infinity ? bias : least);
}

}  // namespace
#endif
