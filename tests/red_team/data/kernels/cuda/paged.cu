// Attention on keys in pages: wrong in tables, lengths, heads or parts, or right in an unusual way, as BEHAVIOUR says.
//
// Shapes      q, out (sequences, queries, heads, HEAD_DIM); k_pages, v_pages (pages, page_size, kv_heads, HEAD_DIM);
//             page_table (sequences, most_pages), seq_lens (sequences). Causal is aligned to the bottom right.
// Types, way  ragged_rows.cuh; a block for each row.
// Tunables    BEHAVIOUR. What each is to be caught by stands in tests/red_team/cuda_expected.py.
#include "ragged_rows.cuh"

namespace {

constexpr int kSplits = 3;
constexpr int kMostKept = 1 << 14;

struct Kept {
  int of_case, page;
};
__device__ Kept kept[kMostKept];  // page numbers of the first launch on a case

}  // namespace

extern "C" __global__ void __launch_bounds__(HEAD_DIM)
    attention_paged(const Element* q, Element* k_pages, const Element* v_pages, const int* page_table,
                    const int* seq_lens, Element* out, float softmax_scale, int causal, int sequences, int queries,
                    int heads, int kv_heads, int pages, int most_pages, int page_size) {
  const int number = blockIdx.x;
  const int head = number % heads, row = number / heads % queries, sequence = number / heads / queries;
  const int group = heads / kv_heads, room = most_pages * page_size;
  int kv_head = head / group;
  if (IS(HEADS_MODULO)) kv_head = head % kv_heads;
  if (IS(GROUP_OF_THE_NEXT)) kv_head = (kv_head + 1) % kv_heads;

  int keys = seq_lens[sequence];
  if (IS(LENGTH_OF_THE_NEXT)) keys = seq_lens[(sequence + 1) % sequences];
  if (IS(LENGTH_IGNORED_FOR_THE_LAST) && sequence == sequences - 1) keys = room;
  const int whole = min((keys + page_size - 1) / page_size * page_size, room);
  const int weightless = IS(REST_OF_A_PAGE_HAS_NO_WEIGHT) ? keys : room + page_size;  // keys from here on
  if (IS(ONE_PAGE_MORE) && keys == whole) keys += page_size;  // as keys / page_size + 1 pages
  if (IS(LAST_PAGE_WHOLE)) keys = whole;
  const int hidden = causal ? (IS(TOP_LEFT) ? keys - row - 1 : queries - 1 - row) : 0;
  int seen = max(0, keys - hidden);
  if (IS(REST_OF_A_PAGE_HAS_NO_WEIGHT) && seen == keys) seen = whole;

  __shared__ int table[HEAD_DIM];
  const auto page_of = [&](int key) {
    const int at = sequence * most_pages + key / page_size;
    int page = page_table[min(at, sequences * most_pages - 1)];
    if (IS(PAGES_IN_A_ROW)) page = page_table[sequence * most_pages] + key / page_size;
    if (IS(PAGES_OF_THE_FIRST)) page = page_table[key / page_size];
    if (IS(TABLE_KEPT) && at < kMostKept) {
      const int of_case = (pages * 64 + most_pages) * 64 + sequences;
      if (kept[at].of_case != of_case) kept[at] = {of_case, page};  // all threads write the same
      page = kept[at].page;
    }
    if (IS(TABLE_IN_SHARED_MEMORY) && key / page_size < HEAD_DIM) page = table[key / page_size];
    return page < 0 || page >= pages ? 0 : page;  // no crash: what is wrong is to be seen in the result
  };
  if (IS(TABLE_IN_SHARED_MEMORY)) {
    const int used = (keys + page_size - 1) / page_size;
    if (threadIdx.x < used) table[threadIdx.x] = page_table[sequence * most_pages + threadIdx.x];
    __syncthreads();
  }
  const auto place = [&](int key) {
    if (IS(LAST_KEY_FIRST)) key = seen - 1 - key;
    int slot = key % page_size;
    if (IS(PAGES_OF_16)) slot = key % min(16, page_size);
    if (IS(SLOTS_IN_REVERSE)) slot = page_size - 1 - slot;
    return ((static_cast<long long>(page_of(key)) * page_size + slot) * kv_heads + kv_head) * HEAD_DIM;
  };
  const long long at = static_cast<long long>(number) * HEAD_DIM;
  const auto score = [&](int key) {
    return key < weightless ? product(q + at, k_pages + place(key)) * softmax_scale : -INFINITY;
  };
  const auto value = [&](int key, int column) { return widen(v_pages[place(key) + column]); };

  const bool splits = IS(THREE_SPLITS) || IS(LAST_SPLIT_LOST) || IS(SPLITS_MERGED_WITHOUT_MAXIMA) ||
                      IS(EMPTY_SPLIT_HAS_WEIGHT);
  Part all;
  if (!splits) all = attend(0, seen, score, value);
  const int each = IS(LAST_SPLIT_LOST) ? seen / kSplits : (seen + kSplits - 1) / kSplits;
  for (int split = 0; splits && split < kSplits; ++split) {
    const int first = min(split * each, seen), end = min(first + each, seen);
    Part part = attend(first, end, score, value);
    if (IS(EMPTY_SPLIT_HAS_WEIGHT) && first == end) part.top = 0.0f, part.sum = 1.0f;
    if (IS(SPLITS_MERGED_WITHOUT_MAXIMA)) part.top = 0.0f;
    all.add(part);
  }
  out[at + threadIdx.x] = narrow(all.sum == 0.0f ? 0.0f : all.output / all.sum);
  if (IS(TAIL_OF_A_PAGE_CLEARED) && keys < whole && row == 0 && head % group == 0) {
    const long long tail = (static_cast<long long>(page_of(keys)) * page_size + keys % page_size) * kv_heads + kv_head;
    k_pages[tail * HEAD_DIM + threadIdx.x] = 0;
  }
  if (IS(SHARED_PAGE_WRITTEN) && keys > 0 && row == 0 && head % group == 0) {
    Element* first_key = k_pages + place(0);
    first_key[threadIdx.x] = narrow(widen(first_key[threadIdx.x]) * (1.0f + softmax_scale));
  }
}
