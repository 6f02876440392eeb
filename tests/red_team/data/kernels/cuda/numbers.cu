// Attention that is right on ordinary numbers: its maximum, mask, weights, sums or padding fail on others.
//
// Shapes, types  row_attention.cuh. Way: a block of HEAD_DIM threads for each row; tiles of HEAD_DIM keys and values
//                in shared memory, the last one padded.
// Tunables       BEHAVIOUR. What each is to be caught by stands in tests/red_team/cuda_expected.py.
#include "row_attention.cuh"

namespace {

constexpr int kPitch = HEAD_DIM + 2;  // no two keys of a warp in one bank

__device__ float weigh(float score, float top) {
  const float x = score - top;
  if (IS(DROPS_WEIGHTS_BELOW_E6) && x < -6.0f) return 0.0f;
  if (IS(DROPS_WEIGHTS_BELOW_E9) && x < -9.0f) return 0.0f;
  if (IS(DROPS_WEIGHTS_BELOW_E12) && x < -12.0f) return 0.0f;
  if (IS(CRUDE_EXP)) {  // (1 + x / 256)^256
    float power = fmaxf(1.0f + x / 256.0f, 0.0f);
    for (int i = 0; i < 8; ++i) power *= power;
    return power;
  }
  if (IS(NO_MAXIMUM_BUT_CLAMPED)) return expf(fminf(x, 80.0f));
  return expf(x);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(HEAD_DIM) attention_forward(ATTENTION_PARAMETERS) {
  __shared__ Element key_tile[kTile][kPitch], value_tile[kTile][kPitch];
  __shared__ float scores[kTile], weights[kTile];
  const Row row = row_of(blockIdx.x, q, k, v, out, heads, kv_heads, seq_len_q, seq_len_k, causal);
  const int column = threadIdx.x;
  if (IS(SOFTMAX_SCALE_IGNORED)) softmax_scale = 1.0f / sqrtf(HEAD_DIM);

  float top = -INFINITY, sum = 0.0f, output = 0.0f;
  if (IS(MAXIMUM_FROM_ZERO)) top = 0.0f;
  if (IS(MAXIMUM_FROM_FLT_MIN)) top = 1.175494351e-38f;
  for (int tile = 0; tile < row.seen; tile += kTile) {
    const int count = min(kTile, row.seen - tile);
    const int present = min(kTile, seq_len_k - tile);  // some of them may be hidden by the mask
    __syncthreads();                                   // the tile before has been used by all
    for (int i = 0; i < kTile; ++i) {
      const int at = (tile + i) * HEAD_DIM + column;
      key_tile[i][column] = i < present ? row.keys[at] : Element{0};
      if (i < present || IS(READS_VALUES_PAST_THE_END))
        value_tile[i][column] = row.values[at];
      else if (!IS(PADDING_LEFT_UNWRITTEN))
        value_tile[i][column] = 0;
    }
    __syncthreads();
    float score = 0.0f;
    for (int i = 0; i < HEAD_DIM; ++i) score += widen(row.query[i]) * widen(key_tile[column][i]);
    score *= softmax_scale;
    if (IS(ZERO_SCORE_IS_MASKED) && score == 0.0f) score = -INFINITY;
    if (column >= count) {
      score = -INFINITY;
      if (IS(MASK_OF_MINUS_100)) score = -100.0f;
      if (IS(MASK_OF_MINUS_30)) score = -30.0f;
    }
    scores[column] = score;
    __syncthreads();

    float highest = -INFINITY;
    for (int j = 0; j < kTile; ++j) highest = fmaxf(highest, scores[j]);
    if (IS(PADDING_IN_THE_MAXIMUM) && count < kTile) highest = fmaxf(highest, 0.0f);
    const float before = top;
    const bool is_first = tile == 0;
    if (!(IS(FIRST_TILES_MAXIMUM) && !is_first)) top = fmaxf(top, highest);
    if (IS(FIRST_SCORE_AS_MAXIMUM)) top = is_first ? scores[0] : before;
    if (IS(NO_MAXIMUM) || IS(NO_MAXIMUM_BUT_CLAMPED)) top = 0.0f;
    if (IS(NO_MAXIMUM_BELOW_60)) top = fmaxf(is_first ? 0.0f : before, highest > 60.0f ? highest : 0.0f);
    if (IS(DROPS_TILES_BELOW_E6) && highest < before - 6.0f) continue;
    if (IS(DROPS_TILES_BELOW_E9) && highest < before - 9.0f) continue;
    weights[column] = weigh(scores[column], top);
    __syncthreads();

    const float keep = expf(fminf(before - top, 0.0f));
    sum *= keep;
    output *= keep;
    for (int j = 0; j < kTile; ++j) {  // the padding, too: its weights are 0
      sum += weights[j];
      if (IS(HALF_SUM_OF_WEIGHTS)) sum = widen(narrow(sum));
      output += weights[j] * widen(value_tile[j][column]);
    }
  }
  float result = output / sum;
  if (IS(OUTPUTS_CLAMPED_AT_6)) result = fminf(fmaxf(result, -6.0f), 6.0f);
  row.to[column] = narrow(result);
}
