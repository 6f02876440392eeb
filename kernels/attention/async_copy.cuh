// Asynchronous copies of 16 bytes from global to shared memory, past the registers.
//
// A thread issues copies, closes them into a group, and waits until at most N of its latest groups are under way.
// Waiting covers the thread's own copies only: a barrier must follow before others read them.
// A CopyPolicy says how long data stays in the L2 cache: as long as other data, or evicted first, which suits data that
// is read once.
//
// Archs      sm_80 and later.
// Reference  PTX ISA, "Data Movement and Conversion Instructions: cp.async", "createpolicy", "prefetch".
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

template <bool EVICT_FIRST = false>
struct CopyPolicy {
  __device__ __forceinline__ void copy(unsigned shared, const void* from) const { copy_async_16(shared, from); }
  __device__ __forceinline__ void copy(unsigned shared, const void* from, int bytes) const {
    copy_async_16(shared, from, bytes);
  }
};

template <>
struct CopyPolicy<true> {
  unsigned long long policy;
  unsigned zero;

  // ptxas 12.9 and 13.0 emit an illegal instruction for a copy with a policy whose shared address is the sum of a
  // thread's and a uniform register. An exclusive or with a zero that ptxas does not see through keeps the sum whole.
  __device__ __forceinline__ CopyPolicy() : zero(__shfl_sync(0xffffffffu, threadIdx.x >> 10, 0)) {
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;\n" : "=l"(policy));
  }
  __device__ __forceinline__ void copy(unsigned shared, const void* from) const {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;\n" ::"r"(shared ^ zero),
                 "l"(from), "l"(policy)
                 : "memory");
  }
  __device__ __forceinline__ void copy(unsigned shared, const void* from, int bytes) const {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;\n" ::"r"(shared ^ zero),
                 "l"(from), "r"(bytes), "l"(policy)
                 : "memory");
  }
};

// Asks for the 128 bytes around an address in the L2 cache, and waits for nothing.
__device__ __forceinline__ void prefetch_to_l2(const void* from) {
  asm volatile("prefetch.global.L2 [%0];\n" ::"l"(from));
}

__device__ __forceinline__ void close_copy_group() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

template <int GROUPS>
__device__ __forceinline__ void wait_copy_groups() {
  static_assert(GROUPS >= 0, "a number of groups that may still be under way");
  asm volatile("cp.async.wait_group %0;\n" ::"n"(GROUPS) : "memory");
}

}  // namespace
