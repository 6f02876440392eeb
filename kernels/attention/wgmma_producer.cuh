// The thread that loads by TMA: of each tile Q, then its blocks of keys and values, the last block first.
//
// A stage is loaded when all consumer warps have given it back (`empty`), and handed over when its bytes are there
// (`full`). The n-th use of a ring of S stages waits until phase n / S - 1 of `empty` is over. The consumers wait for
// phase n / S of `full`, so the producer waits for the opposite parity, and the first S uses pass at once. With
// CLUSTER, a stage is loaded in all blocks, so the consumers of all blocks must give it back. Its bytes may arrive in a
// block before that block's own thread has announced them.
//
// Archs      sm_90 and later.
// References PTX ISA: "mbarrier", "cp.async.bulk.tensor".
#pragma once

namespace {

struct Producer {
  const Problem& problem;
  Ring<QUERY_STAGES> queries;
  Ring<STAGES> keys;  // the values' ring as well: both move on together

  __device__ Producer(const Problem& of) : problem(of) {}

  template <class Shared, int COUNT>
  __device__ __forceinline__ void load_rows(unsigned to, const TensorMap& map, unsigned full, int row, int head,
                                            int batch) const {
#pragma unroll
    for (int panel = 0; panel < Shared::kCount; ++panel)
      load_box(to + Shared::panel_at(COUNT, panel), map, full, panel * Shared::kPanel, row, head, batch);
  }

  __device__ __forceinline__ void load_queries(const Place& place) {
    wait_mbarrier(query_empty(queries.stage), queries.parity ^ 1);
    const unsigned full = query_full(queries.stage);
    expect_bytes(full, kQueryBytes);
#pragma unroll
    for (int group = 0; group < CONSUMER_WARPGROUPS; ++group)
      load_rows<Rows, 64>(query_at(queries.stage, group), problem.q, full, place.query_of(group, 0), place.head,
                          place.batch);
    queries.advance();
  }

  // Loads BLOCK_N rows of K or V; with CLUSTER, this block's part of them for all blocks. Each block counts all rows.
  template <class Shared>
  __device__ __forceinline__ void load_block(unsigned to, const TensorMap& map, unsigned full, int row,
                                             const Place& place) const {
    if constexpr (CLUSTER == 1) {
      load_rows<Shared, BLOCK_N>(to, map, full, row, place.kv_head, place.batch);
    } else {
      const int first = Place::number_in_cluster() * (BLOCK_N / CLUSTER);
#pragma unroll
      for (int panel = 0; panel < Shared::kCount; ++panel)
        load_box_for_all<CLUSTER>(to + Shared::panel_at(BLOCK_N, panel) + first * Shared::kRowBytes, map, full,
                                  panel * Shared::kPanel, row + first, place.kv_head, place.batch);
    }
  }

  __device__ __forceinline__ void load_blocks(const Place& place) {
    for (int step = place.first_step; step < place.end_step; ++step) {
      const int row = place.first_key(step);
      wait_mbarrier(key_empty(keys.stage), keys.parity ^ 1);
      expect_bytes(key_full(keys.stage), kKeyBytes);
      load_block<Rows>(key_at(keys.stage), problem.k, key_full(keys.stage), row, place);
      wait_mbarrier(value_empty(keys.stage), keys.parity ^ 1);
      expect_bytes(value_full(keys.stage), kValueBytes);
      load_block<ValueRows>(value_at(keys.stage), problem.v, value_full(keys.stage), row, place);
      keys.advance();
    }
  }

  __device__ __forceinline__ void run() {
    prefetch_map(problem.q);
    prefetch_map(problem.k);
    prefetch_map(problem.v);
    for (Walk walk(problem.tail); walk.has(problem.tiles); walk.next()) {
      const Place place(problem, walk);
      if (place.is_empty()) continue;  // nobody would wait for its Q
      load_queries(place);
      load_blocks(place);
    }
  }
};

}  // namespace
