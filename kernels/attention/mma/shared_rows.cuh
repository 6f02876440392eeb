// Rows of 16-byte chunks in shared memory, and their copies from global memory by all threads of a block.
//
// Layout     ldmatrix reads the same chunk of eight consecutive rows at a time. Shared memory serves 128 bytes a cycle,
//            eight chunks in different places modulo 128 bytes. Rows of 128, 256, 384 or 512 bytes put the eight into
//            one place, rows of 64 or 192 bytes into two, rows of 160 or 224 bytes into four.
//              none  rows as they are: conflicts of 2 to 8 ways
//              xor   chunk c of row r lies where chunk c ^ f(r) would: no conflicts, no more memory; f(r) repeats after
//                    eight rows
//              pad   one more chunk a row: no conflicts, more memory, plain sums as addresses
//            LANE_KEYS beyond 2 (parts/mask.cuh): ldmatrix reads rows LANE_KEYS i and LANE_KEYS i + 1, i < 4. f(r) then
//            depends on these bits of r, and repeats after 4 LANE_KEYS rows. pad has conflicts.
//            The base of a tile must be a multiple of a row's bytes where these are a power of two, else of 256 bytes:
//            along() flips bits of an address, and the base must have none of these bits.
// Copies     A thread copies one chunk of its first row, and the same chunk of every kRows-th row from there: within a
//            block of rows the addresses differ by constants. Where THREADS is no multiple of CHUNKS, the threads left
//            over do nothing. Rows that do not exist become zeros.
//
// Archs      sm_80 and later.
// Reference  PTX ISA, "ldmatrix".
#pragma once

#include "../parts/async_copy.cuh"
#include "../parts/strides.cuh"

namespace {

template <int CHUNKS, int SWIZZLE_KIND, int LANE_ROWS = 2>
struct SharedRows {
  static_assert(CHUNKS % 2 == 0, "head dimensions are multiples of 16");
  static constexpr bool kXor = SWIZZLE_KIND == SWIZZLE_XOR;
  static constexpr int kRowBytes = 16 * (CHUNKS + (SWIZZLE_KIND == SWIZZLE_PAD ? 1 : 0));
  static constexpr int kRepeats = 4 * LANE_ROWS;

  // The bits of a chunk's number that change in a row.
  __device__ static __forceinline__ constexpr unsigned flipped(unsigned row) {
    if constexpr (LANE_ROWS > 2) row = (row / LANE_ROWS & 3) << 1 | (row & 1);
    return CHUNKS % 8 == 0 ? row & 7 : CHUNKS % 4 == 0 ? row >> 1 & 3 : row >> 2 & 1;
  }

  // Byte offset of a chunk.
  __device__ static __forceinline__ unsigned offset(unsigned row, unsigned chunk) {
    if constexpr (kXor) chunk ^= flipped(row);
    return row * kRowBytes + chunk * 16;
  }

  // From the address of chunk 0 or 1 of a row to the chunk that lies `chunks` further; `chunks` is even.
  __device__ static __forceinline__ unsigned along(unsigned address, unsigned chunks) {
    if constexpr (!kXor || CHUNKS % 4 != 0) return address + chunks * 16;
    if constexpr (CHUNKS % 8 == 0 && (CHUNKS & (CHUNKS - 1)) == 0) return address ^ chunks * 16;
    if constexpr (CHUNKS % 8 == 0) return (address ^ (chunks & 7) * 16) + (chunks & ~7u) * 16;
    return (address ^ (chunks & 3) * 16) + (chunks & ~3u) * 16;
  }
};

template <int CHUNKS, int THREADS, class Layout, class Policy = CopyPolicy<>>
struct RowCopy {
  static constexpr int kRows = THREADS / CHUNKS;  // at a time
  static constexpr int kElements = 8 * CHUNKS;    // per row

  int row, chunk;
  unsigned at;
  Policy policy;

