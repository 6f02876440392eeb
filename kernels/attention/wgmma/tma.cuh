// Tensor copies by TMA, the mbarriers they complete on, and registers that change hands (setmaxnreg).
//
// A tensor map says where a tensor lies, with which strides, and which box of it one copy moves. The host encodes it
// and passes it by value; one thread issues the copy of a whole box. Coordinates count elements, the innermost
// dimension first: column, row, head, batch. Elements outside the tensor arrive as zeros (and count as arrived), and
// are left out of a store: so rows past the end of a head need no other code. A load completes on an mbarrier, which
// counts its bytes.
//
// load_box_for_all() loads for all blocks of a cluster at once: a copy lands at the same place of each block's shared
// memory, and each block's mbarrier at that place counts its bytes. So mbarriers must be ready in all blocks before the
// first copy, and no block may leave while another may still load into it, or arrive at its mbarriers: sync_cluster()
// at both ends (parts/blocks.cuh).
//
// TMA and the tensor cores use another proxy (the async proxy) than loads and stores do. They see the writes of threads
// to shared memory only after share_with_engines() in each of these threads and a barrier after that.
//
// Archs      sm_90 and later.
// References PTX ISA: "Tensors", "cp.async.bulk.tensor" (.multicast::cluster), "cp.async.bulk.commit_group",
//            "cp.async.bulk.wait_group", "mbarrier.expect-tx", "Async proxy", "fence.proxy.async", "prefetch",
//            "barrier{.cta}" (.red), "setmaxnreg".
#pragma once

#include "../parts/async_copy.cuh"

namespace {

// Written by cuTensorMapEncodeTiled: 128 bytes, aligned to 64.
struct __align__(64) TensorMap {
  unsigned long long opaque[16];
};

__device__ __forceinline__ unsigned long long address_of(const TensorMap& map) {
  return reinterpret_cast<unsigned long long>(&map);
}

__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(address_of(map)) : "memory");
}

__device__ __forceinline__ void load_box(unsigned shared, const TensorMap& map, unsigned full, int column, int row,
                                         int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];\n" ::"r"(shared),
      "l"(address_of(map)), "r"(full), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

// Loads a box into each of the blocks 0 .. BLOCKS - 1 of the cluster.
template <int BLOCKS>
__device__ __forceinline__ void load_box_for_all(unsigned shared, const TensorMap& map, unsigned full, int column,
                                                 int row, int head, int batch) {
  constexpr unsigned short kAll = (1 << BLOCKS) - 1;
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, %4, %5, %6}], [%2], %7;\n" ::"r"(shared),
      "l"(address_of(map)), "r"(full), "r"(column), "r"(row), "r"(head), "r"(batch), "h"(kAll)
      : "memory");
}

// Of packed sequences (rows, heads, columns).
__device__ __forceinline__ void load_packed_box(unsigned shared, const TensorMap& map, unsigned full, int column,
                                                int head, int row) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];\n" ::"r"(shared),
      "l"(address_of(map)), "r"(full), "r"(column), "r"(head), "r"(row)
      : "memory");
}

__device__ __forceinline__ void store_box(const TensorMap& map, unsigned shared, int column, int row, int head,
                                          int batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];\n" ::"l"(
                   address_of(map)),
               "r"(shared), "r"(column), "r"(row), "r"(head), "r"(batch)
               : "memory");
}

__device__ __forceinline__ void store_packed_box(const TensorMap& map, unsigned shared, int column, int head, int row) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];\n" ::"l"(
                   address_of(map)),
               "r"(shared), "r"(column), "r"(head), "r"(row)
               : "memory");
}

// Waits until this thread's stores have been read from shared memory, which may then be used again.
__device__ __forceinline__ void wait_stores_read() {
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;\n" ::: "memory");
}

// Arrives for this thread, and lets the phase wait for `bytes` more bytes.
__device__ __forceinline__ void expect_bytes(unsigned full, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(full), "r"(bytes) : "memory");
}

__device__ __forceinline__ void share_with_engines() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

// Called by the thread that started the mbarriers, before the block's barrier, so that TMA sees them.
__device__ __forceinline__ void publish_mbarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
  share_with_engines();
}

__device__ __forceinline__ void store_word(unsigned shared, unsigned word) {
  asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(shared), "r"(word) : "memory");
}

__device__ __forceinline__ void store_zeros_16(unsigned shared) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};\n" ::"r"(shared), "r"(0) : "memory");
}

__device__ __forceinline__ void store_byte(unsigned shared, unsigned byte) {
  asm volatile("st.shared.u8 [%0], %1;\n" ::"r"(shared), "r"(byte) : "memory");
}

__device__ __forceinline__ void store_words(unsigned shared, const unsigned (&words)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(shared), "r"(words[0]), "r"(words[1]), "r"(words[2]),
               "r"(words[3])
               : "memory");
}

__device__ __forceinline__ unsigned load_word(unsigned shared) {
  unsigned word;
  asm volatile("ld.shared.b32 %0, [%1];\n" : "=r"(word) : "r"(shared) : "memory");
  return word;
}

__device__ __forceinline__ void load_pair(unsigned& first, unsigned& second, unsigned shared) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];\n" : "=r"(first), "=r"(second) : "r"(shared) : "memory");
}

__device__ __forceinline__ void load_words(float (&words)[4], unsigned shared) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n"
               : "=f"(words[0]), "=f"(words[1]), "=f"(words[2]), "=f"(words[3])
               : "r"(shared)
               : "memory");
}

// From now on each thread of this warpgroup has COUNT registers (a multiple of 8): fewer after give_registers(), more
// after take_registers(), which waits until another warpgroup has given them away. ptxas ignores both unless it knows
// the number at entry, from __launch_bounds__.
template <int COUNT>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(COUNT));
}

template <int COUNT>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(COUNT));
}

// Named barriers whose number is known at run time. `threads` counts threads that sync and threads that only arrive.
__device__ __forceinline__ void sync_named(int number, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(number), "r"(threads) : "memory");
}

__device__ __forceinline__ void arrive_named(int number, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(number), "r"(threads) : "memory");
}

// sync_named() that tells each thread whether `value` was true in any.
__device__ __forceinline__ bool any_of_named(int number, int threads, bool value) {
  int any;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.b32 p, %3, 0;\nbar.red.or.pred q, %1, %2, p;\nselp.b32 %0, 1, 0, q;\n}\n"
      : "=r"(any)
      : "r"(number), "r"(threads), "r"(static_cast<int>(value))
      : "memory");
  return any;
}

// A ring of stages with an mbarrier each: the stage of the next use, and the parity of its phase.
template <int COUNT>
struct Ring {
  int stage = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == COUNT) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ void skip(int uses) {
    parity ^= (stage + uses) / COUNT & 1;
    stage = (stage + uses) % COUNT;
  }
};

}  // namespace
