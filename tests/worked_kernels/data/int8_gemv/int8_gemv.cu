// sums[row] = weights[row, :] . x, out[row] = scales[row] * sums[row]; right, or wrong as BEHAVIOUR says.
//
// Layouts   weights (rows, columns), x (columns), contiguous. A warp takes a row, four bytes at a time (dp4a) where
//           rows begin at multiples of four bytes, and else byte by byte.
// Archs     sm_80 and later.
#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

extern "C" __global__ void int8_gemv(const signed char* weights, const signed char* x, const float* scales, float* out,
                                     int* sums, int rows, int columns) {
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  const signed char* own = weights + static_cast<long long>(row) * columns;
  const bool has_words = columns % 4 == 0 && !IS(BYTE_BY_BYTE);
  int sum = 0;
  if (has_words) {
    const int* words = reinterpret_cast<const int*>(own);
    const int* of_x = reinterpret_cast<const int*>(x);
    for (int i = lane; i < columns / 4; i += 32) {
      if (IS(UNSIGNED_WEIGHTS))
        for (int byte = 0; byte < 4; ++byte) sum += (words[i] >> 8 * byte & 255) * x[4 * i + byte];
      else
        sum = __dp4a(words[i], of_x[i], sum);
    }
  } else {
    const int end = IS(LOSES_THE_TAIL) && columns > 4 ? columns / 4 * 4 : columns;
    for (int i = lane; i < end; i += 32) sum += own[i] * x[i];
  }
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (lane) return;
  if (IS(SUMS_IN_HALF)) sum = static_cast<int>(rintf(sum / 64.0f)) * 64;
  if (!IS(NO_SUMS)) sums[row] = sum;
  out[row] = static_cast<float>(sum) * scales[IS(SCALE_OF_THE_FIRST) ? 0 : row];
}
