// 8-bit floats (e4m3: 4 bits of exponent, 3 of mantissa, +-448 at most) as bytes, and vectors of them.
//
// Archs      sm_89 and later.
// Reference  PTX ISA, "cvt"; Micikevicius et al. 2022, "FP8 formats for deep learning".
#pragma once

#include "../attention/parts/arithmetic.cuh"

namespace {

using E4m3 = unsigned char;
constexpr float kLargestE4m3 = 448.0f;

template <> struct WordOf<1> { using Type = E4m3; };

// Two numbers, rounded to nearest even, `low` in the lower byte. Beyond the largest: the largest.
__device__ __forceinline__ unsigned short to_e4m3x2(float low, float high) {
  unsigned short pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;\n" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}

}  // namespace
