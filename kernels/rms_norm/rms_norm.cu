// RMSNorm on a GPU: a team of warps for each row, read once where it fits in registers.
//
//   out = x / sqrt(mean(x * x) + eps) * weight for each row.
//
// Shapes    x, out (rows, columns), weight (columns), contiguous, 16-byte aligned; any sizes >= 1.
// Types     DTYPE in and out: float16, bfloat16 or float32; every sum in float32.
// Tunables  WARPS_PER_ROW, ROWS, VECTOR_BYTES, LOAD, STORE: see row_team.cuh
//           KEPT      vectors of a row that a thread keeps in registers as they were read (0..16). Columns beyond are
//                     read twice. A row is read twice as a whole unless each thread has KEPT vectors of it.
// Launch    grid (ceil(rows / ROWS)), block (32 * WARPS_PER_ROW * ROWS). Workspace: none.
// Shared    8 * ROWS * WARPS_PER_ROW bytes.
// Archs     sm_80 and later.
#include "../rows/row_team.cuh"

namespace {

// A row of at least KEEP vectors for each thread.
template <int WIDTH, int KEEP>
__device__ __forceinline__ void norm_of_row(const Number* x, const Number* weight, Number* out, const Place& place,
                                            float eps, int columns) {
  constexpr int kStride = kTeamThreads * WIDTH;
  const int first = place.thread * WIDTH;
  Vector<WIDTH> kept[KEEP > 0 ? KEEP : 1];
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < KEEP; ++j) kept[j] = load_vector_of<WIDTH>(x + first + j * kStride);
#pragma unroll
  for (int j = 0; j < KEEP; ++j) {
    float values[WIDTH];
    widen(values, kept[j]);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) sum += values[i] * values[i];
  }
  for (int at = first + KEEP * kStride; at < columns; at += kStride) {
    float values[WIDTH];
    load<WIDTH, true>(values, x + at);  // it is read again
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) sum += values[i] * values[i];
  }
  const float scale = rsqrtf(reduce<Sum, 0>(sum) / columns + eps);
  if (!place.exists) return;
  const auto put = [&](int at, const Vector<WIDTH>& vector) {
    float values[WIDTH], weights[WIDTH];
    widen(values, vector);
    load<WIDTH, true>(weights, weight + at);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) values[i] *= scale * weights[i];
    store(out + at, values);
  };
#pragma unroll
  for (int j = 0; j < KEEP; ++j) put(first + j * kStride, kept[j]);
  for (int at = first + KEEP * kStride; at < columns; at += kStride) put(at, load_vector_of<WIDTH>(x + at));
}

template <int WIDTH>
__device__ __forceinline__ void norm(const Number* x, const Number* weight, Number* out, const Place& place, float eps,
                                     int columns) {
  if (columns >= KEPT * kTeamThreads * WIDTH)
    norm_of_row<WIDTH, KEPT>(x, weight, out, place, eps, columns);
  else
    norm_of_row<WIDTH, 0>(x, weight, out, place, eps, columns);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kBlockThreads)
    rms_norm(const Number* x, const Number* weight, Number* out, float eps, int rows, int columns) {
  const Place place(rows);
  const long long row_at = static_cast<long long>(place.row) * columns;
  if (columns % kVector == 0)
    norm<kVector>(x + row_at, weight, out + row_at, place, eps, columns);
  else
    norm<1>(x + row_at, weight, out + row_at, place, eps, columns);
}
