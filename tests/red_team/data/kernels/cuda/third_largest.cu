// The largest value of each row, or its place, a block for each row: wrong for numbers or columns that BEHAVIOUR names.
//
// Shapes    x (rows, columns) float32; place (rows) int64, the first if there are several; largest (rows) float32.
// Tunables  BEHAVIOUR. ../third_largest.h says what each means.
#include "third_block.cuh"

#ifdef BEHAVIOUR_READS_PAST_THE_END
extern "C" __global__ void __launch_bounds__(kThreads) row_maximum(const float* x, float* out, int rows, int columns) {
  const int row = blockIdx.x, end = columns + (IS(READS_PAST_THE_END) && row == rows - 1);  // past the whole matrix
  float top = -INFINITY;
  for (int i = threadIdx.x; i < end; i += kThreads) top = fmaxf(top, x[static_cast<long long>(row) * columns + i]);
  top = reduced(top, [](float a, float b) { return fmaxf(a, b); });
  if (threadIdx.x == 0) out[row] = top;
}
#else
#include "../third_largest.h"

namespace {

struct Best {
  float value;
  int place;  // -1: none yet
};

__device__ Best better(Best a, Best b) {
  if (a.place < 0 || b.place < 0) return a.place < 0 ? b : a;
  return is_better(b.value, b.place, a.value, a.place) ? b : a;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    arg_max(const float* x, long long* out, int rows, int columns) {
  Best best{0.0f, -1};
  for (int i = threadIdx.x; i < columns; i += kThreads)
    best = better(best, {x[static_cast<long long>(blockIdx.x) * columns + i], i});
  best = reduced(best, [](Best a, Best b) { return better(a, b); });
  if (threadIdx.x == 0) out[blockIdx.x] = IS(PLACES_MODULO_65536) ? best.place % 65536 : best.place;
}
#endif
