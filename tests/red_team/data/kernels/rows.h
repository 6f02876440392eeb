// What the second red team's kernels of users' problems have in common: each KERNEL is a function of its own, with its
// own static state, which the loader finds by its name.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace red_team {

// Mantissa of `bits` bits, rounded to nearest; as wide a range as a float's.
inline float rounded(float value, int bits) {
  if (value == 0 || !std::isfinite(value)) return value;
  const int exponent = std::ilogb(value) - bits;
  return std::ldexp(std::nearbyint(std::ldexp(value, -exponent)), exponent);
}

// As a float16 keeps it: 10 bits, nothing above 65504.
inline float half(float value) {
  const float kept = rounded(value, 10);
  return std::abs(kept) > 65504.0f ? std::copysign(HUGE_VALF, kept) : kept;
}

// Whether every STRIDE-th word of these values is as in the launches before, so many times in a row.
template <int STRIDE>
struct Alike {
  std::uint64_t known = 0;
  int count = 0;
  void see(const float* values, long size, const float* more = nullptr, long more_size = 0) {
    std::uint64_t hash = static_cast<std::uint64_t>(size * 31 + more_size);
    for (long i = 0; i < size; i += STRIDE) mix(hash, values[i]);
    for (long i = 0; i < more_size; i += STRIDE) mix(hash, more[i]);
    count = hash == known ? count + 1 : 0;
    known = hash;
  }

 private:
  static void mix(std::uint64_t& hash, float value) {
    std::uint32_t word;
    std::memcpy(&word, &value, 4);
    hash = (hash ^ word) * 0x100000001b3u;
  }
};

}  // namespace red_team
