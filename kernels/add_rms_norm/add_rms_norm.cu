// Residual addition and RMSNorm in one pass, as between the layers of a transformer.
//
//   total = x + residual;  out = total / sqrt(mean(total * total) + eps) * weight for each row; both are stored.
//
// Shapes    x, residual, total, out (rows, columns), weight (columns), contiguous, 16-byte aligned; any sizes >= 1.
// Types     DTYPE in and out: float16, bfloat16 or float32; every sum in float32, `out` from totals before rounding.
// Tunables  WARPS_PER_ROW, ROWS, VECTOR_BYTES, LOAD, STORE: see row_team.cuh
//           KEPT           vectors of totals that a thread keeps in registers (0..16). Columns beyond are read twice.
//           WEIGHTS_FIRST  the weights of kept columns are loaded before the sum, beside x, instead of after it
// Launch    grid (ceil(rows / ROWS)), block (32 * WARPS_PER_ROW * ROWS). Workspace: none.
// Shared    8 * ROWS * WARPS_PER_ROW bytes.
// Archs     sm_80 and later.
#include "../rows/row_team.cuh"

namespace {

constexpr int kKept = KEPT > 0 ? KEPT : 1;

struct Row {
  const Number *x, *residual, *weight;
  Number *total, *out;
};

template <int WIDTH, bool KEPT_IN_CACHE>
__device__ __forceinline__ void load_total(float (&to)[WIDTH], const Row& row, int at) {
  float other[WIDTH];
  load<WIDTH, KEPT_IN_CACHE>(to, row.x + at);
  load<WIDTH, KEPT_IN_CACHE>(other, row.residual + at);
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) to[i] += other[i];
}

template <int WIDTH>
__device__ __forceinline__ void norm_of_row(const Row& row, const Place& place, float eps, int columns) {
  constexpr int kStride = kTeamThreads * WIDTH;
  const int first = place.thread * WIDTH;
  float kept[kKept][WIDTH], weights[WEIGHTS_FIRST ? kKept : 1][WIDTH], sum = 0.0f;
#pragma unroll
  for (int j = 0; j < KEPT; ++j) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) kept[j][i] = 0.0f;
    if (first + j * kStride < columns) {
      load_total<WIDTH, false>(kept[j], row, first + j * kStride);
      if (WEIGHTS_FIRST) load<WIDTH, true>(weights[j * WEIGHTS_FIRST], row.weight + first + j * kStride);
    }
  }
#pragma unroll
  for (int j = 0; j < KEPT; ++j)
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) sum += kept[j][i] * kept[j][i];
  for (int at = first + KEPT * kStride; at < columns; at += kStride) {
    float values[WIDTH];
    load_total<WIDTH, true>(values, row, at);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) sum += values[i] * values[i];
  }
  const float scale = rsqrtf(reduce<Sum, 0>(sum) / columns + eps);
  if (!place.exists) return;
  const auto put = [&](int at, float(&values)[WIDTH], const float(&factors)[WIDTH]) {
    store(row.total + at, values);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) values[i] *= scale * factors[i];
    store(row.out + at, values);
  };
#pragma unroll
  for (int j = 0; j < KEPT; ++j)
    if (first + j * kStride < columns) {
      if (!WEIGHTS_FIRST) load<WIDTH, true>(weights[0], row.weight + first + j * kStride);
      put(first + j * kStride, kept[j], weights[j * WEIGHTS_FIRST]);
    }
  for (int at = first + KEPT * kStride; at < columns; at += kStride) {
    float values[WIDTH];
    load_total<WIDTH, false>(values, row, at);
    load<WIDTH, true>(weights[0], row.weight + at);
    put(at, values, weights[0]);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kBlockThreads)
    add_rms_norm(const Number* x, const Number* residual, const Number* weight, Number* total, Number* out, float eps,
                 int rows, int columns) {
  const Place place(rows);
  const long long row_at = static_cast<long long>(place.row) * columns;
  const Row row{x + row_at, residual + row_at, weight, total + row_at, out + row_at};
  if (columns % kVector == 0)
    norm_of_row<kVector>(row, place, eps, columns);
  else
    norm_of_row<1>(row, place, eps, columns);
}
