// The end of a tile in a consumer warpgroup: sums become rows of the output, and are stored. Q's stage is given back.
//
// STORE bulk: through Q's shared memory, by TMA. direct: from registers, 4 bytes a lane.
// SHARE_TAIL: the sums over a part of a tile's keys go to global memory, see wgmma_tail.cuh.
// HIDE_ENDS: Q's stage is given back in the next tile.
// PACKED (attention_varlen_wgmma.cu): a group whose 64 rows do not all exist stores from registers, row by row.
//
// Archs      sm_90a.
#pragma once

#include "mma_sync.cuh"
#include "wgmma_consumer_products.cuh"
#include "wgmma_rings.cuh"
#include "wgmma_tile.cuh"
#include "wgmma_tma.cuh"
#if !PACKED
#include "wgmma_tail.cuh"
#endif

namespace {

struct ConsumerStores : ConsumerProducts {
  using ConsumerProducts::ConsumerProducts;

#if PACKED
  // Gives Q's stage back where nothing is stored there, when all threads of the group are done with it.
  __device__ __forceinline__ void leave_queries() const {
    if constexpr (kThroughShared) {
      sync_named(kFirstStore + group, 128);
      if (threadIdx.x % 128 == 0) arrive_at_mbarrier(query_empty(query.stage));
    } else {
      __syncwarp();
      give_back(query_empty(query.stage));
    }
  }
#endif

#if HIDE_ENDS
  float scale[2];     // the factors of this thread's rows, computed while the last product runs
  bool owes = false;  // whether the tile before still has its stage of Q, from which TMA reads its output

  __device__ __forceinline__ void prepare_store(const Place& place) {
#if SHARES_TAIL
    if (place.part >= 0) return;
#endif
#pragma unroll
    for (int half = 0; half < 2; ++half) scale[half] = inverse_sum(place, half);
  }

  __device__ __forceinline__ void give_back_stored() {
    if (owes && threadIdx.x % 128 == 0) {
      wait_stores_read();
      arrive_at_mbarrier(query_empty((query.stage + QUERY_STAGES - 1) % QUERY_STAGES));
    }
    owes = false;
  }
#endif

  // The factor of one of this thread's rows at the end: 1 / l, or 0 where l is 0. Called by whole warps.
  __device__ __forceinline__ float inverse_sum(const Place& place, int half) const {
    float sum = softmax.row_sum(half);
#if SINKS || LSE
    const int query = place.query_of(group, row_of(half));
    const bool tells = query < place.seq_len_q() && place.share == 0 && lane % 4 == 0;
    sum = place.total(place.head_of(row_of(half)), query, tells, sum, softmax.maximum[half]);
#endif
    return sum == 0.0f ? 0.0f : __fdividef(1.0f, sum);
  }

#if SHARES_TAIL
  __device__ __forceinline__ void store_part(const Place& place) const {
    if constexpr (kThroughShared) {  // nothing is stored there: Q's memory is free as soon as all have read it
      sync_named(kFirstStore + group, 128);
      if (threadIdx.x % 128 == 0) arrive_at_mbarrier(query_empty(query.stage));
    }
    const auto exists = [&](int row) { return place.query_of(group, row % 64) < place.seq_len_q(); };
    store_tail_part(tail_part_at(problem, place.part), 64 * group + 16 * warp, softmax, output, exists);
  }
#endif

  // Columns 8 tile + 2 (lane % 4) and the next of one of this thread's rows, rounded.
  template <int COUNT>
  static __device__ __forceinline__ unsigned rounded_pair(const float (&sums)[COUNT], int tile, int half, float scale) {
    return pack<kBfloat16>(sums[4 * tile + 2 * half] * scale, sums[4 * tile + 2 * half + 1] * scale);
  }

#if STORE == STORE_BULK
  __device__ __forceinline__ void store_tile(const Place& place) {
#if PACKED
    if (place.query_of(group, 63) >= place.seq_len_q()) {  // the box has rows of the next sequence
      leave_queries();
      return store_rows(place, output, 0);
    }
#endif
#if !HIDE_ENDS
    const float scale[2] = {inverse_sum(place, 0), inverse_sum(place, 1)};
#endif
    const unsigned to = query_at(query.stage, group);
    sync_named(kFirstStore + group, 128);  // all have read the group's Q
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int tile = 0; tile < VALUE_DIM / 8; ++tile)
        store_word(to + ValueRows::chunk_at(64, row_of(half), tile) + lane % 4 * 4,
                   rounded_pair(output, tile, half, scale[half]));
    share_with_engines();
    sync_named(kFirstStore + group, 128);
    if (threadIdx.x % 128 == 0) {
#pragma unroll
      for (int panel = 0; panel < ValueRows::kCount; ++panel)
        place.store(to + ValueRows::panel_at(64, panel), panel * ValueRows::kPanel, group);
#if !HIDE_ENDS
      wait_stores_read();
      arrive_at_mbarrier(query_empty(query.stage));
#endif
    }
#if HIDE_ENDS
    owes = true;
#endif
  }
#else
  __device__ __forceinline__ void store_tile(const Place& place) const { store_rows(place, output, 0); }
#endif

  // Stores the sums over a tile, or over this block's part of its keys.
  __device__ __forceinline__ void store_sums(const Place& place) {
#if SHARES_TAIL
    if (place.part >= 0) return store_part(place);
#endif
    store_tile(place);
  }

  // Stores from registers: `sums` are the columns from `column` on.
  template <int COUNT>
  __device__ __forceinline__ void store_rows(const Place& place, const float (&sums)[COUNT], int column) const {
    const float scale[2] = {inverse_sum(place, 0), inverse_sum(place, 1)};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = place.query_of(group, row_of(half));
      if (query < place.seq_len_q()) {
        Element* to = place.out_row(place.head_of(row_of(half)), query) + column + lane % 4 * 2;
#pragma unroll
        for (int tile = 0; tile < COUNT / 4; ++tile)
          *reinterpret_cast<unsigned*>(to + 8 * tile) = rounded_pair(sums, tile, half, scale[half]);
      }
    }
  }
};

}  // namespace
