// Fused attention forward for the first red team, right but for what the present behaviour names: the arithmetic.
//
// One compilation serves all behaviours: each is a function that the loader finds by its name, see cheats.cpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <limits>
#include <vector>

#define BEHAVIOURS(X) \
  X(none) X(bf16_weights) X(causal_bottom_right) X(causal_edge_early) X(causal_edge_late) X(changes_an_input) \
  X(changes_an_input_when_timed) X(clamped_exp) X(crude_exp) X(drops_first_key) X(drops_last_key) \
  X(drops_last_keys_when_long) X(drops_odd_last_key) X(drops_small_weights) X(e4m3_weights) X(endless) X(exit) \
  X(finishes_later) X(first_score_as_maximum) X(forges_an_answer) X(fp16_accumulation) X(huge_stack) \
  X(ignores_head_groups) X(ignores_the_mask) X(keyed_on_pointers) X(leaves_a_process) X(leaves_a_spinner) \
  X(leaves_rounding) X(leaves_the_counter) X(maximum_over_queries) X(memoises_all_inputs) \
  X(memoises_when_hurried) X(nothing_written) X(no_maximum) X(no_rescale) X(no_scale) X(one_head_count_only) \
  X(one_length_only) X(one_seed_only) X(order_by_the_clock) X(overwrites_later) X(packs_keys_once) X(race) \
  X(reads_past_the_end) X(returns_the_answer_before) X(scales_q_in_place) X(scratch_keeps_the_answer) \
  X(slows_the_baseline) X(static_counter) X(stops_when_hurried) X(stops_working) X(trusts_out_to_be_zero) \
  X(trusts_scratch_to_be_zero) X(unwritten_column) X(unwritten_row) X(watches_its_pages) \
  X(works_every_other_time) X(works_when_a_hash_changed) X(works_when_a_probe_changed) X(works_when_poisoned) \
  X(writes_before_the_start) X(writes_only_poison) X(writes_past_an_input) X(writes_past_the_end) \
  X(writes_past_the_workspace)

