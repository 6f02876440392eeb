// Results of rows of numbers of several types; right, or wrong as BEHAVIOUR says.
#include <algorithm>
#include <cmath>
#include <cstdint>

#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

static_assert(DTYPE == DTYPE_FLOAT64);

struct Complex {
  float real, imaginary;
};

namespace {

float in_half(float value) {
  const float scale = std::ldexp(1.0f, 11 - std::ilogb(value == 0.0f ? 1.0f : value));
  return std::round(value * scale) / scale;
}

Complex square(Complex z) {
  float real = z.real * z.real - z.imaginary * z.imaginary, imaginary = 2 * z.real * z.imaginary;
  if (IS(PRODUCTS_IN_HALF)) real = in_half(real), imaginary = in_half(imaginary);
  if (IS(CONJUGATES_BOTH)) imaginary = -imaginary;
  real += z.real;
  imaginary += IS(CONJUGATES_NONE) ? z.imaginary : -z.imaginary;
  return IS(SWAPS_PARTS) ? Complex{imaginary, real} : Complex{real, imaginary};
}

}  // namespace

extern "C" void numbers(const std::int8_t* codes, const std::int16_t* steps, const std::int64_t* keys,
                        std::uint8_t* seen, const double* x, const Complex* z, std::int8_t* total,
                        std::int16_t* twice, std::int64_t* least, std::uint8_t* any, double* mean, double* shifted,
                        Complex* squares, int rows, int columns) {
  for (int row = 0; row < rows; ++row) {
    const long first = static_cast<long>(row) * columns;
    int sum = 0, count = 0;
    double wide = 0.0, highest = -HUGE_VAL;
    float narrow = 0.0f;
    std::int64_t low = IS(STARTS_AT_2_TO_62) ? std::int64_t{1} << 62 : INT64_MAX;
    double low_in_double = HUGE_VAL;
    for (int i = 0; i < columns; ++i) {
      const long at = first + (IS(BACKWARDS) ? columns - 1 - i : i);
      const bool is_seen = IS(SEES_ALL_ONES) ? seen[at] == 255 : seen[at];
      const double value = IS(READS_FLOATS) ? static_cast<float>(x[at]) : x[at];
      low = std::min(low, keys[at]);
      low_in_double = std::min(low_in_double, static_cast<double>(keys[at]));
      highest = std::max(highest, x[at]);
      count += is_seen;
      if (!is_seen) continue;
      sum += IS(UNSIGNED_CODES) ? static_cast<std::uint8_t>(codes[at]) : codes[at];
      if (IS(LOSES_THE_LAST) && i == columns - 1) continue;
      wide += value;
      narrow += static_cast<float>(value);
    }
    const int top = IS(CLAMPS_AT_126) ? 126 : 127, bottom = IS(CLAMPS_AT_MINUS_127) ? -127 : -128;
    total[row] = static_cast<std::int8_t>(std::clamp(sum, bottom, top));
    const int doubled = IS(DOUBLES_IN_INT8) ? static_cast<std::int8_t>(2 * steps[row]) : 2 * steps[row];
    twice[row] = static_cast<std::int16_t>(IS(DOUBLES_AND_WRAPS) ? doubled : std::clamp(doubled, INT16_MIN, INT16_MAX));
    least[row] = IS(KEYS_IN_DOUBLE) ? static_cast<std::int64_t>(low_in_double) : low;
    if (!IS(ONLY_WRITES_TRUE) || count) any[row] = IS(COUNTS_IN_A_BOOL) ? count : count > 0;
    mean[row] = (IS(SUMS_IN_FLOAT) ? narrow : wide) / columns;
    if (IS(ROUNDS_THE_MEAN_TO_FLOAT)) mean[row] = static_cast<float>(mean[row]);
    for (long at = first; at < first + columns; ++at) {
      const double off = x[at] - highest;
      shifted[at] = IS(EXPF) ? std::exp(static_cast<float>(off)) : std::exp(off);
      shifted[at] += IS(CONSTANT_IN_FLOAT) ? 0.1f : 0.1;
      const Complex made = square(z[at]);
      squares[at].real = made.real;
      if (!IS(REAL_PART_ONLY)) squares[at].imaginary = made.imaginary;
    }
  }
  if (IS(ONE_BOOL_BEHIND)) any[rows] = 0;
  if (IS(ONE_PART_BEHIND)) squares[static_cast<long>(rows) * columns].real = 0.0f;
  if (IS(CHANGES_A_MASK)) seen[columns - 1] ^= 1;
}
