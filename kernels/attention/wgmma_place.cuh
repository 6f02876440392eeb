// The problem of 5_wgmma.cu, and the place of a tile in it: its rows, the keys that they see, and where they all lie.
//
// Archs      sm_90 and later.
#pragma once

#include "mma_sync.cuh"
#include "row_features.h"
#include "score_change.cuh"
#include "strides.cuh"
#include "wgmma_choices.cuh"
#include "wgmma_rings.cuh"
#include "wgmma_schedule.cuh"
#include "wgmma_tma.cuh"

namespace {

struct Problem {
  const TensorMap &q, &k, &v, &out_map;
  Element* out;
  const Strides out_strides;
  const float scale_log2;
  const int heads, group, queries_log2, seq_len_q, seq_len_k;  // group: query heads per kv head
  const Tiles tiles;  // 2^queries_log2: the query rows of one head among the 64 rows of a warpgroup
  const Tail tail;
  float* const parts;
  const float softmax_scale;
  const Features features;

  // From scores, as the softmax meets them, to exponents of 2.
  __device__ __forceinline__ float exponent_scale() const { return kScoresChange ? kChangedExponent : scale_log2; }
};

// log2 of the query rows of one head among 64 rows. The largest power of two, up to 64, that divides the group's heads
// is the number of heads that are packed.
__device__ __forceinline__ int packed_queries_log2(int group) { return PACK_GQA ? 6 - min(__ffs(group) - 1, 6) : 6; }

__device__ __forceinline__ Problem problem_of(const TensorMap& q_map, const TensorMap& k_map, const TensorMap& v_map,
                                              const TensorMap& out_map, Element* out, const Strides& out_strides,
                                              float softmax_scale, int batch, int heads, int kv_heads, int seq_len_q,
                                              int seq_len_k, float* parts, const Features& features) {
  const int group = heads == kv_heads ? 1 : heads / kv_heads;
  const int queries_log2 = packed_queries_log2(group);
  const int queries = CLUSTER * CONSUMER_WARPGROUPS << queries_log2, tile_heads = batch * heads >> (6 - queries_log2);
  const Tiles tiles(seq_len_q, queries, tile_heads);
  return {q_map,
          k_map,
          v_map,
          out_map,
          out,
          out_strides,
          softmax_scale * 1.44269504088896341f,
          heads,
          group,
          queries_log2,
          seq_len_q,
          seq_len_k,
          tiles,
          Tail(tiles, (seq_len_k + BLOCK_N - 1) / BLOCK_N),
          parts,
          softmax_scale,
          features};
}

#if HIDE_ENDS
// The tiles of a consumer, as the producer tells them: a stage of Q has 32 bytes behind the mbarriers for its tile. So
// consumers make none of the divisions by which a tile is found.
constexpr unsigned kPlacesAt = kBarriersAt + 8 * kBarriers;

struct ConsumerWalk {
  Ring<QUERY_STAGES> ring;
  int batch, head, first_query, blocks, first_step, end_step, part;  // no blocks: no more tiles

  __device__ __forceinline__ explicit ConsumerWalk(const Tail&) { read(); }
  __device__ __forceinline__ bool has(const Tiles&) const { return blocks > 0; }
  __device__ __forceinline__ void next() {
    ring.advance();
    read();
  }

  // Called by the loading thread, before it arrives at the stage's `full`.
  static __device__ __forceinline__ void tell(int stage, const int (&words)[8]) {
    store_tile_words(shared_at(kPlacesAt + 32 * stage), words);
  }

 private:
  __device__ __forceinline__ void read() {
    wait_mbarrier(query_full(ring.stage), ring.parity);
    int words[8];
    load_tile_words(words, shared_at(kPlacesAt + 32 * ring.stage));
    batch = words[0], head = words[1], first_query = words[2], blocks = words[3];
    first_step = words[4], end_step = words[5], part = words[6];
  }
};
#else
using ConsumerWalk = Walk;
#endif

// Where a tile lies, and its blocks of keys. Steps count these blocks from the last one that a row of the tile, or of
// the cluster's other tiles, sees. This block's share is the steps from `first_step` to `end_step`: perhaps none.
struct Place {
  const Problem& problem;
  int batch, head, kv_head, first_query, blocks;  // head: the first packed one
  int share, first_step, end_step;
  int part;  // SHARE_TAIL: the number of the part that these steps form, -1 if they are all steps of the tile

  __device__ __forceinline__ Place(const Problem& of, const Walk& walk) : Place(of, walk.number) {
    if constexpr (kShareTail) {
      first_step = walk.first_step;
      end_step = walk.end_step;
      part = walk.part;
    }
  }

#if HIDE_ENDS
  // A consumer's: it loads no keys.
  __device__ __forceinline__ Place(const Problem& of, const ConsumerWalk& walk)
      : problem(of),
        batch(walk.batch),
        head(walk.head),
        first_query(walk.first_query),
        blocks(walk.blocks),
        share(0),
        first_step(walk.first_step),
        end_step(walk.end_step),
        part(walk.part) {}

