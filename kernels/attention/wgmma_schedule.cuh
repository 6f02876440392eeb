// The order of the problem's tiles, a block's walk over them, and the sharing of the last ones.
//
// A tile is BLOCK_M rows of one head (PACK_GQA: of several heads). The blocks of a cluster work on CLUSTER neighbouring
// tiles, which count as one tile here.
//
//   Heads    are divided into sections of HEAD_SECTION. All tiles of a section come before the next section, so that
//            the section's K and V stay in the L2 cache. Within a section, the tiles of all heads at the same rows are
//            neighbours.
//   Rows     ROW_ORDER descending begins with the last rows: under a causal mask their tiles take longest.
//   Blocks   Of G persistent blocks, block b takes tiles b, b + G, b + 2 G, ... WALK snake reverses every other round:
//            the block with the longest tile of one round gets the shortest of the next. With SPLIT_KV all blocks of a
//            cluster share one tile.
//
// SHARE_TAIL: blocks take whole tiles as long as there is one for every block. The remaining tiles are the tail. It is
// divided into steps, each of which is one block of keys of one tile, and every block gets equally many steps, so that
// all blocks end at the same time. A share is at most as long as a tile. So its steps belong to one tile, or to the end
// of one tile and the beginning of the next. A second launch merges the sums of tiles that were shared: wgmma_tail.cuh.
//
// Archs      sm_90 and later.
// Reference  Osama et al. 2023, "Stream-K".
#pragma once

#include "wgmma_choices.cuh"

namespace {

constexpr bool kShareTail = SHARES_TAIL;

struct Tiles {
  int row_blocks, tile_heads, all;

  // `queries`: query rows a tile.
  __device__ Tiles(int seq_len_q, int queries, int tile_heads)
      : row_blocks((seq_len_q + queries - 1) / queries), tile_heads(tile_heads), all(row_blocks * tile_heads) {}

  __device__ __forceinline__ void find(int number, int& head, int& row_block) const {
    const int per_section = HEAD_SECTION * row_blocks;
    const int section = number / per_section, rest = number - section * per_section;
    const int heads = min(HEAD_SECTION, tile_heads - section * HEAD_SECTION);
    row_block = rest / heads;
    head = section * HEAD_SECTION + rest - row_block * heads;
    if (ROW_ORDER == ROW_ORDER_DESCENDING) row_block = row_blocks - 1 - row_block;
  }
};

// The tiles that are shared out. Blocks are numbered as blockIdx.x, steps over all tiles of the tail.
struct Tail {
  int rounds, first, tiles;  // whole rounds before the tail, the number of its first tile, how many tiles it has
  int tile_steps;
  int sharers, least, longer;  // blocks that get steps: `least` each, the first `longer` of them one more

  __device__ __forceinline__ Tail(const Tiles& all_tiles, int tile_steps) : tile_steps(tile_steps) {
    if constexpr (kShareTail) {
      const int blocks = gridDim.x;
      rounds = all_tiles.all / blocks;
      first = rounds * blocks;
      tiles = all_tiles.all - first;
      const int steps = tiles * tile_steps;
      sharers = max(min(blocks, steps), 1);
      least = steps / sharers;
      longer = steps - least * sharers;
    }
  }

  // The first step of a block. The blocks past the last sharer begin, and end, behind the last step.
  __device__ __forceinline__ int begin(int block) const { return min(block, sharers) * least + min(block, longer); }

  // The block that has this step.
  __device__ __forceinline__ int sharer(int step) const {
    const int of_longer = longer * (least + 1);
    return step < of_longer ? step / (least + 1) : longer + (step - of_longer) / least;
  }

  // Numbers the parts of shared tiles; a part is the steps of one tile that one block has. In the order of the steps,
  // each part has a later block than the part before it, or a later tile, or both. So block + tile grows from part to
  // part: no two parts have the same number, and the parts of a tile have consecutive numbers.
  static __device__ __forceinline__ int part(int block, int tile) { return block + tile; }
};

// A block's tiles: for (Walk walk(tail); walk.has(tiles); walk.next()).
struct Walk {
  const Tail& tail;
  int number = blockIdx.x / CLUSTER_BLOCKS, round = 0;
  // SHARE_TAIL: this block's steps of the tile, from `first_step` to `end_step`; the number of the part that they form,
  // -1 if they are all steps of the tile; the steps of the tail that this block has left.
  int first_step, end_step, part, next_shared, end_shared;

  __device__ __forceinline__ explicit Walk(const Tail& tail) : tail(tail) {
    if constexpr (kShareTail) {
      next_shared = tail.begin(blockIdx.x);
      end_shared = tail.begin(blockIdx.x + 1);
      choose_steps();
    }
  }

  // Without PERSISTENT, a block has one tile.
  __device__ __forceinline__ bool has(const Tiles& tiles) const {
    if constexpr (kShareTail) return first_step < end_step;
    return PERSISTENT ? number < tiles.all : round == 0;
  }

  __device__ __forceinline__ void next() {
    ++round;
    if (!PERSISTENT) return;
    const int first = blockIdx.x / CLUSTER_BLOCKS, blocks = gridDim.x / CLUSTER_BLOCKS;
    const bool back = WALK == WALK_SNAKE && round % 2 == 1;
    // A reversed last round may begin past the last tile for this block, and nothing comes after it.
    number = round * blocks + (back ? blocks - 1 - first : first);
    if constexpr (kShareTail) choose_steps();
  }

 private:
  // All steps of a tile before the tail; then the rest of a tile, as far as this block's share goes: perhaps none.
  __device__ __forceinline__ void choose_steps() {
    first_step = 0;
    end_step = tail.tile_steps;
    part = -1;
    if (round >= tail.rounds) {
      const int tile = next_shared / tail.tile_steps;
      number = tail.first + tile;
      first_step = next_shared - tile * tail.tile_steps;
      end_step = min(end_step, first_step + end_shared - next_shared);
      next_shared += end_step - first_step;
      if (end_step - first_step < tail.tile_steps) part = tail.part(blockIdx.x, tile);
    }
  }
};

}  // namespace
