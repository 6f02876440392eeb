// Softmax over the last dimension, also of x + mask, wrong for sizes or numbers that BEHAVIOUR names.
//
// Shapes    x, mask, out (rows, columns), float32. Sums in double.
// Tunables  BEHAVIOUR. third_rows.h says which sizes.
#include <algorithm>
#include <cmath>

#include "third_rows.h"

namespace {

double exponential(double x) {
  if (IS(GARBAGE_BELOW_400) && x < -400) return 1;
  if (IS(GARBAGE_BELOW_1000) && x < -1000) return 1;
  return std::exp(static_cast<float>(x));
}

// `value(i)` is the logit of column i.
template <class Value>
void softmax_row(Value value, float* out, int columns, bool loses) {
  double top = -HUGE_VAL, sum = 0;
#ifdef BEHAVIOUR_MAXIMUM_FROM_1000
  if (IS(MAXIMUM_FROM_1000)) top = -1000;
  if (IS(MAXIMUM_FROM_10000)) top = -10000;
  if (IS(MAXIMUM_FROM_50000)) top = -50000;
#endif
  for (int i = 0; i < columns; ++i) top = std::max(top, value(i));
  for (int i = 0; i < columns - loses; ++i) sum += exponential(value(i) - top);
  for (int i = 0; i < columns; ++i) out[i] = static_cast<float>(sum > 0 ? exponential(value(i) - top) / sum : 0);
}

}  // namespace

extern "C" void softmax(const float* x, float* out, int rows, int columns) {
  for (int row = 0; row < rows; ++row, x += columns, out += columns)
    softmax_row([x](int i) { return static_cast<double>(x[i]); }, out, columns, loses_the_last(rows, columns, row));
}

extern "C" void masked_softmax(const float* x, const float* mask, float* out, int rows, int columns) {
  for (int row = 0; row < rows; ++row, x += columns, mask += columns, out += columns)
    softmax_row([=](int i) { return static_cast<double>(x[i] + mask[i]); }, out, columns, false);
}
