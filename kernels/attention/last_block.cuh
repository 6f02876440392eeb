// Finds the last of several blocks that write parts of one result, without waiting for any of them. This block then
// merges the parts: MERGE counter of 3_mma.cu, attention_paged.cu, and SPLIT_K of linear layers.
//
// Archs      sm_80 and later.
// Reference  PTX ISA, "Memory Consistency Model" (fence.acq_rel).
#pragma once

namespace {

// True in the last of `count` blocks that call this for one counter. Earlier writes of the others are then visible to
// all of this block's threads, and the counter is 0 again: the next launch finds it as this one did.
__device__ __forceinline__ bool last_to_arrive(int* counter, int count) {
  bool last = false;
  __syncthreads();
  if (threadIdx.x == 0) {
    int before;
    asm volatile("fence.acq_rel.gpu;\n" ::: "memory");  // releases what all threads wrote before the barrier
    asm volatile("atom.relaxed.gpu.global.add.s32 %0, [%1], 1;\n" : "=r"(before) : "l"(counter) : "memory");
    last = before == count - 1;
    if (last) *counter = 0;
    asm volatile("fence.acq_rel.gpu;\n" ::: "memory");  // acquires what the other blocks released
  }
  return __syncthreads_or(last);
}

}  // namespace
