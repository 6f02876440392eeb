// A warp's place in a tile, and the copies of the tile's Q, keys and values to shared memory, in which all threads of a
// block take part.
//
// Steps count the blocks of a split in the order in which they are worked on. KV_ORDER reverse begins with the last.
//
// Archs      sm_80 and later.
#pragma once

#include "async_copy.cuh"
#include "element.cuh"
#include "mma_block.cuh"
#include "row_copy.cuh"
#include "strides.cuh"

namespace {

constexpr bool kReverse = KV_ORDER == KV_ORDER_REVERSE;

template <class Tile>
struct TileCopies {
  const Tile& tile;
  const int lane, warp_q, warp_kv;
  const unsigned shared, query_at, keys_at, values_at;  // addresses of this lane's rows for ldmatrix
  int first_block, blocks;        // of the split
  int loaded, stage, load_stage;  // blocks whose copies have begun; the stage that is worked on; that of the next copy
  const RowCopy<kDimTiles, kThreads, Rows> copier;
  const RowCopy<kDimTiles, kThreads, Rows, KeyPolicy> key_copier;
#if VALUE_DIM != HEAD_DIM
  const RowCopy<kValueTiles, kThreads, ValueRows, KeyPolicy> value_copier;
#define VALUE_COPIER value_copier
#define VALUES_FROM value_copier
#else
#define VALUE_COPIER key_copier  // macros: a C++ reference would change the machine code
#define VALUES_FROM copier
#endif
  const Element *keys, *values;  // where this thread copies from, at block 0

  __device__ __forceinline__ TileCopies(const Tile& of, unsigned base)
      : tile(of), lane(threadIdx.x % 32), warp_q(threadIdx.x / 32 % WARPS_Q), warp_kv(threadIdx.x / 32 / WARPS_Q),
        shared(base), query_at(base + Rows::offset(warp_q * kWarpRows + lane % 16, lane / 16)),
        keys_at(base + kStagesAt + Rows::offset(warp_kv * kWarpKeys + lane % 8 + lane / 16 * 8, lane / 8 % 2)),
        values_at(base + kStagesAt + kKeyBytes + ValueRows::offset(warp_kv * kWarpKeys + lane % 16, lane / 16)),
        loaded(0), stage(0), load_stage(0) {
#if STRIDED
    keys = copier.start_of(of.keys_at(of.problem.k, of.problem.k_strides), of.problem.k_strides);
    values = VALUES_FROM.start_of(of.keys_at(of.problem.v, of.problem.v_strides), of.problem.v_strides);
#else
    const long long from = of.template keys_offset<HEAD_DIM>() + copier.start();
    keys = of.problem.k + from;
    values = of.problem.v +
             (VALUE_DIM == HEAD_DIM ? from : of.template keys_offset<VALUE_DIM>() + VALUES_FROM.start());
#endif
  }

  __device__ __forceinline__ int row_of(int row_tile, int half) const {
    return tile.first_row + warp_q * kWarpRows + 16 * row_tile + 8 * half + lane / 4;
  }
  __device__ __forceinline__ int key_of(int step) const {
    return (kReverse ? first_block + blocks - 1 - step : first_block + step) * BLOCK_N;
  }

  __device__ __forceinline__ void load_query() const {
    const int valid = tile.rows - tile.first_row;
#if STRIDED
    const auto& strides = tile.problem.q_strides;
    const auto row_at = [&](int row) { return tile.row_at(tile.problem.q, strides, tile.first_row + row); };
    if constexpr (PACK_GQA)
      copier.gather<BLOCK_M>(shared, row_at, valid);
    else
      copier.copy_strided<BLOCK_M>(shared, copier.start_of(row_at(0), strides), strides, valid);
#else
    if constexpr (PACK_GQA)
      copier.gather<BLOCK_M>(
          shared, [&](int row) { return tile.problem.q + tile.template offset<HEAD_DIM>(tile.first_row + row); },
          valid);
    else
      copier.copy<BLOCK_M>(shared, tile.problem.q + tile.template offset<HEAD_DIM>(tile.first_row) + copier.start(),
                           valid);
#endif
    close_copy_group();
  }

  // Loads the block of step `step` of K or V, if there is one. Closes a group either way, so that waits can count them.
#if STRIDED
  template <class Copier, class Distances>
  __device__ __forceinline__ void load_block(const Copier& block_copier, const Element* from, const Distances& strides,
                                             unsigned to, int step) const {
    if (step < blocks) {
      const int key = key_of(step);
      block_copier.template copy_strided<BLOCK_N>(to, strides.source(from, key), strides, tile.problem.seq_len_k - key);
    }
    close_copy_group();
  }
  __device__ __forceinline__ void load_keys(int step, int to_stage) const {
    load_block(key_copier, keys, tile.problem.k_strides, shared + kStagesAt + to_stage * kStageBytes, step);
  }
  __device__ __forceinline__ void load_values(int step, int to_stage) const {
    load_block(VALUE_COPIER, values, tile.problem.v_strides,
               shared + kStagesAt + to_stage * kStageBytes + kKeyBytes, step);
  }
#else
  template <int DIM, class Copier>
  __device__ __forceinline__ void load_block(const Copier& block_copier, const Element* from, unsigned to,
                                             int step) const {
    if (step < blocks) {
      const int key = key_of(step);
      block_copier.template copy<BLOCK_N>(to, from + static_cast<long long>(key) * DIM, tile.problem.seq_len_k - key);
    }
    close_copy_group();
  }
  __device__ __forceinline__ void load_keys(int step, int to_stage) const {
    load_block<HEAD_DIM>(key_copier, keys, shared + kStagesAt + to_stage * kStageBytes, step);
  }
  __device__ __forceinline__ void load_values(int step, int to_stage) const {
    load_block<VALUE_DIM>(VALUE_COPIER, values,
                          shared + kStagesAt + to_stage * kStageBytes + kKeyBytes, step);
  }
#endif
  __device__ __forceinline__ void load_next_stage() {
    load_keys(loaded, load_stage);
    load_values(loaded, load_stage);
    ++loaded;
    load_stage = load_stage + 1 == STAGES ? 0 : load_stage + 1;
  }
};

}  // namespace
