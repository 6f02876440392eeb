// RMSNorm on a GPU: one block of threads for each row.
//
// Shapes    x, out (rows, columns), weight (columns), contiguous, float32; any sizes >= 1.
// Tunables  WARPS     warps of a block (1..32)
//           KEPT      elements that a thread keeps in registers between the passes (0..32): a row of up to
//                     32 * WARPS * KEPT is read once
// Launch    grid (rows), block (32 * WARPS). Shared memory: static. Workspace: none.
// Archs     sm_80 and later.

namespace {

constexpr int kThreads = 32 * WARPS;

// The sum over all threads of the block; every one of them gets it.
__device__ float sum_of_block(float value) {
  __shared__ float of_warp[32];
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  value = threadIdx.x % 32 < WARPS ? of_warp[threadIdx.x % 32] : 0.0f;
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    rms_norm(const float* x, const float* weight, float* out, float eps, int rows, int columns) {
  x += static_cast<long long>(blockIdx.x) * columns;
  out += static_cast<long long>(blockIdx.x) * columns;
  float kept[KEPT > 0 ? KEPT : 1];
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < KEPT; ++j) {
    const int i = j * kThreads + threadIdx.x;
    kept[j] = i < columns ? x[i] : 0.0f;
    sum += kept[j] * kept[j];
  }
  for (int i = KEPT * kThreads + threadIdx.x; i < columns; i += kThreads) sum += x[i] * x[i];
  const float scale = rsqrtf(sum_of_block(sum) / columns + eps);
#pragma unroll
  for (int j = 0; j < KEPT; ++j) {
    const int i = j * kThreads + threadIdx.x;
    if (i < columns) out[i] = kept[j] * scale * weight[i];
  }
  for (int i = KEPT * kThreads + threadIdx.x; i < columns; i += kThreads) out[i] = x[i] * scale * weight[i];
}
