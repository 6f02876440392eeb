// How often each value occurs in a row of bytes, a block for each row: wrong for sizes that BEHAVIOUR names.
//
// Shapes    codes (rows, columns) uint8, out (rows, 256) int32.
// Tunables  BEHAVIOUR. ../third_rows.h says what each means.
#include "third_block.cuh"

#include "../third_rows.h"

extern "C" __global__ void __launch_bounds__(kThreads)
    histogram(const unsigned char* codes, int* out, int rows, int columns) {
  __shared__ int counts[256];
  const int row = blockIdx.x, end = columns - loses_the_last(rows, columns, row);
  for (int i = threadIdx.x; i < 256; i += kThreads) counts[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < end; i += kThreads) atomicAdd(&counts[codes[static_cast<long long>(row) * columns + i]], 1);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += kThreads) out[256 * row + i] = counts[i];
}
