// Attention that is right, with threads, memory and order of work as each kernel's name says.
//
// Shapes, types, arguments as in attention_rows.h. Pools of threads stay for the next launch; between launches they
// spin for a short while, or not at all, and then sleep.
#include <omp.h>

#include <atomic>
#include <memory>
#include <thread>

#include "attention_rows.h"
#include "helper_thread.h"

using namespace red_team;

namespace {

// Every row once: the first half here, the second by the helper.
void with(Helper& helper, const Problem& p) {
  helper.post([p] { attend_rows(p, p.rows() / 2, p.rows()); });
  attend_rows(p, 0, p.rows() / 2);
  helper.wait();
}

template <class Function>
void each_row(const Problem& p, Function function) {
  for (long index = 0; index < p.rows(); ++index) function(row_of(p, index));
}

}  // namespace

// ---- threads ----

KERNEL(pool_that_sleeps) {
  static auto* helper = new Helper(0);
  with(*helper, p);
}
KERNEL(pool_that_spins_20_us) {
  static auto* helper = new Helper(20000);
  with(*helper, p);
}
KERNEL(pool_that_spins_100_us) {
  static auto* helper = new Helper(100000);
  with(*helper, p);
}
KERNEL(openmp_static) {
#pragma omp parallel for schedule(static, 1)
  for (long index = 0; index < p.rows(); ++index) attend(row_of(p, index));
}
KERNEL(openmp_guided) {
#pragma omp parallel for schedule(guided)
  for (long index = 0; index < p.rows(); ++index) attend(row_of(p, index));
}
KERNEL(openmp_nested) {
#pragma omp parallel for collapse(2)
  for (int batch = 0; batch < p.batch; ++batch)
    for (int head = 0; head < p.heads; ++head) {
      const long first = (1L * batch * p.heads + head) * p.seq_len_q;
#pragma omp parallel for num_threads(2)
      for (long index = first; index < first + p.seq_len_q; ++index) attend(row_of(p, index));
    }
}
KERNEL(openmp_tasks) {
#pragma omp parallel num_threads(2)
#pragma omp single
  for (long first = 0; first < p.rows(); first += 8) {
#pragma omp task firstprivate(first)
    attend_rows(p, first, std::min(p.rows(), first + 8));
  }
}
KERNEL(openmp_of_8_threads) {  // for this launch, more than there are cores
#pragma omp parallel for num_threads(8)
  for (long index = 0; index < p.rows(); ++index) attend(row_of(p, index));
}
KERNEL(thread_for_the_last_row) {
  std::thread last([&] { attend_rows(p, p.rows() - 1, p.rows()); });
  attend_rows(p, 0, p.rows() - 1);
  last.join();
}
KERNEL(tickets_on_the_stack) {
  std::atomic<long> next{0};
  const auto draw = [&] {
    for (long index; (index = next.fetch_add(3)) < p.rows();) attend_rows(p, index, std::min(p.rows(), index + 3));
  };
  std::thread other(draw);
  draw();
  other.join();
}

// ---- memory ----

KERNEL(allocates_a_megabyte) {
  const auto memory = std::make_unique<double[]>(1 << 17);
  double* weights = p.seq_len_k <= 1 << 17 ? memory.get() : nullptr;
  each_row(p, [&](const Row& row) {
    const std::vector<double>& scores = scores_of(row);
    if (!weights) return attend(row);
    std::copy(scores.begin(), scores.end(), weights);
    const double top = *std::max_element(weights, weights + row.keys);
    std::vector<double> made(row.keys);
    for (int j = 0; j < row.keys; ++j) made[j] = std::exp(weights[j] - top);
    weigh(row, made);
  });
}
KERNEL(prefetches_past_the_end) {  // a hint, no access
  each_row(p, [](const Row& row) {
    for (int j = 0; j < row.keys; ++j) __builtin_prefetch(row.k + (j + 64L) * HEAD_DIM);
    for (int j = 0; j < row.keys; ++j) __builtin_prefetch(row.v + (j + 64L) * HEAD_DIM);
    attend(row);
  });
}
KERNEL(sets_up_at_the_first_launch) {  // an arena, and a table that no input is in
  static double* arena = nullptr;
  static std::size_t room = 0;
  static std::vector<double> powers;
  if (powers.empty())
    for (int i = 0; i < 256; ++i) powers.push_back(std::exp2(i / 256.0));
  if (room < static_cast<std::size_t>(p.seq_len_k)) {
    std::free(arena);
    room = p.seq_len_k;
    arena = static_cast<double*>(std::malloc(room * sizeof(double)));
  }
  each_row(p, [&](const Row& row) {
    const std::vector<double>& scores = scores_of(row);
    std::copy(scores.begin(), scores.end(), arena);
    const double top = *std::max_element(arena, arena + row.keys);
    std::vector<double> weights(row.keys);
    for (int j = 0; j < row.keys; ++j) {
      const double steps = (arena[j] - top) * 369.32993046757463, whole = std::floor(steps);
      const int power = static_cast<int>(std::max(whole, -250000.0));
      const double rest = std::exp((steps - whole) * 0.0027076061740622863);
      weights[j] = std::ldexp(powers[power & 255] * rest, power >> 8);
    }
    weigh(row, weights);
  });
}
KERNEL(counts_its_launches) {  // and does nothing with it
  static std::atomic<long> launches{0};
  ++launches;
  attend_all(p);
}
KERNEL(reads_inputs_three_times) {
  for (int turn = 0; turn < 3; ++turn) attend_all(p);
}
KERNEL(copies_inputs_first) {
  const std::vector<float> q(p.q, p.q + p.outputs()), k(p.k, p.k + p.kv_elements()), v(p.v, p.v + p.kv_elements());
  Problem own = p;
  own.q = const_cast<float*>(q.data()), own.k = const_cast<float*>(k.data()), own.v = const_cast<float*>(v.data());
  attend_all(own);
}
KERNEL(writes_elsewhere_first) {
  std::vector<float> whole(p.outputs());
  Problem own = p;
  own.out = whole.data();
  attend_all(own);
  std::copy(whole.rbegin(), whole.rend(), std::reverse_iterator<float*>(p.out + p.outputs()));
}

// ---- the order of work ----

KERNEL(heads_in_reverse) {
  for (long head = 1L * p.batch * p.heads - 1; head >= 0; --head)
    attend_rows(p, head * p.seq_len_q, (head + 1) * p.seq_len_q);
}
KERNEL(rows_across_heads) {
  for (int position = 0; position < p.seq_len_q; ++position)
    for (long head = 0; head < 1L * p.batch * p.heads; ++head) attend(row_of(p, head * p.seq_len_q + position));
}
KERNEL(longest_rows_first) {
  for (int position = p.seq_len_q - 1; position >= 0; --position)
    for (long head = 0; head < 1L * p.batch * p.heads; ++head) attend(row_of(p, head * p.seq_len_q + position));
}
