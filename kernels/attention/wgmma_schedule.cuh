// Which tile of the problem comes when: the order of all tiles, and a block's walk over them.
//
// A tile is BLOCK_M rows of one head (PACK_GQA: of several), or, counted here, the CLUSTER such tiles side by side that
// the blocks of a cluster have. Heads come in sections of HEAD_SECTION: all rows of a section's heads before the
// next section, so that K and V of a section stay in the L2 cache while its rows pass. Within a section the tiles at
// the same rows of all its heads are neighbours; ROW_ORDER descending begins with the last rows, which causal makes
// longest. A persistent block takes tiles b, b + G, b + 2 G, ...; with WALK snake every other round is reversed (of G
// blocks, the one that had the longest tile of a round has the shortest of the next). The SPLIT_KV blocks of a cluster
// have one tile together, and no other.
#pragma once

namespace {

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

// The numbers of a block's tiles: for (Walk walk; walk.has(tiles); walk.next()).
struct Walk {
  int number = blockIdx.x / CLUSTER_BLOCKS, round = 0;

  // Without PERSISTENT, a block has one tile.
  __device__ __forceinline__ bool has(const Tiles& tiles) const {
    return PERSISTENT ? number < tiles.all : round == 0;
  }

  __device__ __forceinline__ void next() {
    ++round;
    if (!PERSISTENT) return;
    const int first = blockIdx.x / CLUSTER_BLOCKS, blocks = gridDim.x / CLUSTER_BLOCKS;
    const bool back = WALK == WALK_SNAKE && round % 2 == 1;
    // A reversed last round may begin past the last tile for this block, and nothing comes after it.
    number = round * blocks + (back ? blocks - 1 - first : first);
  }
};

}  // namespace
