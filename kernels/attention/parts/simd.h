// Vectors of floats and 2^x on them: GCC's own vector types, so the compiler picks the instructions.
//
// Archs      AVX-512F (16 lanes), AVX2 + FMA (8), and anything else GCC has vectors for (4).
// Tunables   EXP_METHOD: polynomials of degree 3 to 6 (poly3 .. poly6), or libm. Largest relative error before
//            rounding: poly3 1.0e-4 and poly4 2.8e-6, for bfloat16; poly5 1.1e-7; poly6 1.6e-8, less than float's
//            rounding.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

#if defined(__AVX512F__)
constexpr int kNativeLanes = 16;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kNativeLanes = 8;
#else
constexpr int kNativeLanes = 4;
#endif

template <int LANES>
struct VectorOf {
  typedef float Float __attribute__((vector_size(LANES * 4)));
  typedef std::int32_t Int __attribute__((vector_size(LANES * 4)));
};
template <int LANES>
using Vec = typename VectorOf<LANES>::Float;

// The widest vector that divides `columns`: 24 columns are three 8-wide vectors, also where 16 lanes exist.
constexpr int lanes_for(int columns) {
  int lanes = kNativeLanes;
  while (columns % lanes != 0) lanes /= 2;
  return lanes;
}

template <int LANES>
inline Vec<LANES> load(const float* from) {
  Vec<LANES> value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <int LANES>
inline void store(float* to, Vec<LANES> value) {
  std::memcpy(to, &value, sizeof value);
}
template <int LANES>
inline Vec<LANES> broadcast(float x) {
  return x - Vec<LANES>{};  // minus zero folds away, plus zero would not (-0.0)
}
// a * b + c becomes one FMA: GCC contracts by default (-ffp-contract=fast), also under -std=c++17.
template <class V>
inline V multiply_add(V a, V b, V c) {
  return a * b + c;
}
// If b is NaN the result is NaN, if a is NaN it is b: exactly what x86's max does, so it is one instruction.
template <class V>
inline V maximum(V a, V b) {
  return a > b ? a : b;
}

template <int LANES, class Combine>
inline float reduce(Vec<LANES> value, Combine combine) {
  if constexpr (LANES == 1) {
    return value[0];
  } else {
    Vec<LANES / 2> half[2];
    std::memcpy(half, &value, sizeof value);
    return reduce<LANES / 2>(combine(half[0], half[1]), combine);
  }
}

// 2^f on [-0.5, 0.5], minimax in relative error with the constant term fixed at 1, highest power first.
#if EXP_METHOD == EXP_METHOD_POLY3
constexpr float kExp2[] = {0.0550089329f, 0.242210969f, 0.693282902f, 1.0f};
#elif EXP_METHOD == EXP_METHOD_POLY4
constexpr float kExp2[] = {0.00958285294f, 0.0559064262f, 0.240240991f, 0.693124175f, 1.0f};
#elif EXP_METHOD == EXP_METHOD_POLY5
constexpr float kExp2[] = {0.00132647273f, 0.00967151299f, 0.0555073358f, 0.240222424f, 0.693147004f, 1.0f};
#else
constexpr float kExp2[] = {0.00015353362f, 0.0013398875f, 0.00961843692f, 0.0555033237f,
                           0.240226477f,  0.693147182f, 1.0f};
#endif

// 2^x for x <= 0; exactly 0 from x <= -127 down. NaN stays NaN.
template <int LANES>
inline Vec<LANES> exp2_nonpositive(Vec<LANES> x) {
  if constexpr (EXP_METHOD == EXP_METHOD_LIBM) {
    for (int lane = 0; lane < LANES; ++lane) x[lane] = std::exp2(x[lane]);
    return x;
  }
  using Int = typename VectorOf<LANES>::Int;
  x = maximum(broadcast<LANES>(-127.0f), x);  // at -127 the fraction is 0, the polynomial 1, and the bits below 0
  const Vec<LANES> shifted = x + 12582912.0f;  // 1.5 * 2^23: the low mantissa bits now hold round(x)
  const Vec<LANES> fraction = x - (shifted - 12582912.0f);
  Vec<LANES> power = broadcast<LANES>(kExp2[0]);
  for (std::size_t term = 1; term < sizeof kExp2 / sizeof *kExp2; ++term)
    power = multiply_add(power, fraction, broadcast<LANES>(kExp2[term]));
  return (Vec<LANES>)((Int)power + ((Int)shifted << 23));  // adds round(x) to the exponent
}

}  // namespace
