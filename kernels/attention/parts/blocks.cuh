// How blocks of threads pass results on: within a cluster through its shared memory, else to the last block that
// arrives.
//
// In a cluster  A block sends to the shared memory of another one. The receiver's inbox is an mbarrier that counts the
//               bytes that arrive. It must be ready before the first byte is sent: open_inbox() at the start, and
//               wait_for_open_inboxes() before sending. Nobody waits at the end: a block that has all its bytes may
//               leave. A block that loads for others, or arrives at their mbarriers, is another matter: no block may
//               leave while that can happen, so there is a sync_cluster() at both ends.
// In the grid   last_to_arrive() finds the last of several blocks that wrote parts of one result, without waiting for
//               any of them. This block then merges the parts: MERGE counter of 3_mma.cu, attention_paged.cu, and
//               SPLIT_K of linear layers.
//
// Archs      sm_80 and later. Clusters need sm_90; what serves an inbox compiles to nothing before.
// References PTX ISA: "mbarrier", "st.async", "mapa", "barrier.cluster", "Memory Consistency Model" (release and
//            acquire patterns), "atom" (.inc).
#pragma once

namespace {

// Called by all threads. The mbarrier at `inbox` (8 bytes of shared memory) will wait for `bytes` bytes.
__device__ __forceinline__ void open_inbox(unsigned inbox, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n" ::"r"(inbox) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(inbox), "r"(bytes) : "memory");
  }
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_for_open_inboxes() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_for_inbox(unsigned inbox) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred full;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 full, [%0], 0;\n"
      "@!full bra again;\n"
      "}\n" ::"r"(inbox)
      : "memory");
#endif
}

// The address in block `rank` that corresponds to `shared` in this block.
__device__ __forceinline__ unsigned in_block(unsigned shared, unsigned rank) {
  unsigned there = shared;
#if __CUDA_ARCH__ >= 900
  asm("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(there) : "r"(shared), "r"(rank));
#endif
  return there;
}

// Sends to another block, whose inbox counts the bytes. If the data `stays`, it is stored in this block and not
// counted: the way through the cluster's network is long even when it leads back to this block.
__device__ __forceinline__ void send(unsigned to, unsigned inbox, bool stays, float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 900
  if (stays)
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"r"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
  else
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];\n" ::"r"(to),
        "f"(a), "f"(b), "f"(c), "f"(d), "r"(inbox)
        : "memory");
#endif
}

__device__ __forceinline__ void send(unsigned to, unsigned inbox, bool stays, float a, float b) {
#if __CUDA_ARCH__ >= 900
  if (stays)
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};\n" ::"r"(to), "f"(a), "f"(b) : "memory");
  else
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];\n" ::"r"(to),
        "f"(a), "f"(b), "r"(inbox)
        : "memory");
#endif
}

// Arrives at the mbarrier that is at `barrier` in block `rank`.
__device__ __forceinline__ void arrive_in_block(unsigned barrier, unsigned rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];\n" ::"r"(in_block(barrier, rank)) : "memory");
}

// Called by all threads of all blocks, in whole warps.
__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n" ::: "memory");
}

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
