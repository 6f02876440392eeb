// Attention forward with the keys of a row dealt out to kParts blocks; the one that ends last merges what all found.
//
// Shapes     as in row_attention.cuh. Launch: kParts * rows blocks of HEAD_DIM threads.
// Workspace  scratch: (2 + HEAD_DIM) floats for each block; counter: an int for each row, zero before and after.
// Sync       says how a block makes its part known, so that a kernel may leave something out.
#pragma once

#include "row_attention.cuh"

namespace {

constexpr int kParts = 4;

struct RightHandover {
  static constexpr int kMerger = kParts - 1;  // its ticket
  static __device__ void before_the_ticket() {
    __threadfence();
    __syncthreads();
  }
  static __device__ void behind_the_ticket() { __threadfence(); }
};

// As `attend`, but of the keys from `first` on, without the last division; `top` is -inf where there are none.
__device__ float attend_part(const Row& row, float softmax_scale, int first, int end, float& top, float& sum) {
  __shared__ float scores[kTile];
  float output = 0.0f;
  top = -INFINITY, sum = 0.0f;
  for (int tile = first; tile < end; tile += kTile) {
    const int count = min(kTile, end - tile);
    float score = 0.0f;
    if (threadIdx.x < count)
      for (int i = 0; i < HEAD_DIM; ++i)
        score += widen(row.query[i]) * widen(row.keys[(tile + threadIdx.x) * HEAD_DIM + i]);
    __syncthreads();
    scores[threadIdx.x] = score * softmax_scale;
    __syncthreads();
    const float before = top;
    for (int j = 0; j < count; ++j) top = fmaxf(top, scores[j]);
    const float keep = expf(before - top);
    sum *= keep;
    output *= keep;
    for (int j = 0; j < count; ++j) {
      const float weight = expf(scores[j] - top);
      sum += weight;
      output += weight * widen(row.values[(tile + j) * HEAD_DIM + threadIdx.x]);
    }
  }
  return output;
}

// Of all the row's parts, in their order.
__device__ float merge_parts(const float* parts) {
  float top = -INFINITY, sum = 0.0f, output = 0.0f;
  for (int part = 0; part < kParts; ++part) top = fmaxf(top, __ldcg(parts + part * (2 + HEAD_DIM)));
  for (int part = 0; part < kParts; ++part) {
    const float* mine = parts + part * (2 + HEAD_DIM);
    const float keep = expf(__ldcg(mine) - top);
    sum += keep * __ldcg(mine + 1);
    output += keep * __ldcg(mine + 2 + threadIdx.x);
  }
  return output / sum;
}

template <class Handover>
__device__ void attend_by_parts(ATTENTION_PARAMETERS) {
  __shared__ bool merges;
  const int part = blockIdx.x % kParts;
  const Row row = row_of(blockIdx.x / kParts, q, k, v, out, heads, kv_heads, seq_len_q, seq_len_k, causal);
  const int share = (row.seen + kParts - 1) / kParts;
  float top, sum;
  const float output = attend_part(row, softmax_scale, min(part * share, row.seen), min((part + 1) * share, row.seen),
                                   top, sum);
  float* parts = reinterpret_cast<float*>(scratch) + static_cast<long long>(row.number) * kParts * (2 + HEAD_DIM);
  float* mine = parts + part * (2 + HEAD_DIM);
  mine[2 + threadIdx.x] = output;
  if (threadIdx.x == 0) {
    mine[0] = top;
    mine[1] = sum;
  }
  Handover::before_the_ticket();
  if (threadIdx.x == 0) {
    const int ticket = atomicAdd(&counter[row.number], 1);
    merges = ticket == Handover::kMerger;
    if (ticket == kParts - 1) counter[row.number] = 0;  // as it was
  }
  __syncthreads();
  if (!merges) return;
  Handover::behind_the_ticket();
  row.to[threadIdx.x] = narrow(merge_parts(parts));
}

}  // namespace
