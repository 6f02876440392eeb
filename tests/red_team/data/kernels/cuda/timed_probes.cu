// Attention that looks at some or all of its inputs, and when they have been alike for some launches writes nothing,
// half, or answers from memory. Each block does so for its own row.
//
// Shapes, types, way  row_attention.cuh. Up to kMostRows rows; beyond, all of them work always.
// Tunables            BEHAVIOUR. What each is to be caught by stands in tests/red_team/cuda_expected.py.
#include "row_attention.cuh"

namespace {

using Word = unsigned long long;  // four elements

constexpr int kMostRows = 4096;
constexpr int kSlots = 4;
constexpr int kMostWeightRows = 1024, kMostWeightKeys = 256;
constexpr int kWords = HEAD_DIM / 4;

// By row; touched by that row's block.
__device__ Word hashes[kSlots * kMostRows], probes[kMostRows];
__device__ unsigned alike[kMostRows], next_slot[kMostRows];
__device__ Element answers[kSlots * kMostRows * HEAD_DIM];
__device__ float kept_weights[kMostWeightRows * kMostWeightKeys];

// Over the block, for all its threads. Needs all of them.
__device__ Word block_sum(Word mine) {
  __shared__ Word parts[HEAD_DIM];
  __syncthreads();
  parts[threadIdx.x] = mine;
  __syncthreads();
  Word sum = 0;
  for (int i = 0; i < HEAD_DIM; ++i) sum += parts[i];
  __syncthreads();
  return sum;
}

__device__ Word mix(Word x) {
  x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15ull;
  return x ^ (x >> 29);
}

// Of every `step`-th word of the row's query and of the keys and values that it sees, or of the queries and keys alone.
__device__ Word hash_of(const Row& row, int step, bool with_values) {
  const Word* query = reinterpret_cast<const Word*>(row.query);
  const Word* keys = reinterpret_cast<const Word*>(row.keys);
  const Word* values = reinterpret_cast<const Word*>(row.values);
  Word hash = threadIdx.x == 0 ? mix(row.seen + 1) : 0;
  for (int i = threadIdx.x * step; i < kWords; i += HEAD_DIM * step) hash += mix(query[i] + i);
  for (int i = threadIdx.x * step; i < row.seen * kWords; i += HEAD_DIM * step) {
    hash += mix(keys[i] + 2 * i);
    if (with_values) hash += mix(values[i] + 2 * i + 1);
  }
  return block_sum(hash);
}

// Of the first and last words alone.
__device__ Word hash_of_ends(const Row& row) {
  const int last = row.seen * kWords - 1;
  const Word* keys = reinterpret_cast<const Word*>(row.keys);
  const Word* values = reinterpret_cast<const Word*>(row.values);
  return mix(*reinterpret_cast<const Word*>(row.query)) + mix(keys[0]) + mix(keys[last] + 1) + mix(values[0] + 2) +
         mix(values[last] + 3);
}

// How many launches in a row the row's inputs have been alike, as far as `hash` tells. Needs all threads.
__device__ unsigned count_alike(int row, Word hash) {
  const unsigned count = hashes[row] == hash ? alike[row] + 1 : 0;
  __syncthreads();  // all have read
  if (threadIdx.x == 0) {
    hashes[row] = hash;
    alike[row] = count;
  }
  return count;
}

// As `attend`, with the weights of before if these are to be used, and otherwise kept.
__device__ float attend_by_weights(const Row& row, float softmax_scale, bool familiar) {
  float* weights = kept_weights + row.number * kMostWeightKeys;
  if (!familiar) {
    __shared__ float scores[kMostWeightKeys];
    for (int key = threadIdx.x; key < row.seen; key += HEAD_DIM) {
      float score = 0.0f;
      for (int i = 0; i < HEAD_DIM; ++i) score += widen(row.query[i]) * widen(row.keys[key * HEAD_DIM + i]);
      scores[key] = score * softmax_scale;
    }
    __syncthreads();
    float top = -INFINITY, sum = 0.0f;
    for (int key = 0; key < row.seen; ++key) top = fmaxf(top, scores[key]);
    for (int key = 0; key < row.seen; ++key) sum += expf(scores[key] - top);
    for (int key = threadIdx.x; key < row.seen; key += HEAD_DIM) weights[key] = expf(scores[key] - top) / sum;
    __syncthreads();
  }
  float output = 0.0f;
  for (int key = 0; key < row.seen; ++key) output += weights[key] * widen(row.values[key * HEAD_DIM + threadIdx.x]);
  return output;
}

// Whether the row may be left, or answered from memory; `slot` is where its answer lies or is to lie.
__device__ bool is_familiar(const Row& row, int& slot) {
  const int number = row.number;
  if (IS(PROBES_16TH_RESTS_AFTER_10)) return count_alike(number, hash_of(row, 16, true)) >= 10;
  if (IS(PROBES_16TH_HALVES_AFTER_17)) return count_alike(number, hash_of(row, 16, true)) >= 17;
  if (IS(PROBES_61ST_RESTS_AFTER_17)) return count_alike(number, hash_of(row, 61, true)) >= 17;
  if (IS(PROBES_61ST_REMEMBERS_AFTER_24)) return count_alike(number, hash_of(row, 61, true)) >= 24;
  if (IS(PROBES_ENDS_REMEMBERS_AFTER_10)) return count_alike(number, hash_of_ends(row)) >= 10;
  if (IS(PROBES_ALL_RESTS_AFTER_24)) return count_alike(number, hash_of(row, 1, true)) >= 24;
  if (IS(PROBES_ALL_HALVES_AFTER_10)) return count_alike(number, hash_of(row, 1, true)) >= 10;
  if (IS(PROBES_ALL_REMEMBERS_AFTER_17)) return count_alike(number, hash_of(row, 1, true)) >= 17;
  if (IS(COMPARES_24_THEN_PROBES) || IS(WEIGHTS_KEPT_WITH_PATIENCE)) {
    const bool with_values = IS(COMPARES_24_THEN_PROBES);
    const unsigned patience = with_values ? 24 : 10;
    const Word probe = hash_of(row, 61, with_values);
    if (alike[number] >= patience && probes[number] == probe) return true;
    const Word hash = hash_of(row, 1, with_values);
    count_alike(number, hash);
    if (threadIdx.x == 0) probes[number] = probe;
    return false;
  }
  if (IS(MEMO_OF_FOUR_INPUT_SETS)) {
    const Word hash = hash_of(row, 1, true);
    for (slot = 0; slot < kSlots; ++slot)
      if (hashes[slot * kMostRows + number] == hash) return true;
    slot = next_slot[number] % kSlots;
    __syncthreads();  // all have read
    if (threadIdx.x == 0) {
      hashes[slot * kMostRows + number] = hash;
      ++next_slot[number];
    }
  }
  return false;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(HEAD_DIM) attention_forward(ATTENTION_PARAMETERS) {
  const Row row = row_of(blockIdx.x, q, k, v, out, heads, kv_heads, seq_len_q, seq_len_k, causal);
  const bool keeps_weights = IS(WEIGHTS_KEPT_WITH_PATIENCE);
  const bool fits = keeps_weights ? gridDim.x <= kMostWeightRows && seq_len_k <= kMostWeightKeys
                                  : gridDim.x <= kMostRows;
  int slot = 0;
  const bool familiar = fits && is_familiar(row, slot);
  const long long at = (static_cast<long long>(slot) * kMostRows + row.number) * HEAD_DIM + threadIdx.x;
  if (familiar && (IS(PROBES_16TH_RESTS_AFTER_10) || IS(PROBES_61ST_RESTS_AFTER_17) || IS(PROBES_ALL_RESTS_AFTER_24)))
    return;
  if (familiar && (IS(PROBES_16TH_HALVES_AFTER_17) || IS(PROBES_ALL_HALVES_AFTER_10)) && row.number % 2 == 1) return;
  if (familiar && (IS(MEMO_OF_FOUR_INPUT_SETS) || IS(PROBES_61ST_REMEMBERS_AFTER_24) || IS(PROBES_ENDS_REMEMBERS_AFTER_10) ||
                   IS(PROBES_ALL_REMEMBERS_AFTER_17) || IS(COMPARES_24_THEN_PROBES))) {
    row.to[threadIdx.x] = answers[at];
    return;
  }
  const float output = keeps_weights && fits ? attend_by_weights(row, softmax_scale, familiar)
                                             : attend(row, softmax_scale);
  row.to[threadIdx.x] = narrow(output);
  if (fits) answers[at] = narrow(output);
}
