// Attention over ragged sequences by rows: wrong in lengths or tables, or right in an unusual way, as BEHAVIOUR says.
//
// Shapes      attention_varlen: q, out (tokens_q, heads, HEAD_DIM), k, v (tokens_k, kv_heads, HEAD_DIM), two tables.
//             attention_paged: q, out (sequences, queries, heads, HEAD_DIM), k_pages, v_pages (pages, page_size,
//             kv_heads, HEAD_DIM), page_table (sequences, most_pages), seq_lens.
// Types       float32; sums in double. Causal is aligned to the bottom right.
// Tunables    BEHAVIOUR. What each is to be caught by stands in tests/red_team/test_ragged.py.
#include <algorithm>
#include <cmath>
#include <vector>

#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

namespace {

#ifdef VARLEN
constexpr bool kDivide = IS(NO_KEYS_DIVIDED);
#else
constexpr bool kDivide = false;
#endif

// `place(key)` is the offset of a key's row.
template <class Place>
void attend(const float* q, const float* k, const float* v, float* out, float scale, int keys, const Place& place,
            int masked = 0) {
  std::vector<double> scores(keys);
  double top = -1e300, total = 0.0, output[HEAD_DIM] = {};
  for (int j = 0; j < keys; ++j) {
    for (int d = 0; d < HEAD_DIM; ++d) scores[j] += static_cast<double>(q[d]) * k[place(j) + d];
    scores[j] = j < keys - masked ? scores[j] * scale : -1e300;
    top = std::max(top, scores[j]);
  }
  for (int step = 0; step < keys; ++step) {
    const int j = IS(LAST_KEY_FIRST) ? keys - 1 - step : step;
    const double weight = std::exp(scores[j] - top);
    total += weight;
    for (int d = 0; d < HEAD_DIM; ++d) output[d] += weight * v[place(j) + d];
  }
  const bool divide = total > 0.0 || kDivide;
  for (int d = 0; d < HEAD_DIM; ++d) out[d] = static_cast<float>(divide ? output[d] / total : 0.0);
}

}  // namespace

#ifdef VARLEN
extern "C" void attention_varlen(const float* q, const float* k, const float* v, const int* cu_seqlens_q,
                                 const int* cu_seqlens_k, float* out, float scale, int causal, int sequences, int heads,
                                 int kv_heads, int tokens_q, int tokens_k) {
  static std::vector<int> kept;
  if (static_cast<int>(kept.size()) != sequences + 1 || kept.back() != tokens_k)
    kept.assign(cu_seqlens_k, cu_seqlens_k + sequences + 1);
  const int* of_keys = IS(TABLE_KEPT) ? kept.data() : cu_seqlens_k;
  for (int number = 0; number < sequences; ++number) {
    const int sequence = IS(LAST_SEQUENCE_FIRST) ? sequences - 1 - number : number;
    int begin = cu_seqlens_q[sequence], end = cu_seqlens_q[sequence + 1];
    int first = of_keys[sequence], keys = of_keys[sequence + 1] - first;
    if (IS(KEYS_BY_THE_TABLE_OF_ROWS))
      first = std::min(begin, tokens_k), keys = std::max(0, std::min(end, tokens_k) - first);
    if (IS(EVEN_LENGTHS)) {
      first = static_cast<long>(tokens_k) * sequence / sequences;
      keys = static_cast<int>(static_cast<long>(tokens_k) * (sequence + 1) / sequences) - first;
    }
    if (IS(LAST_SEQUENCE_TO_THE_END_BUT_ONE) && sequence == sequences - 1 && keys > 1) --keys;
    if (IS(FIRST_KEY_OF_THE_NEXT) && sequence + 1 < sequences && first + keys < tokens_k) ++keys;
    if (IS(FIRST_SEQUENCE_TWICE) && sequence == 1 && keys > 0) first = 0, keys = std::min(keys, of_keys[1]);
    for (int row = begin; row < end; ++row)
      for (int head = 0; head < heads; ++head) {
        const int own = IS(TOP_LEFT) ? row - begin : keys - (end - row);
        const int seen = causal ? std::clamp(own + 1, 0, keys) : keys;
        const long base = static_cast<long>(first) * kv_heads + head / (heads / kv_heads);
        const auto place = [=](int j) { return (base + static_cast<long>(j) * kv_heads) * HEAD_DIM; };
        const long at = (static_cast<long>(row) * heads + head) * HEAD_DIM;
        attend(q + at, k, v, out + at, scale, seen, place);
      }
  }
}
#else
extern "C" void attention_paged(const float* q, const float* k_pages, const float* v_pages, const int* page_table,
                                const int* seq_lens, float* out, float scale, int causal, int sequences, int queries,
                                int heads, int kv_heads, int pages, int most_pages, int page_size) {
  static std::vector<int> kept;
  if (static_cast<int>(kept.size()) != sequences * most_pages)
    kept.assign(page_table, page_table + static_cast<long>(sequences) * most_pages);
  const int* table = IS(TABLE_KEPT) ? kept.data() : page_table;
  for (int sequence = 0; sequence < sequences; ++sequence) {
    int keys = seq_lens[sequence];
    if (IS(LENGTH_OF_THE_NEXT)) keys = seq_lens[(sequence + 1) % sequences];
    if (IS(ONE_KEY_MORE)) keys = std::min(keys + 1, most_pages * page_size);
    const int whole = std::min((keys + page_size - 1) / page_size * page_size, most_pages * page_size);
    const int masked = IS(REST_OF_A_PAGE_HAS_NO_WEIGHT) ? whole - keys : 0;
    if (IS(LAST_PAGE_WHOLE)) keys = whole;
    for (int query = 0; query < queries; ++query)
      for (int head = 0; head < heads; ++head) {
        const int seen = !causal ? keys : std::clamp(IS(TOP_LEFT) ? query + 1 : keys - (queries - 1 - query), 0, keys);
        const int kv_head = head / (heads / kv_heads);
        const auto place = [=](int j) {
          int page = table[static_cast<long>(sequence) * most_pages + j / page_size];
          if (IS(PAGES_IN_A_ROW)) page = table[static_cast<long>(sequence) * most_pages] + j / page_size;
          if (IS(PAGES_OF_THE_FIRST)) page = table[j / page_size];
          page = page < 0 || page >= pages ? 0 : page;  // no crash: this process is the tests'
          const int size = IS(PAGES_OF_16) ? std::min(16, page_size) : page_size;
          const int slot = IS(SLOTS_IN_REVERSE) ? page_size - 1 - j % page_size : j % size;
          return ((static_cast<long>(page) * page_size + slot) * kv_heads + kv_head) * HEAD_DIM;
        };
        const long at = ((static_cast<long>(sequence) * queries + query) * heads + head) * HEAD_DIM;
        attend(q + at, k_pages, v_pages, out + at, scale, seen + (seen == keys ? masked : 0), place, seen == keys ? masked : 0);
      }
  }
}
#endif
