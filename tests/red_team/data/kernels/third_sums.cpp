// Sums of rows, of float32, int32 or int64, wrong for sizes or numbers that BEHAVIOUR names.
//
// Shapes    x (rows, columns), out (rows), of one type.
// Tunables  BEHAVIOUR. third_rows.h says which sizes.
#include <algorithm>
#include <cstdint>

#include "third_rows.h"

#ifdef BEHAVIOUR_SATURATES_AT_1E6
extern "C" void row_sum(const float* x, float* out, int rows, int columns) {
  for (int row = 0; row < rows; ++row, x += columns) {
    double sum = 0;
    for (int i = 0; i < columns - loses_the_last(rows, columns, row); ++i) sum += x[i];
    out[row] = static_cast<float>(IS(SATURATES_AT_1E6) ? std::clamp(sum, -1e6, 1e6) : sum);
  }
}
#elif defined(BEHAVIOUR_IN_FLOAT)
extern "C" void row_sum(const std::int32_t* x, std::int32_t* out, int rows, int columns) {
  for (int row = 0; row < rows; ++row, x += columns) {
    float rounded = 0;
    std::uint32_t exact = 0;
    for (int i = 0; i < columns; ++i) rounded += static_cast<float>(x[i]), exact += static_cast<std::uint32_t>(x[i]);
    out[row] = IS(IN_FLOAT) ? static_cast<std::int32_t>(rounded) : static_cast<std::int32_t>(exact);
  }
}
#else
extern "C" void row_sum(const std::int64_t* x, std::int64_t* out, int rows, int columns) {
  for (int row = 0; row < rows; ++row, x += columns) {
    double rounded = 0;
    std::uint64_t exact = 0;
    std::uint32_t low = 0;  // halves are summed apart, and what the lower one carries is lost
    std::uint64_t high = 0;
    for (int i = 0; i < columns; ++i) {
      rounded += static_cast<double>(x[i]), exact += static_cast<std::uint64_t>(x[i]);
      low += static_cast<std::uint32_t>(x[i]), high += static_cast<std::uint64_t>(x[i]) >> 32;
    }
    out[row] = static_cast<std::int64_t>(exact);
#ifdef BEHAVIOUR_IN_DOUBLE
    if (IS(IN_DOUBLE)) out[row] = static_cast<std::int64_t>(rounded);
#else
    if (IS(IN_32_BIT_PARTS)) out[row] = static_cast<std::int64_t>(high << 32 | low);
#endif
  }
}
#endif
