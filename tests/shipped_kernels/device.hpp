// CUDA's language on the CPU as far as the kernels for rows and for GEMM use it, beside the attention rungs' model.
#pragma once

#include "../attention_kernels/warps/launching.hpp"

inline float __expf(float x) { return std::exp(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
template <class Word>
Word __ldcs(const Word* from) {
  return *from;
}
template <class Word>
void __stcs(Word* to, const Word& word) {
  *to = word;
}

inline float erff(float x) { return std::erf(x); }
inline void load_box_2d(unsigned shared, const TensorMap& map, unsigned full, int column, int row) {
  load_box(shared, map, full, column, row, 0, 0);
}
template <int BLOCKS>
void load_box_2d_for_all(unsigned shared, const TensorMap& map, unsigned full, int column, int row) {
  load_box_for_all<BLOCKS>(shared, map, full, column, row, 0, 0);
}

// The number of 8 bits that is nearest, of two equally near ones that with an even mantissa. A step is 2^-9 below 2^-6,
// and from there on an eighth of the power of two below the number.
inline unsigned char to_e4m3(float value) {
  const float size = std::fmin(std::fabs(value), 448.0f);
  const int exponent = std::max(size > 0.0f ? std::ilogb(size) : -6, -6);
  const int steps = static_cast<int>(std::nearbyint(std::ldexp(size, 3 - exponent)));
  const unsigned char code = std::isnan(value) ? 0x7F : 8 * (exponent + 6) + steps;
  return code | (std::signbit(value) ? 0x80 : 0);
}
inline unsigned short to_e4m3x2(float low, float high) { return to_e4m3(low) | to_e4m3(high) << 8; }
using E4m3 = unsigned char;
constexpr float kLargestE4m3 = 448.0f;

template <int BYTES>
struct WordOf;
template <> struct WordOf<1> { using Type = unsigned char; };
template <> struct WordOf<2> { using Type = unsigned short; };
template <> struct WordOf<4> { using Type = unsigned; };
template <> struct WordOf<8> { using Type = uint2; };
template <> struct WordOf<16> { using Type = uint4; };
