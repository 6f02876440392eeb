// Fused attention forward, right every time, computed as each name says: ways that the gate must not refuse.
//
//   out = softmax(softmax_scale * q k^T) v
//
// Shapes      q, out (batch, heads, seq_len_q, HEAD_DIM); k, v (batch, kv_heads, seq_len_k, HEAD_DIM), contiguous.
// Types       float32. Archs: any. Workspace: transposed (as large as k, poisoned), tickets (zero_once).
// Tunables    none: methods are functions, all in one compilation.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#define METHODS(X) \
  X(online) X(reverse_keys) X(split_and_merge) X(strided_keys) X(tree_sums) X(two_passes) X(normalised_first) \
  X(lazy_rescale) X(rounded_maximum) X(exp2_folded) X(polynomial_exp) X(kahan_sums) X(double_precision) \
  X(running_mean) X(odd_tiles) X(writes_twice) X(accumulates_in_out) X(keeps_its_scratch) X(thread_per_stripe) \
  X(openmp_dynamic) X(tickets) X(last_row_first) X(transposed_keys) X(padded_copy)

#define IS(name) (method == Method::name)

namespace {

enum class Method {
#define ENUMERATOR(name) name,
  METHODS(ENUMERATOR)
#undef ENUMERATOR
};

Method method;  // of the present launch

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504088896341f;

struct Row {
  const float *q, *k, *v;  // k and v of this row's head
  float* out;
  float scale;
  int keys;  // that it sees

  float score(int j) const {
    float partial[8] = {};
    for (int d = 0; d < HEAD_DIM; ++d) partial[d % 8] += q[d] * k[j * HEAD_DIM + d];
    return scale * (((partial[0] + partial[1]) + (partial[2] + partial[3])) +
                    ((partial[4] + partial[5]) + (partial[6] + partial[7])));
  }
  float maximum() const {
    float top = -kInfinity;
    for (int j = 0; j < keys; ++j) top = std::max(top, score(j));
    return top;
  }
};

// Output and sum so far, relative to exp(top). In float, one large weight would swallow parts of all that are added to
// it one by one, and the result would be several times less exact than PyTorch's.
struct State {
  float top = -kInfinity;
  double sum = 0, output[HEAD_DIM] = {};

