// A consumer warpgroup: 64 rows of each tile, from scores to the finished output. Its products and turns are in
// wgmma_consumer_products.cuh, weights in wgmma_consumer_weights.cuh, stores in wgmma_consumer_stores.cuh.
//
// OVERLAP 0: scores, softmax and weighted values of a block follow each other, and another warpgroup fills the gaps.
// OVERLAP 1: the next block's scores and this block's weighted values are issued together; while the tensor cores sum
// the values, the softmax of the next block begins.
//
// WEIGHT_SETS 2: two sets of registers for weights. A block's weights are packed into one set while the other is still
// an operand of the MMA with the last block's values. Steps then come in pairs.
//
// HALF_BLOCKS: of the first block that a warpgroup computes of a tile, and of the last one in a window, only half gets
// a softmax where no row of the warpgroup sees the other half. The first block's scores, and both blocks' weighted
// values, are products of that half, too. (The last one's scores are not: they are issued while another product runs, and
// with two sizes of scores in flight ptxas serialized all products.)
//
// HIDE_ENDS: the factors of a tile's rows are computed under its last product. Its output goes out under the next tile's
// first block, and only then is Q's stage given back. The producer says where the next tile lies (wgmma_place.cuh). With
// a window, where tiles have few blocks, that is read under the last product, too.
//
// SPLIT_KV: the sums of the cluster's blocks are merged at the end, see wgmma_merge.cuh.
//
// PACKED (attention_varlen_wgmma.cu): a tile's last rows may be another sequence's, as may be its last keys. A group
// without rows of its own only gives stages and turns back; values of keys that are not the sequence's are cleared.
//
// Archs      sm_90a.
// References FlashAttention-3, Shah et al. 2024 (overlap).
#pragma once

#include "cluster_push.cuh"
#include "mma_sync.cuh"
#include "wgmma_consumer_weights.cuh"
#include "wgmma_key_bias.cuh"
#include "wgmma_product.cuh"
#include "wgmma_rings.cuh"
#include "wgmma_tile.cuh"
#include "wgmma_tma.cuh"
#if !PACKED
#include "wgmma_merge.cuh"
#endif

namespace {

struct Consumer : ConsumerWeights {
  using ConsumerWeights::ConsumerWeights;
#if READS_AHEAD
  ConsumerWalk walk = ConsumerWalk(problem.tail);  // a tile's place is read under the last product of the tile before
#endif

  // Computes the scores of the first block, and their weights.
  template <Part PART>
  __device__ __forceinline__ void begin_part(const Place& place, int step, bool masked) {
    wait_keys();
    fence_products();
    issue_scores<PART>();
    if (kPingPong && !OVERLAP) give_turn();
    find_masks<PART>(place, step, masked);
    wait_products<0>();
    pin(scores);
    give_back_keys();
    if (kHidesApart || masked)
      weigh<true, PART, true>(place, step);
    else
      weigh<false, PART, true>(place, step);
    pack_weights<0, PART>();
    if constexpr (PART == kFirstHalf) {
#pragma unroll
      for (int i = BLOCK_N / 8; i < BLOCK_N / 4; ++i) weights[0][i] = 0;
    }
  }

  // SET holds the weights of the last block, of which LAST_PART is seen. Its values are added while the weights of block
  // `step` are computed.
  template <bool MASKED, int SET = 0, Part PART = kWhole, Part LAST_PART = kWhole>
  __device__ __forceinline__ void advance(const Place& place, int step, bool masked = MASKED) {
    constexpr int kNext = (SET + 1) % WEIGHT_SETS;
    constexpr bool kHoldsKeys = KEEPS_MAXIMUM && (kHidesApart || !MASKED);  // scores may have to be computed again
    wait_keys();
    if constexpr (OVERLAP) {
      take_turn();
      fence_products();
      issue_scores();
      wait_values();
      fence_products();
      issue_values<SET, LAST_PART>();
      give_turn();
      find_masks<PART>(place, step, masked);
      wait_products<1>();
      pin(scores);
      if (!kHoldsKeys) give_back_keys();
      weigh<MASKED, PART>(place, step, masked);
      if (kHoldsKeys) give_back_keys();
      const float sums = softmax.sum[0] + softmax.sum[1];
      if constexpr (kNext == SET) {
        finish_first(sums);
      } else {
        pack_weights<kNext, PART>();
        finish_first(sums, weights[kNext]);
      }
      wait_products<0>();
      pin(output);
      give_back_values();
    } else {
      add_values<SET, LAST_PART>([] {});
      fence_products();
      issue_scores();
      give_turn();
      find_masks<PART>(place, step, masked);
      wait_products<0>();
      pin(scores);
      if (!kHoldsKeys) give_back_keys();
      weigh<MASKED, PART>(place, step, masked);
      if (kHoldsKeys) give_back_keys();
    }
    softmax.rescale(output);
    if constexpr (kNext == SET) pack_weights<SET, PART>();
  }

