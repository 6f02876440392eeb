// Attention that is right, with sums, exponentials and masks made in unusual ways: each kernel's name says how.
//
// Shapes, types, arguments as in attention_rows.h. Most sums are in float, in whatever order the name says.
#include "attention_rows.h"

using namespace red_team;

namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504088896341f;

float dot(const float* q, const float* k) {  // in order
  float sum = 0;
  for (int d = 0; d < HEAD_DIM; ++d) sum += q[d] * k[d];
  return sum;
}

float in_order(const Row& row, int j) { return dot(row.q, row.k + 1L * j * HEAD_DIM) * row.scale; }

std::vector<float>& float_scores(const Row& row) {
  static thread_local std::vector<float> scores;
  scores.resize(row.keys);
  for (int j = 0; j < row.keys; ++j) scores[j] = in_order(row, j);
  return scores;
}

float largest(const std::vector<float>& scores) { return *std::max_element(scores.begin(), scores.end()); }

// Sum and output so far, in float, relative to exp(top).
struct State {
  float top = kNone, sum = 0, output[HEAD_DIM] = {};

  void rescale(float higher) {
    const float factor = std::exp(top - higher);
    sum *= factor;
    for (float& value : output) value *= factor;
    top = higher;
  }
  void add(float weight, const float* value) {
    sum += weight;
    for (int d = 0; d < HEAD_DIM; ++d) output[d] += weight * value[d];
  }
  void add(const State& other) {
    sum += other.sum;
    for (int d = 0; d < HEAD_DIM; ++d) output[d] += other.output[d];
  }
  void merge(State other) {
    if (other.top == kNone) return;
    const float higher = std::max(top, other.top);
    if (top != kNone) rescale(higher);
    top = higher;
    other.rescale(higher);
    add(other);
  }
  void store(float* out) const {
    for (int d = 0; d < HEAD_DIM; ++d) out[d] = output[d] / sum;
  }
};

const float* value_of(const Row& row, long j) { return row.v + j * HEAD_DIM; }

template <class Function>
void each_row(const Problem& p, Function function) {
  for (long index = 0; index < p.rows(); ++index) function(row_of(p, index));
}

// A whole row with scores and their maximum known: weights by `weight`, added in order.
template <class Weight>
void weighted(const Row& row, const std::vector<float>& scores, Weight weight) {
  State state;
  for (int j = 0; j < row.keys; ++j) state.add(weight(scores[j]), value_of(row, j));
  state.store(row.out);
}

State online(const Row& row, int first, int end) {
  State state;
  for (int j = first; j < end; ++j) {
    const float score = in_order(row, j);
    if (score > state.top) state.rescale(score);
    state.add(std::exp(score - state.top), value_of(row, j));
  }
  return state;
}

// Keys first to end, relative to `top`, by halves.
State pairwise(const Row& row, const std::vector<float>& scores, float top, int first, int end) {
  State state;
  if (end - first <= 8) {
    for (int j = first; j < end; ++j) state.add(std::exp(scores[j] - top), value_of(row, j));
    return state;
  }
  state = pairwise(row, scores, top, first, (first + end) / 2);
  state.add(pairwise(row, scores, top, (first + end) / 2, end));
  return state;
}

// e^x for x <= 0: 2^(i / 64) from a table that the first call makes, times a polynomial for the rest.
float exp_by_table(float x) {
  static const auto table = [] {
    std::vector<float> made(64);
    for (int i = 0; i < 64; ++i) made[i] = static_cast<float>(std::exp2(i / 64.0));
    return made;
  }();
  if (x < -87.0f) return 0.0f;
  const double steps = std::floor(x * 92.332482616893657);
  const auto rest = static_cast<float>(x - steps * 0.010830424696249145);
  const int whole = static_cast<int>(steps);
  const float near = 1 + rest * (1 + rest * (0.5f + rest * (1.0f / 6)));
  return std::ldexp(table[whole & 63] * near, whole >> 6);
}

// e^x for x <= 0 by a rational function of x / 2^n, squared n times: in double, as squaring doubles the error.
float exp_by_squaring(float x) {
  const double part = std::max(x, -100.0f) / 256.0;
  double result = (12 + 6 * part + part * part) / (12 - 6 * part + part * part);
  for (int turn = 0; turn < 8; ++turn) result *= result;
  return static_cast<float>(result);
}

// The highest 8 bits of the mantissa.
float head(float value) {
  std::uint32_t word;
  std::memcpy(&word, &value, 4);
  word &= 0xffff0000u;
  std::memcpy(&value, &word, 4);
  return value;
}

}  // namespace

// ---- the order of sums ----

