// Softmax over rows on a GPU: a team of warps for each row, read once where it fits in registers.
//
//   out = exp(x - max) / sum(exp(x - max)) for each row; NaN for a row of nothing but -inf, as in PyTorch.
//
// Shapes    x, out (rows, columns), contiguous, 16-byte aligned; any sizes >= 1.
// Types     DTYPE in and out: float16, bfloat16 or float32; every sum in float32.
// Tunables  WARPS_PER_ROW, ROWS, VECTOR_BYTES, LOAD, STORE: see row_team.cuh
//           KEPT      vectors of a row that a thread keeps in registers (0..16). Columns beyond are read twice: once
//                     for maximum and sum (online softmax: the sum is scaled whenever the maximum grows), once for the
//                     output.
// Launch    grid (ceil(rows / ROWS)), block (32 * WARPS_PER_ROW * ROWS). Workspace: none.
// Shared    8 * ROWS * WARPS_PER_ROW bytes.
// Archs     sm_80 and later.
// Reference Milakov & Gimelshein 2018, "Online normalizer calculation for softmax".
#include "../rows/row_team.cuh"

namespace {

constexpr float kLowest = -3.402823466e38f;  // finite: elements that are all -inf must not make inf - inf

template <int WIDTH>
__device__ __forceinline__ void softmax_of_row(const Number* x, Number* out, const Place& place, int columns) {
  constexpr int kStride = kTeamThreads * WIDTH;
  const int first = place.thread * WIDTH;
  const float nothing = __int_as_float(0xff800000);  // -inf, so that it adds nothing to a sum
  float kept[KEPT > 0 ? KEPT : 1][WIDTH], top = kLowest, sum = 0.0f, top_of_rest = kLowest;
#pragma unroll
  for (int j = 0; j < KEPT; ++j) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) kept[j][i] = nothing;
    if (first + j * kStride < columns) load(kept[j], x + first + j * kStride);
  }
#pragma unroll
  for (int j = 0; j < KEPT; ++j)
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) top = fmaxf(top, kept[j][i]);
  for (int at = first + KEPT * kStride; at < columns; at += kStride) {
    float values[WIDTH], higher = top_of_rest;
    load<WIDTH, true>(values, x + at);  // it is read again
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) higher = fmaxf(higher, values[i]);
    sum *= __expf(top_of_rest - higher);
    top_of_rest = higher;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) sum += __expf(values[i] - higher);
  }
  top = reduce<Maximum, 0>(fmaxf(top, top_of_rest));
  sum *= __expf(top_of_rest - top);
#pragma unroll
  for (int j = 0; j < KEPT; ++j)
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) sum += kept[j][i] = __expf(kept[j][i] - top);
  const float scale = 1.0f / reduce<Sum, 1>(sum);
  if (!place.exists) return;
#pragma unroll
  for (int j = 0; j < KEPT; ++j) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) kept[j][i] *= scale;
    if (first + j * kStride < columns) store(out + first + j * kStride, kept[j]);
  }
  for (int at = first + KEPT * kStride; at < columns; at += kStride) {
    float values[WIDTH];
    load(values, x + at);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) values[i] = __expf(values[i] - top) * scale;
    store(out + at, values);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kBlockThreads)
    softmax(const Number* x, Number* out, int rows, int columns) {
  const Place place(rows);
  const long long row_at = static_cast<long long>(place.row) * columns;
  if (columns % kVector == 0)
    softmax_of_row<kVector>(x + row_at, out + row_at, place, columns);
  else
    softmax_of_row<1>(x + row_at, out + row_at, place, columns);
}
