// Attention over packed sequences: wrong in boundaries, lengths or heads, or right in an unusual way, as BEHAVIOUR says.
//
// Shapes      q, out (tokens_q, heads, HEAD_DIM); k, v (tokens_k, kv_heads, HEAD_DIM); cu_seqlens_q, cu_seqlens_k
//             (sequences + 1). Causal is aligned to the bottom right.
// Types, way  ragged_rows.cuh; a block for each row.
// Tunables    BEHAVIOUR. What each is to be caught by stands in tests/red_team/cuda_expected.py.
#include "ragged_rows.cuh"

namespace {

constexpr int kMostKept = 1 << 12;

struct Kept {
  int of_case, boundary;
};
__device__ Kept kept[kMostKept];  // boundaries of the first launch on a case

// The sequence of a row: the last one that begins at or before it.
__device__ int sequence_of(int token, const int* begins, int sequences) {
  if (IS(FOUND_BY_BISECTION)) {
    int low = 0, high = sequences;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (begins[middle] <= token)
        low = middle;
      else
        high = middle;
    }
    return low;
  }
  int found = 0;
  while (found + 1 < sequences && begins[found + 1] <= token) {
    if (IS(STOPS_BEFORE_AN_EMPTY_ONE) && begins[found + 1] == begins[min(found + 2, sequences)]) break;
    ++found;
  }
  if (IS(BOUNDARY_ONE_LATE) && found > 0 && begins[found] == token && begins[found - 1] < token) --found;
  return found;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(HEAD_DIM)
    attention_varlen(const Element* q, const Element* k, const Element* v, const int* cu_seqlens_q,
                     const int* cu_seqlens_k, Element* out, float softmax_scale, int causal, int sequences, int heads,
                     int kv_heads, int tokens_q, int tokens_k, int longest_q) {
  const int number = IS(LAST_SEQUENCE_FIRST) ? tokens_q * heads - 1 - blockIdx.x : blockIdx.x;
  const int head = number % heads, token = number / heads;
  const int sequence = sequence_of(token, cu_seqlens_q, sequences);
  const auto boundary = [&](int at) {
    if (!IS(TABLE_KEPT) || at >= kMostKept) return cu_seqlens_k[at];
    const int of_case = (tokens_k * 64 + sequences) * 16 + heads;
    if (kept[at].of_case != of_case) kept[at] = {of_case, cu_seqlens_k[at]};  // all threads write the same
    return kept[at].boundary;
  };
  const int begin = cu_seqlens_q[sequence], end = cu_seqlens_q[sequence + 1];
  int first = boundary(sequence), keys = boundary(sequence + 1) - first;
  if (IS(KEYS_BY_THE_TABLE_OF_ROWS)) {
    first = min(begin, tokens_k);
    keys = max(0, min(end, tokens_k) - first);
  }
  if (IS(EVEN_LENGTHS)) {
    first = static_cast<int>(static_cast<long long>(tokens_k) * sequence / sequences);
    keys = static_cast<int>(static_cast<long long>(tokens_k) * (sequence + 1) / sequences) - first;
  }
  if (IS(LAST_SEQUENCE_ONE_SHORT) && sequence == sequences - 1 && keys > 1) --keys;
  if (IS(FIRST_KEY_OF_THE_NEXT) && first + keys < tokens_k) ++keys;
  if (IS(LAST_KEY_OF_THE_ONE_BEFORE) && first > 0) --first, ++keys;
  if (IS(LENGTH_IGNORED_FOR_THE_LAST) && sequence == sequences - 1) first = 0, keys = tokens_k;
  if (IS(KEYS_UP_TO_THE_LONGEST_ROWS)) keys = min(keys, longest_q);
  int kv_head = head / (heads / kv_heads);
  if (IS(HEADS_MODULO)) kv_head = head % kv_heads;
  const int own = IS(TOP_LEFT) ? token - begin : keys - (end - token);
  const int seen = causal ? max(0, min(own + 1, keys)) : keys;

  const auto place = [&](int key) {
    if (IS(LAST_KEY_FIRST)) key = seen - 1 - key;
    return (static_cast<long long>(first + key) * kv_heads + kv_head) * HEAD_DIM;
  };
  const long long at = static_cast<long long>(number) * HEAD_DIM;
  const Part all = attend(
      0, seen, [&](int key) { return product(q + at, k + place(key)) * softmax_scale; },
      [&](int key, int column) { return widen(v[place(key) + column]); });
  if (IS(ROWS_WITHOUT_KEYS_UNWRITTEN) && all.sum == 0.0f) return;
  const bool zero = all.sum == 0.0f && !IS(NO_KEYS_DIVIDED);
  out[at + threadIdx.x] = narrow(zero ? 0.0f : all.output / all.sum);
}
