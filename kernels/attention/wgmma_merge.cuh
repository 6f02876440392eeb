// Merging the sums of a cluster's blocks, which took shares of one tile's keys (SPLIT_KV).
//
// Each block merges VALUE_DIM / SPLIT_KV columns of the tile and stores them. A thread sends to the thread of the same
// number in each other block, which has the same rows. It sends the columns of its sums that the other block merges,
// and its maxima and sums of weights (over its own keys and columns: the four lanes of a row are added at the end, as
// always). So shares merge like blocks of keys: M = max m, weights w = 2^(scale (m - M)), l = sum w l, o = sum w o. A
// share without keys, or of masked keys only, has the lowest maximum and sums of 0. The order of adding is fixed.
//
// Arriving parts have their own place in shared memory, which TMA never touches. It holds SPLIT_KV - 1 parts: float4
// [warp][1 + column tiles][lane], {m, m', l, l'} first. A warp of which no row exists neither sends nor waits.
//
// Archs      sm_90 and later.
// Reference  Milakov & Gimelshein 2018 (merging softmax).
#pragma once

#include "cluster_push.cuh"
#include "mma_sync.cuh"
#include "wgmma_place.cuh"
#include "wgmma_rings.cuh"
#include "wgmma_softmax.cuh"
#include "wgmma_tma.cuh"

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

}  // namespace
