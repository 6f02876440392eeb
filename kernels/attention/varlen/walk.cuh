// A block's walk over the tiles of packed sequences, those with the most keys first.
//
// A tile's level is the number of blocks of BLOCK_N keys that its last row sees, at least 1. Tiles are numbered by
// their levels, the highest first, then by their sequences: so the tiles that start last are short ones, with and
// without a causal mask. Under the mask a sequence's tiles of one level lie one after the other, and a division tells
// how many there are. A warp counts them in 32 sequences at a time, and goes on from where it found its last tile: all
// tiles of a block together cost it one pass over the table for each level that tiles have.
//
//   Heads  are divided into sections of HEAD_SECTION. All tiles of a section come before the next section, so that the
//          section's K and V stay in the L2 cache. Within a section the heads of a tile are neighbours.
//   WALK   snake: of G blocks, block b takes tiles b, 2 G - 1 - b, 2 G + b, ...: the longest tile of one round is
//          followed by the shortest of the next. queue: a block takes tile b, then draws from a counter what nobody has
//          drawn; the last one to draw leaves the counter 0, as it found it.
//
// The choices of the shared headers that are fixed in attention_varlen_wgmma.cu stand here: this file comes before
// them.
//
// Archs      sm_90 and later.
// Reference  Graham 1969 (longest processing time first).
#pragma once

#define PACKED 1
#define PRODUCER_WARPS 4
#define OVERLAP 1
#define WEIGHT_SETS 1
#define CLUSTER 1
#define SPLIT_KV 1
#define SHARE_TAIL 0

#include "../wgmma/choices.cuh"
#include "schedule.cuh"

namespace {

// A tile in its sequence, which has the rows first_q to first_q + rows - 1 of q, and the keys likewise.
struct PackedTile {
  int first_q, rows, first_k, keys;
  int head, first_query;  // head: the first of the heads that share the tile; first_query: its number in the sequence
};

// The rows of a tile are those of 2^heads_log2 heads, at queries_of(1) positions.
struct TileShape {
  int heads_log2;

  __device__ __forceinline__ int queries_of(int tiles) const { return tiles * CONSUMER_WARPGROUPS << (6 - heads_log2); }
  // The number of the tile in which a query lies.
  __device__ __forceinline__ int tile_of(int query) const { return (query >> (6 - heads_log2)) / CONSUMER_WARPGROUPS; }
};

// Called by all lanes of a warp, with the same arguments in all of them.
struct PackedWalk {
  const int *cu_seqlens_q, *cu_seqlens_k;
  int sequences, tile_heads;
  TileShape shape;
  int* counter;
  int number, round = 0;  // the tile's number, over all heads
  int tiles = 0;          // of one head
  int levels = 1;
  // Where the last tile was found: among the 32 sequences from `first` on, at this level, `before` tiles come earlier.
  int level, first, before;
  int below;  // the next level, as far as this lane has seen the table

  __device__ __forceinline__ PackedWalk(const int* cu_seqlens_q, const int* cu_seqlens_k, int sequences,
                                        int tile_heads, TileShape shape, int* counter)
      : cu_seqlens_q(cu_seqlens_q),
        cu_seqlens_k(cu_seqlens_k),
        sequences(sequences),
        tile_heads(tile_heads),
        shape(shape),
        counter(counter),
        number(blockIdx.x) {
    for (first = 0; first < sequences; first += 32) {
      int from[2], length[2];
      look(from, length);
      tiles += tiles_of(length[0]);
      if (length[0] > 0) levels = max(levels, highest_of(length[1]));
    }
    tiles = static_cast<int>(sum_of_warp(tiles));
    levels = most_of_warp(levels);
    begin_again();
  }

  __device__ __forceinline__ bool has() const { return number < tiles * tile_heads; }

