// Copies of 4, 8 or 16 bytes, mbarriers that hand copied data over from one warp to others, and barriers for some of a
// block's threads. async_copy.cuh has the copies of 16 bytes.
//
// A producer that copies for other warps does not wait for its copies: arrive_when_copied() lets an mbarrier in shared
// memory count them as they land, and the warps that compute wait for the mbarrier. Its phases have parities 0, 1, 0,
// ...: wait_mbarrier(at, p) returns when the phase with parity p is over: at once if the phase under way has the other
// parity.
//
// Archs      sm_80 and later.
// References PTX ISA, "cp.async", "cp.async.mbarrier.arrive", "mbarrier", "barrier{.cta}".
#pragma once

#include "async_copy.cuh"

namespace {

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
