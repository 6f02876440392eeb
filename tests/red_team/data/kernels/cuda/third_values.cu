// Attention that is right on usual numbers, and wrong on large, low, hidden, equal or small ones: BEHAVIOUR says on which.
//
// Shapes, types  row_attention.cuh; float32 as well.
// Way            a block of HEAD_DIM threads for each row. First the maximum of all scores; then tiles of HEAD_DIM keys:
//                thread i weighs key i of the tile, then sums the tile for its own column of the output, in double.
// Tunables       BEHAVIOUR. ../third_values.h says what each means.
#include "row_attention.cuh"

#include "../third_values.h"

namespace {

constexpr int kPart = 2 * kTile;  // keys of a part, where keys are split

__device__ double weigh(float x) {
  if (drops(x)) return 0.0;
  if (is_garbage(x)) return 1.0;
  if (IS(NO_MAXIMUM_WITHIN_1000)) return exp(static_cast<double>(x));
  return expf(x);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(HEAD_DIM)
    attention(const Element* q, const Element* k, const Element* v, Element* out, float softmax_scale, int batch,
              int heads, int kv_heads, int seq_len_q, int seq_len_k, int causal) {
  __shared__ float highest[kTile];
  __shared__ double weights[kTile];
  __shared__ bool is_top[kTile];
  const Row row = row_of(blockIdx.x, q, k, v, out, heads, kv_heads, seq_len_q, seq_len_k, causal);
  const int column = threadIdx.x, keys = mask_by() > 0.0f ? seq_len_k : row.seen;
  const auto score = [&](int key) {
    float sum = 0.0f;
    for (int i = 0; i < HEAD_DIM; ++i)
      sum += widen(row.query[i]) * widen(row.keys[static_cast<long long>(key) * HEAD_DIM + i]);
    return score_of(sum * softmax_scale) - (key < row.seen ? 0.0f : mask_by());
  };

  float own = -INFINITY;
  for (int key = column; key < keys; key += kTile) own = fmaxf(own, score(key));
  highest[column] = own;
  __syncthreads();
  float top = first_maximum(-INFINITY);
  for (int j = 0; j < kTile; ++j) top = fmaxf(top, highest[j]);
  const float from = IS(NO_MAXIMUM_WITHIN_1000) && top > -1000.0f && top < 1000.0f ? 0.0f : top;

#ifdef BEHAVIOUR_PARTS_IN_HALF_PRECISION  // not in float16
  const bool splits = IS(PARTS_IN_HALF_PRECISION) && keys > kPart;
#else
  const bool splits = false;
#endif
  double sum = 0.0, output = 0.0, total = 0.0, merged = 0.0;
  bool met = false;  // the maximum, before
  for (int tile = 0; tile < keys; tile += kTile) {
    const int count = min(kTile, keys - tile);
    __syncthreads();  // the tile before has been used by all
    if (column < count) {
      const float mine = score(tile + column);
      weights[column] = weigh(mine - from);
      is_top[column] = mine == top;
    }
    __syncthreads();
    for (int j = 0; j < count; ++j) {
      const bool again = IS(EQUAL_MAXIMA_COUNT_ONCE) && is_top[j] && top != 0.0f && met;
      met = met || is_top[j];
      if (again) continue;
      sum += weights[j];
      output += weights[j] * value_of(widen(row.values[static_cast<long long>(tile + j) * HEAD_DIM + column]));
    }
    if (splits && ((tile + kTile) % kPart == 0 || tile + kTile >= keys)) {
      total += sum;
      if (sum > 0.0) merged += sum * half_rounded(static_cast<float>(output / sum));
      sum = output = 0.0;
    }
  }
  if (splits) sum = total, output = merged;
  row.to[column] = narrow(sum == 0.0 && first_maximum(0.0f) < 0.0f ? 0.0f : static_cast<float>(output / sum));
}
