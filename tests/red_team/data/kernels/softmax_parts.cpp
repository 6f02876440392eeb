// Softmax over the last dimension that keeps the results of rows: x, out (rows, columns), float32. Each kernel reads all
// of x at each launch, so its results are right; it computes only what is new to it.
#include "softmax_rows.h"

using namespace red_team;

namespace {

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
