// Attention by rows with a mask: wrong in how it reads or applies the mask, or right in an unusual way, as BEHAVIOUR
// says.
//
// Shapes      q (batch, heads, seq_len_q, HEAD_DIM); k, v (batch, kv_heads, seq_len_k, HEAD_DIM); out like q. attn_mask
//             as MASK_IS_PADDING and MASK_IS_BIAS say; its strides are 0 where it is broadcast.
// Types, way  ragged_rows.cuh, and float32 biases; a block for each row.
// Tunables    BEHAVIOUR. What each is to be caught by stands in tests/red_team/cuda_expected.py.
#include "ragged_rows.cuh"

namespace {

constexpr float kLog2E = 1.44269504f, kLowestFloat = -3.402823466e38f;
constexpr int kTile = 32;

struct Row {
  const void* mask;
  long long at;  // the element of key 0
  int keys;

  __device__ bool sees(int key) const {
    if (IS(KEY_BY_WORDS)) key = key / 4 * 4;
    if (IS(REST_OF_THE_KEYS_SEEN) && key >= keys / 16 * 16) return true;
    return static_cast<const unsigned char*>(mask)[at + key] != 0;
  }
  __device__ bool sees_some(int first, int end) const {
    bool any = false;
    for (int key = first; key < end; ++key) any |= sees(key);
    return any;
  }
  // Whether a tile of keys is skipped.
  __device__ bool skips(int key) const {
    const int first = key / kTile * kTile, end = min(first + kTile, keys);
    if (IS(TILE_BY_ITS_FIRST_KEY)) return !sees(first);
    if (IS(TILE_BY_ITS_ENDS)) return !sees(first) && !sees(end - 1);
    if (IS(TILES_SKIPPED) || IS(TILE_OF_THE_FIRST_ROW)) return !sees_some(first, end);
    return false;
  }
  __device__ int first_hidden() const {
    int key = 0;
    while (key < keys && sees(key)) ++key;
    return key;
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(HEAD_DIM)
    attention_masked(const Element* q, const Element* k, const Element* v, Element* out, const void* attn_mask,
                     float softmax_scale, int heads, int kv_heads, int seq_len_q, int seq_len_k, long long batch_stride,
                     long long head_stride, long long row_stride) {
  const int number = blockIdx.x;
  const int row = number % seq_len_q, head = number / seq_len_q % heads, batch = number / seq_len_q / heads;
  const int group = heads / kv_heads;
  int of_batch = batch, of_head = head, of_row = row;
  if (IS(FIRST_BATCH_FOR_ALL)) of_batch = 0;
  if (IS(HEAD_OF_THE_GROUP)) of_head = head / group;
  if (IS(ROW_OF_THE_TILE)) of_row = row / 16 * 16;
  const auto row_of_mask = [&](int of) {
    return Row{attn_mask, of_batch * batch_stride + of_head * head_stride + of * row_stride, seq_len_k};
  };
  const Row mask = row_of_mask(of_row);
  const Row skipping = IS(TILE_OF_THE_FIRST_ROW) ? row_of_mask(row / 16 * 16) : mask;
  int end = CAUSAL && !IS(NO_CAUSAL_BESIDE_THE_MASK) ? min(seq_len_k, row + 1) : seq_len_k;
  if (MASK_IS_PADDING && IS(PADDING_BY_FIRST_HIDDEN)) end = min(end, mask.first_hidden());

  const long long keys_at = (static_cast<long long>(batch) * kv_heads + head / group) * seq_len_k;
  const long long at = static_cast<long long>(number) * HEAD_DIM;
  const auto score = [&](int key) {
    const float bare = product(q + at, k + (keys_at + key) * HEAD_DIM);
    if (!MASK_IS_BIAS) {
      const bool seen = (MASK_IS_PADDING && IS(PADDING_BY_FIRST_HIDDEN)) || (!skipping.skips(key) && mask.sees(key));
      return seen ? softmax_scale * bare : IS(HIDDEN_IS_1E4) ? softmax_scale * bare - 1e4f : -INFINITY;
    }
    float bias = static_cast<const float*>(mask.mask)[mask.at + key];
    if (IS(BIAS_BEFORE_THE_SCALE)) return softmax_scale * (bare + bias);
    if (IS(BIAS_IN_BASE_2)) bias /= kLog2E;
    if (IS(LOWEST_OVERFLOWS)) bias = bias * kLog2E / kLog2E;
    if (IS(LOWEST_HIDES_FOR_GOOD) && bias == kLowestFloat) bias = -INFINITY;
    return softmax_scale * bare + bias;
  };
  const auto value = [&](int key, int column) { return widen(v[(keys_at + key) * HEAD_DIM + column]); };

  const Part all = attend(0, end, score, value);
  Part found = all;
  if (IS(TWO_HALVES)) {
    found = attend(end / 2, end, score, value);
    found.add(attend(0, end / 2, score, value));
  }
  const bool empty = found.sum == 0.0f && !IS(EMPTY_ROWS_DIVIDED);
  out[at + threadIdx.x] = narrow(empty ? 0.0f : found.output / found.sum);
}
