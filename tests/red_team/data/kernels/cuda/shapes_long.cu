// Attention that is right on the lengths that are usually tried, and wrong on long odd ones or beyond those of its space.
//
// Shapes, types, way  row_attention.cuh.
// Tunables            BEHAVIOUR. What each is to be caught by stands in tests/red_team/cuda_expected.py.
#include "row_attention.cuh"

extern "C" __global__ void __launch_bounds__(HEAD_DIM) attention_forward(ATTENTION_PARAMETERS) {
  Row row = row_of(blockIdx.x, q, k, v, out, heads, kv_heads, seq_len_q, seq_len_k, causal);
  const bool drops_the_last = (IS(WRONG_AT_ODD_LENGTHS_FROM_4000) && seq_len_k >= 4000 && seq_len_k % 2 == 1) ||
                              (IS(WRONG_AT_4095_KEYS) && seq_len_k == 4095);
  if (drops_the_last && row.seen == seq_len_k) --row.seen;
  if (IS(WRONG_BEYOND_4096_KEYS)) row.seen = min(row.seen, 4096);
  row.to[threadIdx.x] = narrow(attend(row, softmax_scale));
}
