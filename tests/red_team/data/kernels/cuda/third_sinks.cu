// Attention with sinks and logarithms of sums that leaves out a sink that lies far below a row's scores.
//
// Shapes      q, out (batch, heads, seq_len_q, HEAD_DIM); k, v (batch, kv_heads, seq_len_k, HEAD_DIM), contiguous;
//             sinks (heads) and lse (batch, heads, seq_len_q), float32.
// Types, way  ragged_rows.cuh, float32 as well; a block for each row. A causal row sees the keys up to its own place.
// Tunables    BEHAVIOUR: how far below, in units of e or of 2.
#include "ragged_rows.cuh"

extern "C" __global__ void __launch_bounds__(HEAD_DIM)
    attention(const Element* q, const Element* k, const Element* v, Element* out, const float* sinks, float* lse,
              float softmax_scale, int batch, int heads, int kv_heads, int seq_len_q, int seq_len_k, int causal) {
  const int number = blockIdx.x, position = number % seq_len_q, head = number / seq_len_q % heads;
  const long long kv_head = number / seq_len_q / heads * kv_heads + head / (heads / kv_heads);
  const long long at = static_cast<long long>(number) * HEAD_DIM, first = kv_head * seq_len_k * HEAD_DIM;
  const int seen = causal ? min(position + 1, seq_len_k) : seq_len_k;
  Part all = attend(
      0, seen, [&](int key) { return product(q + at, k + first + key * HEAD_DIM) * softmax_scale; },
      [&](int key, int column) { return widen(v[first + key * HEAD_DIM + column]); });
  const float below = all.top - sinks[head];
  const bool is_lost = (IS(SINK_LOST_9_BELOW) && below > 9.0f) || (IS(SINK_LOST_16_BITS_BELOW) && below > 11.0903549f);
  Part sink;
  sink.top = sinks[head];
  sink.sum = 1.0f;
  if (!is_lost) all.add(sink);
  out[at + threadIdx.x] = narrow(all.output / all.sum);
  if (threadIdx.x == 0) lse[number] = all.top + logf(all.sum);
}
