// Which tiles of the result a block of linear.cu computes, and which part of their sums.
//
// The CLUSTER blocks of a cluster have tiles one below the other, so that they need the same rows of B. Together these
// tiles are a set. Sets are walked TILE_GROUP rows of sets at a time, column by column: A and B stay in the L2 cache.
// SPLIT_K clusters share a set; each has a part of the steps along k.
//
// Without PINGPONG all consumers of a block work on one tile. With it each has tiles of its own, in turn: while one
// stores its tile, the next one's products run.
//
// Where the rows end inside of a set, the tiles of the last blocks have no rows: TMA fills them with zeros.
//
// Archs      sm_90 and later.
#pragma once

#define BLOCK_M (64 * ROW_TILES * (PINGPONG ? 1 : CONSUMER_WARPGROUPS))
#define BLOCK_K (64 * K_PANELS)

namespace {

__device__ __forceinline__ int number_in_cluster() { return CLUSTER > 1 ? blockIdx.x % CLUSTER : 0; }

struct Problem {
  int rows, columns, sets_in_column, sets_in_row, steps;
  __device__ __forceinline__ Problem(int m, int n, int k)
      : rows(SKINNY ? n : m),
        columns(SKINNY ? m : n),
        sets_in_column((rows + CLUSTER * BLOCK_M - 1) / (CLUSTER * BLOCK_M)),
        sets_in_row((columns + BLOCK_N - 1) / BLOCK_N),
        steps((k + BLOCK_K - 1) / BLOCK_K) {}
  __device__ __forceinline__ int shares() const { return sets_in_column * sets_in_row * SPLIT_K; }
};

// The numbers of the shares that a block's cluster walks over; or every `turns`-th of them, from number `turn` on.
struct Walk {
  int number, stride;
  __device__ __forceinline__ explicit Walk(int turn = 0, int turns = 1)
      : number((blockIdx.x + turn * gridDim.x) / CLUSTER), stride(turns * gridDim.x / CLUSTER) {}
  __device__ __forceinline__ bool has(const Problem& problem) const { return number < problem.shares(); }
  // Whether the block has a share after this one, whichever consumer takes it.
  __device__ __forceinline__ bool has_more(const Problem& problem) const {
    return number + static_cast<int>(gridDim.x) / CLUSTER < problem.shares();
  }
  __device__ __forceinline__ void next() { number += stride; }
};

// A block's tile, and its part of the tile's sums: columns of A and B from step `first` to step `end`.
struct Share {
  int row, column, tile, part, first, end;
  __device__ __forceinline__ Share(const Problem& problem, const Walk& walk) : part(walk.number % SPLIT_K) {
    const int set = walk.number / SPLIT_K, in_group = TILE_GROUP * problem.sets_in_row, group = set / in_group;
    const int height = min(TILE_GROUP, problem.sets_in_column - group * TILE_GROUP), rest = set - group * in_group;
    row = ((group * TILE_GROUP + rest % height) * CLUSTER + number_in_cluster()) * BLOCK_M;
    column = rest / height * BLOCK_N;
    tile = set * CLUSTER + number_in_cluster();
    first = problem.steps * part / SPLIT_K;
    end = problem.steps * (part + 1) / SPLIT_K;
  }
};

}  // namespace
