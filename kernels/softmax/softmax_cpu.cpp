// Softmax over rows on the CPU: out = exp(x - max) / sum(exp(x - max)), as powers of two.
//
// Shapes    x, out (rows, columns), contiguous, float32; any sizes >= 1.
// Tunables  VECTORS          vectors of partial maxima and sums that a row is read with
//           EXP_METHOD       poly5, poly6: a polynomial on whole vectors; libm: the library's, one at a time
//           RECOMPUTE        exp is computed again for the output, instead of stored and read back
//           SCHEDULE, CHUNK  how OpenMP hands out rows, and how many at a time
// Archs     any: vectors as wide as the machine has them (../attention/parts/simd.h). Workspace: none.
#include <algorithm>
#include <cstddef>
#include <limits>

#include "../attention/parts/simd.h"

#if SCHEDULE == SCHEDULE_STATIC
#define OMP_SCHEDULE static
#else
#define OMP_SCHEDULE dynamic
#endif

namespace {

constexpr int kLanes = kNativeLanes;
constexpr int kStep = VECTORS * kLanes;
constexpr float kLog2E = 1.44269504f;
using Vector = Vec<kLanes>;

// For the last elements of a row: loads `count` of them, and `fill` into the rest of the vector.
inline Vector load_some(const float* from, std::ptrdiff_t count, float fill) {
  float values[kLanes];
  std::fill(values, values + kLanes, fill);
  std::memcpy(values, from, count * sizeof(float));
  return load<kLanes>(values);
}
inline void store_some(float* to, Vector value, std::ptrdiff_t count) {
  float values[kLanes];
  store<kLanes>(values, value);
  std::memcpy(to, values, count * sizeof(float));
}

inline Vector weight(Vector x, Vector maximum) { return exp2_nonpositive<kLanes>((x - maximum) * kLog2E); }

float maximum_of(const float* x, std::ptrdiff_t columns) {
  const float lowest = -std::numeric_limits<float>::infinity();
  Vector found[VECTORS];
  for (Vector& each : found) each = broadcast<kLanes>(lowest);
  std::ptrdiff_t i = 0;
  for (; i + kStep <= columns; i += kStep)
    for (int v = 0; v < VECTORS; ++v) found[v] = maximum(load<kLanes>(x + i + v * kLanes), found[v]);
  for (; i < columns; i += kLanes)
    found[0] = maximum(load_some(x + i, std::min<std::ptrdiff_t>(kLanes, columns - i), lowest), found[0]);
  for (int v = 1; v < VECTORS; ++v) found[0] = maximum(found[v], found[0]);
  return reduce<kLanes>(found[0], [](auto a, auto b) { return a > b ? a : b; });
}

void softmax_row(const float* x, float* out, std::ptrdiff_t columns) {
  const Vector highest = broadcast<kLanes>(maximum_of(x, columns));
  Vector sums[VECTORS] = {};
  std::ptrdiff_t i = 0;
  for (; i + kStep <= columns; i += kStep)
    for (int v = 0; v < VECTORS; ++v) {
      const Vector value = weight(load<kLanes>(x + i + v * kLanes), highest);
      if (!RECOMPUTE) store<kLanes>(out + i + v * kLanes, value);
      sums[v] += value;
    }
  for (; i < columns; i += kLanes) {
    const std::ptrdiff_t count = std::min<std::ptrdiff_t>(kLanes, columns - i);
    const Vector value = weight(load_some(x + i, count, -std::numeric_limits<float>::infinity()), highest);
    if (!RECOMPUTE) store_some(out + i, value, count);
    sums[0] += value;
  }
  for (int v = 1; v < VECTORS; ++v) sums[0] += sums[v];
  const Vector scale = broadcast<kLanes>(1.0f / reduce<kLanes>(sums[0], [](auto a, auto b) { return a + b; }));
  for (i = 0; i + kLanes <= columns; i += kLanes)
    store<kLanes>(out + i, scale * (RECOMPUTE ? weight(load<kLanes>(x + i), highest) : load<kLanes>(out + i)));
  if (i < columns) {
    const Vector last = load_some((RECOMPUTE ? x : out) + i, columns - i, 0.0f);
    store_some(out + i, scale * (RECOMPUTE ? weight(last, highest) : last), columns - i);
  }
}

}  // namespace

extern "C" void softmax(const float* x, float* out, int rows, int columns) {
#pragma omp parallel for schedule(OMP_SCHEDULE, CHUNK)
  for (int row = 0; row < rows; ++row) {
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(row) * columns;
    softmax_row(x + at, out + at, columns);
  }
}
