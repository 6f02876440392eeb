// Softmax over rows on the CPU: out = exp(x - max) / sum(exp(x - max)).
//
// Shapes    x, out (rows, columns), contiguous, float32; any sizes >= 1.
// Tunables  LANES            partial maxima and sums (8, 16, 32, 64): vectors, and several of them at a time
//           EXP_METHOD       libm: the library's, one at a time; poly: a polynomial that the compiler makes vectors of
//           RECOMPUTE        exp is computed again for the output, instead of stored and read back
//           SCHEDULE, CHUNK  how OpenMP hands out rows, and how many at a time
// Archs     any. Workspace: none.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#if SCHEDULE == SCHEDULE_STATIC
#define OMP_SCHEDULE static
#else
#define OMP_SCHEDULE dynamic
#endif

namespace {

// x <= 0. Splits e^x into 2^n e^r, |r| <= ln(2) / 2; below e^-87 the result is 0 for a sum of float32.
inline float exponential(float x) {
#if EXP_METHOD == EXP_METHOD_LIBM
  return std::exp(x);
#else
  const float bounded = x < -87.0f ? -87.0f : x;
  const float n = std::nearbyint(bounded * 1.44269504f);
  const float r = bounded - n * 0.693359375f + n * 2.12194440e-4f;  // ln(2) in two parts: n * the first is exact
  float p = 1.98412698e-4f;
  p = p * r + 1.38888889e-3f;
  p = p * r + 8.33333333e-3f;
  p = p * r + 4.16666667e-2f;
  p = p * r + 1.66666667e-1f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const std::int32_t power = (static_cast<std::int32_t>(n) + 127) << 23;
  float scale;
  std::memcpy(&scale, &power, sizeof scale);
  return x < -87.0f ? 0.0f : p * scale;
#endif
}

float maximum_of(const float* x, std::ptrdiff_t columns) {
  float lanes[LANES];
  std::fill(lanes, lanes + LANES, -std::numeric_limits<float>::infinity());
  std::ptrdiff_t i = 0;
  for (; i + LANES <= columns; i += LANES)
    for (int lane = 0; lane < LANES; ++lane) lanes[lane] = lanes[lane] > x[i + lane] ? lanes[lane] : x[i + lane];
  float maximum = *std::max_element(lanes, lanes + LANES);
  for (; i < columns; ++i) maximum = std::max(maximum, x[i]);
  return maximum;
}

void softmax_row(const float* x, float* out, std::ptrdiff_t columns) {
  const float maximum = maximum_of(x, columns);
  float lanes[LANES] = {};
  std::ptrdiff_t i = 0;
  for (; i + LANES <= columns; i += LANES) {
    for (int lane = 0; lane < LANES; ++lane) {
      const float value = exponential(x[i + lane] - maximum);
      if (!RECOMPUTE) out[i + lane] = value;
      lanes[lane] += value;
    }
  }
  double sum = 0.0;
  for (float lane : lanes) sum += lane;
  for (; i < columns; ++i) {
    const float value = exponential(x[i] - maximum);
    if (!RECOMPUTE) out[i] = value;
    sum += value;
  }
  const float scale = static_cast<float>(1.0 / sum);
  for (i = 0; i < columns; ++i) out[i] = scale * (RECOMPUTE ? exponential(x[i] - maximum) : out[i]);
}

}  // namespace

extern "C" void softmax(const float* x, float* out, int rows, int columns) {
#pragma omp parallel for schedule(OMP_SCHEDULE, CHUNK)
  for (int row = 0; row < rows; ++row) {
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(row) * columns;
    softmax_row(x + at, out + at, columns);
  }
}
