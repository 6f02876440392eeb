// A consumer warpgroup: 64 rows of each tile, from scores to the finished output.
//
// Products   OVERLAP 0: scores, softmax and weighted values of a block follow each other, and another warpgroup fills
//            the gaps. OVERLAP 1: the next block's scores and this block's weighted values are issued together; while
//            the tensor cores sum the values, the softmax of the next block begins.
//            WEIGHT_SETS 2: two sets of registers for weights. A block's weights are packed into one set while the
//            other is still an operand of the MMA with the last block's values. Steps then come in pairs.
//            HALF_BLOCKS: of the first block that a warpgroup computes of a tile, and of the last one in a window, only
//            half gets a softmax where no row of the warpgroup sees the other half. The first block's scores, and both
//            blocks' weighted values, are products of that half, too. (The last one's scores are not: they are issued
//            while another product runs, and with two sizes of scores in flight ptxas serialized all products.)
// Turns      PING_PONG: warpgroups take turns in issuing their products, by a named barrier each. A warpgroup's turn
//            comes when the one before it has issued its products, so that the products of one run under the softmax of
//            another. At the start the last warpgroup gives the first one its turn; at the end the first one takes the
//            turn that is left over, so that no barrier ends half full.
// Weights    KEEP_MAXIMUM: weights are relative to the maximum of the blocks before, so that a block waits for no
//            maximum of its own. Scores that are far above that show in the sum of their weights. Then the warp
//            computes its scores once more, by itself, and looks for their maximum; until this is decided the keys stay
//            in shared memory. A tile's first block has no maximum before it. A block with a mask looks for its own
//            one, too, since registers spill otherwise, unless its hidden scores become -inf first (kHidesApart). The
//            16 rows of a warp go the same way, so the last bits of a row depend on the other 15.
// Stores     STORE bulk: through Q's shared memory, by TMA. direct: from registers, 4 bytes a lane.
//            SPLIT_KV, SHARE_TAIL: the sums over a part of a tile's keys are merged, see wgmma/merge.cuh.
//            HIDE_ENDS: the factors of a tile's rows are computed under its last product. Its output goes out under the
//            next tile's first block, and only then is Q's stage given back. The producer says where the next tile lies
//            (wgmma/tile.cuh). With a window, where tiles have few blocks, that is read under the last product, too.
// PACKED     (attention_varlen_wgmma.cu): a tile's last rows may be another sequence's, as may be its last keys. A
//            group without rows of its own only gives stages and turns back; values of keys that are not the sequence's
//            are cleared. A group whose 64 rows do not all exist stores from registers, row by row.
//
// Contract   All 128 threads of the warpgroup call run() once. Each stage that the producer fills is waited for and
//            given back by every warp, in order, also where no row of the group sees it.
//
// Archs      sm_90a.
// Reference  FlashAttention-3, Shah et al. 2024 (overlap, turns).
#pragma once

#include "../parts/arithmetic.cuh"
#include "../parts/blocks.cuh"
#include "../parts/score_change.cuh"
#include "key_bias.cuh"
#include "mask_ring.cuh"
#include "product.cuh"
#include "rings.cuh"
#include "softmax.cuh"
#include "tile.cuh"
#include "tma.cuh"
#if !PACKED
#include "merge.cuh"
#endif

namespace {

// The part of a block of keys that rows of the warpgroup see.
enum Part { kWhole, kFirstHalf, kSecondHalf };
__device__ __forceinline__ constexpr int keys_of(Part part) { return part == kWhole ? BLOCK_N : BLOCK_N / 2; }
__device__ __forceinline__ constexpr int first_of(Part part) { return part == kSecondHalf ? BLOCK_N / 2 : 0; }

// With a window, or a mask of bytes, a block's hidden scores become -inf before the softmax, so that blocks with and
// without a mask are the same code. Else the mask is part of the softmax, where it costs less.
constexpr bool kHidesApart = HIDES_BY_BITS && !kScoresChange && EXP2_FMA_SHARE == 0;

// The changes of a block's scores: those of features, then the bias, which is added to a score that is scaled.
struct BlockChange {
  ScoreChange rows[2];
#if MASK_IS_BIAS
  BlockBias& bias;
  float scale;
#endif
  __device__ __forceinline__ float operator()(int half, int tile, int e, float score) const {
#if SCORES_CHANGE
    score = rows[half](score, 8 * tile + e);
#endif
#if MASK_IS_BIAS
    score = fmaf(score, SCORES_CHANGE ? 1.0f : scale, bias.of(half, tile, e));
#endif
    return score;
  }
};

struct Consumer {
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
#if HIDE_ENDS
  float scale[2];     // the factors of this thread's rows, computed while the last product runs
  bool owes = false;  // whether the tile before still has its stage of Q, from which TMA reads its output
#endif
#if MASK_BITS
  Ring<kBitSlots> slots;
  bool tile_ends;  // whether the block that was heard of is the tile's last one
#elif MASK_IS_BIAS
  BlockBias bias;
#endif
#if MASK_TILES
  Ring<MASK_STAGES> tiles;
#endif
#if HIDES_BY_BITS
  RowMasks<BLOCK_N / 2> block_masks;
  RowMasks<BLOCK_N / 4> half_masks;
#endif
#if READS_AHEAD
  ConsumerWalk walk = ConsumerWalk(problem.tail);  // a tile's place is read under the last product of the tile before
#endif

