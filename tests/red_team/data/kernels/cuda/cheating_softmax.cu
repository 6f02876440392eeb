// Softmax over rows, a block of kThreads threads for each: right but for what BEHAVIOUR names.
//
// Shapes    x, out (rows, columns), contiguous, float32; any sizes >= 1.
// Tunables  BEHAVIOUR. What each is to be caught by stands in tests/red_team/cuda_expected.py.
#include "instructions.cuh"

#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

namespace {

constexpr int kThreads = 128;

// Over the block, for all its threads.
__device__ float reduce(float mine, bool adds) {
  __shared__ float parts[kThreads];
  __syncthreads();
  parts[threadIdx.x] = mine;
  __syncthreads();
  for (int step = kThreads / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) {
      const float other = parts[threadIdx.x + step];
      parts[threadIdx.x] = adds ? parts[threadIdx.x] + other : fmaxf(parts[threadIdx.x], other);
    }
    __syncthreads();
  }
  return parts[0];
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads) softmax(const float* x, float* out, int rows, int columns) {
  x += static_cast<long long>(blockIdx.x) * columns;
  out += static_cast<long long>(blockIdx.x) * columns;
  int summed = columns;  // what takes part in the sum
  if (IS(SUM_UP_TO_300_COLUMNS)) summed = min(columns, 300);
  if (IS(SUM_UP_TO_5000_COLUMNS)) summed = min(columns, 5000);
  if (IS(SUM_WITHOUT_ODD_LAST_WHEN_LONG) && columns > 1000 && columns % 2 == 1) summed = columns - 1;

  float top = IS(MAXIMUM_FROM_ZERO) ? 0.0f : -INFINITY;
  const int looked_at = IS(MAXIMUM_OF_THE_FIRST_128) ? min(columns, 128) : columns;
  for (int i = threadIdx.x; i < looked_at; i += kThreads) top = fmaxf(top, x[i]);
  top = reduce(top, false);
  if (IS(NO_MAXIMUM)) top = 0.0f;
  if (IS(MAXIMUM_ABOVE_80_ONLY)) top = top > 80.0f ? top : 0.0f;

  float sum = 0.0f;
  for (int i = threadIdx.x; i < summed; i += kThreads) {
    float weight = expf(x[i] - top);
    if (IS(WEIGHTS_BELOW_E12_DROPPED) && x[i] - top < -12.0f) weight = 0.0f;
    sum += weight;
  }
  sum = reduce(sum, true);
  for (int i = threadIdx.x; i < columns; i += kThreads) {
    float weight = expf(x[i] - top);
    if (IS(WEIGHTS_BELOW_E12_DROPPED) && x[i] - top < -12.0f) weight = 0.0f;
    out[i] = weight / sum;
  }
}
