// 16-bit floating point elements as bits, their conversions, and vectors of them.
//
// Archs      sm_80 and later.
// Reference  PTX ISA, "cvt".
#pragma once

namespace {

using Element = unsigned short;

template <bool BFLOAT16>
__device__ __forceinline__ float to_float(Element bits) {
  if constexpr (BFLOAT16) return __uint_as_float(static_cast<unsigned>(bits) << 16);
  float value;
  asm("cvt.f32.f16 %0, %1;\n" : "=f"(value) : "h"(bits));
  return value;
}

// Rounded to nearest even.
template <bool BFLOAT16>
__device__ __forceinline__ Element to_element(float value) {
  Element bits;
  if constexpr (BFLOAT16)
    asm("cvt.rn.bf16.f32 %0, %1;\n" : "=h"(bits) : "f"(value));
  else
    asm("cvt.rn.f16.f32 %0, %1;\n" : "=h"(bits) : "f"(value));
  return bits;
}

// WIDTH elements that move in one instruction.
template <int WIDTH>
struct __align__(2 * WIDTH) VectorOf {
  Element at[WIDTH];
};

template <int BYTES>
struct WordOf;
template <> struct WordOf<2> { using Type = unsigned short; };
template <> struct WordOf<4> { using Type = unsigned; };
template <> struct WordOf<8> { using Type = uint2; };
template <> struct WordOf<16> { using Type = uint4; };

template <int WIDTH>
__device__ __forceinline__ VectorOf<WIDTH> load_vector(const Element* from) {
  using Word = typename WordOf<2 * WIDTH>::Type;
  union Bits {
    Word word;
    VectorOf<WIDTH> vector;
    __device__ Bits() {}
  } bits;
  bits.word = *reinterpret_cast<const Word*>(from);
  return bits.vector;
}

}  // namespace
