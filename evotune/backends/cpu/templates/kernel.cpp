// out = alpha * x + y on the CPU. Replace it with your own computation.
//
// Shapes    x, y, out (count), contiguous, float32; any count >= 1.
// Tunables  BLOCK     elements a thread takes at a time
//           UNROLL    elements in one step of the inner loop
//           SCHEDULE  how OpenMP hands out the blocks
//
// Every parameter of space.yaml arrives as a macro of that name; words as numbers, with
// SCHEDULE_STATIC and SCHEDULE_DYNAMIC beside SCHEDULE.
#include <algorithm>

#if SCHEDULE == SCHEDULE_STATIC
#define OMP_SCHEDULE static
#else
#define OMP_SCHEDULE dynamic
#endif

extern "C" void @ENTRY@(const float* x, const float* y, float* out, float alpha, int count) {
#pragma omp parallel for schedule(OMP_SCHEDULE)
  for (long first = 0; first < count; first += BLOCK) {
    const long end = std::min<long>(first + BLOCK, count);
    long i = first;
    for (; i + UNROLL <= end; i += UNROLL)
      for (int j = 0; j < UNROLL; ++j) out[i + j] = alpha * x[i + j] + y[i + j];
    for (; i < end; ++i) out[i] = alpha * x[i] + y[i];
  }
}
