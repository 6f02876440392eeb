// TILE_OVERLAP: a consumer warpgroup that issues the next tile's first scores before this tile's last weighted values.
//
// Without it a tile begins and ends with a product that no softmax of the same warpgroup runs beside. Here the tensor
// cores sum a tile's last values while the softmax of the next tile's first block is computed. Only then is the tile
// finished and stored. The next tile's Q must be in shared memory by then: QUERY_STAGES 2, and the producer loads it
// ahead of this tile's last block (wgmma_producer.cuh).
//
// A tile begins on its own where the block has no tile before it, and where the warpgroup leaves out blocks at the
// tile's end (SKIP_MASKED), as their values come before those that it needs.
// Warpgroups take turns as without TILE_OVERLAP: a turn a block, but none for a tile's first one.
//
// Archs      sm_90a.
#pragma once

#include "wgmma_consumer.cuh"
#include "wgmma_product.cuh"
#include "wgmma_rings.cuh"
#include "wgmma_softmax.cuh"
#include "wgmma_tile.cuh"
#include "wgmma_tma.cuh"

#if TILE_OVERLAP
namespace {

static_assert(OVERLAP && WEIGHT_SETS == 1, "the last values are added as those of other blocks are");
static_assert(QUERY_STAGES > 1, "the next tile's Q must be there before this tile's output has left");
static_assert(SPLIT_KV == 1 && !HALF_BLOCKS && !HAS_WINDOW && !SCORES_CHANGE && !kBiasRides && !SINKS && !LSE,
              "tiles of plain attention, or packed sequences");

struct OverlappingConsumer : Consumer {
  using Consumer::Consumer;

  // The step of the first block of keys that a row of this group sees.
  __device__ __forceinline__ int first_seen_step(const Place& place) const {
    if constexpr (!kSkipMasked) return place.first_step;
    const int last = min(place.query_of(group, 63), place.seq_len_q() - 1);
    const int unseen = place.blocks - (place.keys_seen(last) + BLOCK_N - 1) / BLOCK_N;
    return max(place.first_step, min(unseen, place.end_step - 1));
  }

  // Steps before this one have keys that the group's first row does not see.
  __device__ __forceinline__ int masked_steps(const Place& place) const {
    return place.blocks - place.keys_seen(place.query_of(group, 0)) / BLOCK_N;
  }

  __device__ __forceinline__ bool has_rows(const Place& place) const {
    return !PACKED || place.query_of(group, 0) < place.seq_len_q();
  }

  __device__ __forceinline__ void clear_output() {
#pragma unroll
    for (int i = 0; i < VALUE_DIM / 2; ++i) output[i] = 0.0f;
  }

  __device__ __forceinline__ void wait_queries() {
    wait_mbarrier(query_full(query.stage), query.parity);
    read_queries();
  }

  // The first block of a tile, of which this group has rows.
  __device__ __forceinline__ void begin_tile(const Place& place, int masked) {
    softmax.begin();
    clear_output();
    wait_queries();
    const int first = first_seen_step(place);
    for (int step = place.first_step; step < first; ++step) skip();
    begin(place, first, masked > first);
  }

  // Adds a tile's last values, while the first block of the next one gets its weights. `softmax` and `query` are the
  // next tile's.
  template <bool MASKED>
  __device__ __forceinline__ void add_last_under(const Place& next) {
    softmax.begin();
    wait_queries();
    wait_keys();
    fence_products();
    issue_scores();
    wait_values();
    fence_products();
    issue_values<0, kWhole>();
    wait_products<1>();
    pin(scores);
    give_back_keys();
    weigh<MASKED, kWhole>(next, next.first_step);
    finish_first(softmax.sum[0] + softmax.sum[1]);
    wait_products<0>();
    pin(output);
    give_back_values();
    pack_weights<0, kWhole>();
  }

  // Stores a tile, whose sums and stage of Q are not the present ones any more.
  __device__ __forceinline__ void store(const Place& place, const Softmax& own, const Ring<QUERY_STAGES>& at) {
    const Softmax next = softmax;
    const Ring<QUERY_STAGES> next_query = query;
    softmax = own;
    query = at;
    store_sums(place);
    softmax = next;
    query = next_query;
  }

  __device__ __forceinline__ void run() {
    if (group == CONSUMER_WARPGROUPS - 1) give_turn();
    bool begun = false;  // the first block of the walk's tile has its weights
    Walk walk(problem.tail);
    while (walk.has(problem.tiles)) {
      const Place place(problem, walk);
#if PACKED
      if (!has_rows(place)) {
        stand_aside(place);
        query.advance();
        walk.next();
        continue;
      }
#endif
      const int masked = masked_steps(place);
      int step = first_seen_step(place);
      if (!begun) begin_tile(place, masked);
#if PACKED
      if (step == 0 && place.keys_there() < BLOCK_N) clear_values(place.keys_there());
#endif
      ++step;
      for (; step < min(masked, place.end_step); ++step) advance<true>(place, step);
      for (; step < place.end_step; ++step) advance<false>(place, step);
      if (!kThroughShared) give_back(query_empty(query.stage));

      const Softmax own = softmax;
      const Ring<QUERY_STAGES> at = query;
      query.advance();
      walk.next();
      begun = false;
      if (walk.has(problem.tiles)) {
        const Place next(problem, walk);
        begun = has_rows(next) && first_seen_step(next) == next.first_step;
        if (begun && masked_steps(next) > next.first_step)
          add_last_under<true>(next);
        else if (begun)
          add_last_under<false>(next);
      }
      if (!begun) add_values<0, kWhole>();
      store(place, own, at);
      if (begun) clear_output();
    }
    if (group == 0) take_turn();
  }
};

}  // namespace
#endif
