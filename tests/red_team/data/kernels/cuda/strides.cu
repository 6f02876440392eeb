// Attention that takes strides, and takes them wrongly as BEHAVIOUR says.
//
// Shapes     q, out (batch, heads, seq_len_q, HEAD_DIM); k, v (batch, kv_heads, seq_len_k, HEAD_DIM), each with strides
//            of its own, in elements; rows are contiguous.
// Types      float16 or bfloat16, as DTYPE says. Causal: row i sees the keys up to i.
// Way        a block of HEAD_DIM threads for each row; thread i scores and weighs key i of a tile, then sums the tile for
//            its own column.
// Tunables   BEHAVIOUR. What each is to be caught by stands in tests/red_team/cuda_expected.py.
#include "instructions.cuh"

#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

namespace {

constexpr int kTile = HEAD_DIM;  // keys

struct Strides {
  long long batch, head, row;

  __device__ long long at(int of_batch, int of_head, int of_row) const {
    if (IS(OFFSETS_OF_32_BITS)) {
      const unsigned low = static_cast<unsigned>(of_batch) * static_cast<unsigned>(batch) +
                           static_cast<unsigned>(of_head) * static_cast<unsigned>(head) +
                           static_cast<unsigned>(of_row) * static_cast<unsigned>(row);
      return static_cast<int>(low);
    }
    return of_batch * batch + of_head * head + of_row * row;
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(HEAD_DIM)
    attention_forward(const Element* q, Element* k, const Element* v, Element* out, float softmax_scale, int batch,
                      int heads, int kv_heads, int seq_len_q, int seq_len_k, int causal, long long q_stride_batch,
                      long long q_stride_head, long long q_stride_row, long long k_stride_batch,
                      long long k_stride_head, long long k_stride_row, long long v_stride_batch,
                      long long v_stride_head, long long v_stride_row, long long out_stride_batch,
                      long long out_stride_head, long long out_stride_row) {
  Strides of_q{q_stride_batch, q_stride_head, q_stride_row}, of_k{k_stride_batch, k_stride_head, k_stride_row};
  Strides of_v{v_stride_batch, v_stride_head, v_stride_row}, of_out{out_stride_batch, out_stride_head, out_stride_row};
  const bool blhd = of_k.head == HEAD_DIM;
  if (IS(ROW_STRIDE_IGNORED)) of_k.row = HEAD_DIM;
  if (IS(BATCH_STRIDE_FROM_SIZES)) of_q.batch = static_cast<long long>(heads) * seq_len_q * HEAD_DIM;
  if (IS(HEAD_STRIDE_FROM_SIZES)) of_v.head = blhd ? HEAD_DIM : static_cast<long long>(seq_len_k) * HEAD_DIM;
  if (IS(STRIDES_OF_K_FOR_V)) of_v = of_k;
  if (IS(HEAD_STRIDE_OF_Q_FOR_K)) of_k.head = of_q.head;
  if (IS(STRIDES_OF_Q_FOR_OUT)) of_out = of_q;

  const int number = blockIdx.x;
  const int row = number % seq_len_q, head = number / seq_len_q % heads, of_batch = number / seq_len_q / heads;
  const int kv_head = head / (heads / kv_heads), column = threadIdx.x;
  const int seen = causal ? min(row + 1, seq_len_k) : seq_len_k;
  const Element* query = q + of_q.at(of_batch, head, row);
  __shared__ float scores[kTile], weights[kTile];
  float top = -INFINITY, sum = 0.0f, output = 0.0f;
  for (int tile = 0; tile < seen; tile += kTile) {
    const int count = min(kTile, seen - tile);
    float score = 0.0f;
    if (column < count) {
      const Element* key = k + of_k.at(of_batch, kv_head, tile + column);
      for (int i = 0; i < HEAD_DIM; ++i) score += widen(query[i]) * widen(key[i]);
    }
    score *= softmax_scale;
    __syncthreads();  // the tile before has been used by all
    scores[column] = score;
    __syncthreads();
    const float before = top;
    for (int j = 0; j < count; ++j) top = fmaxf(top, scores[j]);
    weights[column] = column < count ? expf(score - top) : 0.0f;
    __syncthreads();
    const float keep = expf(before - top);  // 0 for the first tile
    sum *= keep;
    output *= keep;
    for (int j = 0; j < count; ++j) {
      sum += weights[j];
      output += weights[j] * widen((v + of_v.at(of_batch, kv_head, tile + j))[column]);
    }
  }
  Element* to = out + of_out.at(of_batch, head, row);
  to[column] = narrow(output / sum);
  if (IS(WRITES_ONE_BEHIND) && of_out.head != HEAD_DIM && of_out.row > HEAD_DIM && row + column == 0) to[HEAD_DIM] = 0;
}