  __device__ __forceinline__ void next() {
    const int blocks = gridDim.x, own = blockIdx.x;
    if constexpr (WALK == WALK_QUEUE) {
      // Every block with a tile draws until a number is behind the last tile: `tiles * tile_heads` draws in all.
      unsigned drawn = 0;
      if (threadIdx.x % 32 == 0) {
        drawn = atomicAdd(counter, 1);
        if (static_cast<int>(drawn) == tiles * tile_heads - 1) *counter = 0;
      }
      number = blocks + static_cast<int>(__shfl_sync(~0u, drawn, 0));
    } else {
      // A reversed last round may begin past the last tile for this block, and nothing comes after it.
      ++round;
      number = round * blocks + (round % 2 == 1 ? blocks - 1 - own : own);
    }
  }

  __device__ __forceinline__ PackedTile find() {
    const int per_section = HEAD_SECTION * tiles;
    const int section = number / per_section, rest = number - section * per_section;
    const int heads = min(HEAD_SECTION, tile_heads - section * HEAD_SECTION);
    const int tile = rest / heads;
    const int head = (section * HEAD_SECTION + rest - tile * heads) << shape.heads_log2;
    if (tile < before) begin_again();  // another section
    for (;;) {
      int from[2], length[2];
      look(from, length);
      const int begin = shorter(length[0], length[1], level), count = shorter(length[0], length[1], level + 1) - begin;
      if (begin > 0) below = max(below, min(highest_of(length[1]), level - 1));
      int upto = count;  // the tiles of this lane's sequence and of those before it
#pragma unroll
      for (int lanes = 1; lanes < 32; lanes *= 2) {
        const int others = static_cast<int>(__shfl_up_sync(~0u, static_cast<unsigned>(upto), lanes));
        if (static_cast<int>(threadIdx.x % 32) >= lanes) upto += others;
      }
      const int left = tile - before;
      const unsigned behind = __ballot_sync(~0u, upto > left);
      if (behind) {
        const int lane = __ffs(static_cast<int>(behind)) - 1;
        const int row_block = of_lane(begin + left - (upto - count), lane);
        return {of_lane(from[0], lane), of_lane(length[0], lane), of_lane(from[1], lane),
                of_lane(length[1], lane), head, shape.queries_of(row_block)};
      }
      before += of_lane(upto, 31);
      first += 32;
      if (first >= sequences) {
        first = 0;
        level = most_of_warp(below);
        below = 0;
      }
    }
  }

 private:
  static __device__ __forceinline__ int of_lane(int value, int lane) {
    return static_cast<int>(__shfl_sync(~0u, static_cast<unsigned>(value), lane));
  }

  __device__ __forceinline__ void begin_again() {
    level = levels;
    first = before = below = 0;
  }

  static __device__ __forceinline__ int most_of_warp(int value) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
      value = max(value, static_cast<int>(__shfl_xor_sync(~0u, static_cast<unsigned>(value), lanes)));
    return value;
  }

  // Where the sequence of this lane begins, and how long it is: in q and in k.
  __device__ __forceinline__ void look(int (&from)[2], int (&length)[2]) const {
    const int sequence = first + static_cast<int>(threadIdx.x % 32);
    from[0] = from[1] = length[0] = length[1] = 0;
    if (sequence < sequences) {
      from[0] = cu_seqlens_q[sequence], length[0] = cu_seqlens_q[sequence + 1] - from[0];
      from[1] = cu_seqlens_k[sequence], length[1] = cu_seqlens_k[sequence + 1] - from[1];
    }
  }

  // The level of a sequence's last tile.
  static __device__ __forceinline__ int highest_of(int keys) { return max((keys + BLOCK_N - 1) / BLOCK_N, 1); }

  __device__ __forceinline__ int tiles_of(int rows) const { return rows > 0 ? shape.tile_of(rows - 1) + 1 : 0; }

  // A sequence's tiles of lower levels: they come before its other tiles, in rows.
  __device__ __forceinline__ int shorter(int rows, int keys, int at_level) const {
    if (at_level <= 1) return 0;
    const int key = (at_level - 1) * BLOCK_N;
    if (key >= keys) return tiles_of(rows);
    const int first_to_see = CAUSAL ? key + rows - keys : 0;
    return first_to_see > 0 ? shape.tile_of(first_to_see) : 0;
  }
};

}  // namespace
