// A linear layer by mma.sync, for GPUs without wgmma: asynchronous copies, swizzled shared memory, bias and GELU.
//
//   out = epilogue(x weight^T + bias), epilogue(y) = y or GELU(y) = y / 2 (1 + erf(y / sqrt(2)))
//
// Shapes      x (m, k), weight (n, k), bias (n), out (m, n), contiguous, 16-byte aligned; k a multiple of 8.
// Types       DTYPE_FLOAT16 or DTYPE_BFLOAT16 in and out, every sum in float32.
// How         A block has BLOCK_M x BLOCK_N sums, its warps WARPS_M x WARPS_N parts of them, in registers. All threads
//             copy BLOCK_K columns of x and weight at a time into a ring of STAGES. Chunks of 16 bytes are swizzled, so
//             that ldmatrix meets no bank twice. SPLIT_K blocks share the columns of a tile, for few rows of x: each
//             writes its sums to the workspace; the last one to arrive adds them up, in the order of the parts.
// Tunables
//   BLOCK_M, BLOCK_N   a tile (16..256), a multiple of 16 * WARPS_M, 16 * WARPS_N
//   BLOCK_K            columns of a stage (32, 64)
//   WARPS_M, WARPS_N   warps along the rows and the columns of a tile (1, 2, 4)
//   STAGES             stages of the ring (2..6)
//   SPLIT_K            1..16: blocks that share a tile
//   TILE_GROUP         rows of tiles that blocks work on together, column by column, so that they share x and weight in
//                      the L2 cache
//   MIN_CTAS           blocks a multiprocessor that the register allocation must allow (1..4)
// Fixed by a space  GELU
// Constraints A thread holds BLOCK_M * BLOCK_N / threads sums and some 60 registers more.
// Launch      grid (ceil(m / BLOCK_M) * ceil(n / BLOCK_N) * SPLIT_K), block (32 * WARPS_M * WARPS_N)
// Workspace   SPLIT_K > 1: parts float[tiles * SPLIT_K * BLOCK_M * BLOCK_N], counter int[tiles], zero
// Shared      2 * BLOCK_K * STAGES * (BLOCK_M + BLOCK_N) bytes
// Archs       sm_80 and later; on sm_90 linear.cu is faster, so the space leaves sm_90 out.
// References  PTX ISA, "mma", "ldmatrix".
#include "../attention/parts/arithmetic.cuh"
#include "../attention/parts/async_copy.cuh"
#include "../attention/parts/blocks.cuh"
#define SWIZZLE_XOR 1
#define SWIZZLE_PAD 2
#include "../attention/mma/shared_rows.cuh"

namespace {

constexpr bool kBfloat16 = DTYPE == DTYPE_BFLOAT16;
constexpr int kThreads = 32 * WARPS_M * WARPS_N;
constexpr int kRowTiles = BLOCK_M / (16 * WARPS_M);    // of a warp, 16 rows each
constexpr int kColumnTiles = BLOCK_N / (8 * WARPS_N);  // of a warp, 8 columns each
constexpr int kChunks = BLOCK_K / 8;
constexpr unsigned kStageBytes = 2 * BLOCK_K * (BLOCK_M + BLOCK_N);
constexpr unsigned kSharedBytes = STAGES * kStageBytes;
static_assert(BLOCK_M % (16 * WARPS_M) == 0 && BLOCK_N % (16 * WARPS_N) == 0, "warps have whole tiles");
using Rows = SharedRows<kChunks, SWIZZLE_XOR>;
extern __shared__ __align__(1024) unsigned char shared_memory[];

struct Problem {
  const Element *x, *weight, *bias;
  Element* out;
  int m, n, k;
};

// A share of a tile: the columns of x and weight from step `first` to step `end`.
struct Share {
  int row, column, tile, part, first, end;

  __device__ __forceinline__ explicit Share(const Problem& problem) : tile(blockIdx.x / SPLIT_K) {
    part = blockIdx.x % SPLIT_K;
    const int row_tiles = (problem.m + BLOCK_M - 1) / BLOCK_M, column_tiles = (problem.n + BLOCK_N - 1) / BLOCK_N;
    const int in_group = TILE_GROUP * column_tiles, group = tile / in_group, rest = tile - group * in_group;
    const int height = min(TILE_GROUP, row_tiles - group * TILE_GROUP);
    row = (group * TILE_GROUP + rest % height) * BLOCK_M;
    column = rest / height * BLOCK_N;
    const int steps = (problem.k + BLOCK_K - 1) / BLOCK_K;
    first = steps * part / SPLIT_K;
    end = steps * (part + 1) / SPLIT_K;
  }
};

// Copies ROWS rows from row `first` on, BLOCK_K columns from `column` on. What does not exist becomes zeros.
template <int ROWS>
__device__ __forceinline__ void copy_rows(unsigned shared, const Element* from, int first, int rows, int column, int k) {
#pragma unroll
  for (int i = threadIdx.x; i < ROWS * kChunks; i += kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    const bool exists = first + row < rows && column + 8 * chunk < k;
    const Element* at = from + static_cast<long long>(first + row) * k + column + 8 * chunk;
    copy_async_16(shared + Rows::offset(row, chunk), exists ? at : from, exists ? 16 : 0);
  }
}

// Sum i of a warp's tile is row 8 (i / 2) + lane / 4, column 2 (lane % 4) + i % 2.
struct Worker {
  const Problem& problem;
  const Share& share;
  const int warp_row = threadIdx.x / 32 / WARPS_N * 16 * kRowTiles;       // of the tile's rows, this warp's first one
  const int warp_column = threadIdx.x / 32 % WARPS_N * 8 * kColumnTiles;  // and column
  const int lane = threadIdx.x % 32;
  float sums[kRowTiles][kColumnTiles][4];

