// Fused attention forward on the CPU, the first rung: plain loops and online softmax.
//
//   out = softmax(softmax_scale * q k^T) v, without ever holding a full row of scores, let alone the matrix.
//
// Shapes      q (batch, heads, seq_len_q, HEAD_DIM); k (batch, kv_heads, seq_len_k, HEAD_DIM); v and out the same with
//             VALUE_DIM, which is HEAD_DIM as a rule. Each has strides of its own, in elements: any that keep rows
//             contiguous. heads is a multiple of kv_heads: a group of heads shares one kv head. Any length >= 1.
//             CAUSAL: row i sees the keys j <= i (aligned to the top left corner, also when the lengths differ).
// Types       float32. HEAD_DIM and CAUSAL are compiled in, and so are features: parts/features.h, parts/mask.h.
// Archs       any. Workspace: none.
// Adds        nothing: the first rung. It explains the algorithm that all others share.
//
// Online softmax. Softmax needs the maximum m and the sum of a whole row before it can weigh the first value. Read the
// row in blocks instead, and correct: with the maximum so far m, the sum l = sum exp(s - m) and the output
// o = sum exp(s - m) v so far, a block that raises the maximum to m' makes all earlier terms too large by exp(m' - m).
// Multiply l and o by alpha = exp(m - m') and go on. At the end out = o / l. A row needs HEAD_DIM + 2 floats of state
// and BLOCK_N scores, whatever the sequence length is; the two products and the softmax share one pass over K and V.
//
// Tunables
//   BLOCK_N           keys per block (16..128): few make corrections frequent, many make long sums, which round more.
//   UNROLL            partial sums of a dot product (1, 2, 4, 8, 16; divides HEAD_DIM). C++ may not reorder float
//                     additions, so with 1 each waits for the one before; 8 and 16 are also whole vectors.
//   SCHEDULE, CHUNK   how OpenMP hands out rows (static, dynamic, guided), and how many at a time. Causal rows differ
//                     in length: static halves give one thread a quarter of the work.
//
// Reference   Milakov & Gimelshein 2018, "Online normalizer calculation for softmax".
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "parts/features.h"
#include "parts/mask.h"

namespace {

static_assert(HEAD_DIM % UNROLL == 0, "the dot product has no remainder loop");
constexpr float kInfinity = std::numeric_limits<float>::infinity();

float dot(const float* a, const float* b) {
  float partial[UNROLL] = {};
  for (int d = 0; d < HEAD_DIM; d += UNROLL)
    for (int lane = 0; lane < UNROLL; ++lane) partial[lane] += a[d + lane] * b[d + lane];
  float sum = 0.0f;
  for (float part : partial) sum += part;
  return sum;
}

// One row of queries: its place, and the keys [first, end) that it sees. They lie `k_row` and `v_row` elements apart.
// `mask`: in the row's batch.
struct Row {
  int head, row, own_key, first, end;
  std::ptrdiff_t k_row, v_row;
  MASK_MEMBER;

