// The problem of 5_wgmma.cu, the order of its tiles, and the place of each: its rows, the keys that they see, and where
// they all lie. PACKED: attention_varlen_wgmma.cu has its own, varlen/tile.cuh.
//
// A tile is BLOCK_M rows of one head (PACK_GQA: of several heads). The blocks of a cluster work on CLUSTER neighbouring
// tiles, which count as one tile in the walk.
//
//   Heads    are divided into sections of HEAD_SECTION. All tiles of a section come before the next section, so that
//            the section's K and V stay in the L2 cache. Within a section, the tiles of all heads at the same rows are
//            neighbours. A bias may be the same for all batches, so with one the tiles of a head follow each other
//            over the batch.
//   Rows     ROW_ORDER descending begins with the last rows: under a causal mask their tiles take longest.
//   Blocks   Of G persistent blocks, block b takes tiles b, b + G, b + 2 G, ... WALK snake reverses every other round:
//            the block with the longest tile of one round gets the shortest of the next. With SPLIT_KV all blocks of a
//            cluster share one tile.
//
// SHARE_TAIL: blocks take whole tiles as long as there is one for every block. The remaining tiles are the tail. It is
// divided into steps, each of which is one block of keys of one tile, and every block gets equally many steps, so that
// all blocks end at the same time. A share is at most as long as a tile. So its steps belong to one tile, or to the end
// of one tile and the beginning of the next. A second launch merges the sums of tiles that were shared:
// wgmma/merge.cuh.
//
// Contract   for (Walk walk(tail); walk.has(tiles); walk.next()) gives a block's tiles, and Place(problem, walk) says
//            where one lies. HIDE_ENDS: consumers have a ConsumerWalk, which hears from the producer.
//
// Archs      sm_90 and later.
// Reference  Osama et al. 2023, "Stream-K".
#pragma once

#include "choices.cuh"

#if PACKED
#include "../varlen/tile.cuh"
#else

#include "../parts/arithmetic.cuh"
#include "../parts/features.h"
#include "../parts/mask.cuh"
#include "../parts/score_change.cuh"
#include "../parts/strides.cuh"
#include "rings.cuh"
#include "tma.cuh"

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
#if HAS_MASK
  const int batches;
#endif
  MASK_MEMBER;

  // From scores, as the softmax meets them, to exponents of 2.
  __device__ __forceinline__ float exponent_scale() const { return kScoresChange ? kChangedExponent : scale_log2; }
};

// log2 of the query rows of one head among 64 rows. The largest power of two, up to 64, that divides the group's heads
// is the number of heads that are packed.
__device__ __forceinline__ int packed_queries_log2(int group) { return PACK_GQA ? 6 - min(__ffs(group) - 1, 6) : 6; }

__device__ __forceinline__ Problem problem_of(const TensorMap& q_map, const TensorMap& k_map, const TensorMap& v_map,
                                              const TensorMap& out_map, Element* out, const Strides& out_strides,
                                              float softmax_scale, int batch, int heads, int kv_heads, int seq_len_q,
                                              int seq_len_k, float* parts,
                                              const Features& features MASK_FROM(const AttnMask& mask)) {
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
          features MASK_FROM(batch, mask)};
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

static_assert(HEAD_DIM % Rows::kPanel == 0 && VALUE_DIM % ValueRows::kPanel == 0, "boxes are whole panels");

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
#if MASK_IS_BIAS
    batch = tile_head % of.batches;
    head = tile_head / of.batches << (PACK_GQA ? 6 - of.queries_log2 : 0);
#else
    head = PACK_GQA ? tile_head << (6 - of.queries_log2) : tile_head;  // over the batch
    batch = head / of.heads;
    head -= batch * of.heads;
#endif
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

#if HAS_MASK
  // A row 0 .. BLOCK_M - 1 of the tile in the mask, from `key` on. The last query's where the row does not exist.
  __device__ __forceinline__ const MaskElement* mask_row(int row, int key) const {
    const int query = min(PACK_GQA ? query_of(row / 64, row % 64) : first_query + row, seq_len_q() - 1);
    return problem.mask.in_batch(batch).template at<MaskElement>(head_of(row % 64), 0, key) +
           wide_product(query, static_cast<int>(problem.mask.row));
  }
#endif

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
    float shift = maximum * problem.exponent_scale();
    if constexpr (kReachesFar) shift = fminf(fmaxf(shift, kLowestFloat), -kLowestFloat);  // it may be infinite
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

#endif  // PACKED
