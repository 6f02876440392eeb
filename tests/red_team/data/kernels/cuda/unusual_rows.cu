// Attention forward in ways that a gate might take for wrong ones, a block of HEAD_DIM threads for each row. All right.
//
// Shapes, types  row_attention.cuh. Workspace: scratch (poisoned), HEAD_DIM floats for each row.
// Tunables       METHOD: how sums, maxima and exponentials are made, in which order, and how memory is read and written.
#include "row_attention.cuh"

#define BY(name) (METHOD == METHOD_##name)

namespace {

constexpr float kLog2E = 1.44269504f;
constexpr int kTableSteps = 64;

__shared__ float scores[kTile];
__device__ float table[kTableSteps];  // 2^(i / kTableSteps), the same whoever writes it
__device__ unsigned table_is_there;

// In which order the keys come.
__device__ int key_at(const Row& row, int i) {
  if (BY(REVERSED_KEYS)) return row.seen - 1 - i;
  const int evens = (row.seen + 1) / 2;
  if (BY(EVEN_KEYS_FIRST)) return i < evens ? 2 * i : 2 * (i - evens) + 1;
  return i;
}

__device__ float product(const Element* query, const Element* key, float softmax_scale) {
  float sum = 0.0f;
  if (BY(READ_ONLY_LOADS) || BY(EVICTED_FIRST) || BY(LOADS_OF_16_BYTES)) {
    for (int i = 0; i < HEAD_DIM; i += 8) {
      const uint4* from = reinterpret_cast<const uint4*>(key + i);
      const uint4 words = BY(READ_ONLY_LOADS) ? load_read_only(from) : BY(EVICTED_FIRST) ? load_evict_first(from) : *from;
      const unsigned pairs[4] = {words.x, words.y, words.z, words.w};
      for (int j = 0; j < 8; ++j) sum += widen(query[i + j]) * widen(static_cast<Element>(pairs[j / 2] >> (j % 2 * 16)));
    }
    return sum * softmax_scale;
  }
  if (BY(DOUBLE_PRECISION)) {
    double exact = 0.0;
    for (int i = 0; i < HEAD_DIM; ++i) exact += static_cast<double>(widen(query[i])) * widen(key[i]);
    return static_cast<float>(exact * softmax_scale);
  }
  if (BY(SCALED_QUERIES)) {
    for (int i = 0; i < HEAD_DIM; ++i) sum += widen(query[i]) * softmax_scale * widen(key[i]);
    return sum;
  }
  if (BY(PRODUCTS_BACKWARDS)) {
    for (int i = HEAD_DIM - 1; i >= 0; --i) sum += widen(query[i]) * widen(key[i]);
    return sum * softmax_scale;
  }
  for (int i = 0; i < HEAD_DIM; ++i) sum += widen(query[i]) * widen(key[i]);
  return sum * softmax_scale;
}

// `body(score, value)` for each key in turn, the value of the thread's own column. Needs all threads.
template <class Body>
__device__ void for_keys(const Row& row, float softmax_scale, Body body) {
  const int size = BY(TILES_OF_37) ? 37 : kTile;
  for (int tile = 0; tile < row.seen; tile += size) {
    const int count = min(size, row.seen - tile);
    float score = 0.0f;
    if (threadIdx.x < count)
      score = product(row.query, row.keys + key_at(row, tile + threadIdx.x) * HEAD_DIM, softmax_scale);
    __syncthreads();  // the tile before has been used by all
    scores[threadIdx.x] = score;
    __syncthreads();
    for (int j = 0; j < count; ++j)
      body(scores[j], widen(row.values[key_at(row, tile + j) * HEAD_DIM + threadIdx.x]));
  }
}

// 2^x by halves of x's fraction and a polynomial: two units in the last place.
__device__ float exp2_polynomial(float x) {
  x = fmaxf(x, -126.0f);
  const float whole = rintf(x), part = x - whole;
  float power = 1.53992930e-4f;
  power = power * part + 1.33980030e-3f;
  power = power * part + 9.61817730e-3f;
  power = power * part + 5.55035690e-2f;
  power = power * part + 2.40226510e-1f;
  power = power * part + 6.93147180e-1f;
  power = power * part + 1.0f;
  return __uint_as_float(__float_as_uint(power) + (static_cast<unsigned>(static_cast<int>(whole)) << 23));
}

// 2^x from the table, and two terms for what is left.
__device__ float exp2_by_table(float x) {
  x = fmaxf(x, -126.0f);
  const float steps = floorf(x * kTableSteps);
  const float left = (x - steps / kTableSteps) * 0.693147181f;
  const int at = static_cast<int>(steps);
  const int whole = at >= 0 ? at / kTableSteps : -((-at + kTableSteps - 1) / kTableSteps);
  const float power = table[at - whole * kTableSteps] * (1.0f + left * (1.0f + left * (0.5f + left / 6.0f)));
  return power * __uint_as_float(static_cast<unsigned>(whole + 127) << 23);
}

__device__ float power_of_e(float x) {
  if (BY(BASE_2)) return exp2f(x * kLog2E);
  if (BY(APPROXIMATE_EXP)) return exp2_approximate(x * kLog2E);
  if (BY(POLYNOMIAL_EXP)) return exp2_polynomial(x * kLog2E);
  if (BY(TABLE_OF_POWERS) || BY(TABLE_OF_THE_FIRST_LAUNCH)) return exp2_by_table(x * kLog2E);
  return expf(x);
}

struct State {
  float top = -INFINITY, sum = 0.0f, output = 0.0f;

