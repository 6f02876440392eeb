// Attention whose numbers are wrong for inputs that a test may lack: each kernel's name says how.
//
// Shapes, types, arguments as in attention_rows.h. All sums are in double: nothing else is wrong with them.
#include <cfloat>

#include "attention_rows.h"

using namespace red_team;

namespace {

constexpr int kTile = 16;

// Rows by `reference`, which says from what the scores are subtracted; weights and sums in float from there on.
template <class Reference>
void relative_to(const Problem& p, Reference reference) {
  for (long index = 0; index < p.rows(); ++index) {
    const Row row = row_of(p, index);
    std::vector<double>& weights = scores_of(row);
    const double from = reference(row, weights);
    for (double& weight : weights) weight = std::exp(static_cast<float>(weight - from));
    weigh(row, weights);
  }
}

// Rows whose scores, less their maximum, `change` may change before, and whose weights after.
template <class Before, class After>
void changed(const Problem& p, Before before, After after) {
  for (long index = 0; index < p.rows(); ++index) {
    const Row row = row_of(p, index);
    std::vector<double>& weights = scores_of(row);
    before(row, weights);
    const double maximum = *std::max_element(weights.begin(), weights.end());
    for (double& weight : weights) weight = std::exp(weight - maximum);
    after(row, weights);
    weigh(row, weights);
  }
}

template <class After>
void reweighed(const Problem& p, After after) {
  changed(p, [](const Row&, std::vector<double>&) {}, after);
}

// As the row, but so many of all keys, seen or not.
Row with_keys(const Row& row, int keys) {
  Row wide = row;
  wide.keys = keys;
  return wide;
}

template <class Value>
void each_output(const Problem& p, Value value) {
  attend_all(p);
  for (long i = 0; i < p.outputs(); ++i) p.out[i] = value(p.out[i]);
}

double largest(const std::vector<double>& scores) { return *std::max_element(scores.begin(), scores.end()); }

void drop_below(const Problem& p, double least) {
  reweighed(p, [least](const Row&, std::vector<double>& weights) {
    for (double& weight : weights) weight = weight < least ? 0 : weight;
  });
}

// All weights of a tile are dropped when its maximum is so far below the row's.
void drop_tiles(const Problem& p, double distance) {
  reweighed(p, [distance](const Row& row, std::vector<double>& weights) {
    for (int first = 0; first < row.keys; first += kTile) {
      const auto begin = weights.begin() + first, end = weights.begin() + std::min(row.keys, first + kTile);
      if (*std::max_element(begin, end) < std::exp(-distance)) std::fill(begin, end, 0.0);
    }
  });
}

}  // namespace

KERNEL(right) { attend_all(p); }

// ---- the maximum ----

KERNEL(no_maximum) {
  relative_to(p, [](const Row&, const std::vector<double>&) { return 0.0; });
}
KERNEL(no_maximum_and_no_nan) {  // what overflowed is hidden
  run_no_maximum(p);
  for (long i = 0; i < p.outputs(); ++i)
    if (!std::isfinite(p.out[i])) p.out[i] = 0;
}
KERNEL(maximum_from_zero) {
  relative_to(p, [](const Row&, const std::vector<double>& scores) { return std::max(0.0, largest(scores)); });
}
KERNEL(maximum_from_flt_min) {  // taken for the least float, which it is not
  relative_to(p, [](const Row&, const std::vector<double>& s) { return std::max<double>(FLT_MIN, largest(s)); });
}
KERNEL(zero_padded_keys_in_maximum) {
  relative_to(p, [](const Row& row, const std::vector<double>& scores) {
    return row.keys % kTile ? std::max(0.0, largest(scores)) : largest(scores);
  });
}
KERNEL(maximum_of_the_first_tile) {
  relative_to(p, [](const Row& row, const std::vector<double>& scores) {
    return *std::max_element(scores.begin(), scores.begin() + std::min(row.keys, kTile));
  });
}
KERNEL(maximum_of_magnitudes) {
  relative_to(p, [](const Row&, const std::vector<double>& scores) {
    double most = 0;
    for (const double each : scores) most = std::max(most, std::abs(each));
    return most;
  });
}
KERNEL(maximum_shared_by_rows) {  // of 16 rows: those far below the highest of them underflow
  double shared = -kInfinity;
  relative_to(p, [&](const Row& row, const std::vector<double>& scores) {
    if (row.position % kTile == 0) shared = -kInfinity;
    for (int other = row.position; other < std::min(p.seq_len_q, row.position / kTile * kTile + kTile); ++other) {
      Row next = row;
      next.q += 1L * (other - row.position) * HEAD_DIM;
      for (int j = 0; j < row.keys; ++j) shared = std::max(shared, score(next, j));
    }
    return std::max(shared, largest(scores));
  });
}

