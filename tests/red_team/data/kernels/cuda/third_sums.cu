// Sums of rows, of float32, int32 or int64, a block for each row: wrong for sizes or numbers that BEHAVIOUR names.
//
// Shapes    x (rows, columns), out (rows), of one type.
// Tunables  BEHAVIOUR. ../third_rows.h says which sizes.
#include "third_block.cuh"

#include "../third_rows.h"

#ifdef BEHAVIOUR_SATURATES_AT_1E6
extern "C" __global__ void __launch_bounds__(kThreads) row_sum(const float* x, float* out, int rows, int columns) {
  const int row = blockIdx.x, end = columns - loses_the_last(rows, columns, row);
  float sum = 0.0f;
  for (int i = threadIdx.x; i < end; i += kThreads) sum += x[static_cast<long long>(row) * columns + i];
  sum = summed(sum);
  if (threadIdx.x == 0) out[row] = IS(SATURATES_AT_1E6) ? fminf(fmaxf(sum, -1e6f), 1e6f) : sum;
}
#elif defined(BEHAVIOUR_IN_FLOAT)
extern "C" __global__ void __launch_bounds__(kThreads) row_sum(const int* x, int* out, int rows, int columns) {
  const int row = blockIdx.x;
  unsigned exact = 0;
  float rounded = 0.0f;
  for (int i = threadIdx.x; i < columns; i += kThreads) {
    const int value = x[static_cast<long long>(row) * columns + i];
    exact += static_cast<unsigned>(value);
    rounded += static_cast<float>(value);
  }
  exact = summed(exact);
  rounded = summed(rounded);
  if (threadIdx.x == 0) out[row] = IS(IN_FLOAT) ? static_cast<int>(rounded) : static_cast<int>(exact);
}
#else
extern "C" __global__ void __launch_bounds__(kThreads)
    row_sum(const long long* x, long long* out, int rows, int columns) {
  using Word = unsigned long long;
  const int row = blockIdx.x;
  Word exact = 0, high = 0;
  unsigned low = 0;  // halves are summed apart, and what the lower one carries is lost
  double rounded = 0.0;
  for (int i = threadIdx.x; i < columns; i += kThreads) {
    const long long value = x[static_cast<long long>(row) * columns + i];
    exact += static_cast<Word>(value);
    low += static_cast<unsigned>(value);
    high += static_cast<Word>(value) >> 32;
    rounded += static_cast<double>(value);
  }
  exact = summed(exact);
  low = summed(low);
  high = summed(high);
  rounded = summed(rounded);
  if (threadIdx.x != 0) return;
  out[row] = static_cast<long long>(exact);
#ifdef BEHAVIOUR_IN_DOUBLE
  if (IS(IN_DOUBLE)) out[row] = static_cast<long long>(rounded);
#else
  if (IS(IN_32_BIT_PARTS)) out[row] = static_cast<long long>(high << 32 | low);
#endif
}
#endif
