// The registers of a consumer warpgroup, its turns and stages, and the two products of a block: scores and weighted values.
//
// PING_PONG: warpgroups take turns in issuing their products, by a named barrier each. A warpgroup's turn comes when
// the one before it has issued its products, so that the products of one run under the softmax of another. At the start
// the last warpgroup gives the first one its turn; at the end the first one takes the turn that is left over, so that
// no barrier ends half full.
//
// Archs      sm_90a.
// References FlashAttention-3, Shah et al. 2024 (turns).
#pragma once

#include "cluster_multicast.cuh"
#include "mma_sync.cuh"
#include "score_change.cuh"
#include "wgmma_key_bias.cuh"
#include "wgmma_product.cuh"
#include "wgmma_rings.cuh"
#include "wgmma_softmax.cuh"
#include "wgmma_tile.cuh"
#include "wgmma_tma.cuh"

namespace {

// The part of a block of keys that rows of the warpgroup see.
enum Part { kWhole, kFirstHalf, kSecondHalf };
__device__ __forceinline__ constexpr int keys_of(Part part) { return part == kWhole ? BLOCK_N : BLOCK_N / 2; }
__device__ __forceinline__ constexpr int first_of(Part part) { return part == kSecondHalf ? BLOCK_N / 2 : 0; }

struct ConsumerProducts {
  const Problem& problem;
  const int group, warp, lane;  // warp: its number in the group
  Ring<QUERY_STAGES> query;
  Ring<STAGES> key, value;
  Softmax softmax;
  float output[VALUE_DIM / 2];
  float scores[BLOCK_N / 2];
  unsigned weights[WEIGHT_SETS][BLOCK_N / 4];
  unsigned queries[Q_IN_REGS ? HEAD_DIM / 4 : 1];
#if ALIBI
  float slopes[2];  // of this thread's rows, in the unit of scores
#endif
  RowBias<kBfloat16> row_bias;  // kBiasRides
#if HAS_SOFTCAP
  const float cap_scale = computed_once(problem.softmax_scale / problem.features.softcap);
#endif
#if CAPS_ALONE
  const SmallCap small_cap = SmallCap::of(problem.features.softcap, problem.softmax_scale, cap_scale);
#endif

  __device__ ConsumerProducts(const Problem& of, int group)
      : problem(of), group(group), warp(threadIdx.x / 32 % 4), lane(threadIdx.x % 32) {}

  // The number of one of this thread's two rows among the group's 64.
  __device__ __forceinline__ int row_of(int half) const { return 16 * warp + 8 * half + lane / 4; }

  __device__ __forceinline__ void take_turn() const {
    if (kPingPong) sync_named(kFirstTurn + group, 256);
  }
  __device__ __forceinline__ void give_turn() const {
    if (kPingPong) arrive_named(kFirstTurn + (group + 1) % CONSUMER_WARPGROUPS, 256);
  }
  // Gives a stage back, when all lanes of this warp are done with it.
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

  template <Part PART>
  __device__ __forceinline__ float (&scores_of())[keys_of(PART) / 2] {
    return reinterpret_cast<float(&)[keys_of(PART) / 2]>(scores[first_of(PART) / 2]);
  }

  template <Part PART, int STEP>
  __device__ __forceinline__ void multiply_columns() {
    using QueriesByKeys = Product<keys_of(PART)>;
    const unsigned long long b = Rows::by_columns(key_at(key.stage), BLOCK_N, STEP);
    if constexpr (Q_IN_REGS)
      QueriesByKeys::template of_registers<kBfloat16, (STEP > 0), 0>(
          scores_of<PART>(), queries[4 * STEP], queries[4 * STEP + 1], queries[4 * STEP + 2], queries[4 * STEP + 3], b);
    else
      QueriesByKeys::template of_shared<kBfloat16, (STEP > 0)>(
          scores_of<PART>(), Rows::by_columns(query_at(query.stage, group), 64, STEP), b);
    if constexpr (STEP + 1 < HEAD_DIM / 16) multiply_columns<PART, STEP + 1>();
  }

  // scores = Q K^T, as a group of its own. PART: the whole or the first half.
  template <Part PART = kWhole>
  __device__ __forceinline__ void issue_scores() {
    multiply_columns<PART, 0>();
    if constexpr (kBiasRides)
      Product<keys_of(PART)>::template of_registers<kBfloat16, true, 0>(
          scores_of<PART>(), row_bias.pairs[0], row_bias.pairs[1], 0u, 0u, key_bias_operand(shared_at(kBiasAt)));
    close_products();
  }

  // KEEP_MAXIMUM: the scores of the block once more, by this warp alone, while the others go on.
  __device__ __forceinline__ void scores_again() {
    const unsigned rows = query_at(query.stage, group), keys = key_at(key.stage);
#pragma unroll
    for (int tile = 0; tile < BLOCK_N / 8; ++tile) {
      float(&of_tile)[4] = reinterpret_cast<float(&)[4]>(scores[4 * tile]);
#pragma unroll
      for (int i = 0; i < 4; ++i) of_tile[i] = 0.0f;
#pragma unroll 1
      for (int chunk = 0; chunk < HEAD_DIM / 8; chunk += 4) {
        unsigned a[2][4], b[4];
        load_matrix(b, keys + Rows::chunk_at(BLOCK_N, 8 * tile + lane % 8, chunk + lane / 8));
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          load_matrix(a[step], rows + Rows::chunk_at(64, 16 * warp + lane % 16, chunk + 2 * step + lane / 16));
          multiply_add<kBfloat16>(of_tile, a[step], b[2 * step], b[2 * step + 1]);
        }
      }
      if constexpr (kBiasRides) {
        unsigned b[4];
        load_matrix(b, key_bias_chunk(shared_at(kBiasAt), 8 * tile + lane % 8, lane / 8 % 2));
        multiply_add<kBfloat16>(of_tile, {row_bias.pairs[0], row_bias.pairs[1], 0u, 0u}, b[0], b[1]);
      }
    }
  }

  // output += P V, as a group of its own.
  template <int SET, Part PART>
  __device__ __forceinline__ void issue_values() {
    const auto& p = weights[SET];
#pragma unroll
    for (int step = first_of(PART) / 16; step < (first_of(PART) + keys_of(PART)) / 16; ++step)
      Product<VALUE_DIM>::of_registers<kBfloat16, true, 1>(output, p[4 * step], p[4 * step + 1], p[4 * step + 2],
                                                           p[4 * step + 3],
                                                           ValueRows::by_rows(value_at(value.stage), BLOCK_N, step));
    close_products();
  }

  // Gives a stage of K or V back to all blocks that load it.
  __device__ __forceinline__ void give_back_block(unsigned empty) const {
    if constexpr (CLUSTER == 1)
      give_back(empty);
    else if (lane < CLUSTER)
      arrive_in_block(empty, lane);
  }

  __device__ __forceinline__ void give_back_keys() {
    give_back_block(key_empty(key.stage));
    key.advance();
  }
  __device__ __forceinline__ void give_back_values() {
    give_back_block(value_empty(value.stage));
    value.advance();
  }
};

}  // namespace
