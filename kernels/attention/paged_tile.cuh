// A tile of attention_paged.cu: rows of a sequence and a kv head, the keys that they see, and where they all lie.
//
// Archs      sm_80 and later.
#pragma once

#include "paged_choices.cuh"

#include "element.cuh"
#include "strides.cuh"

namespace {

// One sequence at a time: `seq_len_k` is the length of the one that is worked on.
struct Problem {
  const Element *q, *k, *v;
  const int* page_table;
  Element* out;
  float scale_log2;
  int group, queries, most_pages, seq_len_k;  // group: query heads per kv head
  Strides q_strides, k_strides, v_strides, out_strides;

  __device__ __forceinline__ int rows() const { return queries * group; }  // of a kv head
};

// BLOCK_M rows of a sequence and a kv head: row r is head r % group of the group, and query r / group.
struct Tile {
  const Problem& problem;
  int sequence, head, first_row, rows;

  __device__ __forceinline__ int valid_rows() const { return min(BLOCK_M, rows - first_row); }
  __device__ __forceinline__ int last_row() const { return min(first_row + BLOCK_M, rows) - 1; }
  template <class T>
  __device__ __forceinline__ T* row_at(T* tensor, const Strides& strides, int row) const {
    const int of_head = row % problem.group + head * problem.group;
    return strides.further(tensor + strides.head_at(sequence, of_head), row / problem.group);
  }
  __device__ __forceinline__ const Element* keys_at(const Element* pool, const Strides& strides) const {
    return pool + strides.head_at(0, head);
  }
  // Below 0 for rows before the first key: such a row sees none either.
  __device__ __forceinline__ int keys_seen(int row) const {
    return CAUSAL ? problem.seq_len_k - problem.queries + 1 + row / problem.group : problem.seq_len_k;
  }
};

}  // namespace
