// Loading for all blocks of a cluster at once, and giving back what was loaded.
//
// A copy for all lands at the same place of each block's shared memory, and each block's mbarrier at that place counts
// its bytes. So mbarriers must be ready in all blocks before the first copy, and no block may leave while another may
// still load into it or arrive at its mbarriers: sync_cluster() at both ends.
//
// Archs      sm_90 and later.
// References PTX ISA: "cp.async.bulk.tensor" (.multicast::cluster), "mbarrier.arrive", "mapa", "barrier.cluster".
#pragma once

#include "cluster_push.cuh"
#include "wgmma_tma.cuh"

namespace {

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

// Arrives at the mbarrier that is at `barrier` in block `rank`.
__device__ __forceinline__ void arrive_in_block(unsigned barrier, unsigned rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];\n" ::"r"(in_block(barrier, rank)) : "memory");
}

// Called by all threads of all blocks, in whole warps.
__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n" ::: "memory");
}

}  // namespace
