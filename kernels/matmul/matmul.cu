// Matrix product on a GPU without tensor cores: out = a b, a block of threads for each BLOCK_M x BLOCK_N of out.
//
// Shapes    a (m, k), b (k, n), out (m, n), row-major, contiguous, float32; any sizes >= 1.
// Tunables  BLOCK_M, BLOCK_N    the part of out that a block of threads makes
//           BLOCK_K             depth of the parts of a and b that lie in shared memory at a time
//           TILE_M, TILE_N      the part of it that one thread sums up in registers, in groups of VECTOR rows and
//                               columns; between two groups of a thread lies one group of each other thread
//           VECTOR              floats that one instruction reads from shared memory
//           STAGES              1: all load, then all compute; 2: the next parts are loaded into registers meanwhile
//           PAD                 floats that each row of a's part has beyond its width: rows then begin in other banks
//           MIN_CTAS            blocks that a multiprocessor must be able to hold: more leave a thread fewer registers
// Launch    grid (ceil(n / BLOCK_N), ceil(m / BLOCK_M)), block (BLOCK_N / TILE_N, BLOCK_M / TILE_M)
// Shared    static, 4 * STAGES * BLOCK_K * (BLOCK_M + PAD + BLOCK_N) bytes. Workspace: none.
// Archs     sm_80 and later.

namespace {

constexpr int kAcross = BLOCK_N / TILE_N, kDown = BLOCK_M / TILE_M, kThreads = kAcross * kDown;
constexpr int kLoadsA = (BLOCK_M * BLOCK_K + kThreads - 1) / kThreads;
constexpr int kLoadsB = (BLOCK_N * BLOCK_K + kThreads - 1) / kThreads;
static_assert(TILE_M % VECTOR == 0 && TILE_N % VECTOR == 0 && PAD % VECTOR == 0);

struct alignas(4 * VECTOR) Group {
  float of[VECTOR];
};

// Where element i of a thread's tile lies in the block's tile, along the direction where it is `thread` of `threads`.
__device__ constexpr int place(int i, int thread, int threads) {
  return (i / VECTOR * threads + thread) * VECTOR + i % VECTOR;
}

template <int kTile>
__device__ void read(float (&to)[kTile], const float* from, int thread, int threads) {
#pragma unroll
  for (int i = 0; i < kTile; i += VECTOR) {
    const Group group = *reinterpret_cast<const Group*>(from + place(i, thread, threads));
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) to[i + v] = group.of[v];
  }
}

// One thread's share of the next parts of a and b, on its way to shared memory.
struct Carried {
  float a[kLoadsA], b[kLoadsB];

  __device__ void load(const float* from_a, const float* from_b, int row, int column, int first, int thread, int m,
                       int n, int k) {
#pragma unroll
    for (int l = 0; l < kLoadsA; ++l) {
      const int at = l * kThreads + thread, y = row + at / BLOCK_K, d = first + at % BLOCK_K;
      a[l] = at < BLOCK_M * BLOCK_K && y < m && d < k ? from_a[static_cast<long long>(y) * k + d] : 0.0f;
    }
#pragma unroll
    for (int l = 0; l < kLoadsB; ++l) {
      const int at = l * kThreads + thread, d = first + at / BLOCK_N, x = column + at % BLOCK_N;
      b[l] = at < BLOCK_N * BLOCK_K && d < k && x < n ? from_b[static_cast<long long>(d) * n + x] : 0.0f;
    }
  }

  __device__ void store(float (&to_a)[BLOCK_K][BLOCK_M + PAD], float (&to_b)[BLOCK_K][BLOCK_N], int thread) const {
#pragma unroll
    for (int l = 0; l < kLoadsA; ++l) {
      const int at = l * kThreads + thread;
      if (at < BLOCK_M * BLOCK_K) to_a[at % BLOCK_K][at / BLOCK_K] = a[l];
    }
#pragma unroll
    for (int l = 0; l < kLoadsB; ++l) {
      const int at = l * kThreads + thread;
      if (at < BLOCK_N * BLOCK_K) to_b[at / BLOCK_N][at % BLOCK_N] = b[l];
    }
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, MIN_CTAS)
    matmul(const float* a, const float* b, float* out, int m, int n, int k) {
  alignas(16) __shared__ float a_part[STAGES][BLOCK_K][BLOCK_M + PAD];  // transposed: a thread reads down its rows
  alignas(16) __shared__ float b_part[STAGES][BLOCK_K][BLOCK_N];
  const int row = blockIdx.y * BLOCK_M, column = blockIdx.x * BLOCK_N;
  const int thread = threadIdx.y * kAcross + threadIdx.x;
  float sums[TILE_M][TILE_N] = {};
  Carried carried;
  carried.load(a, b, row, column, 0, thread, m, n, k);
  carried.store(a_part[0], b_part[0], thread);
  __syncthreads();
  int stage = 0;
  for (int first = 0; first < k; first += BLOCK_K) {
    const bool more = first + BLOCK_K < k;
    if (STAGES == 2 && more) carried.load(a, b, row, column, first + BLOCK_K, thread, m, n, k);
#pragma unroll
    for (int d = 0; d < BLOCK_K; ++d) {
      float left[TILE_M], right[TILE_N];
      read(left, a_part[stage][d], threadIdx.y, kDown);
      read(right, b_part[stage][d], threadIdx.x, kAcross);
#pragma unroll
      for (int i = 0; i < TILE_M; ++i)
#pragma unroll
        for (int j = 0; j < TILE_N; ++j) sums[i][j] += left[i] * right[j];
    }
    if (!more) break;
    if (STAGES == 1) {
      __syncthreads();  // all threads have read the part
      carried.load(a, b, row, column, first + BLOCK_K, thread, m, n, k);
    } else {
      stage ^= 1;  // free: all have read it before the last barrier
    }
    carried.store(a_part[stage], b_part[stage], thread);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < TILE_M; ++i)
#pragma unroll
    for (int j = 0; j < TILE_N; j += VECTOR) {
      const int y = row + place(i, threadIdx.y, kDown), x = column + place(j, threadIdx.x, kAcross);
      if (y >= m || x >= n) continue;
      float* to = out + static_cast<long long>(y) * n + x;
      Group group;
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) group.of[v] = sums[i][j + v];
      if (n % VECTOR == 0) {
        *reinterpret_cast<Group*>(to) = group;
      } else {
#pragma unroll
        for (int v = 0; v < VECTOR; ++v)
          if (x + v < n) to[v] = group.of[v];
      }
    }
}
