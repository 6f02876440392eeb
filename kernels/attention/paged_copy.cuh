// Copying tiles of keys and values out of pages, 16 bytes at a time.
//
// A thread copies one chunk of every kRows-th row of a tile. It reads the page numbers of the next tile one step ahead
// of their use, so that a copy never waits for the table. It reads one number for the tile if all its rows lie in one
// page, one for each page if the tile consists of whole pages, else one for each row. Rows beyond the length become
// zeros, whatever lies in the page.
// OWN_COPIES: a warp copies just the keys that it multiplies, so that the warps of a block need not wait for others.
//
// Archs      sm_80 and later.
#pragma once

#include "paged_choices.cuh"

#include "async_copy.cuh"
#include "mma_block.cuh"
#include "paged_schedule.cuh"
#include "paged_tile.cuh"

namespace {

// Asks for the table of pages, while the lengths that tell what to read of it are still on their way: else one load
// from memory begins behind the other. The blocks share the lines, a few each: of a wide table most may not be used.
__device__ __forceinline__ void prefetch_table(const int* table, unsigned entries) {
  constexpr unsigned kLines = 8, kEntries = 128 / sizeof(int);  // of a block; of a line
  const unsigned entry = (blockIdx.x * kLines + threadIdx.x) * kEntries;
  if (threadIdx.x < kLines && entry < entries) prefetch_to_l2(table + entry);
}

struct PagedCopy {
  static constexpr int kChunks = HEAD_DIM / 8;
  static constexpr int kTogether = OWN_COPIES ? 32 : kThreads;  // threads that copy together
  static constexpr int kKeys = OWN_COPIES ? kWarpKeys : BLOCK_N;
  static constexpr int kRows = kTogether / kChunks;  // at a time
  static constexpr int kPasses = kKeys / kRows;
  static constexpr bool kOnePage = PAGE_SIZE % kKeys == 0;
  static constexpr bool kFewPages = kKeys % PAGE_SIZE == 0 && PAGE_SIZE % kRows == 0;
  static constexpr int kSpan = kOnePage ? kKeys : kFewPages ? PAGE_SIZE : kRows;  // rows per page number
  static_assert(kTogether % kChunks == 0 && kKeys % kRows == 0, "threads copy whole rows");

  const Sequences& all;
  const Problem& problem;
  const int first_key, chunk;  // of a tile; of a row
  const unsigned at;           // of this thread's first chunk, in a block of shared memory
  KeyPolicy policy;
  TileCursor cursor;
  int left;  // tiles that are not yet under way
  int pages[kKeys / kSpan];

  __device__ __forceinline__ PagedCopy(const Sequences& all, const Problem& problem, const TileCursor& cursor, int left,
                                       int number, int slice)
      : all(all), problem(problem), first_key(slice * kKeys + number / kChunks), chunk(number % kChunks),
        at(Rows::offset(first_key, chunk)), cursor(cursor), left(left) {
    find_pages();
  }

  // Reads the numbers for the tile under the cursor.
  __device__ __forceinline__ void find_pages() {
    const int* table = problem.page_table + static_cast<long long>(cursor.sequence) * problem.most_pages;
#pragma unroll
    for (int i = 0; i < kKeys / kSpan; ++i) {
      const unsigned key = cursor.tile * BLOCK_N + first_key + i * kSpan;
      pages[i] = key < cursor.keys ? __ldg(table + key / PAGE_SIZE) : 0;
    }
  }

  template <bool WHOLE>
  __device__ __forceinline__ void copy(const Element* from, unsigned shared) const {
    const Element* head = from + static_cast<long long>(cursor.head) * HEAD_DIM + chunk * 8;
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const unsigned key = cursor.tile * BLOCK_N + first_key + i * kRows;
      const int slot = pages[i * kRows / kSpan] * PAGE_SIZE + static_cast<int>(key % PAGE_SIZE);
      const unsigned to = shared + (kRows % 8 == 0 ? at + i * kRows * Rows::kRowBytes
                                                   : Rows::offset(first_key + i * kRows, chunk));
      if constexpr (WHOLE) {
        policy.copy(to, problem.k_strides.source(head, slot));
      } else {
        const bool exists = key < cursor.keys;
        policy.copy(to, problem.k_strides.source(head, exists ? slot : 0), exists ? 16 : 0);
      }
    }
  }

  // Starts the copies of the next tile's keys and values to a stage, if there is one. Closes a group either way.
  __device__ __forceinline__ void start(unsigned stage) {
    if (left > 0) {
      if ((cursor.tile + 1) * BLOCK_N <= cursor.keys) {
        copy<true>(problem.k, stage);
        copy<true>(problem.v, stage + kKeyBytes);
      } else {
        copy<false>(problem.k, stage);
        copy<false>(problem.v, stage + kKeyBytes);
      }
      if (--left > 0) {
        cursor.advance(all);
        find_pages();
      }
    }
    close_copy_group();
  }
};

}  // namespace
