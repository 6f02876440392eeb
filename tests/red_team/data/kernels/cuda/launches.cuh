// What a launch can know of the launches before it: how many have ended and when. And one decision for all of its
// blocks, made by the first of them that runs.
#pragma once

#include "instructions.cuh"

namespace {

__device__ unsigned blocks_begun, blocks_ended;  // of this launch
__device__ unsigned launches_ended;
__device__ unsigned long long last_end_ns;
__device__ unsigned decision;  // twice the launch's number, counted from 1, and 1 where it rests

template <class Value>
__device__ Value load_now(const Value* from) {
  return *const_cast<const volatile Value*>(from);
}

// Whether this launch rests: `decide` is asked once a launch, with its number from 1 on. Needs all threads.
template <class Decide>
__device__ bool launch_rests(Decide decide) {
  __shared__ unsigned found;
  if (threadIdx.x == 0) {
    const unsigned number = load_now(&launches_ended) + 1;
    if (atomicAdd(&blocks_begun, 1u) == 0) atomicExch(&decision, 2 * number + (decide(number) ? 1 : 0));
    unsigned decided = load_now(&decision);
    while (decided / 2 != number) decided = load_now(&decision);  // whoever decides is running
    found = decided % 2;
  }
  __syncthreads();
  return found != 0;
}

// To be called by all threads of each block when it has done its work.
__device__ void end_launch() {
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(&blocks_ended, 1u) != gridDim.x - 1) return;
  blocks_begun = 0;
  blocks_ended = 0;
  last_end_ns = now_ns();
  launches_ended = launches_ended + 1;
}

}  // namespace
