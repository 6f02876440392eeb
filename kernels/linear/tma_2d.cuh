// A TMA load of a box of a matrix, beside wgmma_tma.cuh's of tensors of four dimensions.
//
// Archs     sm_90 and later.
// Reference PTX ISA, "cp.async.bulk.tensor".
#pragma once

#include "../attention/wgmma_tma.cuh"

namespace {

__device__ __forceinline__ void load_box_2d(unsigned shared, const TensorMap& map, unsigned full, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];\n" ::
          "r"(shared),
      "l"(address_of(map)), "r"(full), "r"(column), "r"(row)
      : "memory");
}

}  // namespace
