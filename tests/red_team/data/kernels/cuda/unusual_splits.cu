// Attention forward in parts: by tickets in one launch, or in two or three launches with a workspace between. All right.
//
// Shapes, types, workspace  split_attention.cuh; THREE_LAUNCHES keeps seq_len_k floats for each row.
// Tunables                  METHOD.
#include "split_attention.cuh"

#define BY(name) (METHOD == METHOD_##name)

namespace {

__device__ Row row_of_block(int number, ATTENTION_PARAMETERS) {
  return row_of(number, q, k, v, out, heads, kv_heads, seq_len_q, seq_len_k, causal);
}

// One after the other takes the row's lock and adds what it found to what is there already.
__device__ void merge_in_any_order(const Row& row, float* parts, int* lock, float top, float sum, float output) {
  __shared__ int turn;
  if (threadIdx.x == 0) turn = atomicAdd(lock, 1);
  __syncthreads();
  float* mine = parts + turn * (2 + HEAD_DIM);
  mine[2 + threadIdx.x] = output;
  if (threadIdx.x == 0) {
    mine[0] = top;
    mine[1] = sum;
  }
  __threadfence();
  __syncthreads();
  __shared__ bool merges;
  if (threadIdx.x == 0) {
    merges = atomicAdd(lock + 1, 1) == kParts - 1;
    if (merges) lock[0] = lock[1] = 0;
  }
  __syncthreads();
  if (!merges) return;
  __threadfence();
  // In an order that does not depend on who came first: by maximum, then by sum.
  int order[kParts];
  for (int i = 0; i < kParts; ++i) order[i] = i;
  const auto before = [&](int a, int b) {
    const float *x = parts + a * (2 + HEAD_DIM), *y = parts + b * (2 + HEAD_DIM);
    const float top_a = __ldcg(x), top_b = __ldcg(y);
    if (top_a != top_b) return top_a > top_b;
    const float sum_a = __ldcg(x + 1), sum_b = __ldcg(y + 1);
    if (sum_a != sum_b) return sum_a > sum_b;
    return __ldcg(x + 2 + threadIdx.x) > __ldcg(y + 2 + threadIdx.x);
  };
  for (int i = 0; i < kParts; ++i)
    for (int j = 0; j + 1 < kParts - i; ++j)
      if (before(order[j + 1], order[j])) {
        const int other = order[j];
        order[j] = order[j + 1];
        order[j + 1] = other;
      }
  const float highest = __ldcg(parts + order[0] * (2 + HEAD_DIM));
  float total = 0.0f, result = 0.0f;
  for (int i = 0; i < kParts; ++i) {
    const float* part = parts + order[i] * (2 + HEAD_DIM);
    const float keep = expf(__ldcg(part) - highest);
    total += keep * __ldcg(part + 1);
    result += keep * __ldcg(part + 2 + threadIdx.x);
  }
  row.to[threadIdx.x] = narrow(result / total);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(HEAD_DIM) attention_forward(ATTENTION_PARAMETERS) {
  if (BY(SPLIT_WITH_TICKETS)) {
    attend_by_parts<RightHandover>(ATTENTION_ARGUMENTS);
    return;
  }
  const Row row = row_of_block(blockIdx.x / kParts, ATTENTION_ARGUMENTS);
  const int part = blockIdx.x % kParts;
  float* parts = reinterpret_cast<float*>(scratch) + static_cast<long long>(row.number) * kParts * (2 + HEAD_DIM);
  float top, sum;
  if (BY(SPLIT_IN_ANY_ORDER)) {
    const int share = (row.seen + kParts - 1) / kParts;
    const int first = min(part * share, row.seen), end = min(first + share, row.seen);
    const float output = attend_part(row, softmax_scale, first, end, top, sum);
    merge_in_any_order(row, parts, counter + 2 * row.number, top, sum, output);
    return;
  }
  // Of two launches: the parts, the longest first.
  const int share = (row.seen + 2 * kParts - 1) / (2 * kParts);
  const int first = part == 0 ? 0 : min((kParts + part) * share, row.seen);
  const int end = part == 0 ? min((kParts + 1) * share, row.seen) : min(first + share, row.seen);
  const float output = attend_part(row, softmax_scale, first, end, top, sum);
  float* mine = parts + part * (2 + HEAD_DIM);
  mine[2 + threadIdx.x] = output;
  if (threadIdx.x == 0) {
    mine[0] = top;
    mine[1] = sum;
  }
}

// The second of two launches.
extern "C" __global__ void __launch_bounds__(HEAD_DIM) merge(ATTENTION_PARAMETERS) {
  const Row row = row_of_block(blockIdx.x, ATTENTION_ARGUMENTS);
  const float* parts = reinterpret_cast<const float*>(scratch) + static_cast<long long>(row.number) * kParts * (2 + HEAD_DIM);
  row.to[threadIdx.x] = narrow(merge_parts(parts));
}

// Three launches: all scores, their softmax, and the products with the values.
extern "C" __global__ void __launch_bounds__(HEAD_DIM) score(ATTENTION_PARAMETERS) {
  const Row row = row_of_block(blockIdx.x, ATTENTION_ARGUMENTS);
  float* scores = reinterpret_cast<float*>(scratch) + static_cast<long long>(row.number) * seq_len_k;
  for (int key = threadIdx.x; key < row.seen; key += HEAD_DIM) {
    float score = 0.0f;
    for (int i = 0; i < HEAD_DIM; ++i) score += widen(row.query[i]) * widen(row.keys[key * HEAD_DIM + i]);
    scores[key] = score * softmax_scale;
  }
}

extern "C" __global__ void __launch_bounds__(HEAD_DIM) normalise(ATTENTION_PARAMETERS) {
  __shared__ float parts[HEAD_DIM];
  const Row row = row_of_block(blockIdx.x, ATTENTION_ARGUMENTS);
  float* scores = reinterpret_cast<float*>(scratch) + static_cast<long long>(row.number) * seq_len_k;
  float top = -INFINITY, sum = 0.0f;
  for (int key = 0; key < row.seen; ++key) top = fmaxf(top, scores[key]);
  __syncthreads();  // all have read
  for (int key = threadIdx.x; key < row.seen; key += HEAD_DIM) sum += scores[key] = expf(scores[key] - top);
  parts[threadIdx.x] = sum;
  __syncthreads();
  float total = 0.0f;
  for (int i = 0; i < HEAD_DIM; ++i) total += parts[i];
  for (int key = threadIdx.x; key < row.seen; key += HEAD_DIM) scores[key] /= total;
}

extern "C" __global__ void __launch_bounds__(HEAD_DIM) combine(ATTENTION_PARAMETERS) {
  const Row row = row_of_block(blockIdx.x, ATTENTION_ARGUMENTS);
  const float* weights = reinterpret_cast<const float*>(scratch) + static_cast<long long>(row.number) * seq_len_k;
  float output = 0.0f;
  for (int key = 0; key < row.seen; ++key) output += weights[key] * widen(row.values[key * HEAD_DIM + threadIdx.x]);
  row.to[threadIdx.x] = narrow(output);
}