  __device__ void take(float score, float value, float margin = 0.0f) {
    if (score > top + margin || top == -INFINITY) {
      const float highest = BY(ROUNDED_MAXIMUM) ? ceilf(score) : score;
      const float keep = power_of_e(top == -INFINITY ? -200.0f : top - highest);
      sum *= keep;
      output *= keep;
      top = highest;
    }
    const float weight = power_of_e(score - top);
    sum += weight;
    output += weight * value;
  }
};

__device__ float online(const Row& row, float softmax_scale) {
  State state;
  for_keys(row, softmax_scale, [&](float score, float value) { state.take(score, value); });
  return state.output / state.sum;
}

// The maximum grows only where weights would pass e^8 otherwise.
__device__ float with_lazy_rescale(const Row& row, float softmax_scale) {
  State state;
  for_keys(row, softmax_scale, [&](float score, float value) { state.take(score, value, 8.0f); });
  return state.output / state.sum;
}

// Keys in turn to one of four states, merged at the end.
__device__ float split_in_four(const Row& row, float softmax_scale) {
  State states[4];
  int turn = 0;
  for_keys(row, softmax_scale, [&](float score, float value) {
    for (int i = 0; i < 4; ++i)
      if (turn % 4 == i) states[i].take(score, value);
    ++turn;
  });
  float top = -INFINITY, sum = 0.0f, output = 0.0f;
  for (const State& state : states) top = fmaxf(top, state.top);
  for (const State& state : states) {
    const float keep = expf(state.top - top);
    sum += keep * state.sum;
    output += keep * state.output;
  }
  return output / sum;
}

__device__ float maximum_of(const Row& row, float softmax_scale) {
  float top = -INFINITY;
  for_keys(row, softmax_scale, [&](float score, float) { top = fmaxf(top, score); });
  return top;
}

// Two passes, and one float for each sum, from the first key to the last.
__device__ float in_order_sums(const Row& row, float softmax_scale) {
  const float top = maximum_of(row, softmax_scale);
  float sum = 0.0f, output = 0.0f;
  for_keys(row, softmax_scale, [&](float score, float value) {
    const float weight = expf(score - top);
    sum += weight;
    output += weight * value;
  });
  return output / sum;
}

__device__ float by_log_of_the_sum(const Row& row, float softmax_scale) {
  const float top = maximum_of(row, softmax_scale);
  float sum = 0.0f, output = 0.0f;
  for_keys(row, softmax_scale, [&](float score, float) { sum += expf(score - top); });
  const float log_sum = top + logf(sum);
  for_keys(row, softmax_scale, [&](float score, float value) { output += expf(score - log_sum) * value; });
  return output;
}

__device__ float normalised_first(const Row& row, float softmax_scale) {
  const float top = maximum_of(row, softmax_scale);
  float sum = 0.0f, output = 0.0f;
  for_keys(row, softmax_scale, [&](float score, float) { sum += expf(score - top); });
  const float inverse = 1.0f / sum;
  for_keys(row, softmax_scale, [&](float score, float value) { output += expf(score - top) * inverse * value; });
  return output;
}

// Each sum with what rounding took from it. The compiler must not reassociate, and does not without fast math.
__device__ float by_kahan_sums(const Row& row, float softmax_scale) {
  const float top = maximum_of(row, softmax_scale);
  float sums[2] = {}, lost[2] = {};
  for_keys(row, softmax_scale, [&](float score, float value) {
    const float weight = expf(score - top);
    const float terms[2] = {weight, weight * value};
    for (int i = 0; i < 2; ++i) {
      const float term = terms[i] - lost[i];
      const float next = sums[i] + term;
      lost[i] = (next - sums[i]) - term;
      sums[i] = next;
    }
  });
  return sums[1] / sums[0];
}

__device__ float in_double_precision(const Row& row, float softmax_scale) {
  const float top = maximum_of(row, softmax_scale);
  double sum = 0.0, output = 0.0;
  for_keys(row, softmax_scale, [&](float score, float value) {
    const double weight = exp(static_cast<double>(score) - top);
    sum += weight;
    output += weight * value;
  });
  return static_cast<float>(output / sum);
}

// Never a sum of products: the mean of what has been seen, moved by each key.
__device__ float by_running_mean(const Row& row, float softmax_scale) {
  const float top = maximum_of(row, softmax_scale);
  float sum = 0.0f, mean = 0.0f;
  for_keys(row, softmax_scale, [&](float score, float value) {
    const float weight = expf(score - top);
    sum += weight;
    if (weight > 0.0f) mean += weight / sum * (value - mean);
  });
  return mean;
}

__device__ float with_eight_sums(const Row& row, float softmax_scale) {
  const float top = maximum_of(row, softmax_scale);
  float sums[8] = {}, outputs[8] = {};
  int turn = 0;
  for_keys(row, softmax_scale, [&](float score, float value) {
    const float weight = expf(score - top);
    for (int i = 0; i < 8; ++i) {
      sums[i] += turn % 8 == i ? weight : 0.0f;
      outputs[i] += turn % 8 == i ? weight * value : 0.0f;
    }
    ++turn;
  });
  for (int step = 4; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) {
      sums[i] += sums[i + step];
      outputs[i] += outputs[i + step];
    }
  return outputs[0] / sums[0];
}

// The output lies in the workspace while it grows.
__device__ float accumulated_in_scratch(const Row& row, float softmax_scale, float* mine) {
  State state;
  *mine = 0.0f;
  for_keys(row, softmax_scale, [&](float score, float value) {
    state.output = *mine;
    state.take(score, value);
    *mine = state.output;
  });
  return *mine / state.sum;
}

__device__ float attend_by_method(const Row& row, float softmax_scale, float* mine) {
  if (BY(LAZY_RESCALE)) return with_lazy_rescale(row, softmax_scale);
  if (BY(SPLIT_IN_FOUR)) return split_in_four(row, softmax_scale);
  if (BY(IN_ORDER_SUMS)) return in_order_sums(row, softmax_scale);
  if (BY(LOG_OF_THE_SUM)) return by_log_of_the_sum(row, softmax_scale);
  if (BY(NORMALISED_FIRST)) return normalised_first(row, softmax_scale);
  if (BY(KAHAN_SUMS)) return by_kahan_sums(row, softmax_scale);
  if (BY(DOUBLE_PRECISION)) return in_double_precision(row, softmax_scale);
  if (BY(RUNNING_MEAN)) return by_running_mean(row, softmax_scale);
  if (BY(EIGHT_SUMS)) return with_eight_sums(row, softmax_scale);
  if (BY(ACCUMULATED_IN_SCRATCH)) return accumulated_in_scratch(row, softmax_scale, mine);
  return online(row, softmax_scale);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(HEAD_DIM) attention_forward(ATTENTION_PARAMETERS) {
  const int rows = gridDim.x;
  int number = blockIdx.x;
  if (BY(LAST_ROW_FIRST)) number = rows - 1 - number;
  if (BY(HEADS_IN_TURN)) number = number % (batch * heads) * seq_len_q + number / (batch * heads);
  if (BY(TABLE_OF_POWERS) || (BY(TABLE_OF_THE_FIRST_LAUNCH) && table_is_there == 0)) {
    for (int i = threadIdx.x; i < kTableSteps; i += HEAD_DIM) table[i] = exp2f(static_cast<float>(i) / kTableSteps);
    __threadfence();
    __syncthreads();  // the table is there, and all have asked
    if (threadIdx.x == 0) atomicExch(&table_is_there, 1u);
  }
  const Row row = row_of(number, q, k, v, out, heads, kv_heads, seq_len_q, seq_len_k, causal);
  Element* to = row.to + threadIdx.x;
  if (BY(WRITES_TWICE)) *to = narrow(1.0f);
  float* mine = reinterpret_cast<float*>(scratch) + static_cast<long long>(number) * HEAD_DIM + threadIdx.x;
  const Element result = narrow(attend_by_method(row, softmax_scale, mine));
  if (BY(STREAMING_STORES))
    store_streaming(to, result);
  else
    *to = result;
}
