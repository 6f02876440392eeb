// Asynchronous copies from global to shared memory, past the registers, and the mbarriers that hand the data over.
//
// Copies of 4, 8 or 16 bytes (cp.async). There are two ways to wait for them:
//   groups    A thread closes its copies into a group, and waits until at most N of its latest groups are under way.
//             Waiting covers the thread's own copies only: a barrier must follow before others read them.
//   mbarriers A producer that copies for other warps does not wait for its copies: arrive_when_copied() lets an
//             mbarrier in shared memory count them as they land, and the warps that compute wait for the mbarrier. An
//             mbarrier has 8 bytes. Its phases have parities 0, 1, 0, ...: wait_mbarrier(at, p) returns when the phase
//             with parity p is over, which is at once if the phase under way has the other parity.
// A CopyPolicy says how long data stays in the L2 cache: as long as other data, or evicted first, which suits data that
// is read once.
//
// Archs      sm_80 and later.
// References PTX ISA: "Data Movement and Conversion Instructions: cp.async", "cp.async.mbarrier.arrive",
//            "createpolicy", "prefetch", "mbarrier", "barrier{.cta}".
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

// Copies BYTES bytes (4, 8 or 16), aligned to as many. If not `exists`, nothing is read and zeros are written; `from`
// must be a valid address either way.
template <int BYTES>
__device__ __forceinline__ void copy_async(unsigned shared, const void* from, bool exists) {
  if constexpr (BYTES == 16)
    copy_async_16(shared, from, exists ? 16 : 0);
  else
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;\n" ::"r"(shared), "l"(from), "n"(BYTES),
                 "r"(exists ? BYTES : 0)
                 : "memory");
}

template <int BYTES>
__device__ __forceinline__ void copy_async(unsigned shared, const void* from) {
  if constexpr (BYTES == 16)
    copy_async_16(shared, from);
  else
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2;\n" ::"r"(shared), "l"(from), "n"(BYTES)
                 : "memory");
}

// Called by one thread, before a barrier of the block. The mbarrier has 8 bytes; a phase ends after that many arrivals.
__device__ __forceinline__ void start_mbarrier(unsigned at, unsigned arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(at), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void arrive_at_mbarrier(unsigned at) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}\n" ::"r"(at) : "memory");
}

// Arrives for this thread as soon as all its copies so far have landed.
__device__ __forceinline__ void arrive_when_copied(unsigned at) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];\n" ::"r"(at) : "memory");
}

__device__ __forceinline__ void wait_mbarrier(unsigned at, unsigned parity) {
  unsigned over;
  do {
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(over)
                 : "r"(at), "r"(parity)
                 : "memory");
#else
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(over)
                 : "r"(at), "r"(parity)
                 : "memory");
#endif
  } while (!over);
}

// __syncthreads() for THREADS threads, whole warps, that share barrier NUMBER (1..15).
template <int NUMBER, int THREADS>
__device__ __forceinline__ void sync_some() {
  asm volatile("bar.sync %0, %1;\n" ::"n"(NUMBER), "n"(THREADS) : "memory");
}

}  // namespace
