// RMSNorm, right, computed as each kernel's name says: out = x / sqrt(mean(x * x) + eps) * weight; x, out (rows,
// columns), weight (columns), float32.
#include "rows.h"

namespace {

// Each row's factor by `factor(x)`, in float.
template <class Factor>
void scaled(const float* x, const float* weight, float* out, int rows, int columns, Factor factor) {
  for (int row = 0; row < rows; ++row, x += columns, out += columns) {
    const float by = factor(x);
    for (int i = 0; i < columns; ++i) out[i] = x[i] * by * weight[i];
  }
}

float in_order_sum(const float* x, int columns) {
  float sum = 0;
  for (int i = 0; i < columns; ++i) sum += x[i] * x[i];
  return sum;
}

float pairwise(const float* x, int count) {
  return count <= 8 ? in_order_sum(x, count) : pairwise(x, count / 2) + pairwise(x + count / 2, count - count / 2);
}

}  // namespace

#define KERNEL(name) extern "C" void name(float* x, float* weight, float* out, float eps, int rows, int columns)

KERNEL(plain_sum) {
  scaled(x, weight, out, rows, columns, [=](const float* row) {
    return 1 / std::sqrt(in_order_sum(row, columns) / static_cast<float>(columns) + eps);
  });
}
KERNEL(pairwise_sum) {
  scaled(x, weight, out, rows, columns, [=](const float* row) {
    return 1 / std::sqrt(pairwise(row, columns) / static_cast<float>(columns) + eps);
  });
}
KERNEL(divides) {
  for (int row = 0; row < rows; ++row, x += columns, out += columns) {
    const float by = std::sqrt(in_order_sum(x, columns) / static_cast<float>(columns) + eps);
    for (int i = 0; i < columns; ++i) out[i] = x[i] / by * weight[i];
  }
}
KERNEL(weight_first) {
  for (int row = 0; row < rows; ++row, x += columns, out += columns) {
    const float by = 1 / std::sqrt(in_order_sum(x, columns) / static_cast<float>(columns) + eps);
    for (int i = 0; i < columns; ++i) out[i] = x[i] * (weight[i] * by);
  }
}
KERNEL(running_mean) {  // of the squares
  scaled(x, weight, out, rows, columns, [=](const float* row) {
    float mean = 0;
    for (int i = 0; i < columns; ++i) mean += (row[i] * row[i] - mean) / static_cast<float>(i + 1);
    return 1 / std::sqrt(mean + eps);
  });
}
KERNEL(kahan_sum) {
  scaled(x, weight, out, rows, columns, [=](const float* row) {
    float sum = 0, lost = 0;
    for (int i = 0; i < columns; ++i) {
      const float term = row[i] * row[i] - lost, next = sum + term;
      lost = (next - sum) - term;
      sum = next;
    }
    return 1 / std::sqrt(sum / static_cast<float>(columns) + eps);
  });
}
KERNEL(newton_root) {  // a guess from the exponent's bits, and four steps of Newton's
  scaled(x, weight, out, rows, columns, [=](const float* row) {
    const float mean = in_order_sum(row, columns) / static_cast<float>(columns) + eps;
    std::uint32_t word;
    std::memcpy(&word, &mean, 4);
    word = 0x5f375a86u - (word >> 1);
    float root;
    std::memcpy(&root, &word, 4);
    for (int turn = 0; turn < 4; ++turn) root *= 1.5f - 0.5f * mean * root * root;
    return root;
  });
}
KERNEL(in_double) {
  for (int row = 0; row < rows; ++row, x += columns, out += columns) {
    double sum = 0;
    for (int i = 0; i < columns; ++i) sum += static_cast<double>(x[i]) * x[i];
    const double by = 1 / std::sqrt(sum / columns + eps);
    for (int i = 0; i < columns; ++i) out[i] = static_cast<float>(x[i] * by * weight[i]);
  }
}
