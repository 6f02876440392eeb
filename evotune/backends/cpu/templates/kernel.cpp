// out = max(x * scale + bias, 0) + residual on the CPU, in one pass. Replace it with your own computation.
//
// Shapes    x, residual, out (rows, columns), scale, bias (columns), contiguous, float32; any sizes >= 1.
// Tunables  ROWS      rows that a thread takes at a time
//           COLUMNS   columns that it takes of them at a time: their scale and bias stay in the L1 cache
//           UNROLL    elements in one step of the inner loop
//           SCHEDULE  how OpenMP hands out the rows
//
// Every parameter of space.yaml arrives as a macro of that name; words as numbers, with
// SCHEDULE_STATIC and SCHEDULE_DYNAMIC beside SCHEDULE.
#include <algorithm>

#if SCHEDULE == SCHEDULE_STATIC
#define OMP_SCHEDULE static
#else
#define OMP_SCHEDULE dynamic
#endif

extern "C" void @ENTRY@(const float* x, const float* scale, const float* bias, const float* residual,
                        float* __restrict out, int rows, int columns) {
  // A few rows are done before other threads have started.
#pragma omp parallel for schedule(OMP_SCHEDULE) if (static_cast<long>(rows) * columns > 32768)
  for (int first = 0; first < rows; first += ROWS) {
    const int last = std::min(first + ROWS, rows);
    for (int left = 0; left < columns; left += COLUMNS) {
      const int right = std::min(left + COLUMNS, columns);
      for (int row = first; row < last; ++row) {
        const long at = static_cast<long>(row) * columns;
        int i = left;
        for (; i + UNROLL <= right; i += UNROLL)
          for (int j = i; j < i + UNROLL; ++j)
            out[at + j] = std::max(x[at + j] * scale[j] + bias[j], 0.0f) + residual[at + j];
        for (; i < right; ++i) out[at + i] = std::max(x[at + i] * scale[i] + bias[i], 0.0f) + residual[at + i];
      }
    }
  }
}
