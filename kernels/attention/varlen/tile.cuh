// The problem of attention_varlen_wgmma.cu, and the place of a tile in it: its rows, the keys that they see, and where
// they all lie. The warp that finds tiles writes them to shared memory. The loading thread and the consumers read them.
//
// Archs      sm_90 and later.
#pragma once

// walk.cuh comes first: it has the choices that are fixed.
#include "walk.cuh"

#include "../wgmma/rings.cuh"
#include "../wgmma/tma.cuh"

namespace {

// A stage of Q has 32 bytes behind the other mbarriers for its PackedTile. Behind these is an mbarrier a stage for its
// tile's arrival, and one by which the loading thread asks for the next tile.
constexpr unsigned kTilesAt = kBarriersAt + 8 * kBarriers;
constexpr unsigned kTileBytes = 32;
constexpr unsigned kFoundAt = kTilesAt + QUERY_STAGES * kTileBytes;
constexpr unsigned kSharedBytes = kFoundAt + 8 * (QUERY_STAGES + 1);
__device__ __forceinline__ unsigned tile_at(int stage) { return shared_at(kTilesAt + stage * kTileBytes); }
__device__ __forceinline__ unsigned tile_found(int stage) { return shared_at(kFoundAt + 8 * stage); }
__device__ __forceinline__ unsigned tile_wanted() { return tile_found(QUERY_STAGES); }

// Consumers take tiles as they come, from a number of which nothing is known before.
struct Tiles {};
struct Tail {};

struct Problem {
  const TensorMap &q, &k, &v, &out_map;
  Element* out;
  const float scale_log2, softmax_scale;
  const int heads, group;  // group: query heads per kv head
  const TileShape shape;
  const Tiles tiles;
  const Tail tail;

  __device__ __forceinline__ float exponent_scale() const { return scale_log2; }
};

// The tiles of a consumer: for (Walk walk(tail); walk.has(tiles); walk.next()).
struct Walk {
  Ring<QUERY_STAGES> ring;
  PackedTile tile;

  __device__ __forceinline__ explicit Walk(const Tail&) { read(); }
  __device__ __forceinline__ bool has(const Tiles&) const { return tile.rows > 0; }
  __device__ __forceinline__ void next() {
    ring.advance();
    read();
  }

  // The finding warp's side, called by one thread. No rows: no more tiles.
  static __device__ __forceinline__ void tell(const Ring<QUERY_STAGES>& ring, const PackedTile& tile) {
    wait_mbarrier(query_empty(ring.stage), ring.parity ^ 1);
    store_tile_words(tile_at(ring.stage),
                     {tile.first_q, tile.rows, tile.first_k, tile.keys, tile.head, tile.first_query});
    arrive_at_mbarrier(tile_found(ring.stage));
  }

  // The loading thread's side.
  static __device__ __forceinline__ PackedTile hear(const Ring<QUERY_STAGES>& ring) {
    wait_mbarrier(tile_found(ring.stage), ring.parity);
    return tile_of(ring.stage);
  }

 private:
  __device__ __forceinline__ void read() {
    wait_mbarrier(query_full(ring.stage), ring.parity);
    tile = tile_of(ring.stage);
  }

  static __device__ __forceinline__ PackedTile tile_of(int stage) {
    int words[8];
    load_tile_words(words, tile_at(stage));
    return {words[0], words[1], words[2], words[3], words[4], words[5]};
  }
};

using ConsumerWalk = Walk;

// Where a tile lies, and its blocks of keys. Steps count these from the last one that a row of the tile sees.
struct Place {
  const Problem& problem;
  const PackedTile tile;
  int blocks, first_step, end_step;

  __device__ __forceinline__ Place(const Problem& of, const Walk& walk) : Place(of, walk.tile) {}
  __device__ __forceinline__ Place(const Problem& of, const PackedTile& tile) : problem(of), tile(tile) {
    const int last = min(tile.first_query + of.shape.queries_of(1), tile.rows) - 1;
    blocks = max((keys_seen(last) + BLOCK_N - 1) / BLOCK_N, 1);  // without keys, one block is masked
    first_step = 0;
    end_step = blocks;
  }

  static __device__ __forceinline__ bool is_empty() { return false; }
  __device__ __forceinline__ int seq_len_q() const { return tile.rows; }

  // The query and the head of row 0 .. 63 of a warpgroup: the packed heads of one query follow each other.
  __device__ __forceinline__ int query_of(int group, int row) const {
    return PACK_GQA ? tile.first_query + ((64 * group + row) >> problem.shape.heads_log2)
                    : tile.first_query + 64 * group + row;
  }
  __device__ __forceinline__ int head_of(int row) const {
    return PACK_GQA ? tile.head + (row & ((1 << problem.shape.heads_log2) - 1)) : tile.head;
  }

  // A query sees the keys before keys_seen(query).
  __device__ __forceinline__ int keys_seen(int query) const {
    return CAUSAL ? min(max(tile.keys - tile.rows + 1 + query, 0), tile.keys) : tile.keys;
  }
  static __device__ __forceinline__ int first_seen(int) { return 0; }
  __device__ __forceinline__ int first_key(int step) const { return (blocks - 1 - step) * BLOCK_N; }

  // How many rows of the first step's block are keys of the sequence: BLOCK_N or more if all are.
  __device__ __forceinline__ int keys_there() const { return tile.keys - first_key(0); }

  __device__ __forceinline__ void load_queries(unsigned to, unsigned full, int column, int group) const {
    load_packed_box(to, problem.q, full, column, tile.head, tile.first_q + query_of(group, 0));
  }
  __device__ __forceinline__ void load_keys(unsigned to, const TensorMap& map, unsigned full, int column,
                                            int row) const {
    load_packed_box(to, map, full, column, tile.head / problem.group, tile.first_k + row);
  }
  __device__ __forceinline__ void store(unsigned from, int column, int group) const {
    store_packed_box(problem.out_map, from, column, tile.head, tile.first_q + query_of(group, 0));
  }
  __device__ __forceinline__ Element* out_row(int of_head, int query) const {
    return problem.out + (static_cast<long long>(tile.first_q + query) * problem.heads + of_head) * HEAD_DIM;
  }
};

}  // namespace
