// Matrix product on the CPU: out = a b, blocked for the caches, with a register tile.
//
// Shapes     a (m, k), b (k, n), out (m, n), row-major, contiguous, float32; any sizes >= 1.
// Tunables   BLOCK_M, BLOCK_N, BLOCK_K  rows, columns and depth of the block that one thread works on at a time; its
//                                       part of b (BLOCK_K x BLOCK_N) is copied into panels of TILE_N columns. A sum is
//                                       made in chains of BLOCK_K: long ones round more than PyTorch's sums do
//            TILE_M, TILE_N             the register tile: TILE_M x TILE_N sums live in registers over the whole depth
//            LOOP_ORDER                 which blocks a thread takes in a row: those of one row (m_outer) or column
// Workspace  scratch: for each thread a block of b and one of a, padded with zeros to whole tiles.
// Archs      any with 8 floats in a vector register or more is a good fit; GCC's vector types need none in particular.
// Reference  Goto & van de Geijn 2008, "Anatomy of high-performance matrix multiplication".
#include <omp.h>

#include <algorithm>
#include <cstddef>

namespace {

constexpr int kVector = 8;
typedef float Vector __attribute__((vector_size(4 * kVector), aligned(4), may_alias));
static_assert(BLOCK_M % TILE_M == 0 && BLOCK_N % TILE_N == 0 && TILE_N % kVector == 0, "whole tiles");
constexpr int kVectors = TILE_N / kVector;

// Depth-major panels: the tile's loop reads both sides from the front to the back.
void pack(const float* from, std::ptrdiff_t outer_step, std::ptrdiff_t depth_step, int outer, int depth, int width,
          float* to) {
  for (int first = 0; first < outer; first += width)
    for (int d = 0; d < depth; ++d)
      for (int j = 0; j < width; ++j)
        *to++ = first + j < outer ? from[(first + j) * outer_step + d * depth_step] : 0.0f;
}

// One tile over `depth`; `rows` x `columns` of it exist. The first block of the depth sets, the others add.
void tile(const float* a, const float* b, int depth, float* out, std::ptrdiff_t stride, int rows, int columns,
          bool set) {
  Vector sums[TILE_M][kVectors] = {};
  for (int d = 0; d < depth; ++d, a += TILE_M, b += TILE_N)
    for (int i = 0; i < TILE_M; ++i)
      for (int j = 0; j < kVectors; ++j)
        sums[i][j] += a[i] * *reinterpret_cast<const Vector*>(b + j * kVector);
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) {
      const float sum = sums[i][j / kVector][j % kVector];
      out[i * stride + j] = set ? sum : out[i * stride + j] + sum;
    }
}

}  // namespace

extern "C" void matmul(const float* a, const float* b, float* out, float* scratch, int m, int n, int k) {
  const int blocks_m = (m + BLOCK_M - 1) / BLOCK_M, blocks_n = (n + BLOCK_N - 1) / BLOCK_N;
#pragma omp parallel for schedule(dynamic)
  for (int block = 0; block < blocks_m * blocks_n; ++block) {
    const bool m_outer = LOOP_ORDER == LOOP_ORDER_M_OUTER;
    const int row = (m_outer ? block / blocks_n : block % blocks_m) * BLOCK_M;
    const int column = (m_outer ? block % blocks_n : block / blocks_m) * BLOCK_N;
    const int rows = std::min(BLOCK_M, m - row), columns = std::min(BLOCK_N, n - column);
    float* b_block = scratch + static_cast<std::ptrdiff_t>(omp_get_thread_num()) * BLOCK_K * (BLOCK_M + BLOCK_N);
    float* a_block = b_block + BLOCK_K * BLOCK_N;
    for (int first = 0; first < k; first += BLOCK_K) {
      const int depth = std::min(BLOCK_K, k - first);
      pack(b + static_cast<std::ptrdiff_t>(first) * n + column, 1, n, columns, depth, TILE_N, b_block);
      pack(a + static_cast<std::ptrdiff_t>(row) * k + first, k, 1, rows, depth, TILE_M, a_block);
      for (int j = 0; j < columns; j += TILE_N)
        for (int i = 0; i < rows; i += TILE_M)
          tile(a_block + i * depth, b_block + j * depth, depth,
               out + static_cast<std::ptrdiff_t>(row + i) * n + column + j, n, std::min(TILE_M, rows - i),
               std::min(TILE_N, columns - j), first == 0);
    }
  }
}
