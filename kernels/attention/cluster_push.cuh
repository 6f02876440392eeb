// Sending to the shared memory of the other blocks of a cluster, and waiting for the data they send.
//
// A receiver's mbarrier counts the bytes that arrive. It must be ready before the first is sent: open_inbox() at the
// start, and a wait for the cluster before sending. Nobody waits at the end: a block that has all its bytes may leave.
//
// Archs      sm_90 and later; compiles to nothing before.
// References PTX ISA, "mbarrier", "st.async", "mapa", "barrier.cluster".
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

}  // namespace
