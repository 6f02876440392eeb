// A consumer warpgroup: 64 rows of each tile, from scores to the finished output.
//
// OVERLAP 0: scores, softmax and weighted values of a block follow each other, and another warpgroup fills the gaps.
// OVERLAP 1: the next block's scores and this block's weighted values are issued together; while the tensor cores sum
// the values, the softmax of the next block begins.
//
// PING_PONG: warpgroups take turns in issuing their products, by a named barrier each: a warpgroup that waits for its
// turn waits for the one before it to have issued, so that one's products run under the other's softmax. The first turn
// is the first warpgroup's, given by the last; the turn left over at the end is taken, so no barrier ends half full.
#pragma once

namespace {

struct Consumer {
  const Problem& problem;
  const int group, warp, lane;  // warp of the group
  Ring<QUERY_STAGES> query;
  Ring<STAGES> key, value;
  Softmax softmax;
  float output[HEAD_DIM / 2];
  float scores[BLOCK_N / 2];
  unsigned weights[BLOCK_N / 4];
  unsigned queries[Q_IN_REGS ? HEAD_DIM / 4 : 1];

  __device__ Consumer(const Problem& of, int group)
      : problem(of), group(group), warp(threadIdx.x / 32 % 4), lane(threadIdx.x % 32) {}

  __device__ __forceinline__ int row_of(int half) const { return 64 * group + 16 * warp + 8 * half + lane / 4; }

  __device__ __forceinline__ void take_turn() const {
    if (kPingPong) sync_named(kFirstTurn + group, 256);
  }
  __device__ __forceinline__ void give_turn() const {
    if (kPingPong) arrive_named(kFirstTurn + (group + 1) % CONSUMER_WARPGROUPS, 256);
  }
  // All lanes of this warp are done with a stage.
  __device__ __forceinline__ void give_back(unsigned empty) const {
    if (lane == 0) arrive_at_mbarrier(empty);
  }

  __device__ __forceinline__ void read_queries() {
    if constexpr (Q_IN_REGS) {
      const unsigned from = query_at(query.stage, group);
#pragma unroll
      for (int step = 0; step < HEAD_DIM / 16; ++step) {
        unsigned tiles[4];
        load_matrix(tiles, from + Rows::chunk_at(64, 16 * warp + lane % 16, 2 * step + lane / 16));
#pragma unroll
        for (int i = 0; i < 4; ++i) queries[4 * step + i] = tiles[i];
      }
    }
  }

  __device__ __forceinline__ void wait_keys() const { wait_mbarrier(key_full(key.stage), key.parity); }
  __device__ __forceinline__ void wait_values() const { wait_mbarrier(value_full(value.stage), value.parity); }

  template <int STEP>
  __device__ __forceinline__ void multiply_columns() {
    const unsigned long long b = Rows::by_columns(key_at(key.stage), BLOCK_N, STEP);
    if constexpr (Q_IN_REGS)
      Product<BLOCK_N>::of_registers<kBfloat16, (STEP > 0), 0>(scores, queries[4 * STEP], queries[4 * STEP + 1],
                                                               queries[4 * STEP + 2], queries[4 * STEP + 3], b);
    else
      Product<BLOCK_N>::of_shared<kBfloat16, (STEP > 0)>(
          scores, Rows::by_columns(query_at(query.stage, group), 64, STEP), b);
    if constexpr (STEP + 1 < HEAD_DIM / 16) multiply_columns<STEP + 1>();
  }

  // scores = Q K^T, as a group of its own.
  __device__ __forceinline__ void issue_scores() {
    multiply_columns<0>();
    close_products();
  }

  // output += P V, as a group of its own.
  __device__ __forceinline__ void issue_values() {
#pragma unroll
    for (int step = 0; step < BLOCK_N / 16; ++step)
      Product<HEAD_DIM>::of_registers<kBfloat16, true, 1>(output, weights[4 * step], weights[4 * step + 1],
                                                          weights[4 * step + 2], weights[4 * step + 3],
                                                          Rows::by_rows(value_at(value.stage), BLOCK_N, step));
    close_products();
  }

  __device__ __forceinline__ void give_back_keys() {
    give_back(key_empty(key.stage));
    key.advance();
  }
  __device__ __forceinline__ void give_back_values() {
    give_back(value_empty(value.stage));
    value.advance();
  }

