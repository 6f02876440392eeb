// Attention by rows that takes strides, and takes them wrongly, or rightly in an unusual way, as BEHAVIOUR says.
//
// Shapes      q, out (batch, heads, seq_len_q, HEAD_DIM); k, v (batch, kv_heads, seq_len_k, HEAD_DIM), each with strides
//             of its own, in elements; rows are contiguous.
// Types       float32. A causal row sees the keys up to its own place.
// Tunables    BEHAVIOUR. What each is to be caught by stands in tests/red_team/test_strides.py.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

namespace {

struct Strides {
  long long batch, head, row;

  long long at(long long of_batch, long long of_head, long long of_row) const {
    if (IS(OFFSETS_OF_32_BITS)) {
      const unsigned low = static_cast<unsigned>(of_batch) * static_cast<unsigned>(batch) +
                           static_cast<unsigned>(of_head) * static_cast<unsigned>(head) +
                           static_cast<unsigned>(of_row) * static_cast<unsigned>(row);
      return static_cast<int>(low);
    }
    return of_batch * batch + of_head * head + of_row * row;
  }
};

// Row j of the keys and of the values is k + j * k_row, v + j * v_row.
void attend(const float* q, const float* k, long long k_row, const float* v, long long v_row, float* out, float scale,
            int keys) {
  std::vector<double> weights(keys);
  double top = -1e30, sum = 0.0, output[HEAD_DIM] = {};
  for (int j = 0; j < keys; ++j) {
    for (int d = 0; d < HEAD_DIM; ++d) weights[j] += static_cast<double>(q[d]) * k[j * k_row + d];
    weights[j] *= scale;
    if (IS(READS_THE_GAPS) && k_row > HEAD_DIM) weights[j] += 0.0 * k[j * k_row + HEAD_DIM];
    top = std::max(top, weights[j]);
  }
  for (int j = 0; j < keys; ++j) {
    weights[j] = std::exp(weights[j] - top);
    sum += weights[j];
    for (int d = 0; d < HEAD_DIM; ++d) output[d] += weights[j] * v[j * v_row + d];
  }
  for (int d = 0; d < HEAD_DIM; ++d) out[d] = static_cast<float>(output[d] / sum);
}

}  // namespace

extern "C" void attention(const float* q, float* k, const float* v, float* out, float softmax_scale, int batch,
                          int heads, int kv_heads, int seq_len_q, int seq_len_k, int causal,
                          long long q_stride_batch, long long q_stride_head, long long q_stride_row,
                          long long k_stride_batch, long long k_stride_head, long long k_stride_row,
                          long long v_stride_batch, long long v_stride_head, long long v_stride_row,
                          long long out_stride_batch, long long out_stride_head, long long out_stride_row) {
  Strides of_q{q_stride_batch, q_stride_head, q_stride_row}, of_k{k_stride_batch, k_stride_head, k_stride_row};
  Strides of_v{v_stride_batch, v_stride_head, v_stride_row}, of_out{out_stride_batch, out_stride_head, out_stride_row};
  const bool blhd = of_k.head == HEAD_DIM;
  if (IS(ROW_STRIDE_IGNORED)) of_k.row = HEAD_DIM;
  if (IS(ROW_STRIDE_OF_HEADS)) of_q.row = blhd ? 1LL * heads * HEAD_DIM : HEAD_DIM;
  if (IS(BATCH_STRIDE_FROM_SIZES)) of_q.batch = 1LL * heads * seq_len_q * HEAD_DIM;
  if (IS(HEAD_STRIDE_FROM_SIZES)) of_v.head = blhd ? HEAD_DIM : 1LL * seq_len_k * HEAD_DIM;
  if (IS(STRIDES_OF_K_FOR_V)) of_v = of_k;
  if (IS(ROW_STRIDE_OF_K_FOR_V)) of_v.row = of_k.row;
  if (IS(HEAD_STRIDE_OF_Q_FOR_K)) of_k.head = of_q.head;
  if (IS(STRIDES_OF_Q_FOR_OUT)) of_out = of_q;

  const int group = heads / kv_heads;
  std::vector<float> keys, values;
  for (long number = 0; number < 1L * batch * heads * seq_len_q; ++number) {
    const bool backwards = IS(LAST_ROW_FIRST);
    const long index = backwards ? 1L * batch * heads * seq_len_q - 1 - number : number;
    const long row = index % seq_len_q, head = index / seq_len_q % heads, of_batch = index / seq_len_q / heads;
    const long kv_head = head / group;
    const int seen = causal ? std::min<long>(seq_len_k, row + 1) : seq_len_k;
    const float* from = q + of_q.at(of_batch, head, row);
    float* to = out + of_out.at(of_batch, head, row);
    if (IS(OFFSETS_OF_32_BITS)) {
      std::vector<float> k_rows, v_rows;
      for (int j = 0; j < seen; ++j) {
        const float *key = k + of_k.at(of_batch, kv_head, j), *value = v + of_v.at(of_batch, kv_head, j);
        k_rows.insert(k_rows.end(), key, key + HEAD_DIM);
        v_rows.insert(v_rows.end(), value, value + HEAD_DIM);
      }
      attend(from, k_rows.data(), HEAD_DIM, v_rows.data(), HEAD_DIM, to, softmax_scale, seen);
      continue;
    }
    const float *k_first = k + of_k.at(of_batch, kv_head, 0), *v_first = v + of_v.at(of_batch, kv_head, 0);
    if (IS(COPIES_ROWS_FIRST)) {
      keys.resize(1L * seen * HEAD_DIM), values.resize(1L * seen * HEAD_DIM);
      for (int j = 0; j < seen; ++j) {
        std::memcpy(&keys[1L * j * HEAD_DIM], k_first + j * of_k.row, HEAD_DIM * sizeof(float));
        std::memcpy(&values[1L * j * HEAD_DIM], v_first + j * of_v.row, HEAD_DIM * sizeof(float));
      }
      attend(from, keys.data(), HEAD_DIM, values.data(), HEAD_DIM, to, softmax_scale, seen);
    } else {
      attend(from, k_first, of_k.row, v_first, of_v.row, to, softmax_scale, seen);
    }
    const long long gap = of_out.row - HEAD_DIM;
    if (IS(WRITES_A_WHOLE_PITCH) && of_out.head != HEAD_DIM && row + 1 < seq_len_q)
      for (int d = 0; d < gap; ++d) to[HEAD_DIM + d] = 0.0f;
    if (IS(WRITES_ONE_BEHIND) && of_out.head != HEAD_DIM && gap > 0 && row == 0) to[HEAD_DIM] = 1.0f;
    const bool padded = HEAD_DIM < of_k.head && of_k.head < of_k.row;  // heads side by side, with a gap between them
    if (IS(CLEARS_A_GAP_OF_K) && padded && kv_heads > 1 && index == 0) k[HEAD_DIM] = 0.0f;
  }
}
