// The thread that loads by TMA: of each tile Q, then its blocks of keys and values, the last block first.
//
// A stage is loaded when all consumer warps have given it back (`empty`), and handed over when its bytes are there
// (`full`). The n-th use of a ring of S stages waits until phase n / S - 1 of `empty` is over. The consumers wait for
// phase n / S of `full`, so the producer waits for the opposite parity, and the first S uses pass at once. With
// CLUSTER, a stage is loaded in all blocks, so the consumers of all blocks must give it back. Its bytes may arrive in a
// block before that block's own thread has announced them.
//
// MASK_BITS, MASK_TILES: the warps that bring the mask follow its walk over the blocks (wgmma/mask_ring.cuh). K is asked
// for before the mask of the block, and V after it. A consumer needs a stage's mask to give back the V of the block
// before, so a wait for that must not come first.
//
// HIDE_ENDS: this thread also tells the consumers where a tile lies, and that there are no more.
//
// PACKED (attention_varlen_wgmma.cu): another warp finds the tiles, and the kernel's own loop calls load_tile() for
// each.
//
// Archs      sm_90 and later.
// References PTX ISA: "mbarrier", "cp.async.bulk.tensor".
#pragma once

#include "choices.cuh"
#include "mask_ring.cuh"
#include "rings.cuh"
#include "tile.cuh"
#include "tma.cuh"

namespace {

struct Producer {
  const Problem& problem;
  Ring<QUERY_STAGES> queries;
  Ring<STAGES> keys;  // the values' ring as well: both move on together
#if MASK_BITS
  MaskFinder finder = MaskFinder(problem);
  Ring<kBitSlots> slots;
#elif MASK_TILES
  Ring<MASK_STAGES> tiles;
#endif

  __device__ Producer(const Problem& of) : problem(of) {}

  // `load` loads a panel of a tile of COUNT rows, to an address, from a column on.
  template <class Shared, int COUNT, class Load>
  __device__ __forceinline__ void load_panels(unsigned to, const Load& load) const {
#pragma unroll
    for (int panel = 0; panel < Shared::kCount; ++panel)
      load(to + Shared::panel_at(COUNT, panel), panel * Shared::kPanel);
  }

  __device__ __forceinline__ void load_queries(const Place& place) {
    wait_mbarrier(query_empty(queries.stage), queries.parity ^ 1);
    const unsigned full = query_full(queries.stage);
#if HIDE_ENDS && !PACKED
    place.tell(queries.stage);
#endif
    expect_bytes(full, kQueryBytes);
#pragma unroll
    for (int group = 0; group < CONSUMER_WARPGROUPS; ++group)
      load_panels<Rows, 64>(query_at(queries.stage, group), [&](unsigned to, int column) {
        place.load_queries(to, full, column, group);
      });
    queries.advance();
  }

  // Loads BLOCK_N rows of K or V; with CLUSTER, this block's part of them for all blocks. Each block counts all rows.
  template <class Shared>
  __device__ __forceinline__ void load_block(unsigned to, const TensorMap& map, unsigned full, int row,
                                             const Place& place) const {
#if CLUSTER == 1
    load_panels<Shared, BLOCK_N>(
        to, [&](unsigned panel, int column) { place.load_keys(panel, map, full, column, row); });
#else
    const int first = Place::number_in_cluster() * (BLOCK_N / CLUSTER);
#pragma unroll
    for (int panel = 0; panel < Shared::kCount; ++panel)
      load_box_for_all<CLUSTER>(to + Shared::panel_at(BLOCK_N, panel) + first * Shared::kRowBytes, map, full,
                                panel * Shared::kPanel, row + first, place.kv_head, place.batch);
#endif
  }

  __device__ __forceinline__ void wait_for_keys() const { wait_mbarrier(key_empty(keys.stage), keys.parity ^ 1); }

