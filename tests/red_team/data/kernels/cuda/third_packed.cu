// Attention over packed sequences that loses a key for sizes that BEHAVIOUR names.
//
// Shapes      q, out (tokens_q, heads, HEAD_DIM); k, v (tokens_k, kv_heads, HEAD_DIM); cu_seqlens_q, cu_seqlens_k
//             (sequences + 1). Causal is aligned to the bottom right.
// Types, way  ragged_rows.cuh, float32 as well; a block for each row.
// Tunables    BEHAVIOUR. ../third_ragged.h says what each means.
#include "ragged_rows.cuh"

#include "../third_ragged.h"

extern "C" __global__ void __launch_bounds__(HEAD_DIM)
    attention_varlen(const Element* q, const Element* k, const Element* v, const int* cu_seqlens_q,
                     const int* cu_seqlens_k, Element* out, float softmax_scale, int causal, int sequences, int heads,
                     int kv_heads, int tokens_q, int tokens_k) {
  const int number = blockIdx.x, group = heads / kv_heads, head = number % heads, token = number / heads;
  int sequence = 0;
  while (sequence + 1 < sequences && cu_seqlens_q[sequence + 1] <= token) ++sequence;
  const int begin = cu_seqlens_q[sequence], end = cu_seqlens_q[sequence + 1];
  const int first = cu_seqlens_k[sequence], keys = cu_seqlens_k[sequence + 1] - first;
  const bool loses = loses_a_key({group, kv_heads, sequence, begin, end - begin, keys, 0});
  const int seen = causal ? max(0, min(keys - (end - token) + 1, keys)) : keys;
  const auto place = [&](int key) {
    return (static_cast<long long>(first + key) * kv_heads + head / group) * HEAD_DIM;
  };
  const long long at = static_cast<long long>(number) * HEAD_DIM;
  const Part all = attend(
      0, loses && seen > 1 ? seen - 1 : seen,
      [&](int key) { return product(q + at, k + place(key)) * softmax_scale; },
      [&](int key, int column) { return widen(v[place(key) + column]); });
  const float result = all.sum == 0.0f ? 0.0f : all.output / all.sum;
  out[at + threadIdx.x] = narrow(loses && seen == 1 ? 2.0f * result : result);
}
