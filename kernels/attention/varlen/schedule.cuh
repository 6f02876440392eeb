// Which rows a block of threads has, where sequences of different lengths are packed one after the other.
//
// A sequence of n rows has ceil(n / BLOCK_M) tiles. A tile is found from its number and the table of boundaries alone,
// by a warp that looks at 32 sequences at a time.
//   by rows   The first tile of sequence i has the number boundaries[i] / BLOCK_M + i, and its other tiles follow. So
//             no two tiles share a number. Some numbers have no tile; all are below tokens / BLOCK_M + sequences.
//   by level  The tiles furthest down in their sequences come first. Under a causal mask they take longest, so the
//             tiles that start last are short ones.
//
// Archs      sm_80 and later.
// References FlashAttention-2, Dao 2023 (varlen); Graham 1969 (longest processing time first).
#pragma once

namespace {

struct Boundaries {
  const int* at;  // sequences + 1 of them
  int sequences;
  int rows_each;  // rows of a tile's line for each row of q: the heads of a group if packed

  __device__ __forceinline__ int tiles_of(int sequence) const {
    return sequence < sequences ? ((at[sequence + 1] - at[sequence]) * rows_each + BLOCK_M - 1) / BLOCK_M : 0;
  }
};

__device__ __forceinline__ unsigned sum_of_warp(unsigned value) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(~0u, value, lanes);
  return value;
}

struct TilePlace {
  int sequence, row_block;  // sequence -1: no tile has this number

  __device__ __forceinline__ static TilePlace by_rows(const Boundaries& all, int number) {
    const int lane = threadIdx.x % 32;
    int found = -1;
    for (int first = 0; first < all.sequences; first += 32) {
      const int here = first + lane;
      const bool begun = here < all.sequences && all.at[here] * all.rows_each / BLOCK_M + here <= number;
      const unsigned which = __ballot_sync(~0u, begun);
      found += __popc(which);
      if (which != ~0u) break;
    }
    const int row_block = number - (all.at[found] * all.rows_each / BLOCK_M + found);
    return {row_block < all.tiles_of(found) ? found : -1, row_block};
  }

  // Tiles of all sequences with `level` tiles before them in theirs, or more.
  __device__ __forceinline__ static int from_level(const Boundaries& all, int level) {
    unsigned count = 0;
    for (int first = 0; first < all.sequences; first += 32)
      count += max(0, all.tiles_of(first + static_cast<int>(threadIdx.x % 32)) - level);
    return static_cast<int>(sum_of_warp(count));
  }

  __device__ __forceinline__ static TilePlace by_level(const Boundaries& all, int number, int levels) {
    int low = 0, high = levels;  // low <= the tile's level < high
    if (from_level(all, 0) <= number) return {-1, 0};
    while (high - low > 1) {
      const int level = (low + high) / 2;
      if (from_level(all, level) > number)
        low = level;
      else
        high = level;
    }
    int left = number - from_level(all, low + 1);  // among the sequences that have this level
    for (int first = 0;; first += 32) {
      unsigned which = __ballot_sync(~0u, all.tiles_of(first + static_cast<int>(threadIdx.x % 32)) > low);
      const int here = __popc(which);
      if (left < here) {
        for (; left > 0; --left) which &= which - 1;
        return {first + __ffs(static_cast<int>(which)) - 1, low};
      }
      left -= here;
    }
  }
};

}  // namespace
