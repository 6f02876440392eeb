// Softmax over the last dimension that keeps the results of rows: x, out (rows, columns), float32. Each kernel reads all
// of x at each launch, so its results are right; it computes only what is new to it.
#include "rows.h"

using namespace red_team;

namespace {

struct Problem {
  float *x, *out;
  int rows, columns;
  long elements() const { return 1L * rows * columns; }
};

void softmax_row(const float* x, float* out, int columns) {
  const double from = *std::max_element(x, x + columns);
  double sum = 0;
  for (int i = 0; i < columns; ++i) sum += std::exp(x[i] - from);
  for (int i = 0; i < columns; ++i) out[i] = static_cast<float>(std::exp(x[i] - from) / sum);
}

// The inputs and the results of the launch before.
struct Kept {
  std::vector<float> x, out;
  void fit(const Problem& p) {
    if (static_cast<long>(x.size()) != p.elements()) x.assign(p.elements(), NAN), out.assign(p.elements(), NAN);
  }
  void row(const Problem& p, int row) {
    const long at = 1L * row * p.columns;
    const std::size_t bytes = p.columns * sizeof(float);
    if (std::memcmp(&x[at], p.x + at, bytes)) {
      softmax_row(p.x + at, &out[at], p.columns);
      std::memcpy(&x[at], p.x + at, bytes);
    }
    std::memcpy(p.out + at, &out[at], bytes);
  }
};

}  // namespace

#define KERNEL(name)                                                                                          \
  static void run_##name(const Problem& p);                                                                   \
  extern "C" void name(float* x, float* out, int rows, int columns) { run_##name({x, out, rows, columns}); }  \
  static void run_##name([[maybe_unused]] const Problem& p)

KERNEL(right) {
  for (int row = 0; row < p.rows; ++row)
    softmax_row(p.x + 1L * row * p.columns, p.out + 1L * row * p.columns, p.columns);
}
KERNEL(keeps_each_row) {
  static Kept kept;
  kept.fit(p);
  for (int row = 0; row < p.rows; ++row) kept.row(p, row);
}
KERNEL(keeps_half_of_the_rows) {
  static Kept kept;
  kept.fit(p);
  for (int row = 0; row < p.rows; ++row)
    if (row % 2)
      kept.row(p, row);
    else
      softmax_row(p.x + 1L * row * p.columns, p.out + 1L * row * p.columns, p.columns);
}
