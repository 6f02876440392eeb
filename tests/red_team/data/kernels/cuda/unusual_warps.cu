// Attention forward with a warp for each row, or with blocks that fetch rows until none is left. All right.
//
// Shapes, types  row_attention.cuh. Workspace: counter, two ints, zero before and after.
// Launch         WARPED: ceil(rows / kWarps) blocks; PERSISTENT: a fixed number of them; kWarps * 32 threads.
// Tunables       METHOD.
#include "row_attention.cuh"

#define BY(name) (METHOD == METHOD_##name)

namespace {

constexpr int kWarps = 4;
constexpr int kColumns = HEAD_DIM / 32;  // of a lane
constexpr unsigned kAll = ~0u;

__device__ float sum_of_warp(float value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAll, value, step);
  return value;
}

__device__ float maximum_of_warp(float value) {
  for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(kAll, value, step));
  return value;
}

// Each lane has some columns of the query and of the output; a score is a sum over the warp.
__device__ void attend_by_columns(const Row& row, float softmax_scale, int lane) {
  float query[kColumns], output[kColumns] = {}, top = -INFINITY, sum = 0.0f;
  for (int i = 0; i < kColumns; ++i) query[i] = widen(row.query[i * 32 + lane]);
  for (int key = 0; key < row.seen; ++key) {
    float score = 0.0f;
    for (int i = 0; i < kColumns; ++i) score += query[i] * widen(row.keys[key * HEAD_DIM + i * 32 + lane]);
    score = sum_of_warp(score) * softmax_scale;
    const float highest = fmaxf(top, score), keep = expf(top - highest), weight = expf(score - highest);
    top = highest;
    sum = sum * keep + weight;
    for (int i = 0; i < kColumns; ++i)
      output[i] = output[i] * keep + weight * widen(row.values[key * HEAD_DIM + i * 32 + lane]);
  }
  for (int i = 0; i < kColumns; ++i) row.to[i * 32 + lane] = narrow(output[i] / sum);
}

// Each lane scores a key of 32; the weights go round by shuffles.
__device__ void attend_by_keys(const Row& row, float softmax_scale, int lane) {
  float output[kColumns] = {}, top = -INFINITY, sum = 0.0f;
  for (int tile = 0; tile < row.seen; tile += 32) {
    const int key = tile + lane;
    float score = 0.0f;
    if (key < row.seen)
      for (int i = 0; i < HEAD_DIM; ++i) score += widen(row.query[i]) * widen(row.keys[key * HEAD_DIM + i]);
    score = key < row.seen ? score * softmax_scale : -INFINITY;
    const float highest = fmaxf(top, maximum_of_warp(score)), keep = expf(top - highest);
    const float weight = expf(score - highest);
    top = highest;
    sum = sum * keep + weight;  // of this lane's keys
    for (int i = 0; i < kColumns; ++i) output[i] *= keep;
    for (int j = 0; j < min(32, row.seen - tile); ++j) {
      const float of_key = __shfl_sync(kAll, weight, j);
      for (int i = 0; i < kColumns; ++i) output[i] += of_key * widen(row.values[(tile + j) * HEAD_DIM + i * 32 + lane]);
    }
  }
  const float inverse = 1.0f / sum_of_warp(sum);
  for (int i = 0; i < kColumns; ++i) row.to[i * 32 + lane] = narrow(output[i] * inverse);
}

// Each lane goes through every 32nd key with all columns of the output; states are merged at the end.
__device__ void attend_by_stripes(const Row& row, float softmax_scale, int lane) {
  float output[HEAD_DIM] = {}, top = -INFINITY, sum = 0.0f;
  for (int key = lane; key < row.seen; key += 32) {
    float score = 0.0f;
    for (int i = 0; i < HEAD_DIM; ++i) score += widen(row.query[i]) * widen(row.keys[key * HEAD_DIM + i]);
    score *= softmax_scale;
    const float highest = fmaxf(top, score), keep = expf(top - highest), weight = expf(score - highest);
    top = highest;
    sum = sum * keep + weight;
    for (int i = 0; i < HEAD_DIM; ++i) output[i] = output[i] * keep + weight * widen(row.values[key * HEAD_DIM + i]);
  }
  const float highest = maximum_of_warp(top);
  const float keep = top == -INFINITY ? 0.0f : expf(top - highest);
  const float inverse = 1.0f / sum_of_warp(sum * keep);
  for (int i = 0; i < HEAD_DIM; ++i) {
    const float total = sum_of_warp(output[i] * keep);
    if (lane == i % 32) row.to[i] = narrow(total * inverse);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(32 * kWarps) attention_forward(ATTENTION_PARAMETERS) {
  const int rows = batch * heads * seq_len_q, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warps = gridDim.x * kWarps;
  const bool fetches = BY(PERSISTENT_FETCHING) || BY(PERSISTENT_FETCHING_FROM_THE_END);
  int number = blockIdx.x * kWarps + warp;
  while (true) {
    if (fetches) {
      if (lane == 0) number = atomicAdd(counter, 1);
      number = __shfl_sync(kAll, number, 0);
    }
    if (number >= rows) break;
    const int chosen = BY(PERSISTENT_FETCHING_FROM_THE_END) ? rows - 1 - number : number;
    const Row row = row_of(chosen, q, k, v, out, heads, kv_heads, seq_len_q, seq_len_k, causal);
    if (BY(WARP_BY_KEYS))
      attend_by_keys(row, softmax_scale, lane);
    else if (BY(WARP_BY_STRIPES))
      attend_by_stripes(row, softmax_scale, lane);
    else
      attend_by_columns(row, softmax_scale, lane);
    number += warps;  // where nothing is fetched
  }
  if (!fetches) return;
  // The last warp to leave puts the counters back.
  if (lane == 0 && atomicAdd(counter + 1, 1) == warps - 1) {
    atomicExch(counter, 0);
    atomicExch(counter + 1, 0);
  }
}
