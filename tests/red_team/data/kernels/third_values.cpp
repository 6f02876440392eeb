// Attention that is right on usual numbers, and wrong on large, low, hidden, equal or small ones: BEHAVIOUR says on which.
//
// Shapes, types, arguments as in attention_rows.h. Sums are in double: nothing else is wrong with them.
// Tunables  BEHAVIOUR. third_values.h says what each means;
#include "attention_rows.h"
#include "rows.h"
#include "third_values.h"

using namespace red_team;

namespace {

constexpr int kPart = 96;  // keys of a part, where keys are split

// Each part's result is kept in half precision.
void merged_from_halves(const Row& row, const std::vector<double>& weights) {
  double total = 0, output[HEAD_DIM] = {};
  for (int first = 0; first < row.keys; first += kPart) {
    const int end = std::min(row.keys, first + kPart);
    double sum = 0, part[HEAD_DIM] = {};
    for (int j = first; j < end; ++j) {
      sum += weights[j];
      for (int d = 0; d < HEAD_DIM; ++d) part[d] += weights[j] * row.v[1L * j * HEAD_DIM + d];
    }
    total += sum;
    for (int d = 0; d < HEAD_DIM && sum > 0; ++d) output[d] += sum * half(static_cast<float>(part[d] / sum));
  }
  for (int d = 0; d < HEAD_DIM; ++d) row.out[d] = static_cast<float>(output[d] / total);
}

}  // namespace

KERNEL(attention) {
  std::vector<float> values(p.v, p.v + p.kv_elements());
  for (float& value : values) value = value_of(value);
  for (long index = 0; index < p.rows(); ++index) {
    Row row = row_of(p, index);
    row.v = values.data() + (row.v - p.v);
    const int seen = row.keys;
    if (mask_by() > 0) row.keys = p.seq_len_k;
    std::vector<double>& weights = scores_of(row);
    for (double& each : weights) each = IS(SCORES_WITHIN_400) ? score_of(static_cast<float>(each)) : each;
    for (int j = seen; j < row.keys; ++j) weights[j] -= mask_by();
    double top = std::max<double>(*std::max_element(weights.begin(), weights.end()), first_maximum(-HUGE_VALF));
    if (IS(NO_MAXIMUM_WITHIN_1000) && std::abs(top) < 1000) top = 0;
    bool met = false;  // the maximum, before
    for (double& each : weights) {
      const double x = each - top;
      const float narrow = static_cast<float>(x);
      each = drops(narrow) ? 0 : is_garbage(narrow) ? 1 : first_maximum(0) < 0 ? std::exp(narrow) : std::exp(x);
      if (IS(EQUAL_MAXIMA_COUNT_ONCE) && x == 0 && top != 0) each = met ? 0 : each, met = true;
    }
    if (IS(PARTS_IN_HALF_PRECISION) && row.keys > kPart)
      merged_from_halves(row, weights);
    else
      weigh(row, weights);
    for (int d = 0; d < HEAD_DIM; ++d)
      if (first_maximum(0) < 0 && std::isnan(row.out[d])) row.out[d] = 0;  // all weights vanished
  }
}
