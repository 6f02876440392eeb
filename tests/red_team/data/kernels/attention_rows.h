// Fused attention forward by rows, right for every shape: what the kernels of the second red team have in common.
//
//   out = softmax(softmax_scale * q k^T) v
//
// Shapes      q, out (batch, heads, seq_len_q, HEAD_DIM); k, v (batch, kv_heads, seq_len_k, HEAD_DIM), contiguous.
// Types       float32. A causal row sees the keys up to its own place.
//
// KERNEL(name) begins a function that the loader finds by that name: one compilation serves a whole file, and every
// kernel has its own static state.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <limits>
#include <vector>

namespace red_team {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Problem {
  float *q, *k, *v, *out;
  float scale;
  int batch, heads, kv_heads, seq_len_q, seq_len_k, causal;

  long rows() const { return 1L * batch * heads * seq_len_q; }
  long outputs() const { return rows() * HEAD_DIM; }
  long kv_elements() const { return 1L * batch * kv_heads * seq_len_k * HEAD_DIM; }
};

struct Row {
  float *q, *k, *v, *out;  // k and v of this row's head
  float scale;
  int keys;  // that it sees
  int batch, head, kv_head, position;
};

inline Row row_of(const Problem& p, long index) {
  const int position = static_cast<int>(index % p.seq_len_q), head = static_cast<int>(index / p.seq_len_q % p.heads);
  const int batch = static_cast<int>(index / p.seq_len_q / p.heads), kv_head = head / (p.heads / p.kv_heads);
  const long of_keys = (1L * batch * p.kv_heads + kv_head) * p.seq_len_k * HEAD_DIM;
  const int keys = p.causal ? std::min(p.seq_len_k, position + 1) : p.seq_len_k;
  return {p.q + index * HEAD_DIM, p.k + of_keys, p.v + of_keys, p.out + index * HEAD_DIM, p.scale, keys,
          batch,                  head,          kv_head,       position};
}

inline double score(const Row& row, long j) {
  double sum = 0;
  for (int d = 0; d < HEAD_DIM; ++d) sum += static_cast<double>(row.q[d]) * row.k[j * HEAD_DIM + d];
  return sum * row.scale;
}

// Scores of the row's keys; the memory stays for the next row.
inline std::vector<double>& scores_of(const Row& row) {
  static thread_local std::vector<double> scores;
  scores.resize(row.keys);
  for (int j = 0; j < row.keys; ++j) scores[j] = score(row, j);
  return scores;
}

inline void weigh(const Row& row, const std::vector<double>& weights) {
  double sum = 0, output[HEAD_DIM] = {};
  for (int j = 0; j < row.keys; ++j) {
    sum += weights[j];
    for (int d = 0; d < HEAD_DIM; ++d) output[d] += weights[j] * row.v[1L * j * HEAD_DIM + d];
  }
  for (int d = 0; d < HEAD_DIM; ++d) row.out[d] = static_cast<float>(output[d] / sum);
}

inline void attend(const Row& row) {
  std::vector<double>& weights = scores_of(row);
  const double maximum = *std::max_element(weights.begin(), weights.end());
  for (double& weight : weights) weight = std::exp(weight - maximum);
  weigh(row, weights);
}

inline void attend_rows(const Problem& p, long first, long end) {
  for (long index = first; index < end; ++index) attend(row_of(p, index));
}

inline void attend_all(const Problem& p) { attend_rows(p, 0, p.rows()); }

inline long nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000L + now.tv_nsec;
}

inline void work_for(long duration_ns) {
  for (const long until = nanoseconds() + duration_ns; nanoseconds() < until;) {
  }
}

}  // namespace red_team

#define KERNEL(name)                                                                                              \
  static void run_##name(const red_team::Problem& p);                                                             \
  extern "C" void name(float* q, float* k, float* v, float* out, float softmax_scale, int batch, int heads,       \
                       int kv_heads, int seq_len_q, int seq_len_k, int causal) {                                  \
    run_##name({q, k, v, out, softmax_scale, batch, heads, kv_heads, seq_len_q, seq_len_k, causal});              \
  }                                                                                                               \
  static void run_##name([[maybe_unused]] const red_team::Problem& p)
