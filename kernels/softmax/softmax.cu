// Softmax over rows on a GPU: one block of threads for each row.
//
// Shapes    x, out (rows, columns), contiguous, float32; any sizes >= 1.
// Tunables  WARPS     warps of a block (1..32)
//           KEPT      elements that a thread keeps in registers between the passes (0..32): a row of up to
//                     32 * WARPS * KEPT is read once; columns beyond are read three times
// Launch    grid (rows), block (32 * WARPS). Shared memory: static. Workspace: none.
// Archs     sm_80 and later.

namespace {

constexpr int kThreads = 32 * WARPS;
constexpr float kLowest = -3.402823466e38f;  // finite: a thread without an element must not make inf - inf

struct Maximum {
  static __device__ float of(float a, float b) { return fmaxf(a, b); }
  static constexpr float kNone = kLowest;
};
struct Sum {
  static __device__ float of(float a, float b) { return a + b; }
  static constexpr float kNone = 0.0f;
};

// Reduces the values of all threads of the block; every one of them gets the result.
template <class Operation>
__device__ float reduce(float value) {
  __shared__ float of_warp[32];
  for (int step = 16; step > 0; step /= 2) value = Operation::of(value, __shfl_xor_sync(~0u, value, step));
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  value = threadIdx.x % 32 < WARPS ? of_warp[threadIdx.x % 32] : Operation::kNone;
  for (int step = 16; step > 0; step /= 2) value = Operation::of(value, __shfl_xor_sync(~0u, value, step));
  __syncthreads();  // of_warp is used again
  return value;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads) softmax(const float* x, float* out, int rows, int columns) {
  x += static_cast<long long>(blockIdx.x) * columns;
  out += static_cast<long long>(blockIdx.x) * columns;
  float kept[KEPT > 0 ? KEPT : 1];
  float maximum = kLowest;
#pragma unroll
  for (int j = 0; j < KEPT; ++j) {
    const int i = j * kThreads + threadIdx.x;
    kept[j] = i < columns ? x[i] : kLowest;
    maximum = fmaxf(maximum, kept[j]);
  }
  for (int i = KEPT * kThreads + threadIdx.x; i < columns; i += kThreads) maximum = fmaxf(maximum, x[i]);
  maximum = reduce<Maximum>(maximum);
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < KEPT; ++j) {
    kept[j] = j * kThreads + threadIdx.x < columns ? expf(kept[j] - maximum) : 0.0f;
    sum += kept[j];
  }
  for (int i = KEPT * kThreads + threadIdx.x; i < columns; i += kThreads) sum += expf(x[i] - maximum);
  const float scale = 1.0f / reduce<Sum>(sum);
#pragma unroll
  for (int j = 0; j < KEPT; ++j)
    if (j * kThreads + threadIdx.x < columns) out[j * kThreads + threadIdx.x] = kept[j] * scale;
  for (int i = KEPT * kThreads + threadIdx.x; i < columns; i += kThreads) out[i] = expf(x[i] - maximum) * scale;
}
