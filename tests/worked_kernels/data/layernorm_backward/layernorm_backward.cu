// dx, dweight and dbias of a layer norm from its inputs and statistics; right, or wrong as BEHAVIOUR says.
//
// Layouts   dout, x, dx (rows, columns), weight, dweight, dbias (columns), mean, rstd (rows), contiguous.
// Launch    gradient_of_x: a block for each row; gradients_of_columns: a thread for each column, which adds up its rows
//           in order, so that the result is the same each time.
// Archs     sm_80 and later.
#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

namespace {

__device__ float sum_of_block(float value) {
  __shared__ float parts[32];
  for (int step = 16; step; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  __syncthreads();  // the last sum has been read
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
  for (int warp = 0; warp < static_cast<int>(blockDim.x) / 32; ++warp) sum += parts[warp];
  return sum;
}

}  // namespace

extern "C" __global__ void gradient_of_x(const float* dout, const float* x, const float* weight, const float* mean,
                                         const float* rstd, float* dx, float* dweight, float* dbias, int rows,
                                         int columns) {
  const int row = blockIdx.x;
  const long long first = static_cast<long long>(row) * columns;
  float own = 0.0f, along = 0.0f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    const float norm = (x[first + i] - mean[row]) * rstd[row];
    const float scaled = IS(WEIGHT_LEFT_OUT) ? dout[first + i] : weight[i] * dout[first + i];
    own += scaled;
    along += scaled * norm;
  }
  own = sum_of_block(own) / columns;
  along = sum_of_block(along) / columns;
  if (IS(NO_MEAN_TERM)) own = 0.0f;
  if (IS(NO_NORM_TERM)) along = 0.0f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    const float norm = (x[first + i] - mean[row]) * rstd[row];
    const float scaled = IS(WEIGHT_LEFT_OUT) ? dout[first + i] : weight[i] * dout[first + i];
    dx[first + i] = (scaled - own - norm * along) * rstd[row];
  }
}

extern "C" __global__ void gradients_of_columns(const float* dout, const float* x, const float* weight,
                                                const float* mean, const float* rstd, float* dx, float* dweight,
                                                float* dbias, int rows, int columns) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  float of_weight = IS(ADDS_TO_WHAT_IS_THERE) ? dweight[column] : 0.0f, of_bias = 0.0f;
  for (int place = IS(LAST_ROW_ALONE) ? rows - 1 : 0; place < rows; ++place) {
    const int row = IS(BACKWARDS) ? rows - 1 - place : place;
    const long long at = static_cast<long long>(row) * columns + column;
    of_weight += dout[at] * (x[at] - mean[row]) * rstd[row];
    of_bias += dout[at];
  }
  dweight[column] = of_weight;
  dbias[column] = of_bias;
}