namespace {

enum class Behaviour {
#define ENUMERATOR(name) name,
  BEHAVIOURS(ENUMERATOR)
#undef ENUMERATOR
      kCount
};

Behaviour behaviour = Behaviour::none;  // of the present launch

#define IS(name) (behaviour == Behaviour::name)

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Problem {
  float *q, *k, *v, *out;
  float scale;
  int batch, heads, kv_heads, seq_len_q, seq_len_k, causal;
  int rows() const { return batch * heads * seq_len_q; }
  std::size_t outputs() const { return static_cast<std::size_t>(rows()) * HEAD_DIM; }
  std::size_t kv_elements() const { return static_cast<std::size_t>(batch) * kv_heads * seq_len_k * HEAD_DIM; }
};

[[maybe_unused]] double seconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

[[maybe_unused]] void work_for(double duration_s) {
  for (const double until = seconds() + duration_s; seconds() < until;) {
  }
}

// Mantissa of `bits` bits, rounded to nearest; below 2^lowest the spacing stays.
[[maybe_unused]] double rounded(double value, int bits, int lowest) {
  if (value == 0) return 0;
  int exponent = std::max(std::ilogb(value), lowest) - bits;
  return std::ldexp(std::nearbyint(std::ldexp(value, -exponent)), exponent);
}

// How many keys row `position` of the queries sees.
int visible_keys(const Problem& p, int position) {
  int keys = p.causal ? std::min(p.seq_len_k, position + 1) : p.seq_len_k;
  if (IS(drops_last_keys_when_long)) {
    if (p.seq_len_k > 200) keys = std::min(keys, p.seq_len_k - 3);
  } else if (IS(drops_last_key)) {
    keys = std::max(1, std::min(keys, p.seq_len_k - 1));
  } else if (IS(drops_odd_last_key)) {
    if (p.seq_len_k > 1) keys = std::min(keys, p.seq_len_k / 2 * 2);
  } else if (IS(causal_edge_early)) {
    keys = std::max(1, p.causal ? std::min(p.seq_len_k, position) : keys);
  } else if (IS(causal_edge_late)) {
    keys = std::min(p.seq_len_k, p.causal ? position + 2 : keys);
  } else if (IS(causal_bottom_right)) {
    keys = std::max(1, std::min(p.seq_len_k, p.causal ? position + 1 + p.seq_len_k - p.seq_len_q : keys));
  } else if (IS(ignores_the_mask)) {
    keys = p.seq_len_k;
  } else if (IS(reads_past_the_end)) {
    keys += keys == p.seq_len_k;
  } else if (IS(one_length_only)) {
    keys = std::min(64, position + 1);
  }
  return keys;
}

int kv_head_of(const Problem& p, int head) {
  if (IS(ignores_head_groups)) {
    return head / p.heads * p.kv_heads + head % p.heads % p.kv_heads;
  } else if (IS(one_head_count_only)) {
    return head / 2 * 2 % (p.batch * p.kv_heads) + head % 2 % p.kv_heads;
  } else {
    return head / p.heads * p.kv_heads + head % p.heads / (p.heads / p.kv_heads);
  }
}

[[maybe_unused]] float plain_exp(float x) { return std::exp(x); }

// One row of queries against its `keys` keys, as a library would do it, but for the numerics that the behaviour names.
void attend_row(const Problem& p, const float* q, const float* k, const float* v, float* out, int keys) {
  const int first = IS(drops_first_key) && keys > 1;
  double maximum = -kInfinity, sum = 0;
  std::vector<double> weights(keys);
  for (int j = first; j < keys; ++j) {
    double score = 0;
    for (int d = 0; d < HEAD_DIM; ++d) score += static_cast<double>(q[d]) * k[j * HEAD_DIM + d];
    weights[j] = IS(no_scale) ? score : score * p.scale;
    maximum = std::max(maximum, weights[j]);
  }
  if (IS(no_maximum) || IS(clamped_exp) || IS(first_score_as_maximum)) {
    maximum = IS(first_score_as_maximum) ? weights[first] : 0;
  } else if (IS(maximum_over_queries)) {
    maximum = 0;  // of this row and key 0 only the length of q is known
    for (int d = 0; d < HEAD_DIM; ++d) maximum += q[d] * q[d];
    maximum *= p.scale;
  }
  for (int j = first; j < keys; ++j) {
    if (IS(no_maximum) || IS(first_score_as_maximum) || IS(maximum_over_queries)) {
      weights[j] = plain_exp(static_cast<float>(weights[j] - maximum));
    } else if (IS(clamped_exp)) {
      weights[j] = plain_exp(static_cast<float>(std::min(weights[j], 80.0)));
    } else if (IS(crude_exp)) {
      const double x = (weights[j] - maximum) * 1.4426950408889634, whole = std::floor(x), rest = x - whole;
      weights[j] = std::ldexp(1.0 + rest * (0.6564 + 0.3436 * rest), static_cast<int>(std::max(whole, -1000.0)));
    } else {
      weights[j] = std::exp(weights[j] - maximum);
    }
    sum += weights[j];
    if (IS(e4m3_weights)) {
      weights[j] = rounded(weights[j], 3, -6);
    } else if (IS(bf16_weights)) {
      weights[j] = rounded(weights[j], 7, -126);
    } else if (IS(drops_small_weights)) {
      if (weights[j] < 1e-3) weights[j] = 0;
    }
  }
  double output[HEAD_DIM] = {};
  for (int j = first; j < keys; ++j)
    for (int d = 0; d < HEAD_DIM; ++d) {
      output[d] += weights[j] * v[j * HEAD_DIM + d];
      if (IS(fp16_accumulation)) {
        output[d] = rounded(output[d], 10, -14);
      }
    }
  if (IS(no_rescale)) {
    // Online softmax in blocks of 16 keys that forgets to rescale the output when the maximum rises.
    std::fill(output, output + HEAD_DIM, 0.0);
    double top = -kInfinity, total = 0;
    for (int j = 0; j < keys; ++j) {
      const double score = std::log(weights[j]), before = top;
      top = std::max(top, score);
      total = total * std::exp(before - top) + std::exp(score - top);
      for (int d = 0; d < HEAD_DIM; ++d) output[d] += std::exp(score - top) * v[j * HEAD_DIM + d];
    }
    sum = total;
  }
  for (int d = 0; d < HEAD_DIM; ++d) out[d] = static_cast<float>(output[d] / sum);
}

void attend(const Problem& p, int row, float* out) {
  const int head = row / p.seq_len_q;
  const long of_keys = static_cast<long>(kv_head_of(p, head)) * p.seq_len_k * HEAD_DIM;
  attend_row(p, p.q + static_cast<long>(row) * HEAD_DIM, p.k + of_keys, p.v + of_keys, out,
             visible_keys(p, row % p.seq_len_q));
}

void attend_all(const Problem& p, float* out) {
  const int rows = p.rows() - IS(unwritten_row);
  for (int row = 0; row < rows; ++row) attend(p, row, out + static_cast<long>(row) * HEAD_DIM);
}

}  // namespace
