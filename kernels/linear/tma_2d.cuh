// TMA loads of a box of a matrix, beside those of tensors of four dimensions in ../attention/wgmma/tma.cuh.
//
// Archs     sm_90 and later.
// Reference PTX ISA, "cp.async.bulk.tensor" (.multicast::cluster).
#pragma once

#include "../attention/wgmma/tma.cuh"

namespace {

__device__ __forceinline__ void load_box_2d(unsigned shared, const TensorMap& map, unsigned full, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];\n" ::
          "r"(shared),
      "l"(address_of(map)), "r"(full), "r"(column), "r"(row)
      : "memory");
}

// Loads a box into each of the blocks 0 .. BLOCKS - 1 of the cluster.
template <int BLOCKS>
__device__ __forceinline__ void load_box_2d_for_all(unsigned shared, const TensorMap& map, unsigned full, int column,
                                                    int row) {
  constexpr unsigned short kAll = (1 << BLOCKS) - 1;
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, "
      "{%3, %4}], [%2], %5;\n" ::"r"(shared),
      "l"(address_of(map)), "r"(full), "r"(column), "r"(row), "h"(kAll)
      : "memory");
}

}  // namespace
