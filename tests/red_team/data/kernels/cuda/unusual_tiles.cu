// Attention forward by tiles: with asynchronous copies into two buffers, or on tensor cores. All right.
//
// Shapes, types  row_attention.cuh, HEAD_DIM 64.
// Launch         blocks of kThreads threads; COPIED_AHEAD: one for kRows rows, TENSOR_CORES: a warp for kRows rows.
// Tunables       METHOD.
#include "tiled_attention.cuh"

#define BY(name) (METHOD == METHOD_##name)

namespace {

// The weights are rounded to Element before they meet the values, as tensor cores want them.
__device__ void attend_on_tensor_cores(ATTENTION_PARAMETERS) {
  const int row_tiles = (seq_len_q + kRows - 1) / kRows;
  const int tile = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
  if (tile >= batch * heads * row_tiles) return;
  const int head = tile / row_tiles, first_row = tile % row_tiles * kRows;
  const int kv_head = head / heads * kv_heads + head % heads / (heads / kv_heads);
  const Element* queries = q + static_cast<long long>(head) * seq_len_q * HEAD_DIM;
  const Element* keys = k + static_cast<long long>(kv_head) * seq_len_k * HEAD_DIM;
  const Element* values = v + static_cast<long long>(kv_head) * seq_len_k * HEAD_DIM;
  const int group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;  // see multiply_add
  const int own_rows[2] = {first_row + group, first_row + group + 8};
  const auto two = [](const Element* rows, int row, int count, int column) {
    const Element* from = rows + static_cast<long long>(row) * HEAD_DIM + column;
    return row < count ? pack(from[0], from[1]) : 0u;
  };
  unsigned query[HEAD_DIM / 16][4];
  for (int i = 0; i < HEAD_DIM / 16; ++i)
    for (int j = 0; j < 4; ++j) query[i][j] = two(queries, own_rows[j % 2], seq_len_q, i * 16 + pair + j / 2 * 8);

  float output[HEAD_DIM / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  const int last_seen = causal ? min(min(first_row + kRows, seq_len_q), seq_len_k) : seq_len_k;
  for (int first = 0; first < last_seen; first += 16) {
    float scores[2][4] = {};  // of 16 rows and twice 8 keys
    for (int n = 0; n < 2; ++n)
      for (int i = 0; i < HEAD_DIM / 16; ++i) {
        const int key = first + n * 8 + group;
        multiply_add(scores[n], query[i], two(keys, key, seq_len_k, i * 16 + pair),
                     two(keys, key, seq_len_k, i * 16 + pair + 8));
      }
    float highest[2] = {top[0], top[1]};
    for (int n = 0; n < 2; ++n)
      for (int i = 0; i < 4; ++i) {
        const int key = first + n * 8 + pair + i % 2;
        const bool is_seen = key < seq_len_k && (!causal || key <= own_rows[i / 2]);
        scores[n][i] = is_seen ? scores[n][i] * softmax_scale : -INFINITY;
        highest[i / 2] = fmaxf(highest[i / 2], scores[n][i]);
      }
    float keep[2];
    for (int i = 0; i < 2; ++i) {
      for (int step = 1; step < 4; step *= 2) highest[i] = fmaxf(highest[i], __shfl_xor_sync(~0u, highest[i], step));
      keep[i] = expf(top[i] - highest[i]);
      top[i] = highest[i];
      sum[i] *= keep[i];
    }
    unsigned weights[4];
    for (int n = 0; n < 2; ++n)
      for (int i = 0; i < 2; ++i) {
        const float low = expf(scores[n][2 * i] - top[i]), high = expf(scores[n][2 * i + 1] - top[i]);
        sum[i] += low + high;
        weights[n * 2 + i] = pack(narrow(low), narrow(high));
      }
    const auto column_pair = [&](int key, int column) {
      const Element low = key < seq_len_k ? values[static_cast<long long>(key) * HEAD_DIM + column] : Element{0};
      const Element high = key + 1 < seq_len_k ? values[static_cast<long long>(key + 1) * HEAD_DIM + column] : Element{0};
      return pack(low, high);
    };
    for (int i = 0; i < HEAD_DIM / 8; ++i) {
      for (int j = 0; j < 4; ++j) output[i][j] *= keep[j / 2];
      const int column = i * 8 + group;
      multiply_add(output[i], weights, column_pair(first + pair, column), column_pair(first + pair + 8, column));
    }
  }
  for (int i = 0; i < 2; ++i)
    for (int step = 1; step < 4; step *= 2) sum[i] += __shfl_xor_sync(~0u, sum[i], step);
  for (int i = 0; i < HEAD_DIM / 8; ++i)
    for (int j = 0; j < 4; ++j)
      if (own_rows[j / 2] < seq_len_q)
        out[(static_cast<long long>(head) * seq_len_q + own_rows[j / 2]) * HEAD_DIM + i * 8 + pair + j % 2] =
            narrow(output[i][j] / sum[j / 2]);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads) attention_forward(ATTENTION_PARAMETERS) {
  if (BY(TENSOR_CORES))
    attend_on_tensor_cores(ATTENTION_ARGUMENTS);
  else
    attend_by_tiles<RightSync>(ATTENTION_ARGUMENTS);
}
