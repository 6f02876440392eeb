// A tile of 2_wmma.cu: its rows, its head's keys and values, and the order in which their stages pass.
//
// Archs      sm_80 and later.
#pragma once

#include "wmma_block.cuh"

namespace {

struct Problem {
  const Element *q, *k, *v;
  Element* out;
  int group, row_blocks, tiles, seq_len_q, seq_len_k;  // group: query heads per kv head
};

// BLOCK_M rows of one head. Causal: a head's longest rows come first.
struct Tile {
  const Element *query, *keys, *values;  // query: the tile's first row; keys, values: the head's first
  Element* out;
  int first_row, rows, keys_seen, seq_len_k;  // rows: from first_row to the end; keys_seen: by some row

  // `number` counts the row blocks of all heads over the batch. Without PERSISTENT the grid has both numbers already,
  // which saves the divisions.
  __device__ __forceinline__ Tile(const Problem& problem, int number) {
    const int head = PERSISTENT ? number / problem.row_blocks : blockIdx.y;
    const int row_block = PERSISTENT ? number % problem.row_blocks : blockIdx.x;
    first_row = (CAUSAL ? problem.row_blocks - 1 - row_block : row_block) * BLOCK_M;
    rows = problem.seq_len_q - first_row;
    seq_len_k = problem.seq_len_k;
    keys_seen = CAUSAL ? min(seq_len_k, first_row + min(rows, BLOCK_M)) : seq_len_k;
    const int kv_head = problem.group == 1 ? head : head / problem.group;  // divisions take long
    const long long row_at = (static_cast<long long>(head) * problem.seq_len_q + first_row) * HEAD_DIM;
    const long long keys_at = static_cast<long long>(kv_head) * seq_len_k * HEAD_DIM;
    query = problem.q + row_at;
    out = problem.out + row_at;
    keys = problem.k + keys_at;
    values = problem.v + keys_at;
  }
};

// The way through a tile's keys, block by block: first all stages of a block's K, then all stages of its V.
struct Walk {
  int keys_seen, block, key;
  bool values;

  __device__ __forceinline__ explicit Walk(int seen) : keys_seen(seen), block(0), key(0), values(false) {}
  __device__ __forceinline__ bool more() const { return block < keys_seen; }
  __device__ __forceinline__ void next() {
    key += K_TILE;
    if (key < min(block + BLOCK_N, keys_seen)) return;
    if (values) block += BLOCK_N;
    values = !values;
    key = block;
  }
};

}  // namespace
