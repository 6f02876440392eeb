// Matrix product on the CPU: out = a b, b in panels, blocked for the caches, with a register tile.
//
// Shapes     a (m, k), b (k, n), out (m, n), row-major, contiguous, float32; any sizes >= 1.
// Tunables   TILE_M, TILE_N    the register tile: TILE_M x TILE_N sums live in registers over a chain
//            CHAIN             products that are added up one after the other, before the sums of chains are added up:
//                              long chains round more than PyTorch's sums
//            BLOCK_M, BLOCK_N  rows and columns of out that a thread takes at a time
//            BLOCK_K           depth after which out is updated: a panel of b this deep stays in the L1 cache
//            PACK_A            a thread copies its rows of a, so that a tile's values of a lie side by side
// Workspace  panels: b as panels of TILE_N columns, the last one padded with zeros; packed: for each thread BLOCK_M
//            rows.
// Archs      any: GCC's vector types, as wide as the machine has them.
// Reference  Goto & van de Geijn 2008, "Anatomy of high-performance matrix multiplication".
#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace {

#if defined(__AVX512F__)
constexpr int kNative = 16;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kNative = 8;
#else
constexpr int kNative = 4;
#endif
constexpr int kVector = kNative;
constexpr int kVectors = TILE_N / kVector;
static_assert(BLOCK_M % TILE_M == 0 && BLOCK_N % TILE_N == 0 && TILE_N % kVector == 0, "whole tiles");
static_assert(BLOCK_K % CHAIN == 0, "whole chains");
typedef float Vector __attribute__((vector_size(4 * kVector)));

inline Vector load(const float* from) {
  Vector value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
inline void store(float* to, Vector value) { std::memcpy(to, &value, sizeof value); }

// Packs TILE_N columns of b, from `first` on, over the whole depth.
void pack_panel(const float* b, int first, int n, int k, float* to) {
  const int columns = std::min(TILE_N, n - first);
  for (int d = 0; d < k; ++d, to += TILE_N) {
    const float* from = b + static_cast<std::ptrdiff_t>(d) * n + first;
    if (columns == TILE_N) {
      std::memcpy(to, from, TILE_N * sizeof(float));
    } else {
      std::memcpy(to, from, columns * sizeof(float));
      std::fill(to + columns, to + TILE_N, 0.0f);
    }
  }
}

// Packs `rows` rows of a by tiles: the values of a tile's rows at one depth lie side by side.
void pack_rows(const float* a, int rows, int k, float* to) {
  for (int first = 0; first < rows; first += TILE_M, to += static_cast<std::ptrdiff_t>(TILE_M) * k)
    for (int i = 0; i < TILE_M; ++i) {
      const float* from = a + static_cast<std::ptrdiff_t>(std::min(first + i, rows - 1)) * k;
      for (int d = 0; d < k; ++d) to[d * TILE_M + i] = from[d];
    }
}

// Computes one tile over `depth`. `row` points to where each row of a begins; `step` is the distance from one of its
// values to the next. `rows` x `columns` of the tile exist. With `set`, out is overwritten, else added to.
inline void tile(const float* const (&row)[TILE_M], std::ptrdiff_t step, const float* panel, int depth, float* out,
                 std::ptrdiff_t stride, int rows, int columns, bool set) {
  Vector total[TILE_M][kVectors] = {};
  for (int begin = 0; begin < depth; begin += CHAIN) {
    const int end = std::min(begin + CHAIN, depth);
    Vector sum[TILE_M][kVectors] = {};
#pragma GCC unroll 2
    for (int d = begin; d < end; ++d) {
      Vector b[kVectors];
      for (int j = 0; j < kVectors; ++j) b[j] = load(panel + d * TILE_N + j * kVector);
#pragma GCC unroll 32
      for (int i = 0; i < TILE_M; ++i)
        for (int j = 0; j < kVectors; ++j) sum[i][j] += row[i][d * step] * b[j];
    }
    for (int i = 0; i < TILE_M; ++i)
      for (int j = 0; j < kVectors; ++j) total[i][j] += sum[i][j];
  }
  for (int i = 0; i < rows; ++i) {
    float* to = out + i * stride;
    if (columns == TILE_N) {
      for (int j = 0; j < kVectors; ++j)
        store(to + j * kVector, set ? total[i][j] : load(to + j * kVector) + total[i][j]);
    } else {
      float values[TILE_N];
      std::memcpy(values, total[i], sizeof values);
      for (int j = 0; j < columns; ++j) to[j] = set ? values[j] : to[j] + values[j];
    }
  }
}

}  // namespace

extern "C" void matmul(const float* a, const float* b, float* out, float* panels, float* packed, int m, int n, int k) {
  const int blocks_m = (m + BLOCK_M - 1) / BLOCK_M, blocks_n = (n + BLOCK_N - 1) / BLOCK_N;
  const std::ptrdiff_t panel_size = static_cast<std::ptrdiff_t>(k) * TILE_N;
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (int panel = 0; panel < (n + TILE_N - 1) / TILE_N; ++panel)
      pack_panel(b, panel * TILE_N, n, k, panels + panel * panel_size);
    // The loop above ends with a barrier, so all panels are there.
    float* own = packed + static_cast<std::ptrdiff_t>(omp_get_thread_num()) * BLOCK_M * k;
    int packed_row = -1;
#pragma omp for schedule(dynamic)
    for (int block = 0; block < blocks_m * blocks_n; ++block) {
      const int first_row = block / blocks_n * BLOCK_M, first_column = block % blocks_n * BLOCK_N;
      const int rows = std::min(BLOCK_M, m - first_row), columns = std::min(BLOCK_N, n - first_column);
      const float* a_rows = a + static_cast<std::ptrdiff_t>(first_row) * k;
      if (PACK_A && packed_row != first_row) {
        pack_rows(a_rows, rows, k, own);
        packed_row = first_row;
      }
      for (int begin = 0; begin < k; begin += BLOCK_K)
        for (int column = first_column; column < first_column + columns; column += TILE_N)
          for (int i = 0; i < rows; i += TILE_M) {
            const float* row[TILE_M];
            for (int r = 0; r < TILE_M; ++r)
              row[r] = PACK_A ? own + static_cast<std::ptrdiff_t>(i) * k + begin * TILE_M + r
                              : a_rows + static_cast<std::ptrdiff_t>(std::min(i + r, rows - 1)) * k + begin;
            tile(row, PACK_A ? TILE_M : 1, panels + column / TILE_N * panel_size + begin * TILE_N,
                 std::min(BLOCK_K, k - begin), out + static_cast<std::ptrdiff_t>(first_row + i) * n + column, n,
                 std::min(TILE_M, rows - i), std::min(TILE_N, n - column), begin == 0);
          }
    }
  }
}