KERNEL(in_order_online) {
  each_row(p, [](const Row& row) { online(row, 0, row.keys).store(row.out); });
}
KERNEL(in_order_two_passes) {
  each_row(p, [](const Row& row) {
    const auto& scores = float_scores(row);
    weighted(row, scores, [top = largest(scores)](float score) { return std::exp(score - top); });
  });
}
KERNEL(reversed_dot_products) {
  each_row(p, [](const Row& row) {
    auto& scores = float_scores(row);
    for (int j = 0; j < row.keys; ++j) {
      float sum = 0;
      for (int d = HEAD_DIM - 1; d >= 0; --d) sum += row.q[d] * row.k[1L * j * HEAD_DIM + d];
      scores[j] = sum * row.scale;
    }
    weighted(row, scores, [top = largest(scores)](float score) { return std::exp(score - top); });
  });
}
KERNEL(scaled_queries) {  // in float, before the product
  each_row(p, [](const Row& row) {
    float q[HEAD_DIM];
    for (int d = 0; d < HEAD_DIM; ++d) q[d] = row.q[d] * row.scale;
    auto& scores = float_scores(row);
    for (int j = 0; j < row.keys; ++j) scores[j] = dot(q, row.k + 1L * j * HEAD_DIM);
    weighted(row, scores, [top = largest(scores)](float score) { return std::exp(score - top); });
  });
}
KERNEL(pairwise_sums) {
  each_row(p, [](const Row& row) {
    const auto& scores = float_scores(row);
    pairwise(row, scores, largest(scores), 0, row.keys).store(row.out);
  });
}
KERNEL(blocks_in_order) {  // of 32 keys, each summed in order, then added in order
  each_row(p, [](const Row& row) {
    State state;
    for (int first = 0; first < row.keys; first += 32) state.merge(online(row, first, std::min(row.keys, first + 32)));
    state.store(row.out);
  });
}
KERNEL(two_keys_at_a_time) {
  each_row(p, [](const Row& row) {
    State even, odd;
    const auto& scores = float_scores(row);
    even.top = odd.top = largest(scores);
    for (int j = 0; j < row.keys; ++j) (j % 2 ? odd : even).add(std::exp(scores[j] - even.top), value_of(row, j));
    even.add(odd);
    even.store(row.out);
  });
}
KERNEL(small_weights_first) {
  each_row(p, [](const Row& row) {
    const auto& scores = float_scores(row);
    std::vector<int> order(row.keys);
    for (int j = 0; j < row.keys; ++j) order[j] = j;
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return scores[a] < scores[b]; });
    State state;
    state.top = largest(scores);
    for (const int j : order) state.add(std::exp(scores[j] - state.top), value_of(row, j));
    state.store(row.out);
  });
}
KERNEL(split_in_4_and_merged_as_a_tree) {
  each_row(p, [](const Row& row) {
    State parts[4];
    for (int part = 0; part < 4; ++part)
      parts[part] = online(row, row.keys * part / 4, row.keys * (part + 1) / 4);
    parts[0].merge(parts[1]), parts[2].merge(parts[3]);
    parts[0].merge(parts[2]);
    parts[0].store(row.out);
  });
}
KERNEL(split_and_merged_by_logarithms) {  // finished parts, weighed by exp(lse - the largest lse)
  each_row(p, [](const Row& row) {
    float lse[3], part_out[3][HEAD_DIM], most = kNone, total = 0, output[HEAD_DIM] = {};
    for (int part = 0; part < 3; ++part) {
      const State state = online(row, row.keys * part / 3, row.keys * (part + 1) / 3);
      const bool empty = state.top == kNone;
      lse[part] = empty ? kNone : state.top + std::log(state.sum);
      if (empty) std::fill(part_out[part], part_out[part] + HEAD_DIM, 0.0f);
      else state.store(part_out[part]);
      most = std::max(most, lse[part]);
    }
    for (int part = 0; part < 3; ++part) {
      const float weight = std::exp(lse[part] - most);
      total += weight;
      for (int d = 0; d < HEAD_DIM; ++d) output[d] += weight * part_out[part][d];
    }
    for (int d = 0; d < HEAD_DIM; ++d) row.out[d] = output[d] / total;
  });
}

// ---- exponentials and what they are relative to ----

