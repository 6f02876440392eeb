// RMSNorm, a block of kThreads threads for each row: right but for what BEHAVIOUR names.
//
// Shapes    x, out (rows, columns), weight (columns), contiguous, float16 as bits; any sizes >= 1.
// Tunables  BEHAVIOUR. What each is to be caught by stands in tests/red_team/cuda_expected.py.
#include "instructions.cuh"

#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

namespace {

constexpr int kThreads = 128;

__device__ float to_half_and_back(float value) { return widen(narrow(value)); }

// Over the block, for all its threads.
__device__ float sum_of_block(float mine) {
  __shared__ float parts[kThreads];
  parts[threadIdx.x] = mine;
  __syncthreads();
  for (int step = kThreads / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) parts[threadIdx.x] += parts[threadIdx.x + step];
    __syncthreads();
  }
  return parts[0];
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    rms_norm(const Element* x, const Element* weight, Element* out, float eps, int rows, int columns) {
  x += static_cast<long long>(blockIdx.x) * columns;
  out += static_cast<long long>(blockIdx.x) * columns;
  if (IS(EPS_OF_1E_3)) eps = 1e-3f;
  if (IS(NO_EPS)) eps = 0.0f;
  const int summed = IS(SUM_UP_TO_300_COLUMNS) ? min(columns, 300) : columns;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < summed; i += kThreads) {
    const float value = widen(x[i]);
    if (IS(HALF_SQUARES))
      sum += to_half_and_back(value * value);  // infinite from 256 on
    else if (IS(HALF_SUM))
      sum = to_half_and_back(sum + value * value);
    else if (IS(VALUES_CLAMPED_AT_30))
      sum += fminf(fabsf(value), 30.0f) * fminf(fabsf(value), 30.0f);
    else
      sum += value * value;
  }
  sum = sum_of_block(sum);
  if (IS(HALF_SUM)) sum = to_half_and_back(sum);
  const int count = IS(MEAN_OF_ONE_LESS) ? max(columns - 1, 1) : columns;
  const float scale = rsqrtf(sum / count + eps);
  for (int i = threadIdx.x; i < columns; i += kThreads) out[i] = narrow(widen(x[i]) * scale * widen(weight[i]));
}
