// sums[row] = weights[row, :] . x, out[row] = scales[row] * sums[row]; right, or wrong as BEHAVIOUR says.
#include <algorithm>
#include <cstdint>

#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

namespace {

int product(std::int8_t weight, std::int8_t x) {
  if (IS(UNSIGNED_WEIGHTS)) return static_cast<std::uint8_t>(weight) * x;
  if (IS(LEAST_IS_MINUS_127)) return std::max<int>(weight, -127) * x;
  const int made = weight * x;
  return IS(PRODUCTS_IN_8_BITS) ? static_cast<std::int8_t>(made) : made;
}

}  // namespace

extern "C" void int8_gemv(const std::int8_t* weights, std::int8_t* x, const float* scales, float* out,
                          std::int32_t* sums, int rows, int columns) {
  const int count = IS(LOSES_THE_TAIL) ? std::max(1, columns / 4 * 4) : columns;
  for (int row = 0; row < rows; ++row) {
    const std::int8_t* own = weights + static_cast<long>(row) * columns;
    std::int32_t parts[4] = {};
    float in_float = 0.0f;
    for (int i = 0; i < count && i < columns; ++i) {
      parts[IS(BY_FOURS) ? i % 4 : 0] += product(own[i], x[i]);
      in_float += static_cast<float>(product(own[i], x[i]));
      if (IS(SUMS_IN_16_BITS)) parts[0] = static_cast<std::int16_t>(parts[0]);
    }
    std::int32_t sum = parts[0] + parts[1] + parts[2] + parts[3];
    if (IS(SUMS_IN_FLOAT)) sum = static_cast<std::int32_t>(in_float);
    if (!IS(NO_SUMS)) sums[row] = sum;
    out[row] = static_cast<float>(sum) * scales[IS(SCALE_OF_THE_FIRST) ? 0 : row];
  }
  if (IS(CHANGES_X)) x[0] = static_cast<std::int8_t>(x[0] + 1);
}
