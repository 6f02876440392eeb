// One row of attention on the CPU by online softmax, wherever its keys and values lie: for attention_varlen.cpp and
// attention_paged.cpp. 1_scalar.cpp explains it.
//
// Types  float32. HEAD_DIM, BLOCK_N, UNROLL and SCHEDULE are compiled in.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#if SCHEDULE == SCHEDULE_STATIC
#define OMP_SCHEDULE static
#elif SCHEDULE == SCHEDULE_DYNAMIC
#define OMP_SCHEDULE dynamic
#else
#define OMP_SCHEDULE guided
#endif

namespace {

static_assert(HEAD_DIM % UNROLL == 0, "the dot product has no remainder loop");

inline float dot(const float* a, const float* b) {
  float partial[UNROLL] = {};
  for (int d = 0; d < HEAD_DIM; d += UNROLL)
    for (int lane = 0; lane < UNROLL; ++lane) partial[lane] += a[d + lane] * b[d + lane];
  float sum = 0.0f;
  for (float part : partial) sum += part;
  return sum;
}

// `place(key)` is the offset of a key's row in k and in v. A row without keys becomes a row of zeros.
template <class Place>
void attend_row(const float* q, const float* k, const float* v, float* out, float softmax_scale, int keys,
                const Place& place) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  float scores[BLOCK_N];
  float output[HEAD_DIM] = {};
  float maximum = -infinity;
  double sum = 0.0;
  for (int first = 0; first < keys; first += BLOCK_N) {
    const int count = std::min(BLOCK_N, keys - first);
    float top = maximum;
    for (int j = 0; j < count; ++j) {
      scores[j] = softmax_scale * dot(q, k + place(first + j));
      top = std::max(top, scores[j]);
    }
    const float shift = top == -infinity ? 0.0f : top;
    const float alpha = std::exp(maximum - shift);
    sum *= alpha;
    float block[HEAD_DIM] = {};
    for (int j = 0; j < count; ++j) {
      const float weight = std::exp(scores[j] - shift);
      sum += weight;
      const float* value = v + place(first + j);
      for (int d = 0; d < HEAD_DIM; ++d) block[d] += weight * value[d];
    }
    for (int d = 0; d < HEAD_DIM; ++d) output[d] = output[d] * alpha + block[d];
    maximum = top;
  }
  const float scale = sum == 0.0 ? 0.0f : static_cast<float>(1.0 / sum);
  for (int d = 0; d < HEAD_DIM; ++d) out[d] = output[d] * scale;
}

}  // namespace
