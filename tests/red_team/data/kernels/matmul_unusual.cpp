// Matrix product, right, computed as each kernel's name says: a (m, k), b (k, n), out (m, n), row-major, float32.
#include "rows.h"

namespace {

// Each element by `sum(row of a, column of b)`; the column's elements are n apart.
template <class Sum>
void each_element(const float* a, const float* b, float* out, int m, int n, int k, Sum sum) {
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) out[1L * i * n + j] = sum(a + 1L * i * k, b + j);
}

float in_order_sum(const float* row, const float* column, int first, int end, long n) {
  float sum = 0;
  for (int d = first; d < end; ++d) sum += row[d] * column[d * n];
  return sum;
}

float pairwise(const float* row, const float* column, int first, int end, long n) {
  if (end - first <= 8) return in_order_sum(row, column, first, end, n);
  const int middle = (first + end) / 2;
  return pairwise(row, column, first, middle, n) + pairwise(row, column, middle, end, n);
}

}  // namespace

#define KERNEL(name) extern "C" void name(float* a, float* b, float* out, int m, int n, int k)

KERNEL(in_order) {
  each_element(a, b, out, m, n, k, [=](const float* row, const float* column) {
    return in_order_sum(row, column, 0, k, n);
  });
}
KERNEL(backwards) {
  each_element(a, b, out, m, n, k, [=](const float* row, const float* column) {
    float sum = 0;
    for (int d = k - 1; d >= 0; --d) sum += row[d] * column[1L * d * n];
    return sum;
  });
}
KERNEL(row_by_row) {  // outer products, added into the output
  std::fill(out, out + 1L * m * n, 0.0f);
  for (int i = 0; i < m; ++i)
    for (int d = 0; d < k; ++d)
      for (int j = 0; j < n; ++j) out[1L * i * n + j] += a[1L * i * k + d] * b[1L * d * n + j];
}
KERNEL(blocks_of_32) {
  each_element(a, b, out, m, n, k, [=](const float* row, const float* column) {
    float sum = 0;
    for (int first = 0; first < k; first += 32) sum += in_order_sum(row, column, first, std::min(k, first + 32), n);
    return sum;
  });
}
KERNEL(split_in_4) {
  each_element(a, b, out, m, n, k, [=](const float* row, const float* column) {
    float sum = 0;
    for (int part = 0; part < 4; ++part) sum += in_order_sum(row, column, k * part / 4, k * (part + 1) / 4, n);
    return sum;
  });
}
KERNEL(pairwise_sums) {
  each_element(a, b, out, m, n, k, [=](const float* row, const float* column) {
    return pairwise(row, column, 0, k, n);
  });
}
KERNEL(kahan_sums) {
  each_element(a, b, out, m, n, k, [=](const float* row, const float* column) {
    float sum = 0, lost = 0;
    for (int d = 0; d < k; ++d) {
      const float term = row[d] * column[1L * d * n] - lost, next = sum + term;
      lost = (next - sum) - term;
      sum = next;
    }
    return sum;
  });
}
KERNEL(transposed_copy) {
  std::vector<float> columns(1L * n * k);
  for (int d = 0; d < k; ++d)
    for (int j = 0; j < n; ++j) columns[1L * j * k + d] = b[1L * d * n + j];
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j)
      out[1L * i * n + j] = in_order_sum(a + 1L * i * k, columns.data() + 1L * j * k, 0, k, 1);
}
KERNEL(in_double) {
  each_element(a, b, out, m, n, k, [=](const float* row, const float* column) {
    double sum = 0;
    for (int d = 0; d < k; ++d) sum += static_cast<double>(row[d]) * column[1L * d * n];
    return static_cast<float>(sum);
  });
}