  __device__ __forceinline__ void tell(int stage) const {
    ConsumerWalk::tell(stage, {batch, head, first_query, blocks, first_step, end_step, kShareTail ? part : -1, 0});
  }
#endif

  __device__ __forceinline__ Place(const Problem& of, int number) : problem(of) {
    int tile_head, row_block;
    of.tiles.find(number, tile_head, row_block);
    head = PACK_GQA ? tile_head << (6 - of.queries_log2) : tile_head;  // over the batch
    batch = head / of.heads;
    head -= batch * of.heads;
    kv_head = of.group == 1 ? head : head / of.group;
    first_query = queries_in((row_block * CLUSTER + number_in_cluster()) * CONSUMER_WARPGROUPS);
    const int end_query = queries_in((row_block + 1) * CLUSTER * CONSUMER_WARPGROUPS);
    blocks = (keys_seen(min(end_query, of.seq_len_q) - 1) + BLOCK_N - 1) / BLOCK_N;
    share = blockIdx.x % SPLIT_KV;
#if HIDES_BLOCKS
    blocks = max(blocks, 1);  // a tile that sees no key has one block, all of whose keys are masked
    const int first = min(first_seen(queries_in(row_block * CLUSTER * CONSUMER_WARPGROUPS)) / BLOCK_N, blocks - 1);
    const int steps = blocks - first;
#else
    const int steps = blocks;
#endif
    first_step = steps * share / SPLIT_KV;
    end_step = steps * (share + 1) / SPLIT_KV;
  }

  __device__ __forceinline__ bool is_empty() const { return SPLIT_KV > 1 && first_step == end_step; }

  __device__ __forceinline__ int seq_len_q() const { return problem.seq_len_q; }

  // Load a panel of a warpgroup's queries, and of the keys (or values) from `row` on.
  __device__ __forceinline__ void load_queries(unsigned to, unsigned full, int column, int group) const {
    load_box(to, problem.q, full, column, query_of(group, 0), head, batch);
  }
  __device__ __forceinline__ void load_keys(unsigned to, const TensorMap& map, unsigned full, int column,
                                            int row) const {
    load_box(to, map, full, column, row, kv_head, batch);
  }

  // Stores a panel of a warpgroup's output.
  __device__ __forceinline__ void store(unsigned from, int column, int group) const {
    store_box(problem.out_map, from, column, query_of(group, 0), head, batch);
  }

  // This block's number among the blocks whose tiles are side by side.
  static __device__ __forceinline__ int number_in_cluster() { return CLUSTER > 1 ? blockIdx.x % CLUSTER : 0; }

  // The query and the head of row 0 .. 63 of a warpgroup, which has the rows of one packed head after the other.
  __device__ __forceinline__ int query_of(int group, int row) const {
    return first_query + queries_in(group) + (PACK_GQA ? row & ((1 << problem.queries_log2) - 1) : row);
  }
  __device__ __forceinline__ int head_of(int row) const {
    return PACK_GQA ? head + (row >> problem.queries_log2) : head;
  }

  // A query sees the keys before keys_seen(query), from first_seen(query) on.
  __device__ __forceinline__ int own_key(int query) const {
    return Features::own_key(query, problem.seq_len_q, problem.seq_len_k);
  }
  __device__ __forceinline__ int keys_seen(int query) const {
#if HIDES_BLOCKS
    return max(problem.features.end_key(own_key(query), problem.seq_len_k), 0);
#else
    return CAUSAL ? min(problem.seq_len_k, query + 1) : problem.seq_len_k;
#endif
  }
  __device__ __forceinline__ int first_seen(int query) const { return problem.features.first_key(own_key(query)); }
  __device__ __forceinline__ int first_key(int step) const { return (blocks - 1 - step) * BLOCK_N; }
  __device__ __forceinline__ Element* out_row(int of_head, int query) const {
    return problem.out_strides.further(problem.out + problem.out_strides.head_at(batch, of_head), query);
  }

  // The sum of a row's weights, its sink's weight included; the weights are relative to the score `maximum`. With
  // `tells` this lane stores the logarithm of the sum: one lane of each row does.
  __device__ __forceinline__ float total(int of_head, int query, bool tells, float sum, float maximum) const {
    const float sink = SINKS ? kLog2e * problem.features.sinks[of_head] : 0.0f;
    const float shift = maximum * problem.exponent_scale();
    if constexpr (LSE) {
      const long long row = static_cast<long long>(batch * problem.heads + of_head) * problem.seq_len_q + query;
      if (tells) problem.features.lse[row] = logarithm(sum, shift, sink);
    }
    // A sink far above all scores makes the sum infinite, and the row 0.
    return SINKS ? sum + exp2_approximate(sink - shift) : sum;
  }

 private:
  // The query rows of `groups` warpgroups.
  __device__ __forceinline__ int queries_in(int groups) const {
    return PACK_GQA ? groups << problem.queries_log2 : groups * 64;
  }
};

}  // namespace
