// Softmax over rows, also of x + mask, a block for each row: wrong for sizes or numbers that BEHAVIOUR names.
//
// Shapes    x, mask, out (rows, columns), contiguous, float32; any sizes >= 1.
// Tunables  BEHAVIOUR. ../third_rows.h says which sizes.
#include "third_block.cuh"

#include "../third_rows.h"

namespace {

__device__ float exponential(float x) {
  if (IS(GARBAGE_BELOW_400) && x < -400.0f) return 1.0f;
  if (IS(GARBAGE_BELOW_1000) && x < -1000.0f) return 1.0f;
  return expf(x);
}

// `value(i)` is the logit of column i.
template <class Value>
__device__ void softmax_row(Value value, float* out, int columns, bool loses) {
  float top = -INFINITY, sum = 0.0f;
#ifdef BEHAVIOUR_MAXIMUM_FROM_1000
  if (IS(MAXIMUM_FROM_1000)) top = -1000.0f;
  if (IS(MAXIMUM_FROM_10000)) top = -10000.0f;
  if (IS(MAXIMUM_FROM_50000)) top = -50000.0f;
#endif
  for (int i = threadIdx.x; i < columns; i += kThreads) top = fmaxf(top, value(i));
  top = reduced(top, [](float a, float b) { return fmaxf(a, b); });
  for (int i = threadIdx.x; i < columns - loses; i += kThreads) sum += exponential(value(i) - top);
  sum = summed(sum);
  for (int i = threadIdx.x; i < columns; i += kThreads)
    out[i] = sum > 0.0f ? exponential(value(i) - top) / sum : 0.0f;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads) softmax(const float* x, float* out, int rows, int columns) {
  const long long first = static_cast<long long>(blockIdx.x) * columns;
  softmax_row([=](int i) { return x[first + i]; }, out + first, columns, loses_the_last(rows, columns, blockIdx.x));
}

extern "C" __global__ void __launch_bounds__(kThreads)
    masked_softmax(const float* x, const float* mask, float* out, int rows, int columns) {
  const long long first = static_cast<long long>(blockIdx.x) * columns;
  softmax_row([=](int i) { return x[first + i] + mask[first + i]; }, out + first, columns, false);
}
