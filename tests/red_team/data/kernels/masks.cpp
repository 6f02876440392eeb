// Attention by rows with a mask: wrong in how it reads or applies the mask, or right in an unusual way, as BEHAVIOUR
// says.
//
// Shapes      q (batch, heads, seq_len_q, HEAD_DIM); k, v (batch, kv_heads, seq_len_k, HEAD_DIM); out as q.
//             attn_mask as MASK_IS_PADDING and MASK_IS_BIAS say. Each has strides of its own; those of a mask are 0
//             where it is broadcast.
// Types       float32, and float32 biases; sums in double.
// Tunables    BEHAVIOUR. What each is to be caught by stands in tests/red_team/test_features.py.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kBlock = 32;

struct Mask {
  const void* elements;
  long long batch, head, row;
  int batches, heads, group, rows, keys;

  long long at(int b, int h, int i, int j) const {
    if (IS(BATCH_OF_THE_NEXT)) b = (b + 1) % batches;
    if (IS(FIRST_BATCH_FOR_ALL)) b = 0;
    if (IS(HEAD_OF_THE_GROUP)) h /= group;
    if (IS(FIRST_HEAD_FOR_ALL)) h = 0;
    if (IS(FIRST_ROW_FOR_ALL)) i = 0;
    if (IS(ROWS_AND_HEADS_SWAPPED)) return b * batch + h * row + i * head + j;
    if (IS(PACKED_ROWS)) return b * batch + h * head + (row ? static_cast<long long>(i) * keys : 0) + j;
    if (IS(PACKED_BATCHES)) {
      const long long packed = head ? heads * head : row ? rows * row : keys;
      return (batch ? b * packed : 0) + h * head + i * row + j;
    }
    if (IS(NEXT_KEY) && j + 1 < keys) ++j;
    if (IS(KEY_BY_WORDS)) j = j / 4 * 4;
    return b * batch + h * head + i * row + j;
  }

  float bias(int b, int h, int i, int j) const {
    const float value = static_cast<const float*>(elements)[at(b, h, i, j)];
    if (IS(BIAS_IN_BFLOAT16)) {
      const double step = std::exp2(std::ilogb(value == 0.0f || std::isinf(value) ? 1.0f : value) - 7);
      return std::isinf(value) ? value : static_cast<float>(std::nearbyint(value / step) * step);
    }
    if (IS(BIAS_CLAMPED)) return std::max(value, -100.0f);
    if (IS(BIAS_AS_A_BOOLEAN)) return value < -1e3f ? -INFINITY : 0.0f;
    if (IS(POSITIVE_BIAS_IGNORED)) return std::min(value, 0.0f);
    if (IS(LOWEST_IS_MINUS_INFINITY) && value < -1e30f) return -INFINITY;
    return value;
  }

  bool sees(int b, int h, int i, int j) const {
    if (IS(LAST_KEY_ALWAYS_SEEN) && j == keys - 1) return true;
    if (IS(LAST_KEY_NEVER_SEEN) && j == keys - 1) return false;
    if (IS(FIRST_KEY_ALWAYS_SEEN) && j == 0) return true;
    if (IS(REST_OF_THE_KEYS_SEEN) && j >= keys / kBlock * kBlock) return true;
    const bool seen = static_cast<const std::uint8_t*>(elements)[at(b, h, i, j)] != 0;
    return IS(INVERTED) ? !seen : seen;
  }

  // Whether the keys [first, end) are hidden from a row, as the kernel finds it.
  bool skips(int b, int h, int i, int first, int end) const {
    if (IS(BLOCK_BY_ITS_FIRST_KEY)) return !sees(b, h, i, first);
    if (IS(BLOCK_BY_ITS_ENDS)) return !sees(b, h, i, first) && !sees(b, h, i, end - 1);
    if (IS(BLOCK_BY_MOST_KEYS)) {
      int seen = 0;
      for (int j = first; j < end; ++j) seen += sees(b, h, i, j);
      return seen <= 1;
    }
    if (IS(BLOCK_OF_THE_FIRST_ROW)) i = 0;
    if (IS(BLOCKS_SKIPPED) || IS(BLOCK_OF_THE_FIRST_ROW)) {
      for (int j = first; j < end; ++j)
        if (sees(b, h, i, j)) return false;
      return true;
    }
    return false;
  }

  // Padding as one length: the number of keys that are seen, or the place of the first that is not.
  int length(int b) const {
    int count = 0, j = 0;
    for (; j < keys; ++j) count += sees(b, 0, 0, j);
    if (IS(PADDING_BY_COUNT)) return count;
    for (j = 0; j < keys && sees(b, 0, 0, j);) ++j;
    return j;
  }
};

}  // namespace

