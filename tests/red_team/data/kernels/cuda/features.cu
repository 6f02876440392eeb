// Attention by rows with every feature as an argument: wrong in one of them, or right in an unusual way, as BEHAVIOUR
// says.
//
// Shapes      q (batch, heads, seq_len_q, HEAD_DIM); k, v (batch, kv_heads, seq_len_k, HEAD_DIM); out like q; lse (batch,
//             heads, seq_len_q) in float32; alibi_slopes and sinks (heads) in float32. Pointers of absent ones are null.
// Types, way  ragged_rows.cuh; a block for each row.
// Tunables    BEHAVIOUR. What each is to be caught by stands in tests/red_team/cuda_expected.py.
#include "ragged_rows.cuh"

namespace {

constexpr float kLog2E = 1.44269504f;

__device__ float capped(float score, float cap) {
  if (cap <= 0.0f || IS(NO_CAP)) return score;
  return cap * tanhf(score / cap);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(HEAD_DIM)
    attention_features(const Element* q, const Element* k, const Element* v, Element* out, const float* alibi_slopes,
                       const float* sinks, float* lse, float softmax_scale, float softcap, int window_left,
                       int window_right, int causal, int bottom_right, int heads, int kv_heads, int seq_len_q,
                       int seq_len_k) {
  const int number = blockIdx.x;
  const int row = number % seq_len_q, head = number / seq_len_q % heads, batch = number / seq_len_q / heads;
  const int group = heads / kv_heads;
  const int own = row + (bottom_right && !IS(TOP_LEFT) ? seq_len_k - seq_len_q : 0);
  int left = window_left, right = causal ? 0 : window_right;
  if (left >= 0) left += IS(LEFT_ONE_MORE) - (IS(LEFT_ONE_LESS) && left > 0);
  if (right >= 0 && !causal) right += IS(RIGHT_ONE_MORE);
  int first = left >= 0 ? max(0, own - left) : 0;
  if (IS(LEFT_BY_TILES)) first = first / 16 * 16;
  const int end = right >= 0 ? max(0, min(seq_len_k, own + right + 1)) : seq_len_k;

  const long long keys_at = (static_cast<long long>(batch) * kv_heads + head / group) * seq_len_k;
  const long long at = static_cast<long long>(number) * HEAD_DIM;
  const float slope = alibi_slopes ? alibi_slopes[IS(SLOPE_OF_THE_GROUP) ? head / group : head] : 0.0f;
  const auto score = [&](int key) {
    const float bare = product(q + at, k + (keys_at + key) * HEAD_DIM);
    const float away = slope * static_cast<float>(own < key ? key - own : own - key);
    if (IS(CAP_BEFORE_THE_SCALE)) return softmax_scale * capped(bare, softcap) - away;
    if (IS(CAP_AFTER_ALIBI)) return capped(softmax_scale * bare - away, softcap);
    return capped(softmax_scale * bare, softcap) - away;
  };
  const auto value = [&](int key, int column) { return widen(v[(keys_at + key) * HEAD_DIM + column]); };

  Part sink;
  if (sinks) {
    sink.top = sinks[IS(SINK_OF_THE_GROUP) ? head / group : head];
    sink.sum = IS(SINK_COUNTED_TWICE) ? 2.0f : 1.0f;
  }
  Part all = attend(first, end, score, value);
  const Part without = all;
  if (!IS(NO_SINK)) {
    if (IS(SINK_BEFORE_THE_KEYS)) {
      Part begun = sink;
      begun.add(all);
      all = begun;
    } else {
      all.add(sink);
    }
  }
  const bool empty = all.sum == 0.0f;
  out[at + threadIdx.x] = narrow(empty && !IS(EMPTY_ROWS_DIVIDED) ? 0.0f : all.output / all.sum);
  if (!lse || threadIdx.x != 0) return;
  float sum = all.top + logf(all.sum);
  if (IS(LSE_BY_BASE_2)) sum = (all.top * kLog2E + log2f(all.sum)) / kLog2E;
  if (IS(LSE_IN_BASE_2)) sum = all.top * kLog2E + log2f(all.sum);
  if (IS(LSE_WITHOUT_THE_SCALE)) sum = all.top / softmax_scale + logf(all.sum);
  if (IS(LSE_WITHOUT_THE_MAXIMUM)) sum = logf(all.sum);
  if (IS(LSE_WITHOUT_THE_SINK)) sum = without.top + logf(without.sum);
  if (empty) sum = IS(LSE_OF_NOTHING_IS_ZERO) ? 0.0f : -INFINITY;
  lse[number] = sum;
}
