// Attention that is right on the shapes that are usually tried, and wrong on others.
//
// Shapes, types, way  row_attention.cuh.
// Tunables            BEHAVIOUR. What each is to be caught by stands in tests/red_team/cuda_expected.py.
#include "row_attention.cuh"

extern "C" __global__ void __launch_bounds__(HEAD_DIM) attention_forward(ATTENTION_PARAMETERS) {
  int row_number = blockIdx.x;
  Row row = row_of(row_number, q, k, v, out, heads, kv_heads, seq_len_q, seq_len_k, causal);
  const int sequence = row_number / seq_len_q, batch_number = sequence / heads, head = sequence % heads;
  const int group = heads / kv_heads;

  // A batch or head of others' keys.
  int of_batch = batch_number, of_head = head / group;
  if (IS(WRONG_FROM_BATCH_2) && batch_number >= 2) of_batch = 1;
  if (IS(WRONG_FROM_BATCH_3)) of_batch = batch_number < 3 ? batch_number : 0;
  if (IS(WRONG_FROM_BATCH_5)) of_batch = min(batch_number, 4);
  if (IS(WRONG_FROM_HEAD_4)) of_head = head % 4 / group;
  if (IS(WRONG_FROM_HEAD_6)) of_head = min(head, 5) / group;
  if (IS(WRONG_FROM_HEAD_8)) of_head = head % 8 / group;
  if (IS(WRONG_FROM_HEAD_20)) of_head = min(head, 19) / group;
  if (IS(WRONG_BEYOND_16_SEQUENCES)) of_head = sequence < 16 ? of_head : 0;
  if (IS(WRONG_FOR_GROUPS_OF_3) && group == 3) of_head = min(head / 4, kv_heads - 1);
  if (IS(WRONG_FOR_GROUPS_OF_5) && group == 5) of_head = min(head / 4, kv_heads - 1);
  if (IS(WRONG_FOR_GROUPS_OF_7) && group == 7) of_head = min(head / 8, kv_heads - 1);
  if (IS(WRONG_FOR_GROUPS_OF_8) && group == 8) of_head = min(head / 4, kv_heads - 1);
  const long long first_key = static_cast<long long>(of_batch * kv_heads + of_head) * seq_len_k * HEAD_DIM;
  row.keys = k + first_key;
  row.values = v + first_key;

  // A group of one or few kv heads may have no other head to be wrong with: then a key is missing.
  const bool wrong_group = (IS(WRONG_FOR_GROUPS_OF_3) && group == 3) || (IS(WRONG_FOR_GROUPS_OF_5) && group == 5) ||
                           (IS(WRONG_FOR_GROUPS_OF_7) && group == 7) || (IS(WRONG_FOR_GROUPS_OF_8) && group == 8);
  if (wrong_group && kv_heads == 1 && row.seen > 1) --row.seen;

  if (IS(WRONG_BEYOND_600_KEYS)) row.seen = min(row.seen, 600);
  if (IS(WRONG_BEYOND_1024_KEYS)) row.seen = min(row.seen, 1024);
  const bool drops_the_last = (IS(WRONG_AT_63_MOD_64) && seq_len_k % 64 == 63) ||
                              (IS(WRONG_AT_1_MOD_128) && seq_len_k % 128 == 1) ||
                              (IS(WRONG_AT_127_MOD_128) && seq_len_k % 128 == 127);
  if (drops_the_last && row.seen == seq_len_k && row.seen > 1) --row.seen;

  float result;
  if (IS(INDEX_OF_16_BITS)) {
    // The 65,536th element of a head is taken for its first.
    __shared__ float scores[2 * 4096];
    const int keys = min(row.seen, 2 * 4096);
    for (int key = threadIdx.x; key < keys; key += HEAD_DIM) {
      const unsigned short at = static_cast<unsigned short>(key * HEAD_DIM);
      float score = 0.0f;
      for (int i = 0; i < HEAD_DIM; ++i) score += widen(row.query[i]) * widen(row.keys[at + i]);
      scores[key] = score * softmax_scale;
    }
    __syncthreads();
    float top = -INFINITY, sum = 0.0f, output = 0.0f;
    for (int key = 0; key < keys; ++key) top = fmaxf(top, scores[key]);
    for (int key = 0; key < keys; ++key) {
      const float weight = expf(scores[key] - top);
      sum += weight;
      output += weight * widen(row.values[key * HEAD_DIM + threadIdx.x]);
    }
    result = output / sum;
  } else {
    result = attend(row, softmax_scale);
  }
  row.to[threadIdx.x] = narrow(result);
}
