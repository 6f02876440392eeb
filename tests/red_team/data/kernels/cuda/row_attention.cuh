// Attention forward, a block of HEAD_DIM threads for each row of the output: what the red team's kernels have in common.
//
//   out = softmax(softmax_scale * q k^T) v
//
// Shapes      q, out (batch, heads, seq_len_q, HEAD_DIM); k, v (batch, kv_heads, seq_len_k, HEAD_DIM), contiguous.
// Types       float16 or bfloat16, as DTYPE says. Causal: row i sees the keys up to i.
// Way         the block takes tiles of HEAD_DIM keys: thread i scores and weighs key i of the tile, then sums the tile
//             for its own column of the output.
#pragma once

#include "instructions.cuh"

#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

#define ATTENTION_PARAMETERS                                                                                          \
  Element *q, Element *k, Element *v, Element *out, unsigned char *scratch, int *counter, float softmax_scale,        \
      int batch, int heads, int kv_heads, int seq_len_q, int seq_len_k, int causal
#define ATTENTION_ARGUMENTS                                                                                           \
  q, k, v, out, scratch, counter, softmax_scale, batch, heads, kv_heads, seq_len_q, seq_len_k, causal

namespace {

constexpr int kTile = HEAD_DIM;  // keys

// One row of the output and what it is made of.
struct Row {
  const Element *query, *keys, *values;
  Element* to;
  int number, position;  // among all rows, and in its sequence
  int seen;              // keys
};

__device__ Row row_of(int number, const Element* q, const Element* k, const Element* v, Element* out, int heads,
                      int kv_heads, int seq_len_q, int seq_len_k, int causal) {
  const int head = number / seq_len_q, position = number % seq_len_q;
  const int kv_head = head / heads * kv_heads + head % heads / (heads / kv_heads);
  const long long first_key = static_cast<long long>(kv_head) * seq_len_k * HEAD_DIM;
  const long long at = static_cast<long long>(number) * HEAD_DIM;
  const int seen = causal ? min(position + 1, seq_len_k) : seq_len_k;
  return {q + at, k + first_key, v + first_key, out + at, number, position, seen};
}

// Of the block's row, in float32. Needs all threads, gives each its column.
__device__ float attend(const Row& row, float softmax_scale) {
  __shared__ float scores[kTile], weights[kTile];
  const int column = threadIdx.x;
  float top = -INFINITY, sum = 0.0f, output = 0.0f;
  for (int tile = 0; tile < row.seen; tile += kTile) {
    const int count = min(kTile, row.seen - tile);
    float score = 0.0f;
    if (column < count)
      for (int i = 0; i < HEAD_DIM; ++i) score += widen(row.query[i]) * widen(row.keys[(tile + column) * HEAD_DIM + i]);
    score *= softmax_scale;
    __syncthreads();  // the tile before has been used by all
    scores[column] = score;
    __syncthreads();
    const float before = top;
    for (int j = 0; j < count; ++j) top = fmaxf(top, scores[j]);
    weights[column] = column < count ? expf(score - top) : 0.0f;
    __syncthreads();
    const float keep = expf(before - top);  // 0 for the first tile
    sum *= keep;
    output *= keep;
    for (int j = 0; j < count; ++j) {
      sum += weights[j];
      output += weights[j] * widen(row.values[(tile + j) * HEAD_DIM + column]);
    }
  }
  return output / sum;
}

// All ones, as memory that a launch must write is before it.
__device__ bool is_poison(Element bits) { return bits == 0xffff; }

}  // namespace