  // `meanwhile` is done while the product runs.
  template <int SET, Part PART, class Meanwhile>
  __device__ __forceinline__ void add_values(const Meanwhile& meanwhile) {
    wait_values();
    if (!OVERLAP) take_turn();
    fence_products();
    issue_values<SET, PART>();
    meanwhile();
    wait_products<0>();
    pin(output);
    give_back_values();
  }

  // Whether no row of the group sees the second half of the block of this step, or the first half.
  __device__ __forceinline__ bool sees_first_half_alone(const Place& place, int step) const {
    const int last = min(place.query_of(group, 63), place.seq_len_q() - 1);
    return place.keys_seen(last) <= place.first_key(step) + BLOCK_N / 2;
  }
  __device__ __forceinline__ bool sees_second_half_alone(const Place& place, int step) const {
    return place.first_seen(place.query_of(group, 0)) >= place.first_key(step) + BLOCK_N / 2;
  }

  __device__ __forceinline__ void begin(const Place& place, int step, bool masked, bool half) {
    if constexpr (HALF_BLOCKS) {
      if (half) return begin_part<kFirstHalf>(place, step, true);
    }
    begin_part<kWhole>(place, step, masked);
  }

  // From this step on, the group's first row sees a block up to the block's last key.
  __device__ __forceinline__ int masked_steps(const Place& place) const {
    return place.blocks - place.keys_seen(place.query_of(group, 0)) / BLOCK_N;
  }

  // Reads Q, and skips blocks that only other groups see. The first step that is left.
  __device__ __forceinline__ int begin_tile(const Place& place) {
    wait_mbarrier(query_full(query.stage), query.parity);
    read_queries();
#if ALIBI
#pragma unroll
    for (int half = 0; half < 2; ++half)
      slopes[half] = kUnit * problem.features.alibi_slopes[place.head_of(row_of(half))];
#endif
    if constexpr (kBiasRides) {
#pragma unroll
      for (int half = 0; half < 2; ++half) row_bias.set(half, bias_of(place, half, 0).step);
    }
    int step = place.first_step;
    if constexpr (kSkipMasked) {
      const int last = min(place.query_of(group, 63), place.seq_len_q() - 1);
      const int unseen = place.blocks - (place.keys_seen(last) + BLOCK_N - 1) / BLOCK_N;
      for (; step < min(unseen, place.end_step - 1); ++step) skip();
    }
    if (!OVERLAP) take_turn();
    return step;
  }

#if HAS_WINDOW
  // Sums weights and weighted values over this block's share of the keys, which is not empty.
  __device__ __forceinline__ void sum_share(const Place& place) {
    const int masked = masked_steps(place);
    int step = begin_tile(place);
    const bool begins_half = HALF_BLOCKS && sees_first_half_alone(place, step);
    // From this step on, the window of the group's last row begins within the block, or after it.
    const int last_query = min(place.query_of(group, 63), place.seq_len_q() - 1);
    const int left = place.blocks - (place.first_seen(last_query) + BLOCK_N - 1) / BLOCK_N;
    // From this one on, all keys lie before the window of the group's first row.
    const int before = place.blocks - place.first_seen(place.query_of(group, 0)) / BLOCK_N;
    const int end = SKIP_MASKED ? max(step + 1, min(before, place.end_step)) : place.end_step;
    const auto is_masked = [&](int at) { return at < masked || at >= left; };
    begin(place, step, is_masked(step), begins_half);
#if HIDE_ENDS
    give_back_stored();
#endif
    ++step;
    const bool ends_half = HALF_BLOCKS && step < end && sees_second_half_alone(place, end - 1);
    if constexpr (HALF_BLOCKS) {
      if (begins_half && step < end - ends_half && !is_masked(step)) advance<false, 0, kWhole, kFirstHalf>(place, step++);
    }
    for (; step < end - ends_half; ++step) {
      if (kHidesApart)
        advance<false>(place, step, is_masked(step));
      else if (is_masked(step))
        advance<true>(place, step);
      else
        advance<false>(place, step);
    }
    if constexpr (HALF_BLOCKS) {
      if (ends_half) advance<true, 0, kSecondHalf>(place, step++);
    }
    // Blocks that are left out must be given back before the producer loads what comes after them.
    const bool is_last = step == place.end_step;
    if (ends_half)
      add_last<0, kSecondHalf>(place, is_last);
    else
      add_last<0>(place, is_last);
    for (; step < place.end_step; ++step) skip();
#if READS_AHEAD
    if (!is_last) walk.next();
#endif
  }
#else
  // Sums weights and weighted values over this block's share of the keys, which is not empty.
  __device__ __forceinline__ void sum_share(const Place& place) {
    const int masked = masked_steps(place);
    int step = begin_tile(place);
    const bool begins_half = HALF_BLOCKS && sees_first_half_alone(place, step);
    begin(place, step, masked > step, begins_half);
#if HIDE_ENDS
    give_back_stored();
#endif
#if PACKED
    if (step == 0 && place.keys_there() < BLOCK_N) clear_values(place.keys_there());
#endif
    ++step;
    if constexpr (HALF_BLOCKS) {
      if (begins_half && step == place.end_step) return add_last<0, kFirstHalf>(place);
      if (begins_half && masked <= step) advance<false, 0, kWhole, kFirstHalf>(place, step++);
    }
    if constexpr (WEIGHT_SETS == 1) {
      for (; step < min(masked, place.end_step); ++step) advance<true>(place, step);
      for (; step < place.end_step; ++step) advance<false>(place, step);
      add_last<0>(place);
    } else {
      const int last = place.end_step - 1;
      for (; step < min(masked, last); step += 2) advance_twice<true>(place, step);
      for (; step < last; step += 2) advance_twice<false>(place, step);
      if (step == last) {
        advance<true, 0>(place, step);
        add_last<1>(place);
      } else {
        add_last<0>(place);
      }
    }
  }
#endif

