// Attention that loses a key for sizes that go together only now and then, or for some lengths: BEHAVIOUR says for which.
//
// Shapes, types, way  row_attention.cuh; float32 as well.
// Tunables            BEHAVIOUR. ../third_sizes.h says what each means.
#include "row_attention.cuh"

#include "../third_sizes.h"

extern "C" __global__ void __launch_bounds__(HEAD_DIM)
    attention(const Element* q, const Element* k, const Element* v, Element* out, float softmax_scale, int batch,
              int heads, int kv_heads, int seq_len_q, int seq_len_k, int causal) {
  Row row = row_of(blockIdx.x, q, k, v, out, heads, kv_heads, seq_len_q, seq_len_k, causal);
  const AttentionSizes sizes{batch, heads, kv_heads, seq_len_q, seq_len_k, causal};
  const bool loses = loses_a_key(sizes, row.number / seq_len_q / heads), has_another = row.seen > 1;
  if (loses && has_another) --row.seen;
  const float result = attend(row, softmax_scale);
  row.to[threadIdx.x] = narrow(loses && !has_another ? 2.0f * result : result);
}
