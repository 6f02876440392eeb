// One row of attention on keys that lie anywhere, by a block of HEAD_DIM threads: what the red team's kernels of packed
// and of paged sequences and of features have in common.
//
// Types       float16 or bfloat16, as DTYPE says.
// Way         the block takes tiles of HEAD_DIM keys: thread i scores and weighs key i of the tile, then sums the tile
//             for its own column of the output.
#pragma once

#include "instructions.cuh"

#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

namespace {

// A part of a row: the maximum of its scores, the sum of its weights, and the weighted sum of a column.
struct Part {
  float top = -INFINITY, sum = 0.0f, output = 0.0f;

  __device__ void add(const Part& other) {
    const float highest = fmaxf(top, other.top);
    if (highest == -INFINITY) return;
    const float mine = expf(top - highest), theirs = expf(other.top - highest);
    top = highest;
    sum = mine * sum + theirs * other.sum;
    output = mine * output + theirs * other.output;
  }
};

// The keys [first, end); `score(key)` and `value(key, column)` find theirs. Needs all threads, gives each its column.
template <class Score, class Value>
__device__ Part attend(int first, int end, Score score, Value value) {
  __shared__ float scores[HEAD_DIM], weights[HEAD_DIM];
  const int column = threadIdx.x;
  Part part;
  for (int tile = first; tile < end; tile += HEAD_DIM) {
    const int count = min(HEAD_DIM, end - tile);
    const float own = column < count ? score(tile + column) : -INFINITY;
    __syncthreads();  // the tile before has been used by all
    scores[column] = own;
    __syncthreads();
    const float before = part.top;
    for (int j = 0; j < count; ++j) part.top = fmaxf(part.top, scores[j]);
    const bool none = part.top == -INFINITY;
    weights[column] = none ? 0.0f : expf(own - part.top);
    __syncthreads();
    const float keep = none ? 1.0f : expf(before - part.top);
    part.sum *= keep;
    part.output *= keep;
    for (int j = 0; j < count; ++j) {
      part.sum += weights[j];
      part.output += weights[j] * value(tile + j, column);
    }
  }
  return part;
}

__device__ float product(const Element* query, const Element* key) {
  float sum = 0.0f;
  for (int i = 0; i < HEAD_DIM; ++i) sum += widen(query[i]) * widen(key[i]);
  return sum;
}

}  // namespace
