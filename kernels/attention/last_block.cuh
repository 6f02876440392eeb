// Finds the last of several blocks that write parts of one result, without waiting for any of them. This block then
// merges the parts: MERGE counter of 3_mma.cu, attention_paged.cu, and SPLIT_K of linear layers.
//
// Archs      sm_80 and later.
// Reference  PTX ISA, "Memory Consistency Model" (release and acquire patterns), "atom" (.inc).
#pragma once

namespace {

// True in the last of `count` blocks that call this for one counter. Earlier writes of the others are then visible to
// all of this block's threads, and the counter is 0 again: the next launch finds it as this one did.
//
// A kernel ends with its last block, so one instruction does it all: it releases what all threads wrote before the
// barrier, acquires what the other blocks released, and counts from count - 1 on to 0. A separate fence behind a store
// of that 0 would wait for the store.
__device__ __forceinline__ bool last_to_arrive(int* counter, int count) {
  bool last = false;
  __syncthreads();
  if (threadIdx.x == 0) {
    int before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;\n"
                 : "=r"(before)
                 : "l"(counter), "r"(count - 1)
                 : "memory");
    last = before == count - 1;
  }
  return __syncthreads_or(last);
}

}  // namespace