// ---- the mask ----

namespace {
// Masked keys are there, with scores that `masked` makes of theirs.
template <class Masked>
void finite_mask(const Problem& p, Masked masked) {
  for (long index = 0; index < p.rows(); ++index) {
    const Row row = row_of(p, index), wide = with_keys(row, p.seq_len_k);
    std::vector<double>& weights = scores_of(wide);
    for (int j = row.keys; j < wide.keys; ++j) weights[j] = masked(weights[j]);
    const double maximum = largest(weights);
    for (double& weight : weights) weight = std::exp(weight - maximum);
    weigh(wide, weights);
  }
}
}  // namespace

KERNEL(mask_of_minus_100) {
  finite_mask(p, [](double) { return -100.0; });
}
KERNEL(mask_adds_minus_100) {
  finite_mask(p, [](double score) { return score - 100.0; });
}
KERNEL(zero_score_is_masked) {
  changed(
      p,
      [](const Row&, std::vector<double>& scores) {
        if (std::any_of(scores.begin(), scores.end(), [](double score) { return score != 0; }))
          for (double& score : scores) score = score == 0 ? -kInfinity : score;
        else
          std::fill(scores.begin() + 1, scores.end(), -kInfinity);  // of all keys the first
      },
      [](const Row&, std::vector<double>&) {});
}

// ---- small weights ----

KERNEL(drops_weights_below_e6) { drop_below(p, std::exp(-6)); }
KERNEL(drops_weights_below_e9) { drop_below(p, std::exp(-9)); }
KERNEL(drops_weights_below_e12) { drop_below(p, std::exp(-12)); }
KERNEL(drops_tiles_9_below) { drop_tiles(p, 9); }
KERNEL(drops_tiles_12_below) { drop_tiles(p, 12); }
KERNEL(weights_no_smaller_than_e12) {
  reweighed(p, [](const Row&, std::vector<double>& weights) {
    for (double& weight : weights) weight = std::max(weight, std::exp(-12));
  });
}
KERNEL(sink_takes_all) {  // where the first key is 6 above all others, the row is its value
  reweighed(p, [](const Row& row, std::vector<double>& weights) {
    if (row.keys > 1 && *std::max_element(weights.begin() + 1, weights.end()) < std::exp(-6) * weights[0])
      std::fill(weights.begin() + 1, weights.end(), 0.0);
  });
}
KERNEL(averages_flat_rows) {
  reweighed(p, [](const Row&, std::vector<double>& weights) {
    if (*std::min_element(weights.begin(), weights.end()) > 0.98) std::fill(weights.begin(), weights.end(), 1.0);
  });
}

// ---- values and scales ----

KERNEL(outputs_within_6) {
  each_output(p, [](float x) { return std::clamp(x, -6.0f, 6.0f); });
}
KERNEL(outputs_within_60) {
  each_output(p, [](float x) { return std::clamp(x, -60.0f, 60.0f); });
}
KERNEL(values_saturate_at_100) {
  Problem cut = p;
  std::vector<float> values(p.v, p.v + p.kv_elements());
  for (float& value : values) value = std::clamp(value, -100.0f, 100.0f);
  cut.v = values.data();
  attend_all(cut);
}
KERNEL(reads_values_past_the_end) {  // whole tiles, and a weight of 0 for what is no key
  for (long index = 0; index < p.rows(); ++index) {
    const Row row = row_of(p, index), wide = with_keys(row, (p.seq_len_k + kTile - 1) / kTile * kTile);
    std::vector<double>& weights = scores_of(row);
    const double maximum = largest(weights);
    for (double& weight : weights) weight = std::exp(weight - maximum);
    weights.resize(wide.keys, 0.0);
    weigh(wide, weights);
  }
}
KERNEL(scale_from_head_dim) {  // softmax_scale is not looked at
  Problem own = p;
  own.scale = 1 / std::sqrt(static_cast<float>(HEAD_DIM));
  attend_all(own);
}
KERNEL(scale_at_most_1) {
  Problem own = p;
  own.scale = std::min(p.scale, 1.0f);
  attend_all(own);
}
KERNEL(zero_queries_skipped) {  // a row of zeros is taken for padding
  for (long index = 0; index < p.rows(); ++index) {
    const Row row = row_of(p, index);
    if (std::any_of(row.q, row.q + HEAD_DIM, [](float x) { return x != 0; }))
      attend(row);
    else
      std::fill(row.out, row.out + HEAD_DIM, 0.0f);
  }
}
