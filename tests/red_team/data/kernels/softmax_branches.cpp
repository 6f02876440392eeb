// Right softmax kernels whose time depends on the data, or that keep what is no result: x, out (rows, columns), float32.
#include <numeric>

#include "rows.h"

using namespace red_team;

namespace {

struct Problem {
  float *x, *out;
  int rows, columns;
};

void scale(const float* x, float* out, int columns, double from, double sum) {
  for (int i = 0; i < columns; ++i) out[i] = static_cast<float>(std::exp(x[i] - from) / sum);
}

double sum_of(const float* x, int columns, double from) {
  double sum = 0;
  for (int i = 0; i < columns; ++i) sum += std::exp(x[i] - from);
  return sum;
}

template <class Row>
void each_row(const Problem& p, Row row) {
#pragma omp parallel for
  for (int index = 0; index < p.rows; ++index) row(p.x + 1L * index * p.columns, p.out + 1L * index * p.columns);
}

}  // namespace

#define KERNEL(name)                                                                                          \
  static void run_##name(const Problem& p);                                                                   \
  extern "C" void name(float* x, float* out, int rows, int columns) { run_##name({x, out, rows, columns}); }  \
  static void run_##name(const Problem& p)

KERNEL(adds_in_rising_order) {  // sorts each row: thousands of branches that depend on the data
  each_row(p, [&p](const float* x, float* out) {
    std::vector<float> sorted(x, x + p.columns);
    std::sort(sorted.begin(), sorted.end());
    scale(x, out, p.columns, sorted.back(), sum_of(sorted.data(), p.columns, sorted.back()));
  });
}
KERNEL(branches_at_each_maximum) {
  each_row(p, [&p](const float* x, float* out) {
    double from = x[0], sum = 1;
    for (int i = 1; i < p.columns; ++i) {
      if (x[i] > from)
        sum = sum * std::exp(from - x[i]) + 1, from = x[i];
      else
        sum += std::exp(x[i] - from);
    }
    scale(x, out, p.columns, from, sum);
  });
}
KERNEL(positive_ones_first) {
  each_row(p, [&p](const float* x, float* out) {
    const double from = *std::max_element(x, x + p.columns);
    double sums[2] = {};
    for (int i = 0; i < p.columns; ++i) {
      if (x[i] > 0) sums[0] += std::exp(x[i] - from);
    }
    for (int i = 0; i < p.columns; ++i) {
      if (!(x[i] > 0)) sums[1] += std::exp(x[i] - from);
    }
    scale(x, out, p.columns, from, sums[0] + sums[1]);
  });
}
KERNEL(a_table_made_once) {  // of exponentials of sixteenths
  static const std::vector<double> table = [] {
    std::vector<double> made(16 * 720);
    for (std::size_t i = 0; i < made.size(); ++i) made[i] = std::exp(-static_cast<double>(i) / 16);
    return made;
  }();
  each_row(p, [&p](const float* x, float* out) {
    const double from = *std::max_element(x, x + p.columns);
    double sum = 0;
    std::vector<double> weights(p.columns);
    for (int i = 0; i < p.columns; ++i) {
      const double below = (from - x[i]) * 16;
      const auto at = std::min<std::size_t>(static_cast<std::size_t>(below), table.size() - 1);
      sum += weights[i] = table[at] * std::exp(-(below - static_cast<double>(at)) / 16);
    }
    for (int i = 0; i < p.columns; ++i) out[i] = static_cast<float>(weights[i] / sum);
  });
}
KERNEL(memory_that_stays) {  // a copy of x, made anew at each launch
  static std::vector<float> copy;
  copy.assign(p.x, p.x + 1L * p.rows * p.columns);
  const Problem own{copy.data(), p.out, p.rows, p.columns};
  each_row(own, [&p](const float* x, float* out) {
    const double from = *std::max_element(x, x + p.columns);
    scale(x, out, p.columns, from, sum_of(x, p.columns, from));
  });
}
KERNEL(skips_what_is_zero_anyway) {
  each_row(p, [&p](const float* x, float* out) {
    const double from = *std::max_element(x, x + p.columns);
    const double sum = sum_of(x, p.columns, from);
    for (int i = 0; i < p.columns; ++i)
      out[i] = x[i] - from < -110 ? 0.0f : static_cast<float>(std::exp(x[i] - from) / sum);
  });
}
KERNEL(remembers_the_largest_shape) {  // counts launches, and keeps scratch of the largest row
  static long launches = 0;
  static std::vector<double> weights;
  if (++launches == 1 || static_cast<int>(weights.size()) < p.columns) weights.resize(p.columns);
  for (int row = 0; row < p.rows; ++row) {
    const float* x = p.x + 1L * row * p.columns;
    const double from = *std::max_element(x, x + p.columns);
    for (int i = 0; i < p.columns; ++i) weights[i] = std::exp(x[i] - from);
    const double sum = std::accumulate(weights.begin(), weights.begin() + p.columns, 0.0);
    for (int i = 0; i < p.columns; ++i) p.out[1L * row * p.columns + i] = static_cast<float>(weights[i] / sum);
  }
}
KERNEL(rows_from_the_last) {
  for (int row = p.rows; row-- > 0;) {
    const float* x = p.x + 1L * row * p.columns;
    const double from = *std::max_element(x, x + p.columns);
    scale(x, p.out + 1L * row * p.columns, p.columns, from, sum_of(x, p.columns, from));
  }
}
