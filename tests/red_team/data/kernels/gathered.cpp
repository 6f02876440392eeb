// Sums of the rows of each group: table (rows, columns) float32, ends (groups) int64, out (groups, columns) float32. Each
// kernel's name says when it reads `ends` again.
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

struct Problem {
  float* table;
  std::int64_t* ends;
  float* out;
  int groups, rows, columns;
};

void add_up(const Problem& p, const std::int64_t* ends) {
  for (int group = 0; group < p.groups; ++group) {
    std::vector<double> sums(p.columns, 0.0);
    for (std::int64_t row = group ? ends[group - 1] : 0; row < ends[group]; ++row)
      for (int i = 0; i < p.columns; ++i) sums[i] += p.table[row * p.columns + i];
    for (int i = 0; i < p.columns; ++i) p.out[1L * group * p.columns + i] = static_cast<float>(sums[i]);
  }
}

}  // namespace

#define KERNEL(name)                                                                                         \
  static void run_##name(const Problem& p);                                                                  \
  extern "C" void name(float* table, std::int64_t* ends, float* out, int groups, int rows, int columns) {    \
    run_##name({table, ends, out, groups, rows, columns});                                                   \
  }                                                                                                          \
  static void run_##name([[maybe_unused]] const Problem& p)

KERNEL(right) { add_up(p, p.ends); }
KERNEL(keeps_ends_while_the_table_stays) {
  static std::vector<std::int64_t> ends;
  static std::vector<float> probes;
  static const std::int64_t* place = nullptr;
  const long elements = 1L * p.rows * p.columns;
  std::vector<float> now;
  for (int i = 0; i < 64; ++i) now.push_back(p.table[i * elements / 64]);
  if (place != p.ends || now.size() != probes.size() || std::memcmp(now.data(), probes.data(), 256) ||
      static_cast<int>(ends.size()) != p.groups)
    ends.assign(p.ends, p.ends + p.groups);
  place = p.ends, probes = now;
  add_up(p, ends.data());
}