  __device__ __forceinline__ RowCopy()
      : row(threadIdx.x / CHUNKS), chunk(threadIdx.x % CHUNKS), at(Layout::offset(row, chunk)) {}

  // In elements, from the first of the rows, which are DISTANCE apart, to this thread's first chunk.
  template <int DISTANCE = kElements>
  __device__ __forceinline__ int start() const {
    return row * DISTANCE + chunk * 8;
  }

  __device__ __forceinline__ bool has(int i, int rows) const {
    return (THREADS % CHUNKS == 0 || row < kRows) && ((i + 1) * kRows <= rows || row + i * kRows < rows);
  }
  __device__ __forceinline__ unsigned to(int i) const {
    if constexpr (kRows % Layout::kRepeats == 0) return at + i * kRows * Layout::kRowBytes;
    if constexpr (kRows % 8 == 0 && (kRows & (kRows - 1)) == 0)  // row has none of the bits of i * kRows
      return (Layout::kXor ? at ^ Layout::flipped(i * kRows) * 16 : at) + i * kRows * Layout::kRowBytes;
    return Layout::offset(row + i * kRows, chunk);
  }

  // Copies ROWS rows, DISTANCE elements apart; `from` is the first of them plus start(). Only the first `valid` exist:
  // the others become zeros.
  template <int ROWS, int DISTANCE = kElements, class T>
  __device__ __forceinline__ void copy(unsigned shared, const T* from, int valid) const {
    constexpr int passes = (ROWS + kRows - 1) / kRows;
    static_assert(static_cast<long long>(ROWS) * DISTANCE < 1ll << 31, "products of 32 bits");
    if (valid >= ROWS) {
#pragma unroll
      for (int i = 0; i < passes; ++i)
        if (has(i, ROWS)) policy.copy(shared + to(i), from + i * kRows * DISTANCE);
    } else {
      const T* nowhere = from - start<DISTANCE>();  // the first row exists
#pragma unroll
      for (int i = 0; i < passes; ++i)
        if (has(i, ROWS)) {
          const bool exists = row + i * kRows < valid;
          policy.copy(shared + to(i), exists ? from + i * kRows * DISTANCE : nowhere, exists ? 16 : 0);
        }
    }
  }

  // The same for rows of a view; `from` is start_of() of the first. Copies of rows that do not exist get the address of
  // an existing row: the first if the distance is compiled in, else the last.
  template <class T, class Distances>
  __device__ __forceinline__ T* start_of(T* first, const Distances& strides) const {
    return strides.source(first + chunk * 8, row);
  }
  template <int ROWS, class T, class Distances>
  __device__ __forceinline__ void copy_strided(unsigned shared, const T* from, const Distances& strides,
                                               int valid) const {
    constexpr int passes = (ROWS + kRows - 1) / kRows;
    if constexpr (Distances::kRow > 0) {
      copy<ROWS, Distances::kRow>(shared, from, valid);
    } else if (valid >= ROWS) {
#pragma unroll
      for (int i = 0; i < passes; ++i)
        if (has(i, ROWS)) policy.copy(shared + to(i), i == 0 ? from : strides.source(from, i * kRows));
    } else {
      const int last = valid - 1 - row;  // counted from this thread's first row
#pragma unroll
      for (int i = 0; i < passes; ++i)
        if (has(i, ROWS))
          policy.copy(shared + to(i), strides.source(from, min(i * kRows, last)), i * kRows <= last ? 16 : 0);
    }
  }

  // Copies rows that lie anywhere: row_at(r) is where row r begins, for r < valid.
  template <int ROWS, class RowAt>
  __device__ __forceinline__ void gather(unsigned shared, RowAt row_at, int valid) const {
#pragma unroll
    for (int i = 0; i < (ROWS + kRows - 1) / kRows; ++i)
      if (has(i, ROWS)) {
        const bool exists = row + i * kRows < valid;
        policy.copy(shared + to(i), row_at(exists ? row + i * kRows : 0) + chunk * 8, exists ? 16 : 0);
      }
  }
};

}  // namespace
