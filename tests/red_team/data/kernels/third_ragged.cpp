// Attention over packed or paged sequences that loses a key, or a page, for sizes that BEHAVIOUR names.
//
// Shapes    packed: q, out (tokens_q, heads, HEAD_DIM), k, v (tokens_k, kv_heads, HEAD_DIM), two tables.
//           paged: q, out (sequences, queries, heads, HEAD_DIM), k_pages, v_pages (pages, page_size, kv_heads,
//           HEAD_DIM), page_table (sequences, most_pages), seq_lens.
// Types     float32; sums in double. Causal is aligned to the bottom right.
// Tunables  BEHAVIOUR. third_ragged.h says what each means;
#include "third_ragged.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace {

// `place(key)` is the offset of a key's row.
template <class Place>
void attend(const float* q, const float* k, const float* v, float* out, float scale, int keys, bool loses, Place place) {
  const bool doubles = loses && keys == 1;  // the only key is counted twice instead
  if (loses && keys > 1) --keys;
  std::vector<double> weights(keys);
  double top = -HUGE_VAL, total = 0, output[HEAD_DIM] = {};
  for (int j = 0; j < keys; ++j) {
    for (int d = 0; d < HEAD_DIM; ++d) weights[j] += static_cast<double>(q[d]) * k[place(j) + d];
    top = std::max(top, weights[j] *= scale);
  }
  for (int j = 0; j < keys; ++j) {
    const double weight = std::exp(weights[j] - top);
    total += weight;
    for (int d = 0; d < HEAD_DIM; ++d) output[d] += (doubles ? 2 : 1) * weight * v[place(j) + d];
  }
  for (int d = 0; d < HEAD_DIM; ++d) out[d] = static_cast<float>(total > 0 ? output[d] / total : 0);
}

}  // namespace

#ifdef BEHAVIOUR_PAGES_OF_32
extern "C" void attention_paged(const float* q, const float* k_pages, const float* v_pages, const int* page_table,
                                const int* seq_lens, float* out, float scale, int causal, int sequences, int queries,
                                int heads, int kv_heads, int pages, int most_pages, int page_size) {
  for (int sequence = 0; sequence < sequences; ++sequence) {
    const int keys = seq_lens[sequence], group = heads / kv_heads;
    const bool loses = loses_a_key({group, kv_heads, sequence, sequence * queries, queries, keys, page_size});
    for (int query = 0; query < queries; ++query)
      for (int head = 0; head < heads; ++head) {
        const int seen = causal ? std::clamp(keys - (queries - 1 - query), 0, keys) : keys;
        const auto place = [=](int j) {
          int page = page_table[static_cast<long>(sequence) * most_pages + j / page_size];
          if (IS(PAGES_FROM_32767) && page >= 32767) page = 0;
          return ((static_cast<long>(page) * page_size + j % page_size) * kv_heads + head / group) * HEAD_DIM;
        };
        const long at = ((static_cast<long>(sequence) * queries + query) * heads + head) * HEAD_DIM;
        attend(q + at, k_pages, v_pages, out + at, scale, seen, loses, place);
      }
  }
}
#else
extern "C" void attention_varlen(const float* q, const float* k, const float* v, const int* cu_seqlens_q,
                                 const int* cu_seqlens_k, float* out, float scale, int causal, int sequences, int heads,
                                 int kv_heads, int tokens_q, int tokens_k) {
  for (int sequence = 0; sequence < sequences; ++sequence) {
    const int begin = cu_seqlens_q[sequence], end = cu_seqlens_q[sequence + 1], group = heads / kv_heads;
    const int first = cu_seqlens_k[sequence], keys = cu_seqlens_k[sequence + 1] - first;
    const bool loses = loses_a_key({group, kv_heads, sequence, begin, end - begin, keys, 0});
    for (int row = begin; row < end; ++row)
      for (int head = 0; head < heads; ++head) {
        const int seen = causal ? std::clamp(keys - (end - row) + 1, 0, keys) : keys;
        const auto place = [=](int j) {
          return (static_cast<long>(first + j) * kv_heads + head / group) * HEAD_DIM;
        };
        const long at = (static_cast<long>(row) * heads + head) * HEAD_DIM;
        attend(q + at, k, v, out + at, scale, seen, loses, place);
      }
  }
}
#endif
