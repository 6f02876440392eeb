// Attention forward by tiles of kRows rows and kKeys keys, copied asynchronously into two buffers in turn.
//
// Shapes  as in row_attention.cuh, HEAD_DIM 64. Launch: batch * heads * ceil(seq_len_q / kRows) blocks of kThreads.
// Way     in each step the next tile of keys and that of values are on their way, while 8 threads a row score and weigh
//         the present one; then each thread sums a column of half the rows.
// Sync    says where the threads wait for copies and for each other, so that a kernel may leave one of these out.
#pragma once

#include "row_attention.cuh"

namespace {

constexpr int kRows = 16, kKeys = 32, kThreads = 128;
constexpr int kThreadsPerRow = kThreads / kRows, kKeysPerThread = kKeys / kThreadsPerRow;
constexpr int kRowsPerThread = kRows * HEAD_DIM / kThreads;
constexpr int kChunk = 8;  // elements of one copy
static_assert(HEAD_DIM == 64, "threads are dealt out for 64 columns");

struct RightSync {
  static __device__ void copies_of_this_step() { wait_for_copies<1>(); }  // the newest group is the next step's values
  static __device__ void before_weights_are_read() { __syncthreads(); }
  static __device__ void before_weights_are_overwritten() { __syncthreads(); }
  static __device__ void before_maxima_are_shared() { __syncwarp(); }
  static __device__ void close_an_empty_group() { close_copies(); }
};

struct Tiles {
  __align__(16) Element keys[2][kKeys][HEAD_DIM], values[2][kKeys][HEAD_DIM], queries[kRows][HEAD_DIM];
  float weights[kRows][kKeys + 1], keep[kRows], maxima[kRows][kThreadsPerRow], sums[kRows][kThreadsPerRow];
};

// One group: `present` rows of 64 elements; zeros behind them.
__device__ void copy_tile(Element (*to)[HEAD_DIM], const Element* from, int present) {
  for (int chunk = threadIdx.x; chunk < kKeys * HEAD_DIM / kChunk; chunk += kThreads) {
    const int row = chunk / (HEAD_DIM / kChunk), column = chunk % (HEAD_DIM / kChunk) * kChunk;
    if (row < present)
      copy_async(&to[row][column], from + row * HEAD_DIM + column);
    else
      for (int i = 0; i < kChunk; ++i) to[row][column + i] = 0;
  }
  close_copies();
}

template <class Sync>
__device__ void attend_by_tiles(ATTENTION_PARAMETERS) {
  __shared__ Tiles tiles;
  const int row_tiles = (seq_len_q + kRows - 1) / kRows;
  const int head = blockIdx.x / row_tiles, first_row = blockIdx.x % row_tiles * kRows;
  const int kv_head = head / heads * kv_heads + head % heads / (heads / kv_heads);
  const Element* queries = q + (static_cast<long long>(head) * seq_len_q + first_row) * HEAD_DIM;
  const Element* keys = k + static_cast<long long>(kv_head) * seq_len_k * HEAD_DIM;
  const Element* values = v + static_cast<long long>(kv_head) * seq_len_k * HEAD_DIM;
  const int rows = min(kRows, seq_len_q - first_row);
  const int last_seen = causal ? min(first_row + rows, seq_len_k) : seq_len_k;
  const int steps = (last_seen + kKeys - 1) / kKeys;

  // For scores: a row, and every eighth key. For outputs: a column of half the rows.
  const int row = threadIdx.x / kThreadsPerRow, lane = threadIdx.x % kThreadsPerRow;
  const int seen = causal ? min(first_row + row + 1, seq_len_k) : seq_len_k;
  const int column = threadIdx.x % HEAD_DIM, half = threadIdx.x / HEAD_DIM * kRowsPerThread;
  float top = -INFINITY, sum = 0.0f, output[kRowsPerThread] = {};

  const auto weigh_tile = [&](int step) {
    float scores[kKeysPerThread], highest = -INFINITY;
    for (int j = 0; j < kKeysPerThread; ++j) {
      const int key = lane + j * kThreadsPerRow;
      float score = 0.0f;
      for (int i = 0; i < HEAD_DIM; ++i) score += widen(tiles.queries[row][i]) * widen(tiles.keys[step % 2][key][i]);
      scores[j] = step * kKeys + key < seen ? score * softmax_scale : -INFINITY;
      highest = fmaxf(highest, scores[j]);
    }
    tiles.maxima[row][lane] = highest;
    Sync::before_maxima_are_shared();
    const float before = top;
    for (int i = 0; i < kThreadsPerRow; ++i) top = fmaxf(top, tiles.maxima[row][i]);
    const float keep = expf(before - top);  // 0 in the first step, where each row sees a key
    sum *= keep;
    for (int j = 0; j < kKeysPerThread; ++j) {
      const float weight = expf(scores[j] - top);
      tiles.weights[row][lane + j * kThreadsPerRow] = weight;
      sum += weight;
    }
    if (lane == 0) tiles.keep[row] = keep;
  };

  copy_tile(tiles.keys[0], keys, min(kKeys, seq_len_k));
  copy_tile(tiles.values[0], values, min(kKeys, seq_len_k));
  for (int i = threadIdx.x; i < kRows * HEAD_DIM; i += kThreads)
    tiles.queries[i / HEAD_DIM][i % HEAD_DIM] = i < rows * HEAD_DIM ? queries[i] : Element{0};
  wait_for_copies<1>();
  __syncthreads();
  weigh_tile(0);
  for (int step = 0; step < steps; ++step) {
    const int next = (step + 1) * kKeys;
    if (step + 1 < steps) {
      copy_tile(tiles.keys[(step + 1) % 2], keys + next * HEAD_DIM, min(kKeys, seq_len_k - next));
      copy_tile(tiles.values[(step + 1) % 2], values + next * HEAD_DIM, min(kKeys, seq_len_k - next));
    } else {
      Sync::close_an_empty_group();
    }
    Sync::copies_of_this_step();
    Sync::before_weights_are_read();
    for (int i = 0; i < kRowsPerThread; ++i) {
      output[i] *= tiles.keep[half + i];
      for (int j = 0; j < kKeys; ++j)
        output[i] += tiles.weights[half + i][j] * widen(tiles.values[step % 2][j][column]);
    }
    Sync::before_weights_are_overwritten();
    if (step + 1 < steps) weigh_tile(step + 1);
  }
  tiles.sums[row][lane] = sum;
  __syncthreads();
  for (int i = 0; i < kRowsPerThread; ++i) {
    float total = 0.0f;
    for (int j = 0; j < kThreadsPerRow; ++j) total += tiles.sums[half + i][j];
    if (half + i < rows)
      out[(static_cast<long long>(head) * seq_len_q + first_row + half + i) * HEAD_DIM + column] =
          narrow(output[i] / total);
  }
}

}  // namespace
