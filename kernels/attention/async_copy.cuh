// Asynchronous copies of 16 bytes from global to shared memory, past the registers.
//
// A thread issues copies, closes them into a group, and waits until at most N of its latest groups are under way.
// Waiting covers the thread's own copies only: a barrier must follow before others read them.
//
// Archs      sm_80 and later.
// Reference  PTX ISA, "Data Movement and Conversion Instructions: cp.async".
#pragma once

namespace {

// `bytes` is 16, or 0: then nothing is read and 16 zeros are written. `from` must be a valid address either way.
__device__ __forceinline__ void copy_async_16(unsigned shared, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(shared), "l"(from), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void copy_async_16(unsigned shared, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n" ::"r"(shared), "l"(from) : "memory");
}

__device__ __forceinline__ void close_copy_group() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

template <int GROUPS>
__device__ __forceinline__ void wait_copy_groups() {
  static_assert(GROUPS >= 0, "a number of groups that may still be under way");
  asm volatile("cp.async.wait_group %0;\n" ::"n"(GROUPS) : "memory");
}

}  // namespace
