// Keeps N sums in registers across a loop.
template <int N>
__device__ void accumulate(const float *a, const float *b, float *out, int length) {
    float sums[N] = {};
    for (int step = 0; step < length; ++step) {
#pragma unroll
        for (int i = 0; i < N; ++i) sums[i] += a[step * N + i] * b[(step + threadIdx.x) * N + i];
    }
#pragma unroll
    for (int i = 0; i < N; ++i) out[threadIdx.x * N + i] = sums[i];
}