  template <class T>
  const T* mask_at(int key) const {
    return mask.template at<T>(head, row, key);
  }
};

float score(const float* q, const float* k, float softmax_scale, const Row& row, int key, const Features& features) {
  float s = softmax_scale * dot(q, k + key * row.k_row);
  if constexpr (HAS_SOFTCAP) s = features.softcap * std::tanh(s / features.softcap);
  if constexpr (ALIBI) s -= features.alibi_slopes[row.head] * static_cast<float>(std::abs(row.own_key - key));
  s = SCORE_MOD(s, row.head, row.row, key);
  if constexpr (MASK_IS_BIAS) return biased(s, *row.mask_at<float>(key));
  if constexpr (HAS_MASK) return *row.mask_at<std::uint8_t>(key) ? s : -kInfinity;
  return s;
}

// Returns the logarithm of the row's sum.
float attend_row(const float* q, const float* k, const float* v, float* out, float softmax_scale, const Row& row,
                 const Features& features) {
  float scores[BLOCK_N];
  float output[VALUE_DIM] = {};
  float maximum = -kInfinity;
  double sum = 0.0;  // in float, one large weight would swallow the thousands of small ones that are added after it
  if constexpr (SINKS) maximum = features.sinks[row.head], sum = 1.0;  // a key that comes first, and has no value

  for (int first = row.first; first < row.end; first += BLOCK_N) {
    const int count = std::min(BLOCK_N, row.end - first);
    if (HAS_MASK && !MASK_IS_BIAS && hides_all(row.mask_at<std::uint8_t>(first), count)) continue;
    float top = maximum;
    for (int j = 0; j < count; ++j) {
      scores[j] = score(q, k, softmax_scale, row, first + j, features);
      top = std::max(top, scores[j]);
    }
    const float shift = top == -kInfinity ? 0.0f : top;  // nothing but -inf so far: -inf - -inf would be NaN

    const float alpha = std::exp(maximum - shift);  // 0 at the first block
    sum *= alpha;
    float block[VALUE_DIM] = {};  // a sum of block sums rounds less than one long sum
    for (int j = 0; j < count; ++j) {
      const float weight = std::exp(scores[j] - shift);
      sum += weight;
      const float* value = v + (first + j) * row.v_row;
      for (int d = 0; d < VALUE_DIM; ++d) block[d] += weight * value[d];
    }
    for (int d = 0; d < VALUE_DIM; ++d) output[d] = output[d] * alpha + block[d];
    maximum = top;
  }
  // A row whose scores are all -inf becomes a row of zeros.
  const float scale = sum == 0.0 ? 0.0f : static_cast<float>(1.0 / sum);
  for (int d = 0; d < VALUE_DIM; ++d) out[d] = output[d] * scale;
  return sum == 0.0 ? -kInfinity : static_cast<float>(maximum + std::log(sum));
}

}  // namespace

#if SCHEDULE == SCHEDULE_STATIC
#define OMP_SCHEDULE static
#elif SCHEDULE == SCHEDULE_DYNAMIC
#define OMP_SCHEDULE dynamic
#else
#define OMP_SCHEDULE guided
#endif

extern "C" void attention_forward(const float* q, const float* k, const float* v, float* out, float softmax_scale,
                                  int batch, int heads, int kv_heads, int seq_len_q, int seq_len_k,
                                  long long q_stride_batch, long long q_stride_head, long long q_stride_row,
                                  long long k_stride_batch, long long k_stride_head, long long k_stride_row,
                                  long long v_stride_batch, long long v_stride_head, long long v_stride_row,
                                  long long out_stride_batch, long long out_stride_head,
                                  long long out_stride_row FEATURE_ARGUMENTS MASK_ARGUMENTS) {
  const int group = heads / kv_heads;
  const Features features FEATURES_GIVEN;
#pragma omp parallel for collapse(2) schedule(OMP_SCHEDULE, CHUNK)
  for (int head = 0; head < batch * heads; ++head) {  // over the batch too
    for (int row = 0; row < seq_len_q; ++row) {
      const int b = head / heads, h = head % heads, kv_head = h / group;
      const int own = Features::own_key(row, seq_len_q, seq_len_k);
      const int end = features.end_key(own, seq_len_k);
      const Row place{h, row, own, features.first_key(own), end, k_stride_row, v_stride_row
                      MASK_FROM(MASK_GIVEN.in_batch(b))};
      [[maybe_unused]] const float lse =
          attend_row(q + b * q_stride_batch + h * q_stride_head + row * q_stride_row,
                     k + b * k_stride_batch + kv_head * k_stride_head, v + b * v_stride_batch + kv_head * v_stride_head,
                     out + b * out_stride_batch + h * out_stride_head + row * out_stride_row, softmax_scale, place,
                     features);
      if constexpr (LSE) features.lse[static_cast<std::ptrdiff_t>(head) * seq_len_q + row] = lse;
    }
  }
}
