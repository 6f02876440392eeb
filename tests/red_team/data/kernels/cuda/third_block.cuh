// Reductions over a block of kThreads threads: what the third red team's kernels of rows have in common.
#pragma once

#include "instructions.cuh"

#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

namespace {

constexpr int kThreads = 128;

// `join(a, b)` of all threads' values, in order of the threads, for all of them.
template <class Value, class Join>
__device__ Value reduced(Value mine, Join join) {
  __shared__ Value parts[kThreads];
  __syncthreads();
  parts[threadIdx.x] = mine;
  __syncthreads();
  Value all = parts[0];
  for (int i = 1; i < kThreads; ++i) all = join(all, parts[i]);
  return all;
}

template <class Value>
__device__ Value summed(Value mine) {
  return reduced(mine, [](Value a, Value b) { return a + b; });
}

}  // namespace