  void rescale(float higher) {
    if (higher <= top) return;
    const float factor = std::exp(top - higher);
    sum *= factor;
    for (double& value : output) value *= factor;
    top = higher;
  }
  void add(float weight, const float* value) {
    sum += weight;
    for (int d = 0; d < HEAD_DIM; ++d) output[d] += weight * value[d];
  }
  void merge(State other) {
    if (other.sum == 0) return;
    const float higher = std::max(top, other.top);
    rescale(higher), other.rescale(higher);
    sum += other.sum;
    for (int d = 0; d < HEAD_DIM; ++d) output[d] += other.output[d];
  }
  void store(float* out) const {
    for (int d = 0; d < HEAD_DIM; ++d) out[d] = static_cast<float>(output[d] / sum);
  }
};

// Keys first, first + step, ... below the end, by online softmax.
[[maybe_unused]] State online(const Row& row, int first, int end, int step) {
  State state;
  for (int j = first; j < end; j += step) {
    const float score = row.score(j);
    state.rescale(score);
    state.add(std::exp(score - state.top), row.v + j * HEAD_DIM);
  }
  return state;
}

// By halves, down to a few keys: sums as a tree.
[[maybe_unused]] State tree(const Row& row, int first, int end) {
  if (end - first <= 4) return online(row, first, end, 1);
  State state = tree(row, first, (first + end) / 2);
  state.merge(tree(row, (first + end) / 2, end));
  return state;
}

// 2^x by range reduction and a polynomial of degree 8 (Taylor in y = x ln 2, |y| <= 0.35: it is off by less than 1e-9).
[[maybe_unused]] float polynomial_exp2(float x) {
  if (x < -126.0f) return 0.0f;
  const float whole = std::nearbyint(x), y = (x - whole) * 0.693147180559945f;
  const float high = 1.0f / 120 + y * (1.0f / 720 + y * (1.0f / 5040 + y / 40320));
  const float p = 1 + y * (1 + y * (1.0f / 2 + y * (1.0f / 6 + y * (1.0f / 24 + y * high))));
  return std::ldexp(p, static_cast<int>(whole));
}

void attend(const Row& row) {
  if (IS(reverse_keys)) {
    State state;
    for (int j = row.keys - 1; j >= 0; --j) {
      const float score = row.score(j);
      state.rescale(score);
      state.add(std::exp(score - state.top), row.v + j * HEAD_DIM);
    }
    state.store(row.out);
  } else if (IS(split_and_merge)) {
    State state;
    for (int part = 0; part < 4; ++part)
      state.merge(online(row, row.keys * part / 4, row.keys * (part + 1) / 4, 1));
    state.store(row.out);
  } else if (IS(strided_keys)) {
    State state;
    for (int part = 0; part < 5; ++part) state.merge(online(row, part, row.keys, 5));
    state.store(row.out);
  } else if (IS(tree_sums)) {
    tree(row, 0, row.keys).store(row.out);
  } else if (IS(two_passes)) {
    State state;
    state.top = row.maximum();
    for (int j = 0; j < row.keys; ++j) state.add(std::exp(row.score(j) - state.top), row.v + j * HEAD_DIM);
    state.store(row.out);
  } else if (IS(normalised_first)) {
    // Three passes over the scores, each computed anew; the weights are normalised before they meet v.
    const float top = row.maximum();
    double sum = 0;
    for (int j = 0; j < row.keys; ++j) sum += std::exp(row.score(j) - top);
    double output[HEAD_DIM] = {};
    for (int j = 0; j < row.keys; ++j) {
      const auto weight = static_cast<float>(std::exp(row.score(j) - top) / sum);
      for (int d = 0; d < HEAD_DIM; ++d) output[d] += weight * row.v[j * HEAD_DIM + d];
    }
    std::copy(output, output + HEAD_DIM, row.out);
  } else if (IS(lazy_rescale)) {
    // The reference lags behind the maximum by up to 8: weights up to exp(8) are no harm.
    State state;
    for (int j = 0; j < row.keys; ++j) {
      const float score = row.score(j);
      if (score > state.top + 8) state.rescale(score);
      state.add(std::exp(score - state.top), row.v + j * HEAD_DIM);
    }
    state.store(row.out);
  } else if (IS(rounded_maximum)) {
    // Any reference near the maximum will do: here it is a whole number.
    State state;
    for (int j = 0; j < row.keys; ++j) {
      const float score = row.score(j);
      state.rescale(std::ceil(score));
      state.add(std::exp(score - state.top), row.v + j * HEAD_DIM);
    }
    state.store(row.out);
  } else if (IS(exp2_folded)) {
    State state;
    Row folded = row;
    folded.scale *= kLog2E;
    state.top = folded.maximum();
    for (int j = 0; j < row.keys; ++j) state.add(std::exp2(folded.score(j) - state.top), row.v + j * HEAD_DIM);
    state.store(row.out);
  } else if (IS(polynomial_exp)) {
    State state;
    state.top = row.maximum();
    for (int j = 0; j < row.keys; ++j)
      state.add(polynomial_exp2(kLog2E * (row.score(j) - state.top)), row.v + j * HEAD_DIM);
    state.store(row.out);
  } else if (IS(kahan_sums)) {
    const float top = row.maximum();
    float sums[HEAD_DIM + 1] = {}, lost[HEAD_DIM + 1] = {};
    for (int j = 0; j < row.keys; ++j) {
      const float weight = std::exp(row.score(j) - top);
      for (int d = 0; d <= HEAD_DIM; ++d) {
        const float term = (d < HEAD_DIM ? weight * row.v[j * HEAD_DIM + d] : weight) - lost[d], sum = sums[d] + term;
        lost[d] = (sum - sums[d]) - term;
        sums[d] = sum;
      }
    }
    for (int d = 0; d < HEAD_DIM; ++d) row.out[d] = sums[d] / sums[HEAD_DIM];
  } else if (IS(double_precision)) {
    std::vector<double> weights(row.keys);
    double top = -kInfinity, sum = 0;
    for (int j = 0; j < row.keys; ++j) {
      for (int d = 0; d < HEAD_DIM; ++d) weights[j] += static_cast<double>(row.q[d]) * row.k[j * HEAD_DIM + d];
      top = std::max(top, weights[j] *= row.scale);
    }
    for (double& weight : weights) sum += weight = std::exp(weight - top);
    for (int d = 0; d < HEAD_DIM; ++d) {
      double value = 0;
      for (int j = 0; j < row.keys; ++j) value += weights[j] * row.v[j * HEAD_DIM + d];
      row.out[d] = static_cast<float>(value / sum);
    }
  } else if (IS(running_mean)) {
    // The output is a weighted mean after every key: out += (weight / sum) (v - out).
    const float top = row.maximum();
    double sum = 0, mean[HEAD_DIM] = {};
    for (int j = 0; j < row.keys; ++j) {
      const double weight = std::exp(row.score(j) - top);
      if (weight == 0) continue;
      sum += weight;
      for (int d = 0; d < HEAD_DIM; ++d) mean[d] += weight / sum * (row.v[j * HEAD_DIM + d] - mean[d]);
    }
    for (int d = 0; d < HEAD_DIM; ++d) row.out[d] = static_cast<float>(mean[d]);
  } else if (IS(odd_tiles)) {
    // Tiles of 7 keys, the last one filled up with scores of minus infinity.
    State state;
    for (int first = 0; first < row.keys; first += 7) {
      float scores[7], top = state.top;
      for (int j = 0; j < 7; ++j) {
        scores[j] = first + j < row.keys ? row.score(first + j) : -kInfinity;
        top = std::max(top, scores[j]);
      }
      state.rescale(top);
      for (int j = 0; j < 7; ++j)
        state.add(std::exp(scores[j] - top), row.v + std::min(first + j, row.keys - 1) * HEAD_DIM);
    }
    state.store(row.out);
  } else if (IS(writes_twice)) {
    for (int d = 0; d < HEAD_DIM; ++d) row.out[d] = -1e30f;
    const State state = online(row, 0, row.keys, 1);
    state.store(row.out);
    state.store(row.out);
  } else if (IS(accumulates_in_out)) {
    // The output itself holds the unnormalised sums of blocks of 16 keys, once it is cleared.
    const float top = row.maximum();
    double sum = 0;
    std::fill(row.out, row.out + HEAD_DIM, 0.0f);
    for (int first = 0; first < row.keys; first += 16) {
      float block[HEAD_DIM] = {};
      for (int j = first; j < std::min(first + 16, row.keys); ++j) {
        const float weight = std::exp(row.score(j) - top);
        sum += weight;
        for (int d = 0; d < HEAD_DIM; ++d) block[d] += weight * row.v[j * HEAD_DIM + d];
      }
      for (int d = 0; d < HEAD_DIM; ++d) row.out[d] += block[d];
    }
    for (int d = 0; d < HEAD_DIM; ++d) row.out[d] = static_cast<float>(row.out[d] / sum);
  } else if (IS(keeps_its_scratch)) {
    // Memory that stays allocated between launches, its contents unused.
    static thread_local std::vector<float> weights;
    weights.resize(std::max<std::size_t>(weights.size(), row.keys));
    const float top = row.maximum();
    for (int j = 0; j < row.keys; ++j) weights[j] = std::exp(row.score(j) - top);
    State state;
    for (int j = 0; j < row.keys; ++j) state.add(weights[j], row.v + j * HEAD_DIM);
    state.store(row.out);
  } else {
    online(row, 0, row.keys, 1).store(row.out);
  }
}

void forward(const float* q, const float* k, const float* v, float* out, float* transposed, int* tickets,
             float softmax_scale, int batch, int heads, int kv_heads, int seq_len_q, int seq_len_k, int causal) {
  (void)transposed, (void)tickets;
  const int rows = batch * heads * seq_len_q;
  const auto row_of = [=](int row) {
    const int head = row / seq_len_q;
    const long of_keys = (head / heads * kv_heads + head % heads / (heads / kv_heads)) * 1L * seq_len_k * HEAD_DIM;
    const int keys = causal ? std::min(seq_len_k, row % seq_len_q + 1) : seq_len_k;
    return Row{q + row * 1L * HEAD_DIM, k + of_keys, v + of_keys, out + row * 1L * HEAD_DIM, softmax_scale, keys};
  };
  if (IS(thread_per_stripe)) {
    // Threads made for this launch, more than there are cores, each with every sixth row.
    std::vector<std::thread> threads;
    for (int first = 0; first < 6; ++first)
      threads.emplace_back([=] { for (int row = first; row < rows; row += 6) attend(row_of(row)); });
    for (std::thread& thread : threads) thread.join();
  } else if (IS(openmp_dynamic)) {
#pragma omp parallel for schedule(dynamic, 3)
    for (int row = 0; row < rows; ++row) attend(row_of(row));
  } else if (IS(tickets)) {
    // Threads draw rows from a counter in the workspace; the last to leave sets it back to zero.
    auto* next = reinterpret_cast<std::atomic<int>*>(tickets);
    const auto draw = [=] { for (int row; (row = (*next)++) < rows;) attend(row_of(row)); };
    std::thread other(draw);
    draw();
    other.join();
    *next = 0;
  } else if (IS(last_row_first)) {
    for (int row = rows - 1; row >= 0; --row) attend(row_of(row));
  } else if (IS(transposed_keys)) {
    // k transposed per head into the workspace; scores of a row come column by column of the head.
    std::vector<float> scores(seq_len_k);
    for (int head = 0; head < batch * kv_heads; ++head)
      for (int j = 0; j < seq_len_k; ++j)
        for (int d = 0; d < HEAD_DIM; ++d) {
          const long base = head * 1L * seq_len_k * HEAD_DIM;
          transposed[base + d * 1L * seq_len_k + j] = k[base + j * 1L * HEAD_DIM + d];
        }
    for (int index = 0; index < rows; ++index) {
      const Row row = row_of(index);
      const float* columns = transposed + (row.k - k);
      std::fill(scores.begin(), scores.end(), 0.0f);
      for (int d = 0; d < HEAD_DIM; ++d)
        for (int j = 0; j < row.keys; ++j) scores[j] += row.q[d] * row.scale * columns[d * 1L * seq_len_k + j];
      State state;
      state.top = *std::max_element(scores.begin(), scores.begin() + row.keys);
      for (int j = 0; j < row.keys; ++j) state.add(std::exp(scores[j] - state.top), row.v + j * HEAD_DIM);
      state.store(row.out);
    }
  } else if (IS(padded_copy)) {
    // k and v copied into rows of HEAD_DIM + 5 floats, zero behind: no two rows in the same place of the cache.
    const int stride = HEAD_DIM + 5;
    std::vector<float> wide(2L * batch * kv_heads * seq_len_k * stride);
    float* wide_v = wide.data() + wide.size() / 2;
    for (long line = 0; line < 1L * batch * kv_heads * seq_len_k; ++line) {
      std::memcpy(wide.data() + line * stride, k + line * HEAD_DIM, HEAD_DIM * sizeof(float));
      std::memcpy(wide_v + line * stride, v + line * HEAD_DIM, HEAD_DIM * sizeof(float));
    }
    for (int index = 0; index < rows; ++index) {
      const Row row = row_of(index);
      const long line = (row.k - k) / HEAD_DIM;
      State state;
      for (int j = 0; j < row.keys; ++j) {
        float score = 0;
        for (int d = 0; d < HEAD_DIM; ++d) score += row.q[d] * wide[(line + j) * stride + d];
        state.rescale(score * row.scale);
        state.add(std::exp(score * row.scale - state.top), wide_v + (line + j) * stride);
      }
      state.store(row.out);
    }
  } else {
    for (int row = 0; row < rows; ++row) attend(row_of(row));
  }
}

}  // namespace

#define ENTRY(name)                                                                                                    \
  extern "C" void method_##name(const float* q, const float* k, const float* v, float* out, float* transposed,        \
                                int* tickets, float softmax_scale, int batch, int heads, int kv_heads, int seq_len_q, \
                                int seq_len_k, int causal) {                                                          \
    method = Method::name;                                                                                             \
    forward(q, k, v, out, transposed, tickets, softmax_scale, batch, heads, kv_heads, seq_len_q, seq_len_k, causal);  \
  }
METHODS(ENTRY)
