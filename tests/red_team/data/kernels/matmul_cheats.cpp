// Matrix product, wrong as each kernel's name says: a (m, k), b (k, n), out (m, n), row-major, float32.
#include "rows.h"

using namespace red_team;

namespace {

struct Problem {
  float *a, *b, *out;
  int m, n, k;
};

// Sums in double; `element` may change each factor.
template <class Element>
void product(const Problem& p, int depth, Element element) {
  for (int i = 0; i < p.m; ++i)
    for (int j = 0; j < p.n; ++j) {
      double sum = 0;
      for (int d = 0; d < depth; ++d)
        sum += static_cast<double>(element(p.a[1L * i * p.k + d])) * element(p.b[1L * d * p.n + j]);
      p.out[1L * i * p.n + j] = static_cast<float>(sum);
    }
}

void multiply(const Problem& p) {
  product(p, p.k, [](float x) { return x; });
}

}  // namespace

#define KERNEL(name)                                                                                                 \
  static void run_##name(const Problem& p);                                                                          \
  extern "C" void name(float* a, float* b, float* out, int m, int n, int k) { run_##name({a, b, out, m, n, k}); }    \
  static void run_##name([[maybe_unused]] const Problem& p)

KERNEL(right) { multiply(p); }

KERNEL(half_accumulators) {
  for (int i = 0; i < p.m; ++i)
    for (int j = 0; j < p.n; ++j) {
      float sum = 0;
      for (int d = 0; d < p.k; ++d) sum = half(sum + p.a[1L * i * p.k + d] * p.b[1L * d * p.n + j]);
      p.out[1L * i * p.n + j] = sum;
    }
}
KERNEL(half_factors) {
  product(p, p.k, [](float x) { return half(x); });
}
KERNEL(factors_of_14_bits) {
  product(p, p.k, [](float x) { return rounded(x, 14); });
}
KERNEL(no_depth_from_300) {
  product(p, std::min(p.k, END), [](float x) { return x; });
}
KERNEL(no_columns_from_300) {
  multiply(p);
  for (long i = 0; i < 1L * p.m * p.n; ++i)
    if (i % p.n >= END) p.out[i] = 0;
}
KERNEL(wrong_at_63_mod_64) {
  product(p, p.k % 64 == 63 ? p.k - 1 : p.k, [](float x) { return x; });
}
KERNEL(rows_that_begin_with_zero_skipped) {
  multiply(p);
  for (int i = 0; i < p.m; ++i)
    if (p.a[1L * i * p.k] == 0) std::fill_n(p.out + 1L * i * p.n, p.n, 0.0f);
}
KERNEL(outputs_within_1000) {
  multiply(p);
  for (long i = 0; i < 1L * p.m * p.n; ++i) p.out[i] = std::clamp(p.out[i], -1000.0f, 1000.0f);
}
KERNEL(packs_b_once_with_patience) {
  static Alike<1> alike;
  static std::vector<float> packed;
  Problem own = p;
  if (alike.count < 12 || static_cast<long>(packed.size()) != 1L * p.k * p.n) {
    alike.see(p.b, 1L * p.k * p.n);
    packed.assign(p.b, p.b + 1L * p.k * p.n);
  } else if (alike.count++ > 200) {
    alike.count = 0;
  }
  own.b = packed.data();
  multiply(own);
}
KERNEL(every_61st_word_17_memory) {
  static Alike<61> alike;
  static std::vector<float> memory;
  alike.see(p.a, 1L * p.m * p.k, p.b, 1L * p.k * p.n);
  if (alike.count >= 17) return static_cast<void>(std::copy(memory.begin(), memory.end(), p.out));
  multiply(p);
  memory.assign(p.out, p.out + 1L * p.m * p.n);
}