  template <bool MASKED>
  __device__ __forceinline__ void weigh(const Place& place, int step) {
    int seen[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      seen[half] = place.keys_seen(place.first_row + row_of(half)) - place.first_key(step) - lane % 4 * 2;
    softmax.weigh<MASKED>(scores, seen, problem.scale_log2);
  }

  __device__ __forceinline__ void pack_weights() {
#pragma unroll
    for (int i = 0; i < BLOCK_N / 4; ++i) weights[i] = pack<kBfloat16>(scores[2 * i], scores[2 * i + 1]);
  }

  // The scores of the tile's first block, and their weights.
  __device__ __forceinline__ void begin(const Place& place, bool masked) {
    wait_keys();
    fence_products();
    issue_scores();
    if (kPingPong && !OVERLAP) give_turn();
    wait_products<0>();
    pin(scores);
    give_back_keys();
    if (masked)
      weigh<true>(place, 0);
    else
      weigh<false>(place, 0);
    pack_weights();
  }

  // The weights of the last block are there: its values are added while those of block `step` are computed.
  template <bool MASKED>
  __device__ __forceinline__ void advance(const Place& place, int step) {
    wait_keys();
    if constexpr (OVERLAP) {
      take_turn();
      fence_products();
      issue_scores();
      wait_values();
      fence_products();
      issue_values();
      give_turn();
      wait_products<1>();
      pin(scores);
      give_back_keys();
      weigh<MASKED>(place, step);
      finish_first(softmax.sum[0] + softmax.sum[1]);
      wait_products<0>();
      pin(output);
      give_back_values();
    } else {
      add_values();
      fence_products();
      issue_scores();
      give_turn();
      wait_products<0>();
      pin(scores);
      give_back_keys();
      weigh<MASKED>(place, step);
    }
    softmax.rescale(output);
    pack_weights();
  }

  __device__ __forceinline__ void add_values() {
    wait_values();
    if (!OVERLAP) take_turn();
    fence_products();
    issue_values();
    wait_products<0>();
    pin(output);
    give_back_values();
  }

  __device__ __forceinline__ void attend(const Place& place) {
    const int masked = place.blocks - place.keys_seen(place.first_row + 64 * group) / BLOCK_N;
    softmax.begin();
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; ++i) output[i] = 0.0f;
    wait_mbarrier(query_full(query.stage), query.parity);
    read_queries();
    if (!OVERLAP) take_turn();
    begin(place, masked > 0);
    int step = 1;
    for (; step < masked; ++step) advance<true>(place, step);
    for (; step < place.blocks; ++step) advance<false>(place, step);
    if (!kThroughShared) give_back(query_empty(query.stage));
    add_values();
    if (!OVERLAP) give_turn();
    store(place);
    query.advance();
  }

  __device__ __forceinline__ void store(const Place& place) {
    const float scale[2] = {softmax.inverse_sum(0), softmax.inverse_sum(1)};
    const auto packed = [&](int tile, int half) {
      return pack<kBfloat16>(output[4 * tile + 2 * half] * scale[half], output[4 * tile + 2 * half + 1] * scale[half]);
    };
    if constexpr (kThroughShared) {
      const unsigned to = query_at(query.stage, group);
      sync_named(kFirstStore + group, 128);  // the group's Q was read by all
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int tile = 0; tile < HEAD_DIM / 8; ++tile)
          store_word(to + Rows::chunk_at(64, row_of(half) - 64 * group, tile) + lane % 4 * 4, packed(tile, half));
      share_with_engines();
      sync_named(kFirstStore + group, 128);
      if (threadIdx.x % 128 == 0) {
#pragma unroll
        for (int panel = 0; panel < Rows::kCount; ++panel)
          store_box(problem.out_map, to + Rows::panel_at(64, panel), panel * Rows::kPanel, place.first_row + 64 * group,
                    place.head, place.batch);
        wait_stores_read();
        arrive_at_mbarrier(query_empty(query.stage));
      }
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = place.first_row + row_of(half);
        if (row < problem.seq_len_q) {
          Element* to = problem.out + place.offset(row) + lane % 4 * 2;
#pragma unroll
          for (int tile = 0; tile < HEAD_DIM / 8; ++tile)
            *reinterpret_cast<unsigned*>(to + 8 * tile) = packed(tile, half);
        }
      }
    }
  }

  __device__ __forceinline__ void run() {
    if (group == CONSUMER_WARPGROUPS - 1) give_turn();
    for (Walk walk; walk.number < problem.tiles.all; walk.next()) attend(Place(problem, walk.number));
    if (group == 0) take_turn();
  }
};

}  // namespace
