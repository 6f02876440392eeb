// Residual addition, RMSNorm and quantisation to 8-bit floats in one pass: the input of an FP8 matrix product.
//
//   total = x + residual;  norm = total / sqrt(mean(total * total) + eps) * weight;
//   scale = max |norm| / 448;  out = norm / scale, for each row; total, out and scale are stored.
//
// Shapes    x, residual, total, out (rows, columns), weight (columns), scale (rows), contiguous, 16-byte aligned; any
//           sizes >= 1.
// Types     DTYPE in x, residual, weight and total: float16, bfloat16 or float32; out: e4m3; scale: float32. Every sum
//           in float32, `out` from totals before rounding.
// How       The root of the mean is a factor of the whole row, so it cancels in norm / scale: with product = total *
//           weight, out = 448 * product / max |product|. So both reductions are over what the first pass sees.
// Tunables  WARPS_PER_ROW, ROWS, VECTOR_BYTES, LOAD, STORE: see row_team.cuh
//           KEPT      vectors of products that a thread keeps in registers (0..16). Columns beyond are read twice.
// Launch    grid (ceil(rows / ROWS)), block (32 * WARPS_PER_ROW * ROWS). Workspace: none.
// Shared    8 * ROWS * WARPS_PER_ROW bytes.
// Archs     sm_89 and later: conversions to e4m3.
// Adds to add_rms_norm.cu: a maximum beside the sum, outputs of three types, each total stored as soon as it is known.
#include "../attention/parts/arithmetic.cuh"
#include "../rows/row_team.cuh"

#include "../rows/e4m3.cuh"

namespace {

constexpr int kKept = KEPT > 0 ? KEPT : 1;
constexpr float kLeastTop = 1e-10f;  // of a row's |norm|: a row of zeros has a scale, too

struct MaximumOrNan {
  static __device__ __forceinline__ float of(float a, float b) { return maximum_or_nan(a, b); }
};

struct Row {
  const Number *x, *residual, *weight;
  Number* total;
  E4m3* out;
};

// WIDTH totals at `at`, and their products with the weights.
template <int WIDTH, bool KEPT_IN_CACHE>
__device__ __forceinline__ void load_products(float (&total)[WIDTH], float (&product)[WIDTH], const Row& row, int at) {
  float residual[WIDTH], weight[WIDTH];
  load<WIDTH, KEPT_IN_CACHE>(total, row.x + at);
  load<WIDTH, KEPT_IN_CACHE>(residual, row.residual + at);
  load<WIDTH, true>(weight, row.weight + at);
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) {
    total[i] += residual[i];
    product[i] = total[i] * weight[i];
  }
}

template <int WIDTH>
__device__ __forceinline__ void store_e4m3(E4m3* to, const float (&values)[WIDTH], float factor) {
  union {
    typename WordOf<WIDTH>::Type word;
    unsigned short pairs[(WIDTH + 1) / 2];
  } bits;
#pragma unroll
  for (int i = 0; i < WIDTH; i += 2)
    bits.pairs[i / 2] = to_e4m3x2(values[i] * factor, i + 1 < WIDTH ? values[i + 1 < WIDTH ? i + 1 : i] * factor : 0.0f);
  auto* word = reinterpret_cast<decltype(bits.word)*>(to);
#if STORE == STORE_STREAMING
  __stcs(word, bits.word);
#else
  *word = bits.word;
#endif
}

template <int WIDTH>
__device__ __forceinline__ void norm_of_row(const Row& row, float* scale_of_row, const Place& place, float eps,
                                            int columns) {
  constexpr int kStride = kTeamThreads * WIDTH;
  const int first = place.thread * WIDTH, beyond = first + KEPT * kStride;
  float kept[kKept][WIDTH], sum = 0.0f, top = 0.0f;
  const auto take = [&](int at, const float(&total)[WIDTH], const float(&product)[WIDTH]) {
    if (place.exists) store(row.total + at, total);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
      sum += total[i] * total[i];
      top = maximum_or_nan(top, fabsf(product[i]));
    }
  };
#pragma unroll
  for (int j = 0; j < KEPT; ++j)
    if (first + j * kStride < columns) {
      float total[WIDTH];
      load_products<WIDTH, false>(total, kept[j], row, first + j * kStride);
      take(first + j * kStride, total, kept[j]);
    }
  for (int at = beyond; at < columns; at += kStride) {
    float total[WIDTH], product[WIDTH];
    load_products<WIDTH, true>(total, product, row, at);
    take(at, total, product);
  }
  const float of_norm = rsqrtf(reduce<Sum, 0>(sum) / columns + eps);
  const float scale = maximum_or_nan(of_norm * reduce<MaximumOrNan, 1>(top), kLeastTop) / kLargestE4m3;
  if (!place.exists) return;
  if (place.thread == 0) *scale_of_row = scale;
  const float factor = of_norm / scale;
#pragma unroll
  for (int j = 0; j < KEPT; ++j)
    if (first + j * kStride < columns) store_e4m3(row.out + first + j * kStride, kept[j], factor);
  for (int at = beyond; at < columns; at += kStride) {
    float total[WIDTH], product[WIDTH];
    load_products<WIDTH, false>(total, product, row, at);
    store_e4m3(row.out + at, product, factor);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kBlockThreads)
    add_rms_norm_fp8(const Number* x, const Number* residual, const Number* weight, Number* total, E4m3* out,
                     float* scale, float eps, int rows, int columns) {
  const Place place(rows);
  const long long at = static_cast<long long>(place.row) * columns;
  const Row row{x + at, residual + at, weight, total + at, out + at};
  if (columns % kVector == 0)
    norm_of_row<kVector>(row, scale + place.row, place, eps, columns);
  else
    norm_of_row<1>(row, scale + place.row, place, eps, columns);
}
