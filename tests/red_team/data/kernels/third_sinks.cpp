// Attention with sinks and logarithms of sums that leaves out a sink that lies far below a row's scores.
//
// Shapes    q, out (batch, heads, seq_len_q, HEAD_DIM); k, v (batch, kv_heads, seq_len_k, HEAD_DIM), contiguous;
//           sinks (heads); lse (batch, heads, seq_len_q).
// Types     float32. A causal row sees the keys up to its own place.
// Tunables  BEHAVIOUR: how far below, in units of e or of 2.
#include "attention_rows.h"

#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

using namespace red_team;

extern "C" void attention(float* q, float* k, float* v, float* out, const float* sinks, float* lse, float softmax_scale,
                          int batch, int heads, int kv_heads, int seq_len_q, int seq_len_k, int causal) {
  const Problem p{q, k, v, out, softmax_scale, batch, heads, kv_heads, seq_len_q, seq_len_k, causal};
  for (long index = 0; index < p.rows(); ++index) {
    const Row row = row_of(p, index);
    std::vector<double>& weights = scores_of(row);
    const double highest = *std::max_element(weights.begin(), weights.end()), sink = sinks[row.head];
    const double top = std::max(highest, sink);
    double sum = std::exp(sink - top), output[HEAD_DIM] = {};
    if (IS(SINK_LOST_9_BELOW) && sink < highest - 9) sum = 0;
    if (IS(SINK_LOST_16_BITS_BELOW) && sink < highest - 16 * std::log(2.0)) sum = 0;
    for (int j = 0; j < row.keys; ++j) {
      const double weight = std::exp(weights[j] - top);
      sum += weight;
      for (int d = 0; d < HEAD_DIM; ++d) output[d] += weight * row.v[1L * j * HEAD_DIM + d];
    }
    for (int d = 0; d < HEAD_DIM; ++d) row.out[d] = static_cast<float>(output[d] / sum);
    lse[index] = static_cast<float>(top + std::log(sum));
  }
}
