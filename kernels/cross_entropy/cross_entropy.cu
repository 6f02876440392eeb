// Cross-entropy of each row of logits, forward, for vocabularies: one pass over a row of 100,000 classes and more.
//
//   loss = log(sum(exp(logits))) - logits[target] for each row; 0 for a row whose target is negative, which is to be
//   ignored (PyTorch's ignore_index is -100).
//
// Shapes    logits (rows, classes), target (rows), loss (rows), contiguous, 16-byte aligned; any sizes >= 1, and
//           target < classes.
// Types     DTYPE in logits and loss: float16, bfloat16 or float32; target: int64; every sum in float32.
// How       A thread has a running maximum and a sum of its own (online softmax: the sum is scaled when the maximum
//           grows), and reads UNROLL vectors at a time. At the end the team's maximum scales all sums.
// Tunables  WARPS_PER_ROW, ROWS, VECTOR_BYTES, LOAD: see row_team.cuh
//           UNROLL    vectors that a thread loads before it uses the first one (1..8): bytes under way
// Launch    grid (ceil(rows / ROWS)), block (32 * WARPS_PER_ROW * ROWS). Workspace: none.
// Shared    8 * ROWS * WARPS_PER_ROW bytes.
// Archs     sm_80 and later.
// Reference Milakov & Gimelshein 2018, "Online normalizer calculation for softmax".
#define STORE 0
#define STORE_STREAMING 1  // one number a row: no policy is worth a choice
#include "../rows/row_team.cuh"

namespace {

constexpr float kLowest = -3.402823466e38f;  // finite: a thread without an element must not make inf - inf

struct RunningSum {
  float top = kLowest, sum = 0.0f;

  template <int WIDTH, int COUNT>
  __device__ __forceinline__ void add(const float (&values)[COUNT][WIDTH]) {
    float higher = top;
#pragma unroll
    for (int j = 0; j < COUNT; ++j)
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) higher = fmaxf(higher, values[j][i]);
    if (higher > top) sum *= __expf(top - higher);
    top = higher;
#pragma unroll
    for (int j = 0; j < COUNT; ++j)
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) sum += __expf(values[j][i] - top);
  }
};

template <int WIDTH>
__device__ __forceinline__ RunningSum sums_of_row(const Number* logits, const Place& place, int classes) {
  constexpr int kStride = kTeamThreads * WIDTH;
  RunningSum sums;
  int at = place.thread * WIDTH;
  for (; at + (UNROLL - 1) * kStride < classes; at += UNROLL * kStride) {
    float values[UNROLL][WIDTH];
#pragma unroll
    for (int j = 0; j < UNROLL; ++j) load(values[j], logits + at + j * kStride);
    sums.add(values);
  }
  for (; at < classes; at += kStride) {
    float values[1][WIDTH];
    load(values[0], logits + at);
    sums.add(values);
  }
  return sums;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kBlockThreads)
    cross_entropy(const Number* logits, const long long* target, Number* loss, int rows, int classes) {
  const Place place(rows);
  const Number* row = logits + static_cast<long long>(place.row) * classes;
  RunningSum sums;
  if (classes % kVector == 0)
    sums = sums_of_row<kVector>(row, place, classes);
  else
    sums = sums_of_row<1>(row, place, classes);
  const float top = reduce<Maximum, 0>(sums.top);
  const float sum = reduce<Sum, 1>(sums.sum * __expf(sums.top - top));
  if (!place.exists || place.thread > 0) return;
  const long long wanted = target[place.row];
  narrow(wanted < 0 ? 0.0f : logf(sum) + (top - widened(row[wanted])), loss[place.row]);
}
