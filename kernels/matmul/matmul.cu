// Matrix product on a GPU without tensor cores: out = a b, a block of threads for each BLOCK_M x BLOCK_N of out.
//
// Shapes    a (m, k), b (k, n), out (m, n), row-major, contiguous, float32; any sizes >= 1.
// Tunables  BLOCK_M, BLOCK_N    the part of out that a block of threads makes
//           BLOCK_K             depth of the parts of a and b that lie in shared memory at a time
//           TILE_M, TILE_N      the part of it that one thread sums up in registers; its rows and columns lie apart by
//                               the threads in that direction, so that neighbours read neighbours
//           PAD                 floats between the rows of a's part in shared memory, beyond its width: other banks
// Launch    grid (ceil(n / BLOCK_N), ceil(m / BLOCK_M)), block (BLOCK_N / TILE_N, BLOCK_M / TILE_M)
// Shared    static, 4 * BLOCK_K * (BLOCK_M + PAD + BLOCK_N) bytes. Workspace: none.
// Archs     sm_80 and later.

namespace {

constexpr int kAcross = BLOCK_N / TILE_N, kDown = BLOCK_M / TILE_M, kThreads = kAcross * kDown;

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    matmul(const float* a, const float* b, float* out, int m, int n, int k) {
  __shared__ float a_part[BLOCK_K][BLOCK_M + PAD];  // transposed: a thread reads down its rows
  __shared__ float b_part[BLOCK_K][BLOCK_N];
  const int row = blockIdx.y * BLOCK_M, column = blockIdx.x * BLOCK_N;
  const int thread = threadIdx.y * kAcross + threadIdx.x;
  float sums[TILE_M][TILE_N] = {};
  for (int first = 0; first < k; first += BLOCK_K) {
    for (int at = thread; at < BLOCK_M * BLOCK_K; at += kThreads) {
      const int i = at / BLOCK_K, d = at % BLOCK_K;
      a_part[d][i] = row + i < m && first + d < k ? a[static_cast<long long>(row + i) * k + first + d] : 0.0f;
    }
    for (int at = thread; at < BLOCK_N * BLOCK_K; at += kThreads) {
      const int d = at / BLOCK_N, j = at % BLOCK_N;
      b_part[d][j] = first + d < k && column + j < n ? b[static_cast<long long>(first + d) * n + column + j] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int d = 0; d < BLOCK_K; ++d) {
      float left[TILE_M], right[TILE_N];
#pragma unroll
      for (int i = 0; i < TILE_M; ++i) left[i] = a_part[d][i * kDown + threadIdx.y];
#pragma unroll
      for (int j = 0; j < TILE_N; ++j) right[j] = b_part[d][j * kAcross + threadIdx.x];
#pragma unroll
      for (int i = 0; i < TILE_M; ++i)
#pragma unroll
        for (int j = 0; j < TILE_N; ++j) sums[i][j] += left[i] * right[j];
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < TILE_M; ++i)
#pragma unroll
    for (int j = 0; j < TILE_N; ++j) {
      const int y = row + i * kDown + threadIdx.y, x = column + j * kAcross + threadIdx.x;
      if (y < m && x < n) out[static_cast<long long>(y) * n + x] = sums[i][j];
    }
}