  __device__ Consumer(const Problem& of, int group)
      : problem(of), group(group), warp(threadIdx.x / 32 % 4), lane(threadIdx.x % 32) {}

  // ---- turns, stages and products ----

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

#if MASK_BITS
  // Waits for the next block's keys. The block's step.
  __device__ __forceinline__ int hear() {
    wait_keys();
    const int word = block_in_slot(slots.stage);
    tile_ends = word % 2 != 0;
    return word / 2;
  }
#endif

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
#if MASK_BITS
    slots.advance();
#endif
  }
  // MASK_TILES: the tile of the bias.
  __device__ __forceinline__ void give_back_tile() {
#if MASK_TILES
    __syncwarp();
    give_back(mask_empty(tiles.stage));
    tiles.advance();
#endif
  }
  __device__ __forceinline__ void give_back_values() {
    give_back_block(value_empty(value.stage));
    value.advance();
  }

  // ---- the end of a tile: sums become rows of the output ----

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

  // ---- scores become weights ----

#if SCORES_CHANGE
  // For the scores of one of this thread's rows with the keys from `first` on.
  __device__ __forceinline__ ScoreChange change_of(const Place& place, int half, int query, int first) const {
    ScoreChange change;
    change.scale = kUnit * problem.softmax_scale;
#if ALIBI
    change.slope = slopes[half];
    change.distance = static_cast<float>(place.own_key(query) - first);
#endif
    change.head = place.head_of(row_of(half)), change.row = query, change.first = first;
    return change;
  }
#endif

  // kBiasRides: the bias of one of this thread's rows, in units of q k.
  __device__ __forceinline__ LinearScore bias_of(const Place& place, int half, int first) const {
    const int query = place.query_of(group, row_of(half));
    const float of_score = 1.0f / problem.softmax_scale;
#if ALIBI
    const float rise = slopes[half] / kUnit * of_score;
    return {rise * static_cast<float>(first - place.own_key(query)), rise};
#else
    const LinearScore bias = LinearMod::of({}, place.head_of(row_of(half)), query, {first, 1});
    return {of_score * bias.base, of_score * bias.step};
#endif
  }

#if HIDES_BY_BITS
  template <Part PART>
  __device__ __forceinline__ RowMasks<keys_of(PART) / 2>& masks_of() {
    if constexpr (PART == kWhole)
      return block_masks;
    else
      return half_masks;
  }
#endif

#if MASK_BITS
  // The columns of one of this thread's rows that their place does not hide.
  __device__ __forceinline__ Mask<BLOCK_N / 2, true> mask_of_place(const Place& place, int step, int half) const {
    const int first = place.first_key(step) + lane % 4 * 2, query = place.query_of(group, row_of(half));
    return {place.keys_seen(query) - first, HAS_WINDOW ? place.first_seen(query) - first : 0};
  }
#endif