extern "C" void attention(const float* q, const float* k, const float* v, float* out, const void* attn_mask,
                          float softmax_scale, int batch, int heads, int kv_heads, int seq_len_q, int seq_len_k,
                          long long q_stride_batch, long long q_stride_head, long long q_stride_row,
                          long long k_stride_batch, long long k_stride_head, long long k_stride_row,
                          long long v_stride_batch, long long v_stride_head, long long v_stride_row,
                          long long out_stride_batch, long long out_stride_head, long long out_stride_row,
                          long long attn_mask_stride_batch, long long attn_mask_stride_head,
                          long long attn_mask_stride_row) {
  const int group = heads / kv_heads;
  const Mask mask{attn_mask, attn_mask_stride_batch, attn_mask_stride_head, attn_mask_stride_row, batch, heads,
                  group, seq_len_q, seq_len_k};
  std::vector<double> scores(seq_len_k);
  for (long index = 0; index < 1L * batch * heads * seq_len_q; ++index) {
    const int row = index % seq_len_q, head = index / seq_len_q % heads, b = index / seq_len_q / heads;
    const float* query = q + b * q_stride_batch + head * q_stride_head + row * q_stride_row;
    const float* key_rows = k + b * k_stride_batch + head / group * k_stride_head;
    const float* values = v + b * v_stride_batch + head / group * v_stride_head;
    float* result = out + b * out_stride_batch + head * out_stride_head + row * out_stride_row;
    int end = CAUSAL ? std::min(seq_len_k, row + 1) : seq_len_k;
    if (IS(NO_CAUSAL_BESIDE_THE_MASK)) end = seq_len_k;
    if (MASK_IS_PADDING && (IS(PADDING_BY_COUNT) || IS(PADDING_BY_FIRST_HIDDEN))) end = std::min(end, mask.length(b));

    double top = -kInfinity;
    for (int j = 0; j < end; ++j) {
      double score = 0.0;
      for (int d = 0; d < HEAD_DIM; ++d) score += static_cast<double>(query[d]) * key_rows[j * k_stride_row + d];
      const double bare = softmax_scale * score;
      if (MASK_IS_BIAS) {
        const double bias = mask.bias(b, head, row, j);
        scores[j] = bare + bias;
        if (IS(BIAS_BEFORE_THE_SCALE)) scores[j] = softmax_scale * (score + bias);
        if (IS(BIAS_IN_BASE_2)) scores[j] = bare + bias / 1.4426950408889634;
        if (IS(BIAS_SUBTRACTED)) scores[j] = bare - (bias < -1e3 ? -bias : bias);
        if (IS(BIAS_IGNORED)) scores[j] = bare;
        if (IS(BIAS_NOT_IN_THE_MAXIMUM)) top = std::max(top, bare);
      } else {
        const int block = j / kBlock * kBlock;
        const bool skipped = mask.skips(b, head, row, block, std::min(block + kBlock, seq_len_k));
        const bool by_length = IS(PADDING_BY_COUNT) || IS(PADDING_BY_FIRST_HIDDEN);
        const bool seen = (MASK_IS_PADDING && by_length) || (!skipped && mask.sees(b, head, row, j));
        const double hidden = IS(HIDDEN_IS_1E4) ? bare - 1e4 : IS(HIDDEN_IS_30) ? bare - 30.0 : -kInfinity;
        scores[j] = seen || IS(MASK_IGNORED) ? bare : IS(HIDDEN_SCORE_IS_ZERO) ? 0.0 : hidden;
        if (IS(HIDDEN_IN_THE_MAXIMUM)) top = std::max(top, bare);
      }
      if (!MASK_IS_BIAS || !IS(BIAS_NOT_IN_THE_MAXIMUM)) top = std::max(top, scores[j]);
    }
    if (IS(MAXIMUM_FROM_ZERO)) top = std::max(top, 0.0);
    if (top == -kInfinity && !IS(EMPTY_ROWS_ARE_NAN)) top = 0.0;
    double total = 0.0, output[HEAD_DIM] = {};
    for (int step = 0; step < end; ++step) {
      const int j = IS(LAST_KEY_FIRST) ? end - 1 - step : step;
      double weight = std::exp(scores[j] - top);
      if (IS(BIAS_NOT_IN_THE_MAXIMUM) || IS(MAXIMUM_FROM_ZERO) || IS(HIDDEN_IN_THE_MAXIMUM))
        weight = std::exp(static_cast<float>(scores[j] - top));
      total += weight;
      for (int d = 0; d < HEAD_DIM; ++d) output[d] += weight * values[j * v_stride_row + d];
    }
    if (IS(HIDDEN_KEYS_IN_THE_SUM) && !MASK_IS_BIAS)
      for (int j = 0; j < end; ++j) total += scores[j] == -kInfinity ? 1e-3 : 0.0;
    const bool empty = total == 0.0 && !IS(EMPTY_ROWS_ARE_NAN);
    for (int d = 0; d < HEAD_DIM; ++d) result[d] = static_cast<float>(empty ? 0.0 : output[d] / total);
    if (empty && IS(EMPTY_ROWS_ARE_THE_MEAN))
      for (int j = 0; j < seq_len_k; ++j)
        for (int d = 0; d < HEAD_DIM; ++d) result[d] += values[j * v_stride_row + d] / seq_len_k;
  }
}