KERNEL(minus_logsumexp) {  // weights are exp(score - lse): no division
  each_row(p, [](const Row& row) {
    const auto& scores = float_scores(row);
    const float top = largest(scores);
    float sum = 0, output[HEAD_DIM] = {};
    for (const float score : scores) sum += std::exp(score - top);
    const float lse = top + std::log(sum);
    for (int j = 0; j < row.keys; ++j)
      for (int d = 0; d < HEAD_DIM; ++d) output[d] += std::exp(scores[j] - lse) * value_of(row, j)[d];
    std::copy(output, output + HEAD_DIM, row.out);
  });
}
KERNEL(lazy_rescale_by_8_bits) {  // the reference lags behind by up to a factor of 256, in float
  each_row(p, [](const Row& row) {
    State state;
    for (int j = 0; j < row.keys; ++j) {
      const float score = in_order(row, j);
      if (score > state.top + 5.5f) state.rescale(score);
      state.add(std::exp(score - state.top), value_of(row, j));
    }
    state.store(row.out);
  });
}
KERNEL(lazy_rescale_by_tiles) {
  each_row(p, [](const Row& row) {
    const auto& scores = float_scores(row);
    State state;
    for (int first = 0; first < row.keys; first += 16) {
      const int end = std::min(row.keys, first + 16);
      const float top = *std::max_element(scores.begin() + first, scores.begin() + end);
      if (top > state.top + 4) state.rescale(top);
      for (int j = first; j < end; ++j) state.add(std::exp(scores[j] - state.top), value_of(row, j));
    }
    state.store(row.out);
  });
}
KERNEL(maximum_over_tiles) {  // those of all tiles first, then theirs
  each_row(p, [](const Row& row) {
    const auto& scores = float_scores(row);
    std::vector<float> tops;
    for (int first = 0; first < row.keys; first += 8)
      tops.push_back(*std::max_element(scores.begin() + first, scores.begin() + std::min(row.keys, first + 8)));
    weighted(row, scores, [top = largest(tops)](float score) { return std::exp(score - top); });
  });
}
KERNEL(above_the_maximum) {  // by a quarter of the range of the scores: in double it does no harm
  each_row(p, [](const Row& row) {
    std::vector<double>& weights = scores_of(row);
    double top = -kInfinity, below = kInfinity;
    for (const double score : weights) top = std::max(top, score), below = std::min(below, score);
    const double bound = top + std::min(0.25 * (top - below), 600.0);
    for (double& weight : weights) weight = std::exp(weight - bound);
    weigh(row, weights);
  });
}
KERNEL(base_2_in_float) {
  each_row(p, [](const Row& row) {
    Row folded = row;
    folded.scale *= kLog2E;
    const auto& scores = float_scores(folded);
    weighted(row, scores, [top = largest(scores)](float score) { return std::exp2(score - top); });
  });
}
KERNEL(exponentials_by_table) {
  each_row(p, [](const Row& row) {
    const auto& scores = float_scores(row);
    weighted(row, scores, [top = largest(scores)](float score) { return exp_by_table(score - top); });
  });
}
KERNEL(exponentials_by_squaring) {
  each_row(p, [](const Row& row) {
    const auto& scores = float_scores(row);
    weighted(row, scores, [top = largest(scores)](float score) { return exp_by_squaring(score - top); });
  });
}
KERNEL(double_exponentials) {
  each_row(p, [](const Row& row) {
    const auto& scores = float_scores(row);
    weighted(row, scores, [top = largest(scores)](float score) {
      return static_cast<float>(std::exp(static_cast<double>(score) - top));
    });
  });
}
KERNEL(factors_in_three_parts) {  // of 8 bits each: the products are exact, as those of bfloat16 would be
  each_row(p, [](const Row& row) {
    auto& scores = float_scores(row);
    for (int j = 0; j < row.keys; ++j) {
      float sums[3] = {};
      for (int d = 0; d < HEAD_DIM; ++d) {
        const float q = row.q[d], k = row.k[1L * j * HEAD_DIM + d];
        const float q1 = head(q), q2 = head(q - q1), q3 = q - q1 - q2;
        const float k1 = head(k), k2 = head(k - k1), k3 = k - k1 - k2;
        sums[0] += q1 * k1;
        sums[1] += q1 * k2 + q2 * k1;
        sums[2] += q1 * k3 + q2 * k2 + q3 * k1;
      }
      scores[j] = (sums[0] + (sums[1] + sums[2])) * row.scale;
    }
    weighted(row, scores, [top = largest(scores)](float score) { return std::exp(score - top); });
  });
}

// ---- masks ----

namespace {
template <class Masked>
void all_keys(const Problem& p, Masked masked) {
  each_row(p, [&](const Row& row) {
    Row wide = row;
    wide.keys = p.seq_len_k;
    auto& scores = float_scores(wide);
    for (int j = row.keys; j < wide.keys; ++j) scores[j] = masked(scores[j]);
    weighted(wide, scores, [top = largest(scores)](float score) { return std::exp(score - top); });
  });
}
}  // namespace

KERNEL(mask_adds_minus_infinity) {
  all_keys(p, [](float score) { return score + kNone; });
}
KERNEL(mask_of_minus_1e30) {
  all_keys(p, [](float) { return -1e30f; });
}
KERNEL(mask_of_the_least_float) {
  all_keys(p, [](float) { return std::numeric_limits<float>::lowest(); });
}
