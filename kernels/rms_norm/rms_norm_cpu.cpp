// RMSNorm on the CPU: out = x / sqrt(mean(x * x) + eps) * weight.
//
// Shapes    x, out (rows, columns), weight (columns), contiguous, float32; any sizes >= 1.
// Tunables  LANES            partial sums (16, 32, 64, 128): a vector or several at a time
//           SCHEDULE, CHUNK  how OpenMP hands out rows, and how many at a time
// Archs     any. Workspace: none.
#include <cmath>
#include <cstddef>

#if SCHEDULE == SCHEDULE_STATIC
#define OMP_SCHEDULE static
#else
#define OMP_SCHEDULE dynamic
#endif

extern "C" void rms_norm(const float* x, const float* weight, float* out, float eps, int rows, int columns) {
#pragma omp parallel for schedule(OMP_SCHEDULE, CHUNK)
  for (int row = 0; row < rows; ++row) {
    const float* from = x + static_cast<std::ptrdiff_t>(row) * columns;
    float* to = out + static_cast<std::ptrdiff_t>(row) * columns;
    float lanes[LANES] = {};
    int i = 0;
    for (; i + LANES <= columns; i += LANES)
      for (int lane = 0; lane < LANES; ++lane) lanes[lane] += from[i + lane] * from[i + lane];
    double sum = 0.0;
    for (float lane : lanes) sum += lane;
    for (; i < columns; ++i) sum += static_cast<double>(from[i]) * from[i];
    const float scale = static_cast<float>(1.0 / std::sqrt(sum / columns + eps));
    for (i = 0; i < columns; ++i) to[i] = from[i] * scale * weight[i];
  }
}
