// Merging the parts of tiles whose keys several blocks shared (SHARE_TAIL; wgmma_schedule.cuh deals them out).
//
// A block that has a part of a tile's keys leaves its sums in global memory. A second launch of as many blocks merges
// them in the order of the steps, so that the same bits come out every time. A tile whose keys are all with one block
// has no parts: that block stores it as always.
//
// Archs      sm_80 and later.
// Reference  Osama et al. 2023, "Stream-K".
#pragma once

#include "mma_sync.cuh"
#include "split_merge.cuh"
#include "wgmma_place.cuh"
#include "wgmma_rings.cuh"
#include "wgmma_schedule.cuh"
#include "wgmma_softmax.cuh"

namespace {

constexpr int kMergeThreads = 1024;  // of attention_merge
using TailPart = SplitPart<BLOCK_M, VALUE_DIM>;

__device__ __forceinline__ float* tail_part_at(const Problem& problem, int number) {
  return problem.parts + static_cast<long long>(number) * TailPart::kFloats;
}

// Called by a warp: stores its 16 rows, from `first_row` of the tile on, for which exists(row).
template <class Exists>
__device__ __forceinline__ void store_tail_part(float* part, int first_row, const Softmax& softmax,
                                                const float (&output)[VALUE_DIM / 2], Exists exists) {
  PartFragments<1, VALUE_DIM / 8> sums;
#pragma unroll
  for (int i = 0; i < VALUE_DIM / 2; ++i) sums.output[0][i / 4][i % 4] = output[i];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sums.maximum[0][half] = softmax.maximum[half];
    sums.sum[0][half] = softmax.row_sum(half);
  }
  store_split_part<TailPart>(sums, part, first_row / 16, 0, exists);
}

// Called by all threads of all blocks: each merges four columns of a row, then goes on by as many cells as the grid has
// threads.
__device__ __forceinline__ void merge_tail(const Problem& problem) {
  const Tail& tail = problem.tail;
  const int threads = gridDim.x * kMergeThreads;
  for (int cell = blockIdx.x * kMergeThreads + threadIdx.x; cell < tail.tiles * TailPart::kCells; cell += threads) {
    const int tile = cell / TailPart::kCells, of_tile = cell - tile * TailPart::kCells;
    const int first = tail.sharer(tile * tail.tile_steps), last = tail.sharer((tile + 1) * tail.tile_steps - 1);
    const Place place(problem, tail.first + tile);
    const int row = of_tile / TailPart::kRowCells, group = row / 64;
    const int query = place.query_of(group, row % 64);
    if (first == last || query >= problem.seq_len_q) continue;
    const auto store = [&](int, int column, const float(&o)[4]) {
      *reinterpret_cast<uint2*>(place.out_row(place.head_of(row % 64), query) + column) =
          make_uint2(pack<kBfloat16>(o[0], o[1]), pack<kBfloat16>(o[2], o[3]));
    };
    const auto total = [&](int, int column, float sum, float maximum) {
      return place.total(place.head_of(row % 64), query, column == 0, sum, maximum);
    };
    merge_split_parts<TailPart, 4, 1>(tail_part_at(problem, Tail::part(first, tile)), last - first + 1, BLOCK_M,
                                      of_tile, TailPart::kCells, problem.exponent_scale(), store, total);
  }
}

}  // namespace
