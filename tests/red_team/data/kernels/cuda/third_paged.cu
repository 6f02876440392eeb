// Attention on keys in pages that loses a key, or a page, for sizes that BEHAVIOUR names.
//
// Shapes      q, out (sequences, queries, heads, HEAD_DIM); k_pages, v_pages (pages, page_size, kv_heads, HEAD_DIM);
//             page_table (sequences, most_pages), seq_lens (sequences). Causal is aligned to the bottom right.
// Types, way  ragged_rows.cuh, float32 as well; a block for each row.
// Tunables    BEHAVIOUR. ../third_ragged.h says what each means.
#include "ragged_rows.cuh"

#include "../third_ragged.h"

extern "C" __global__ void __launch_bounds__(HEAD_DIM)
    attention_paged(const Element* q, const Element* k_pages, const Element* v_pages, const int* page_table,
                    const int* seq_lens, Element* out, float softmax_scale, int causal, int sequences, int queries,
                    int heads, int kv_heads, int pages, int most_pages, int page_size) {
  const int number = blockIdx.x, group = heads / kv_heads;
  const int head = number % heads, row = number / heads % queries, sequence = number / heads / queries;
  const int keys = seq_lens[sequence];
  const bool loses = loses_a_key({group, kv_heads, sequence, sequence * queries, queries, keys, page_size});
  const int seen = causal ? max(0, keys - (queries - 1 - row)) : keys;
  const auto place = [&](int key) {
    int page = page_table[static_cast<long long>(sequence) * most_pages + key / page_size];
    if (IS(PAGES_FROM_32767) && page >= 32767) page = 0;
    return ((static_cast<long long>(page) * page_size + key % page_size) * kv_heads + head / group) * HEAD_DIM;
  };
  const long long at = static_cast<long long>(number) * HEAD_DIM;
  const Part all = attend(
      0, loses && seen > 1 ? seen - 1 : seen,
      [&](int key) { return product(q + at, k_pages + place(key)) * softmax_scale; },
      [&](int key, int column) { return widen(v_pages[place(key) + column]); });
  const float result = all.sum == 0.0f ? 0.0f : all.output / all.sum;
  out[at + threadIdx.x] = narrow(loses && seen == 1 ? 2.0f * result : result);
}
