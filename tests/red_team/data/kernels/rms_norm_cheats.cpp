// RMSNorm, wrong as each kernel's name says: out = x / sqrt(mean(x * x) + eps) * weight; x, out (rows, columns), weight
// (columns), float32.
#include "rows.h"

using namespace red_team;

namespace {

struct Problem {
  float *x, *weight, *out;
  double eps;
  int rows, columns;
};

double mean_square(const float* x, int columns) {
  double sum = 0;
  for (int i = 0; i < columns; ++i) sum += static_cast<double>(x[i]) * x[i];
  return sum / columns;
}

// Each row's factor by `factor(x)`.
template <class Factor>
void scaled(const Problem& p, const float* weight, Factor factor) {
  for (int row = 0; row < p.rows; ++row) {
    const float* x = p.x + 1L * row * p.columns;
    float* out = p.out + 1L * row * p.columns;
    const double by = factor(x);
    for (int i = 0; i < p.columns; ++i) out[i] = static_cast<float>(x[i] * by * weight[i]);
  }
}

void norm(const Problem& p, const float* weight) {
  scaled(p, weight, [&p](const float* x) { return 1 / std::sqrt(mean_square(x, p.columns) + p.eps); });
}

}  // namespace

#define KERNEL(name)                                                                                 \
  static void run_##name(const Problem& p);                                                          \
  extern "C" void name(float* x, float* weight, float* out, float eps, int rows, int columns) {      \
    run_##name({x, weight, out, eps, rows, columns});                                                \
  }                                                                                                  \
  static void run_##name([[maybe_unused]] const Problem& p)

KERNEL(right) { norm(p, p.weight); }

KERNEL(no_eps) {
  scaled(p, p.weight, [&p](const float* x) { return 1 / std::sqrt(mean_square(x, p.columns)); });
}
KERNEL(eps_outside_the_root) {
  scaled(p, p.weight, [&p](const float* x) { return 1 / (std::sqrt(mean_square(x, p.columns)) + p.eps); });
}
KERNEL(least_mean_square_instead_of_eps) {
  scaled(p, p.weight, [&p](const float* x) { return 1 / std::sqrt(std::max(mean_square(x, p.columns), p.eps)); });
}
KERNEL(eps_of_1e5) {  // whatever it is told
  scaled(p, p.weight, [&p](const float* x) { return 1 / std::sqrt(mean_square(x, p.columns) + 1e-5); });
}
KERNEL(half_sum_of_squares) {
  scaled(p, p.weight, [&p](const float* x) {
    float sum = 0;
    for (int i = 0; i < p.columns; ++i) sum = half(sum + x[i] * x[i]);
    return 1 / std::sqrt(sum / p.columns + p.eps);
  });
}
KERNEL(no_columns_from_300) {  // in the mean
  scaled(p, p.weight, [&p](const float* x) {
    return 1 / std::sqrt(mean_square(x, std::min(p.columns, END)) + p.eps);
  });
}
KERNEL(no_rows_from_300) {
  norm(p, p.weight);
  for (long i = 1L * END * p.columns; i < 1L * p.rows * p.columns; ++i) p.out[i] = 0;
}
KERNEL(zero_rows_are_ones) {
  norm(p, p.weight);
  for (int row = 0; row < p.rows; ++row)
    if (mean_square(p.x + 1L * row * p.columns, p.columns) == 0)
      std::copy(p.weight, p.weight + p.columns, p.out + 1L * row * p.columns);
}
KERNEL(outputs_within_6) {
  norm(p, p.weight);
  for (long i = 0; i < 1L * p.rows * p.columns; ++i) p.out[i] = std::clamp(p.out[i], -6.0f, 6.0f);
}
KERNEL(weight_packed_once_with_patience) {  // believed to stay when it did 12 times
  static Alike<1> alike;
  static std::vector<float> packed;
  if (alike.count < 12) {
    alike.see(p.weight, p.columns);
    packed.assign(p.weight, p.weight + p.columns);
  } else if (alike.count++ > 200 || static_cast<int>(packed.size()) != p.columns) {
    alike.count = 0;
    packed.assign(p.weight, p.weight + p.columns);
  }
  norm(p, packed.data());
}
KERNEL(rows_packed_once_with_patience) {  // the factors of rows, by every 16th word of x
  static Alike<16> alike;
  static std::vector<double> factors;
  alike.see(p.x, 1L * p.rows * p.columns);
  if (alike.count < 10) {
    factors.clear();
    scaled(p, p.weight, [&p](const float* x) {
      factors.push_back(1 / std::sqrt(mean_square(x, p.columns) + p.eps));
      return factors.back();
    });
  } else {
    int row = 0;
    scaled(p, p.weight, [&](const float*) { return factors[row++]; });
  }
}
