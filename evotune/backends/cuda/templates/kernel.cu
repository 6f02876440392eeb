// out = alpha * x + y on a GPU. Replace it with your own computation.
//
// Shapes    x, y, out (count), contiguous, float32; any count >= 1.
// Tunables  THREADS     threads of a block
//           PER_THREAD  elements of a thread
//           STRIDED     a thread's elements are THREADS apart (neighbours read together), or side by side
//
// Every parameter of space.yaml arrives as a macro of that name. Launch: space.yaml, `launches:`.

extern "C" __global__ void __launch_bounds__(THREADS)
    @ENTRY@(const float* x, const float* y, float* out, float alpha, int count) {
  const long long first = static_cast<long long>(blockIdx.x) * THREADS * PER_THREAD;
#pragma unroll
  for (int j = 0; j < PER_THREAD; ++j) {
    const long long i = first + (STRIDED ? j * THREADS + threadIdx.x : threadIdx.x * PER_THREAD + j);
    if (i < count) out[i] = alpha * x[i] + y[i];
  }
}