  // Skips a block of keys that no row of the group sees. It still waits until the block's stages are full: else this
  // warp could give a stage back before another warp has given back the stage's last use. All lanes wait: the stage's
  // next use but one has the same parity, so a lane that lags could not tell them apart. The turn is passed on before
  // the wait for the values, because these may not arrive before the next group has had its turn.
  template <bool TAKES_TURN = true>
  __device__ __forceinline__ void skip() {
    wait_keys();
    __syncwarp();
    give_back_keys();
    if constexpr (TAKES_TURN) {
      take_turn();
      give_turn();
    }
    wait_values();
    __syncwarp();
    give_back_values();
  }

#if PACKED
  // Takes the part in a tile of a group none of whose rows exist. With OVERLAP a tile has a turn a block but one.
  __device__ __forceinline__ void stand_aside(const Place& place) {
    leave_queries();
    for (int step = 1; step < place.end_step; ++step) skip();
    skip<false>();
  }

  // Zeros over the rows of the next block of values that belong to no key of the sequence, from `first` on. Other groups
  // write the same zeros, each before its own product. TMA and the tensor cores see them.
  __device__ __forceinline__ void clear_values(int first) const {
    wait_values();
#pragma unroll
    for (int panel = 0; panel < ValueRows::kCount; ++panel) {
      const unsigned at = value_at(value.stage) + ValueRows::panel_at(BLOCK_N, panel);
      for (unsigned byte = first * ValueRows::kRowBytes + threadIdx.x % 128 * 16; byte < BLOCK_N * ValueRows::kRowBytes;
           byte += 128 * 16)
        store_zeros_16(at + byte);
    }
    share_with_engines();
    sync_named(kFirstStore + group, 128);
  }
#endif

  template <bool MASKED>
  __device__ __forceinline__ void advance_twice(const Place& place, int step) {
    advance<MASKED, 0>(place, step);
    advance<MASKED, 1>(place, step + 1);
  }

  template <int SET, Part PART = kWhole>
  __device__ __forceinline__ void add_last(const Place& place, bool is_last = true) {
    if (!kThroughShared) give_back(query_empty(query.stage));
    add_values<SET, PART>([&] {
#if HIDE_ENDS
      prepare_store(place);
#endif
#if READS_AHEAD
      if (is_last) walk.next();
#endif
    });
    if (!OVERLAP) give_turn();
  }

  __device__ __forceinline__ void attend(const Place& place) {
    softmax.begin();
#pragma unroll
    for (int i = 0; i < VALUE_DIM / 2; ++i) output[i] = 0.0f;
#if PACKED
    if (place.query_of(group, 0) >= place.seq_len_q()) {
#if HIDE_ENDS
      give_back_stored();
#endif
      stand_aside(place);
      return query.advance();
    }
#endif
    if (!place.is_empty()) sum_share(place);
#if SPLIT_KV > 1
    wait_for_open_inboxes();
    if (place.query_of(group, 16 * warp) < place.seq_len_q()) {  // the warp's first row
      float merged[VALUE_DIM / 2 / SPLIT_KV];
      merge_over_cluster<SPLIT_KV - 1>(softmax, output, merged, problem.exponent_scale());
      store_rows(place, merged, place.share * 8 * kMergedTiles);
    }
#else
    store_sums(place);
#endif
    query.advance();
  }

  __device__ __forceinline__ void run() {
    if (group == CONSUMER_WARPGROUPS - 1) give_turn();
#if READS_AHEAD
    while (walk.has(problem.tiles)) attend(Place(problem, walk));
#else
    for (ConsumerWalk walk(problem.tail); walk.has(problem.tiles); walk.next()) attend(Place(problem, walk));
#endif
#if HIDE_ENDS
    give_back_stored();
#endif
    if (group == 0) take_turn();
  }
};

}  // namespace