  __device__ __forceinline__ void load_values(const Place& place, int row) const {
    wait_mbarrier(value_empty(keys.stage), keys.parity ^ 1);
    expect_bytes(value_full(keys.stage), kValueBytes);
    load_block<ValueRows>(value_at(keys.stage), problem.v, value_full(keys.stage), row, place);
  }

#if MASK_BITS
  // Called by all threads that bring the mask; `loads` in the one that loads. A block's bits are in slots.stage before
  // its turn. All wait for the keys' stage: then the slot behind is free, too.
  __device__ __forceinline__ void load_tile(const Place& place, bool loads) {
    const int end = place.end_step;
    int step = finder.find(place, place.first_step, slots.stage);
    if (step == end) step = place.first_step;  // one block, all of whose keys are hidden
    if (loads) load_queries(place);
    for (bool last = false; !last;) {
      const int row = place.first_key(step), slot = slots.stage;
      wait_for_keys();
      if (loads) load_block<Rows>(key_at(keys.stage), problem.k, key_full(keys.stage), row, place);
      __syncwarp();
      finder.write(place, step, slot);
      slots.advance();
      const int next = finder.find(place, step + 1, slots.stage);
      last = next == end;
      if (loads) store_word(bit_slot_at(slot), 2 * step + last);
      __syncwarp();  // the bits of all lanes
      if (loads)
        expect_bytes(key_full(keys.stage), kKeyBytes);
      else if (threadIdx.x % 32 == 0)
        arrive_at_mbarrier(key_full(keys.stage));
      if (loads) load_values(place, row);
      __syncwarp();
      keys.advance();
      step = next;
    }
  }
#elif MASK_TILES
  // Called by all threads that bring the mask; `loads` in the one that loads.
  __device__ __forceinline__ void load_tile(const Place& place, bool loads) {
    if (loads) load_queries(place);
    for (int step = place.first_step; step < place.end_step; ++step) {
      const int row = place.first_key(step);
      if (loads) {
        wait_for_keys();
        expect_bytes(key_full(keys.stage), kKeyBytes);
        load_block<Rows>(key_at(keys.stage), problem.k, key_full(keys.stage), row, place);
      }
      __syncwarp();
      wait_mbarrier(mask_empty(tiles.stage), tiles.parity ^ 1);
      copy_mask_tile(place, step, tiles.stage);
      tiles.advance();
      if (loads) load_values(place, row);
      __syncwarp();
      keys.advance();
    }
  }
#else
  __device__ __forceinline__ void load_blocks(const Place& place) {
    for (int step = place.first_step; step < place.end_step; ++step) {
      const int row = place.first_key(step);
      wait_for_keys();
      expect_bytes(key_full(keys.stage), kKeyBytes);
      load_block<Rows>(key_at(keys.stage), problem.k, key_full(keys.stage), row, place);
      load_values(place, row);
      keys.advance();
    }
  }
#endif

#if PACKED
  __device__ __forceinline__ void prefetch_maps() const {
    prefetch_map(problem.q);
    prefetch_map(problem.k);
    prefetch_map(problem.v);
  }

  // `then` is done when all blocks but the last `left` ones are on their way.
  template <class Then>
  __device__ __forceinline__ void load_tile(Place place, int left, const Then& then) {
    load_queries(place);
    const int end = place.end_step;
    place.end_step = max(place.first_step, end - left);
    load_blocks(place);
    then();
    place.first_step = place.end_step, place.end_step = end;
    load_blocks(place);
  }
#else
  __device__ __forceinline__ void run() {
#if MASK_BITS || MASK_TILES
    const bool loads = threadIdx.x == 128 * CONSUMER_WARPGROUPS;
#else
    constexpr bool loads = true;
#endif
    if (loads) {
      prefetch_map(problem.q);
      prefetch_map(problem.k);
      prefetch_map(problem.v);
    }
    for (Walk walk(problem.tail); walk.has(problem.tiles); walk.next()) {
      const Place place(problem, walk);
      if (place.is_empty()) continue;  // nobody would wait for its Q
#if MASK_BITS || MASK_TILES
      load_tile(place, loads);
#else
      load_queries(place);
      load_blocks(place);
#endif
    }
#if HIDE_ENDS
    if (!loads) return;
    wait_mbarrier(query_empty(queries.stage), queries.parity ^ 1);
    ConsumerWalk::tell(queries.stage, {});
    arrive_at_mbarrier(query_full(queries.stage));
#endif
  }
#endif
};

}  // namespace
