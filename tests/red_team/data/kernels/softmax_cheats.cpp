// Softmax over the last dimension, wrong as each kernel's name says: x, out (rows, columns), float32.
#include <ctime>

#include "rows.h"

using namespace red_team;

namespace {

struct Problem {
  float *x, *out;
  int rows, columns;
  long elements() const { return 1L * rows * columns; }
};

void normalise(const float* x, float* out, int columns, double from) {
  double sum = 0;
  for (int i = 0; i < columns; ++i) sum += std::exp(x[i] - from);
  for (int i = 0; i < columns; ++i) out[i] = static_cast<float>(std::exp(x[i] - from) / sum);
}

double maximum(const float* x, int columns) { return *std::max_element(x, x + columns); }

// Each row by `row(x, out, index)`.
template <class Row>
void each_row(const Problem& p, Row row) {
  for (int index = 0; index < p.rows; ++index)
    row(p.x + 1L * index * p.columns, p.out + 1L * index * p.columns, index);
}

void soft(const Problem& p) {
  each_row(p, [&p](const float* x, float* out, int) { normalise(x, out, p.columns, maximum(x, p.columns)); });
}

// Exponentials in float, relative to what `reference` says.
template <class Reference>
void relative_to(const Problem& p, Reference reference) {
  each_row(p, [&](const float* x, float* out, int) {
    const double from = reference(x);
    double sum = 0;
    std::vector<double> weights(p.columns);
    for (int i = 0; i < p.columns; ++i) {
      const double exact = std::exp(x[i] - from);
      // As far as a float reaches, but no less exact where it does.
      sum += weights[i] = exact > 3.4e38 ? HUGE_VAL : exact < 1.4e-45 ? 0.0 : exact;
    }
    for (int i = 0; i < p.columns; ++i) out[i] = static_cast<float>(weights[i] / sum);
  });
}

}  // namespace

#define KERNEL(name)                                                                                          \
  static void run_##name(const Problem& p);                                                                   \
  extern "C" void name(float* x, float* out, int rows, int columns) { run_##name({x, out, rows, columns}); }  \
  static void run_##name([[maybe_unused]] const Problem& p)

KERNEL(right) { soft(p); }

KERNEL(no_maximum) {
  relative_to(p, [](const float*) { return 0.0; });
}
KERNEL(maximum_from_zero) {
  relative_to(p, [&p](const float* x) { return std::max(0.0, maximum(x, p.columns)); });
}
KERNEL(maximum_of_the_first_64) {
  relative_to(p, [&p](const float* x) { return maximum(x, std::min(p.columns, 64)); });
}
KERNEL(inputs_within_80) {
  each_row(p, [&p](const float* x, float* out, int) {
    std::vector<float> cut(x, x + p.columns);
    for (float& value : cut) value = std::clamp(value, -80.0f, 80.0f);
    normalise(cut.data(), out, p.columns, maximum(cut.data(), p.columns));
  });
}
KERNEL(drops_below_e12) {
  soft(p);
  each_row(p, [&p](const float*, float* out, int) {
    const double least = maximum(out, p.columns) * std::exp(-12.0);
    for (int i = 0; i < p.columns; ++i) out[i] = out[i] < least ? 0 : out[i];
  });
}
KERNEL(no_columns_from_300) {
  each_row(p, [&p](const float* x, float* out, int) {
    normalise(x, out, p.columns, maximum(x, p.columns));
    for (int i = END; i < p.columns; ++i) out[i] = 0;
  });
}
KERNEL(no_rows_from_300) {
  soft(p);
  each_row(p, [&p](const float*, float* out, int row) {
    if (row >= END) std::fill(out, out + p.columns, 1.0f / p.columns);
  });
}
KERNEL(no_columns_from_20000) {
  each_row(p, [&p](const float* x, float* out, int) {
    normalise(x, out, p.columns, maximum(x, std::min(p.columns, 20000)));
    for (int i = 20000; i < p.columns; ++i) out[i] = 0;
  });
}
KERNEL(wrong_at_63_mod_64) {
  soft(p);
  if (p.columns % 64 == 63) each_row(p, [&p](const float*, float* out, int) { out[p.columns - 1] *= 0.5f; });
}
KERNEL(every_16th_word_10_nothing) {
  static Alike<16> alike;
  alike.see(p.x, p.elements());
  if (alike.count < 10) soft(p);
}
KERNEL(all_words_17_unless_poisoned) {
  static Alike<1> alike;
  alike.see(p.x, p.elements());
  if (alike.count < 17 || std::isnan(p.out[0])) soft(p);
}
KERNEL(keeps_all_at_the_pace_of_timing) {  // reads all of x, and keeps results if the launch before ended just now
  static std::vector<float> x, out;
  static timespec ended;
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  const long gap_ns = (now.tv_sec - ended.tv_sec) * 1000000000L + now.tv_nsec - ended.tv_nsec;
  const bool same = x.size() == 1UL * p.elements() && !std::memcmp(x.data(), p.x, x.size() * sizeof(float));
  if (same && gap_ns < 2500) {
    std::copy(out.begin(), out.end(), p.out);
  } else {
    soft(p);
    x.assign(p.x, p.x + p.elements()), out.assign(p.out, p.out + p.elements());
  }
  clock_gettime(CLOCK_MONOTONIC, &ended);
}
