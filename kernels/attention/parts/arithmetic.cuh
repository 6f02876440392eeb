// Arithmetic on 16-bit elements and on their sums in float: conversions, maxima, 2^x, and MMA of one warp.
//
// An Element is the bits of a float16 or a bfloat16; BFLOAT16 says which. All roundings are to nearest even.
//
// Vectors    VectorOf<WIDTH> is WIDTH elements that move in one instruction, aligned to their size.
// Fragments  A matrix of mma.m16n8k16 is spread over the 32 lanes of a warp. With g = lane / 4 and t = lane % 4, an
//            accumulator tile (16 x 8) gives a lane c[0], c[1] = columns 2t, 2t + 1 of row g, and c[2], c[3] = the same
//            columns of row g + 8. Two such tiles side by side, rounded and packed in pairs, are the A operand (16 x
//            16) of the next product: P never leaves the registers.
//
// Contract   All functions compute on a thread's own registers, but for load_matrix() and the products: these are
//            called by whole warps.
//
// Archs      sm_80 and later.
// References PTX ISA: "cvt", "mul" (.wide), "max", "bmsk", "ex2", "rcp", "ldmatrix", "Matrix Fragments for
//            mma.m16n8k16 with floating point type".
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

// Of 64 bits, by one instruction also where the compiler does not know that a 64-bit factor has 32 bits.
__device__ __forceinline__ long long wide_product(int a, int b) {
  long long product;
  asm("mul.wide.s32 %0, %1, %2;\n" : "=l"(product) : "r"(a), "r"(b));
  return product;
}

// The greater one; NaN if either is NaN, where fmaxf would give the other one.
__device__ __forceinline__ float maximum_or_nan(float a, float b) {
  float greater;
  asm("max.NaN.f32 %0, %1, %2;\n" : "=f"(greater) : "f"(a), "f"(b));
  return greater;
}

// `count` ones from bit `from` on, as far as a word goes. Neither is below 0; both may be beyond 32.
__device__ __forceinline__ unsigned bit_range(int from, int count) {
  unsigned bits;
  asm("bmsk.clamp.b32 %0, %1, %2;\n" : "=r"(bits) : "r"(from), "r"(count));
  return bits;
}

// Four 8 x 8 tiles of 2-byte elements; lane l gives the address of row l % 8 of tile l / 8.
__device__ __forceinline__ void load_matrix(unsigned (&tiles)[4], unsigned shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
               : "r"(shared)
               : "memory");
}

__device__ __forceinline__ void load_matrix_transposed(unsigned (&tiles)[4], unsigned shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
               : "r"(shared)
               : "memory");
}

// d = a b + c: a is 16 x 16, b is 16 x 8 in two registers, c and d are 16 x 8.
template <bool BFLOAT16>
__device__ __forceinline__ void multiply_add(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, float c0,
                                             float c1, float c2, float c3) {
  if constexpr (BFLOAT16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};\n"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c0), "f"(c1), "f"(c2), "f"(c3));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};\n"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c0), "f"(c1), "f"(c2), "f"(c3));
  }
}

template <bool BFLOAT16>
__device__ __forceinline__ void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  multiply_add<BFLOAT16>(sum, a, b0, b1, sum[0], sum[1], sum[2], sum[3]);
}

template <bool BFLOAT16>
__device__ __forceinline__ void multiply(float (&product)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  multiply_add<BFLOAT16>(product, a, b0, b1, 0.0f, 0.0f, 0.0f, 0.0f);  // zeros cost no registers
}

// Two floats rounded to nearest even, `low` in the low half.
template <bool BFLOAT16>
__device__ __forceinline__ unsigned pack(float low, float high) {
  unsigned packed;
  if constexpr (BFLOAT16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// The value of the low half.
template <bool BFLOAT16>
__device__ __forceinline__ float unpack_low(unsigned packed) {
  if constexpr (BFLOAT16) return __uint_as_float(packed << 16);
  float value;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, low;\n}\n" : "=f"(value) : "r"(packed));
  return value;
}

// The value of the high half.
template <bool BFLOAT16>
__device__ __forceinline__ float unpack_high(unsigned packed) {
  if constexpr (BFLOAT16) return __uint_as_float(packed & 0xffff0000u);
  float value;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, high;\n}\n" : "=f"(value) : "r"(packed));
  return value;
}

// 2^x; results below 2^-126 become 0. Two units in the last place.
__device__ __forceinline__ float exp2_approximate(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(power) : "f"(x));
  return power;
}

// 1 / x, by one unit in the last place; 0 for infinity.
__device__ __forceinline__ float reciprocal_approximate(float x) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(inverse) : "f"(x));
  return inverse;
}

}  // namespace
