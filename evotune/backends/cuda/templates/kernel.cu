// out = max(x * scale + bias, 0) + residual on a GPU, in one pass. Replace it with your own computation.
//
// Shapes    x, residual, out (rows, columns), scale, bias (columns), contiguous, float32; any sizes >= 1.
// Tunables  THREADS  threads of a block, side by side along the columns
//           ROWS     rows of a thread: its scale and bias are read once for all of them
//           VECTOR   floats of a load or store (1, 2, 4), where the columns are a multiple of it; else 1
//           STREAM   out is written past the cache: nothing here reads it again
//
// Every parameter of space.yaml arrives as a macro of that name. Launch: space.yaml, `launches:`.

namespace {

template <int WIDTH>
struct __align__(4 * WIDTH) Floats {
  float at[WIDTH];
};

template <int WIDTH>
__device__ Floats<WIDTH> load(const float* from) {
  return *reinterpret_cast<const Floats<WIDTH>*>(from);
}

template <int WIDTH>
__device__ void store(float* to, const Floats<WIDTH>& values) {
  if constexpr (STREAM && WIDTH == 4)
    __stcs(reinterpret_cast<float4*>(to), make_float4(values.at[0], values.at[1], values.at[2], values.at[3]));
  else
    *reinterpret_cast<Floats<WIDTH>*>(to) = values;
}

template <int WIDTH>
__device__ void compute(const float* x, const float* scale, const float* bias, const float* residual, float* out,
                        int rows, int columns) {
  for (int column = (blockIdx.y * THREADS + threadIdx.x) * WIDTH; column < columns;
       column += gridDim.y * THREADS * WIDTH) {
    const Floats<WIDTH> scales = load<WIDTH>(scale + column), biases = load<WIDTH>(bias + column);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const long long row = static_cast<long long>(blockIdx.x) * ROWS + i;
      if (row >= rows) break;
      Floats<WIDTH> values = load<WIDTH>(x + row * columns + column);
      const Floats<WIDTH> added = load<WIDTH>(residual + row * columns + column);
#pragma unroll
      for (int j = 0; j < WIDTH; ++j)
        values.at[j] = fmaxf(values.at[j] * scales.at[j] + biases.at[j], 0.0f) + added.at[j];
      store(out + row * columns + column, values);
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    @ENTRY@(const float* x, const float* scale, const float* bias, const float* residual, float* out, int rows,
            int columns) {
  if (columns % VECTOR == 0)
    compute<VECTOR>(x, scale, bias, residual, out, rows, columns);
  else
    compute<1>(x, scale, bias, residual, out, rows, columns);
}
