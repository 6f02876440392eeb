// Attention by rows with every feature as an argument: wrong in one of them, or right in an unusual way, as BEHAVIOUR
// says.
//
// Shapes      q (batch, heads, seq_len_q, HEAD_DIM); k, v (batch, kv_heads, seq_len_k, HEAD_DIM or VALUE_DIM); out with
//             VALUE_DIM; lse (batch, heads, seq_len_q). Contiguous.
// Types       float32; sums in double. Pointers of absent tensors are null.
// Tunables    BEHAVIOUR. What each is to be caught by stands in tests/red_team/test_features.py.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Options {
  const float *slopes, *sinks;
  float scale, softcap;
  int left, right, causal, shift;
};

double changed(double score, const Options& o, int own, int key, double slope) {
  const int from = IS(DISTANCE_FROM_THE_TOP_LEFT) ? own - o.shift : own;
  const int away = IS(DISTANCE_HAS_A_SIGN) ? from - key : std::abs(from - key);
  const auto cap = [&](double x) {
    if (o.softcap <= 0.0f || IS(NO_CAP)) return x;
    if (IS(CAP_BY_CLAMPING)) return std::clamp<double>(x, -o.softcap, o.softcap);
    return o.softcap * std::tanh(x / o.softcap);
  };
  if (IS(CAP_BEFORE_THE_SCALE)) return o.scale * cap(score) - slope * away;
  if (IS(CAP_AFTER_ALIBI)) return cap(o.scale * score - slope * away);
  return cap(o.scale * score) - slope * away;
}

// The keys [first, end) that a row sees.
void sees(const Options& o, int own, int keys, int& first, int& end) {
  int left = o.left, right = o.causal ? 0 : o.right;
  if (left >= 0) left += IS(LEFT_ONE_MORE) - (IS(LEFT_ONE_LESS) && left > 0);
  if (right >= 0 && !o.causal) right += IS(RIGHT_ONE_MORE) - (IS(RIGHT_ONE_LESS) && right > 0);
  first = left >= 0 ? std::max(0, own - left) : 0;
  if (IS(LEFT_BY_TILES)) first = first / 16 * 16;
  end = right >= 0 ? std::min<long>(keys, 1L + own + right) : keys;
}

}  // namespace

extern "C" void attention(const float* q, const float* k, const float* v, float* out, const float* alibi_slopes,
                          const float* sinks, float* lse, float softmax_scale, float softcap, int window_left,
                          int window_right, int causal, int bottom_right, int batch, int heads, int kv_heads,
                          int seq_len_q, int seq_len_k) {
  int shift = bottom_right && !IS(TOP_LEFT) ? seq_len_k - seq_len_q : 0;
  if (bottom_right) shift += IS(BOTTOM_RIGHT_ONE_LATE) - IS(BOTTOM_RIGHT_ONE_EARLY);
  const Options o{alibi_slopes, sinks, softmax_scale, softcap, window_left, window_right, causal, shift};
  const int group = heads / kv_heads;
  const bool backwards = IS(LAST_KEY_FIRST);
  std::vector<double> scores(seq_len_k);
  for (long index = 0; index < 1L * batch * heads * seq_len_q; ++index) {
    const int row = index % seq_len_q, head = index / seq_len_q % heads, b = index / seq_len_q / heads;
    const long kv = static_cast<long>(b) * kv_heads + head / group;
    const int value_dim = IS(VALUES_OF_HEAD_DIM) ? HEAD_DIM : VALUE_DIM;
    const float *key_rows = k + kv * seq_len_k * HEAD_DIM, *values = v + kv * seq_len_k * value_dim;
    const int of_slope = IS(SLOPE_OF_THE_GROUP) ? head / group : IS(SLOPE_OF_THE_NEXT_HEAD) ? (head + 1) % heads : head;
    const double slope = o.slopes ? o.slopes[of_slope] : 0.0;
    const bool has_sink = o.sinks && !IS(NO_SINK);
    const double sink = has_sink ? o.sinks[IS(SINK_OF_THE_GROUP) ? head / group : head] : -kInfinity;
    int first, end;
    sees(o, row + shift, seq_len_k, first, end);

    double top = has_sink && !IS(SINK_NOT_IN_THE_MAXIMUM) ? sink : -kInfinity;
    for (int j = first; j < end; ++j) {
      double score = 0.0;
      for (int d = 0; d < HEAD_DIM; ++d) score += static_cast<double>(q[index * HEAD_DIM + d]) * key_rows[j * HEAD_DIM + d];
      scores[j] = changed(score, o, row + shift, j, slope);
      top = std::max(top, scores[j]);
    }
    if (IS(LARGE_OFFSET)) top += 3.0;  // any number near the maximum serves
    double total = 0.0, output[VALUE_DIM] = {};
    if (has_sink && !IS(SINK_AS_THE_LAST_KEY)) {
      const double weight = IS(SINK_NOT_IN_THE_MAXIMUM) ? static_cast<float>(std::exp(static_cast<float>(sink - top)))
                                                        : std::exp(sink - top);
      total += IS(SINK_COUNTED_TWICE) ? 2 * weight : weight;
    }
    for (int step = first; step < end; ++step) {
      const int j = backwards ? end - 1 - (step - first) : step;
      const double weight = IS(BASE_2) ? std::exp2((scores[j] - top) * 1.4426950408889634) : std::exp(scores[j] - top);
      total += weight;
      for (int d = 0; d < value_dim; ++d) output[d] += weight * values[static_cast<long>(j) * value_dim + d];
    }
    if (has_sink && IS(SINK_AS_THE_LAST_KEY)) total += std::exp(sink - top);
    const bool empty = total == 0.0 && !IS(EMPTY_ROWS_DIVIDED);
    for (int d = 0; d < VALUE_DIM; ++d) out[index * VALUE_DIM + d] = static_cast<float>(empty ? 0.0 : output[d] / total);
    if (IS(EMPTY_ROWS_KEPT) && empty) out[index * VALUE_DIM] = values[0];
    if (!lse || (IS(NO_LSE_OF_THE_LAST_ROW) && row == seq_len_q - 1 && row > 30)) continue;
    double sum = top + std::log(total);
    if (IS(LSE_IN_BASE_2)) sum = top * 1.4426950408889634 + std::log2(total);
    if (IS(LSE_WITHOUT_THE_MAXIMUM)) sum = std::log(total);
    if (IS(LSE_WITHOUT_THE_SCALE)) sum = top / softmax_scale + std::log(total);
    if (IS(LSE_WITHOUT_THE_SINK) && has_sink) sum = top + std::log(total - std::exp(sink - top));
    if (empty) sum = IS(LSE_OF_NOTHING_IS_ZERO) ? 0.0 : IS(LSE_OF_NOTHING_IS_LOW) ? -1e30 : -kInfinity;
    lse[index] = static_cast<float>(sum);
  }
}
