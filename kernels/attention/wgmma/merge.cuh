// Merging the sums of blocks that took shares of one tile's keys: in a cluster (SPLIT_KV), or in a second launch
// (SHARE_TAIL).
//
// SPLIT_KV   Each block merges VALUE_DIM / SPLIT_KV columns of the tile and stores them. A thread sends to the thread
//            of the same number in each other block, which has the same rows. It sends the columns of its sums that the
//            other block merges, and its maxima and sums of weights (over its own keys and columns: the four lanes of a
//            row are added at the end, as always). So shares merge like blocks of keys: M = max m, weights
//            w = 2^(scale (m - M)), l = sum w l, o = sum w o. A share without keys, or of masked keys only, has the
//            lowest maximum and sums of 0. The order of adding is fixed.
//            Arriving parts have their own place in shared memory, which TMA never touches. It holds SPLIT_KV - 1
//            parts: float4 [warp][1 + column tiles][lane], {m, m', l, l'} first. A warp of which no row exists neither
//            sends nor waits.
// SHARE_TAIL A block that has a part of a tile's keys (wgmma/tile.cuh deals them out) leaves its sums in global memory,
//            as a SplitPart. A second launch of as many blocks merges them in the order of the steps, so that the same
//            bits come out every time. A tile whose keys are all with one block has no parts: that block stores it as
//            always.
//
// Archs      sm_90 and later.
// References Milakov & Gimelshein 2018 (merging softmax); Osama et al. 2023, "Stream-K".
#pragma once

#include "../parts/arithmetic.cuh"
#include "../parts/blocks.cuh"
#include "../parts/merge.cuh"
#include "rings.cuh"
#include "softmax.cuh"
#include "tile.cuh"
#include "tma.cuh"

namespace {

__device__ __forceinline__ unsigned part_at(unsigned number) {
  return shared_at(kPartsAt) + number * kPartBytes + threadIdx.x / 32 * kWarpPartBytes + threadIdx.x % 32 * 16;
}

// The bytes that arrive in a block of the tile at `place`.
__device__ __forceinline__ unsigned inbox_bytes(const Place& place) {
  unsigned warps = 0;
#pragma unroll
  for (int row = 0; row < BLOCK_M; row += 16)
    warps += place.query_of(row / 64, row % 64) < place.seq_len_q();
  return (SPLIT_KV - 1) * warps * kWarpPartBytes;
}

// Called by whole warps, after wait_for_open_inboxes(). `merged` becomes the columns that this block merges, and
// `softmax` gets the maxima and sums over all blocks. OTHERS: the number of the cluster's other blocks.
template <int OTHERS>
__device__ __forceinline__ void merge_over_cluster(Softmax& softmax, const float (&output)[VALUE_DIM / 2],
                                                   float (&merged)[4 * kMergedTiles], float scale) {
  const unsigned own = blockIdx.x % SPLIT_KV;
  const unsigned inbox = barrier_at(kBarriers);
#pragma unroll
  for (unsigned block = 0; block < SPLIT_KV; ++block) {
    const float* columns = output + 4 * block * kMergedTiles;
    if (block == own) {
#pragma unroll
      for (int i = 0; i < 4 * kMergedTiles; ++i) merged[i] = columns[i];
      continue;
    }
    // A receiving block numbers its parts by their senders, from the block after itself on.
    const unsigned to = in_block(part_at((own - block - 1) % SPLIT_KV), block), there = in_block(inbox, block);
    send(to, there, false, softmax.maximum[0], softmax.maximum[1], softmax.sum[0], softmax.sum[1]);
#pragma unroll
    for (int tile = 0; tile < kMergedTiles; ++tile) {
      const float* o = columns + 4 * tile;
      send(to + 512 * (1 + tile), there, false, o[0], o[1], o[2], o[3]);
    }
  }
  wait_for_inbox(inbox);

  float theirs[OTHERS][4];
  float top[2] = {softmax.maximum[0], softmax.maximum[1]};
#pragma unroll
  for (int part = 0; part < OTHERS; ++part) {
    load_words(theirs[part], part_at(part));
#pragma unroll
    for (int half = 0; half < 2; ++half) top[half] = fmaxf(top[half], theirs[part][half]);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float weight = exp2_approximate((softmax.maximum[half] - top[half]) * scale);
    softmax.maximum[half] = top[half];
    softmax.sum[half] *= weight;
#pragma unroll
    for (int tile = 0; tile < kMergedTiles; ++tile)
#pragma unroll
      for (int e = 0; e < 2; ++e) merged[4 * tile + 2 * half + e] *= weight;
  }
#pragma unroll
  for (int part = 0; part < OTHERS; ++part) {
    float weight[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      weight[half] = exp2_approximate((theirs[part][half] - top[half]) * scale);
      softmax.sum[half] += weight[half] * theirs[part][2 + half];
    }
#pragma unroll
    for (int tile = 0; tile < kMergedTiles; ++tile) {
      float o[4];
      load_words(o, part_at(part) + 512 * (1 + tile));
#pragma unroll
      for (int e = 0; e < 4; ++e) merged[4 * tile + e] += weight[e / 2] * o[e];
    }
  }
}

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
