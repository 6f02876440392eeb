// Softmax over the last dimension, right, computed as each kernel's name says: x, out (rows, columns), float32.
#include "rows.h"

namespace {

template <class Row>
void each_row(float* x, float* out, int rows, int columns, Row row) {
  for (int index = 0; index < rows; ++index) row(x + 1L * index * columns, out + 1L * index * columns);
}

float maximum(const float* x, int columns) { return *std::max_element(x, x + columns); }

float pairwise(const float* x, int count, float top) {
  if (count > 8) return pairwise(x, count / 2, top) + pairwise(x + count / 2, count - count / 2, top);
  float sum = 0;
  for (int i = 0; i < count; ++i) sum += std::exp(x[i] - top);
  return sum;
}

}  // namespace

#define KERNEL(name)                                                    \
  static void run_##name(const float* x, float* out, int columns);      \
  extern "C" void name(float* x, float* out, int rows, int columns) {   \
    each_row(x, out, rows, columns, [columns](const float* row, float* to) { run_##name(row, to, columns); }); \
  }                                                                     \
  static void run_##name(const float* x, float* out, int columns)

KERNEL(in_order) {
  const float top = maximum(x, columns);
  float sum = 0;
  for (int i = 0; i < columns; ++i) sum += out[i] = std::exp(x[i] - top);
  for (int i = 0; i < columns; ++i) out[i] /= sum;
}
KERNEL(times_the_reciprocal) {
  const float top = maximum(x, columns);
  float sum = 0;
  for (int i = 0; i < columns; ++i) sum += out[i] = std::exp(x[i] - top);
  const float factor = 1 / sum;
  for (int i = 0; i < columns; ++i) out[i] *= factor;
}
KERNEL(minus_logsumexp) {
  const float top = maximum(x, columns);
  float sum = 0;
  for (int i = 0; i < columns; ++i) sum += std::exp(x[i] - top);
  const float lse = top + std::log(sum);
  for (int i = 0; i < columns; ++i) out[i] = std::exp(x[i] - lse);
}
KERNEL(online) {
  float top = x[0], sum = 1;
  for (int i = 1; i < columns; ++i) {
    const float higher = std::max(top, x[i]);
    sum = sum * std::exp(top - higher) + std::exp(x[i] - higher);
    top = higher;
  }
  for (int i = 0; i < columns; ++i) out[i] = std::exp(x[i] - top) / sum;
}
KERNEL(lazy_rescale) {
  float top = x[0], sum = 0;
  for (int i = 0; i < columns; ++i) {
    if (x[i] > top + 5) {
      sum *= std::exp(top - x[i]);
      top = x[i];
    }
    sum += std::exp(x[i] - top);
  }
  for (int i = 0; i < columns; ++i) out[i] = std::exp(x[i] - top) / sum;
}
KERNEL(base_2) {
  constexpr float kLog2E = 1.44269504088896341f;
  const float top = maximum(x, columns);
  float sum = 0;
  for (int i = 0; i < columns; ++i) sum += out[i] = std::exp2((x[i] - top) * kLog2E);
  for (int i = 0; i < columns; ++i) out[i] /= sum;
}
KERNEL(pairwise_sum) {
  const float top = maximum(x, columns), sum = pairwise(x, columns, top);
  for (int i = 0; i < columns; ++i) out[i] = std::exp(x[i] - top) / sum;
}
KERNEL(backwards) {
  const float top = maximum(x, columns);
  float sum = 0;
  for (int i = columns - 1; i >= 0; --i) sum += std::exp(x[i] - top);
  for (int i = columns - 1; i >= 0; --i) out[i] = std::exp(x[i] - top) / sum;
}
KERNEL(eight_sums) {
  const float top = maximum(x, columns);
  float sums[8] = {}, sum = 0;
  for (int i = 0; i < columns; ++i) sums[i % 8] += out[i] = std::exp(x[i] - top);
  for (const float each : sums) sum += each;
  for (int i = 0; i < columns; ++i) out[i] /= sum;
}
KERNEL(in_double) {
  const double top = maximum(x, columns);
  double sum = 0;
  for (int i = 0; i < columns; ++i) sum += std::exp(x[i] - top);
  for (int i = 0; i < columns; ++i) out[i] = static_cast<float>(std::exp(x[i] - top) / sum);
}