  // Finds the hidden keys of a block, or its bias. They depend on no score, so this is done while a product runs.
  // `masked`: whether keys may be hidden by their place.
  template <Part PART>
  __device__ __forceinline__ void find_masks(const Place& place, int step, bool masked) {
#if MASK_TILES
    wait_mbarrier(mask_full(tiles.stage), tiles.parity);
    bias.open(tiles.stage, 64 * group + 16 * warp);
#elif MASK_IS_BIAS
    bias.load(place, 64 * group + 16 * warp, place.first_key(step));
#elif MASK_BITS
    Mask<BLOCK_N / 2, true>(&rows)[2] = block_masks.rows;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      rows[half] = {};
      if (masked) rows[half] = mask_of_place(place, step, half);
      keep_seen(rows[half].visible, slots.stage, 64 * group + row_of(half));
    }
    block_masks.look();
#elif HAS_WINDOW
    if constexpr (kHidesApart) {
      masks_of<PART>() = {};
      if (!masked) return;
      const int first = place.first_key(step) + first_of(PART) + lane % 4 * 2;
      int seen[2], hidden[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = place.query_of(group, row_of(half));
        seen[half] = place.keys_seen(query) - first, hidden[half] = place.first_seen(query) - first;
      }
      masks_of<PART>() = {seen, hidden};
    }
#endif
  }

  // FIRST: of the first block, which has no maximum before it. kHidesApart: find_masks() came before; `masked` is as
  // there, and unused with FIRST.
  template <bool MASKED, Part PART, bool FIRST = false>
  __device__ __forceinline__ void weigh(const Place& place, int step, bool masked = MASKED) {
    const int first = place.first_key(step) + first_of(PART);
    auto& part = scores_of<PART>();
    int seen[2], hidden[2] = {};
    BlockChange change{
#if MASK_IS_BIAS
        {}, bias, problem.softmax_scale
#endif
    };
    float offset[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      seen[half] = place.keys_seen(place.query_of(group, row_of(half))) - first - lane % 4 * 2;
#if HAS_WINDOW
      hidden[half] = place.first_seen(place.query_of(group, row_of(half))) - first - lane % 4 * 2;
#endif
      if constexpr (kBiasRides) offset[half] = bias_of(place, half, place.first_key(step)).base;
#if SCORES_CHANGE
      change.rows[half] = change_of(place, half, place.query_of(group, row_of(half)), first + lane % 4 * 2);
#endif
    }
#if MASK_BITS
    const auto mask_of = [&](int half) { return block_masks.rows[half]; };
#else
    const auto mask_of = [&](int half) { return Mask<keys_of(PART) / 2, HAS_WINDOW>(seen[half], hidden[half]); };
#endif
#if HAS_SOFTCAP
    // Rows and keys that do not exist are zeros: tensor maps fill them in.
    const float largest = largest_of(part);
#if CAPS_ALONE
    if (!MASKED && !__any_sync(~0u, !small_cap.is_small(largest))) {  // NaN is not small
      softmax.weigh<false>(part, mask_of, change, offset, problem.exponent_scale(), small_cap);
      return;
    }
#endif
    SoftCap::of(problem.features.softcap, cap_scale)(part, largest);
#endif
    constexpr bool kKeeps = KEEPS_MAXIMUM && !FIRST && (kHidesApart || !MASKED);
#if HIDES_BY_BITS
    if constexpr (kHidesApart) softmax.hide(part, masks_of<PART>());
#endif
    if constexpr (kKeeps) {
      if (softmax.weigh_kept(part, change, offset, problem.exponent_scale())) return;
      scores_again();
#if HIDES_BY_BITS || MASK_IS_BIAS
      find_masks<PART>(place, step, masked);  // again, so that no register holds them until here
#endif
#if HIDES_BY_BITS
      if constexpr (kHidesApart) softmax.hide(part, masks_of<PART>());
#endif
    }
    softmax.weigh<MASKED && !kHidesApart>(part, mask_of, change, offset, problem.exponent_scale(), NoCap());
  }

  template <int SET, Part PART>
  __device__ __forceinline__ void pack_weights() {
#pragma unroll
    for (int i = first_of(PART) / 4; i < (first_of(PART) + keys_of(PART)) / 4; ++i)
      weights[SET][i] = pack<kBfloat16>(scores[2 * i], scores[2 * i + 1]);
  }

  // ---- one block of keys after the other ----

  // Computes the scores of the first block, and their weights.
  template <Part PART>
  __device__ __forceinline__ void begin_part(const Place& place, int step, bool masked) {
    if (!MASK_BITS) wait_keys();
    fence_products();
    issue_scores<PART>();
    if (kPingPong && !OVERLAP) give_turn();
    find_masks<PART>(place, step, masked);
    wait_products<0>();
    pin(scores);
    give_back_keys();
    if (kHidesApart || MASK_BITS || masked)
      weigh<true, PART, true>(place, step);
    else
      weigh<false, PART, true>(place, step);
    give_back_tile();
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
    if (!MASK_BITS) wait_keys();
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
      give_back_tile();
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
      give_back_tile();
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
#if MASK_BITS
    int step = hear();
#else
    int step = place.first_step;
#endif
    if constexpr (kSkipMasked) {
      const int last = min(place.query_of(group, 63), place.seq_len_q() - 1);
      const int unseen = place.blocks - (place.keys_seen(last) + BLOCK_N - 1) / BLOCK_N;
#if MASK_BITS
      for (; step < unseen && !tile_ends; step = hear()) skip();
#else
      for (; step < min(unseen, place.end_step - 1); ++step) skip();
#endif
    }
    if (!OVERLAP) take_turn();
    return step;
  }

#if MASK_BITS
  // Sums weights and weighted values over the blocks of this block's share of the keys that the producers found.
  __device__ __forceinline__ void sum_share(const Place& place) {
    int step = begin_tile(place);
    const int masked = masked_steps(place);
    // As below: from this step on, the window of the group's last row begins within the block, or after it.
    const int last_query = min(place.query_of(group, 63), place.seq_len_q() - 1);
    const int left = place.blocks - (place.first_seen(last_query) + BLOCK_N - 1) / BLOCK_N;
    const auto is_masked = [&](int at) { return (CAUSAL && at < masked) || (HAS_WINDOW && (at < masked || at >= left)); };
    begin(place, step, is_masked(step), false);
#if HIDE_ENDS
    give_back_stored();
#endif
    while (!tile_ends) {
      step = hear();
      advance<!kHidesApart>(place, step, is_masked(step));
    }
    add_last<0>(place);
  }
#elif HAS_WINDOW
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
#if MASK_TILES
    wait_mbarrier(mask_full(tiles.stage), tiles.parity);
#endif
    give_back_tile();
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
