// Softmax over the last dimension: x, out (rows, columns), float32. Each KERNEL is a function of its own, which the
// loader finds by its name.
#pragma once

#include "rows.h"

namespace red_team {

struct Problem {
  float *x, *out;
  int rows, columns;
  long elements() const { return 1L * rows * columns; }
};

inline void softmax_row(const float* x, float* out, int columns) {
  const double from = *std::max_element(x, x + columns);
  double sum = 0;
  for (int i = 0; i < columns; ++i) sum += std::exp(x[i] - from);
  for (int i = 0; i < columns; ++i) out[i] = static_cast<float>(std::exp(x[i] - from) / sum);
}

}  // namespace red_team

#define KERNEL(name)                                                                                          \
  static void run_##name(const red_team::Problem& p);                                                         \
  extern "C" void name(float* x, float* out, int rows, int columns) { run_##name({x, out, rows, columns}); }  \
  static void run_##name([[maybe_unused]] const red_team::Problem& p)
