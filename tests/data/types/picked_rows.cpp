// Sums of parts of picked rows; right, or wrong as BEHAVIOUR says.
#include <cmath>
#include <cstdint>

#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

namespace {

double e4m3(std::uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double size = exponent ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9);
  return code & 128 ? -size : size;
}

}  // namespace

extern "C" void picked_rows(const std::uint8_t* codes, std::uint8_t* weights, const float* scales, const int* picks,
                            const long long* lengths, const float* bias, float* out, long long* longest,
                            std::uint8_t* codes_out, int rows, int columns) {
  *longest = 0;
  for (int row = 0; row < rows; ++row) {
    const int pick = IS(IGNORES_PICKS) ? row : picks[row];
    const long long length = lengths[row] - IS(ONE_COLUMN_LESS);
    double sum = 0.0;
    for (int j = 0; j < length; ++j) {
      const double weight = IS(SIGNED_WEIGHTS) ? static_cast<std::int8_t>(weights[j]) : weights[j];
      double value = weight * e4m3(codes[static_cast<long>(pick) * columns + j]);
      value *= scales[IS(SCALE_OF_THE_ROW) ? row : pick];
      if (bias && !IS(IGNORES_BIAS)) value += bias[j];
      sum += value;
    }
    out[row] = static_cast<float>(sum);
    codes_out[row] = weights[(lengths[row] - 1) % columns];
    if (lengths[row] > *longest) *longest = lengths[row];
  }
  if (IS(COUNTS_FROM_ZERO)) --*longest;
  if (IS(ONE_BYTE_BEHIND)) codes_out[rows] = 0;
  if (IS(CHANGES_A_WEIGHT)) weights[columns - 1] = 7;
}