  __device__ Worker(const Problem& problem, const Share& share) : problem(problem), share(share) {}

  static __device__ __forceinline__ unsigned stage_at(int step) {
    return static_cast<unsigned>(__cvta_generic_to_shared(shared_memory)) + step % STAGES * kStageBytes;
  }

  // Starts the copies of a step as one group. Past the last step the group is empty.
  __device__ __forceinline__ void copy(int step) const {
    if (step < share.end) {
      const unsigned x_at = stage_at(step), weight_at = x_at + 2 * BLOCK_K * BLOCK_M;
      copy_rows<BLOCK_M>(x_at, problem.x, share.row, problem.m, step * BLOCK_K, problem.k);
      copy_rows<BLOCK_N>(weight_at, problem.weight, share.column, problem.n, step * BLOCK_K, problem.k);
    }
    close_copy_group();
  }

  __device__ __forceinline__ void multiply_stage(int step) {
    const unsigned x_at = stage_at(step), weight_at = x_at + 2 * BLOCK_K * BLOCK_M;
#pragma unroll
    for (int part = 0; part < BLOCK_K / 16; ++part) {
      unsigned a[kRowTiles][4], b[kColumnTiles / 2][4];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
        load_matrix(a[i], x_at + Rows::offset(warp_row + 16 * i + lane % 16, 2 * part + lane / 16));
#pragma unroll
      for (int j = 0; j < kColumnTiles / 2; ++j)
        load_matrix(b[j], weight_at + Rows::offset(warp_column + 16 * j + lane / 16 * 8 + lane % 8,
                                                   2 * part + lane / 8 % 2));
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int j = 0; j < kColumnTiles; ++j)
          multiply_add<kBfloat16>(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }

  __device__ __forceinline__ void multiply() {
    each([](float& sum, int) { sum = 0.0f; });
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) copy(share.first + i);
    for (int step = share.first; step < share.end; ++step) {
      wait_copy_groups<STAGES - 2>();
      __syncthreads();  // all have copied this step, and read the one before
      copy(step + STAGES - 1);
      multiply_stage(step);
    }
  }

  // Calls `use` with each of this thread's sums and its number.
  template <class Use>
  __device__ __forceinline__ void each(Use use) {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) use(sums[i][j][e], 4 * (i * kColumnTiles + j) + e);
  }
  __device__ __forceinline__ void put_part(float* parts) {
    float* to = parts + (static_cast<long long>(share.tile) * SPLIT_K + share.part) * BLOCK_M * BLOCK_N + threadIdx.x;
    each([&](float& sum, int number) { to[number * kThreads] = sum; });
  }
  __device__ __forceinline__ void add_parts(const float* parts) {
    const float* from = parts + static_cast<long long>(share.tile) * SPLIT_K * BLOCK_M * BLOCK_N + threadIdx.x;
#pragma unroll 1
    for (int part = 0; part < SPLIT_K; ++part, from += BLOCK_M * BLOCK_N)
      each([&](float& sum, int number) { sum = __ldcg(from + number * kThreads) + (part > 0 ? sum : 0.0f); });
  }

  static __device__ __forceinline__ float finished(float sum, float bias) {
    const float y = sum + bias;
    return GELU ? 0.5f * y * (1.0f + erff(y * 0.70710678118654752f)) : y;
  }

  __device__ __forceinline__ void store() const {
#pragma unroll
    for (int j = 0; j < kColumnTiles; ++j) {
      const int column = share.column + warp_column + 8 * j + lane % 4 * 2;
      if (column >= problem.n) continue;
      const bool both = column + 1 < problem.n;
      const float low = to_float<kBfloat16>(problem.bias[column]);
      const float high = both ? to_float<kBfloat16>(problem.bias[column + 1]) : 0.0f;
#pragma unroll
      for (int i = 0; i < 2 * kRowTiles; ++i) {
        const int row = share.row + warp_row + 8 * i + lane / 4;
        const float(&tile)[4] = sums[i / 2][j];
        if (row >= problem.m) continue;
        const unsigned pair = pack<kBfloat16>(finished(tile[i % 2 * 2], low), finished(tile[i % 2 * 2 + 1], high));
        Element* to = problem.out + static_cast<long long>(row) * problem.n + column;
        if (problem.n % 2 == 0) {
          *reinterpret_cast<unsigned*>(to) = pair;
        } else {
          to[0] = static_cast<Element>(pair);
          if (both) to[1] = static_cast<Element>(pair >> 16);
        }
      }
    }
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, MIN_CTAS)
    linear(const Element* x, const Element* weight, const Element* bias, Element* out, float* parts, int* counter, int m,
           int n, int k) {
  const Problem problem{x, weight, bias, out, m, n, k};
  const Share share(problem);
  Worker worker(problem, share);
  worker.multiply();
  if constexpr (SPLIT_K > 1) {
    worker.put_part(parts);
    if (!last_to_arrive(counter + share.tile, SPLIT_K)) return;
    worker.add_parts(parts);
  }
  worker.store();
}
