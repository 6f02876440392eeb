// Copying rows from global to shared memory by all threads of a block, 16 bytes at a time.
//
// A thread copies one chunk of its first row, and the same chunk of every kRows-th row from there: within a block of
// rows the addresses differ by constants. Where THREADS is no multiple of CHUNKS, the threads left over do nothing.
//
// Archs      sm_80 and later.
#pragma once

#include "async_copy.cuh"
#include "strides.cuh"

namespace {

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
    return kRows % 8 == 0 ? at + i * kRows * Layout::kRowBytes : Layout::offset(row + i * kRows, chunk);
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
