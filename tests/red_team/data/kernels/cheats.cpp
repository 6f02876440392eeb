// Fused attention forward, right but for what BEHAVIOUR names: wrong, broken or cheating kernels for the red team.
//
//   out = softmax(softmax_scale * q k^T) v
//
// Shapes      q, out (batch, heads, seq_len_q, HEAD_DIM); k, v (batch, kv_heads, seq_len_k, HEAD_DIM), contiguous.
// Types       float32. Archs: any. Workspace: scratch (poisoned), counter (zero_once).
// Tunables    BEHAVIOUR. What each is to be caught by stands in tests/red_team/test_cpu.py.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <limits>
#include <utility>
#include <vector>

#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

#if IS(RACE) || IS(LEAVES_A_SPINNER) || IS(SLOWS_THE_BASELINE) || IS(OVERWRITES_LATER) || IS(FINISHES_LATER)
#include <thread>
#endif

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::size_t kScratchBytes = 32768;  // as the search space has it
int calls = 0;  // launches since the library was loaded

struct Problem {
  float *q, *k, *v, *out;
  float scale;
  int batch, heads, kv_heads, seq_len_q, seq_len_k;
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
  int keys = CAUSAL ? std::min(p.seq_len_k, position + 1) : p.seq_len_k;
#if IS(DROPS_LAST_KEYS_WHEN_LONG)
  if (p.seq_len_k > 200) keys = std::min(keys, p.seq_len_k - 3);
#elif IS(DROPS_LAST_KEY)
  keys = std::max(1, std::min(keys, p.seq_len_k - 1));
#elif IS(DROPS_ODD_LAST_KEY)
  if (p.seq_len_k > 1) keys = std::min(keys, p.seq_len_k / 2 * 2);
#elif IS(CAUSAL_EDGE_EARLY)
  keys = std::max(1, CAUSAL ? std::min(p.seq_len_k, position) : keys);
#elif IS(CAUSAL_EDGE_LATE)
  keys = std::min(p.seq_len_k, CAUSAL ? position + 2 : keys);
#elif IS(CAUSAL_BOTTOM_RIGHT)
  keys = std::max(1, std::min(p.seq_len_k, CAUSAL ? position + 1 + p.seq_len_k - p.seq_len_q : keys));
#elif IS(IGNORES_THE_MASK)
  keys = p.seq_len_k;
#elif IS(READS_PAST_THE_END)
  keys += keys == p.seq_len_k;
#elif IS(ONE_LENGTH_ONLY)
  keys = std::min(64, position + 1);
#endif
  return keys;
}

int kv_head_of(const Problem& p, int head) {
#if IS(IGNORES_HEAD_GROUPS)
  return head / p.heads * p.kv_heads + head % p.heads % p.kv_heads;
#elif IS(ONE_HEAD_COUNT_ONLY)
  return head / 2 * 2 % (p.batch * p.kv_heads) + head % 2 % p.kv_heads;
#else
  return head / p.heads * p.kv_heads + head % p.heads / (p.heads / p.kv_heads);
#endif
}

[[maybe_unused]] float plain_exp(float x) { return std::exp(x); }

// One row of queries against its `keys` keys, as a library would do it, but for the numerics that BEHAVIOUR names.
void attend_row(const Problem& p, const float* q, const float* k, const float* v, float* out, int keys) {
  const int first = IS(DROPS_FIRST_KEY) && keys > 1;
  double maximum = -kInfinity, sum = 0;
  std::vector<double> weights(keys);
  for (int j = first; j < keys; ++j) {
    double score = 0;
    for (int d = 0; d < HEAD_DIM; ++d) score += static_cast<double>(q[d]) * k[j * HEAD_DIM + d];
    weights[j] = IS(NO_SCALE) ? score : score * p.scale;
    maximum = std::max(maximum, weights[j]);
  }
#if IS(NO_MAXIMUM) || IS(CLAMPED_EXP) || IS(FIRST_SCORE_AS_MAXIMUM)
  maximum = IS(FIRST_SCORE_AS_MAXIMUM) ? weights[first] : 0;
#elif IS(MAXIMUM_OVER_QUERIES)
  maximum = 0;  // of this row and key 0 only the length of q is known
  for (int d = 0; d < HEAD_DIM; ++d) maximum += q[d] * q[d];
  maximum *= p.scale;
#endif
  for (int j = first; j < keys; ++j) {
#if IS(NO_MAXIMUM) || IS(FIRST_SCORE_AS_MAXIMUM) || IS(MAXIMUM_OVER_QUERIES)
    weights[j] = plain_exp(static_cast<float>(weights[j] - maximum));
#elif IS(CLAMPED_EXP)
    weights[j] = plain_exp(static_cast<float>(std::min(weights[j], 80.0)));
#elif IS(CRUDE_EXP)
    const double x = (weights[j] - maximum) * 1.4426950408889634, whole = std::floor(x), rest = x - whole;
    weights[j] = std::ldexp(1.0 + rest * (0.6564 + 0.3436 * rest), static_cast<int>(std::max(whole, -1000.0)));
#else
    weights[j] = std::exp(weights[j] - maximum);
#endif
    sum += weights[j];
#if IS(E4M3_WEIGHTS)
    weights[j] = rounded(weights[j], 3, -6);
#elif IS(BF16_WEIGHTS)
    weights[j] = rounded(weights[j], 7, -126);
#elif IS(DROPS_SMALL_WEIGHTS)
    if (weights[j] < 1e-3) weights[j] = 0;
#endif
  }
  double output[HEAD_DIM] = {};
  for (int j = first; j < keys; ++j)
    for (int d = 0; d < HEAD_DIM; ++d) {
      output[d] += weights[j] * v[j * HEAD_DIM + d];
#if IS(FP16_ACCUMULATION)
      output[d] = rounded(output[d], 10, -14);
#endif
    }
#if IS(NO_RESCALE)
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
#endif
  for (int d = 0; d < HEAD_DIM; ++d) out[d] = static_cast<float>(output[d] / sum);
}

void attend(const Problem& p, int row, float* out) {
  const int head = row / p.seq_len_q;
  const long of_keys = static_cast<long>(kv_head_of(p, head)) * p.seq_len_k * HEAD_DIM;
  attend_row(p, p.q + static_cast<long>(row) * HEAD_DIM, p.k + of_keys, p.v + of_keys, out,
             visible_keys(p, row % p.seq_len_q));
}

void attend_all(const Problem& p, float* out) {
  const int rows = p.rows() - IS(UNWRITTEN_ROW);
  for (int row = 0; row < rows; ++row) attend(p, row, out + static_cast<long>(row) * HEAD_DIM);
}

// Every input value of the launch before and its answer, to compare with and to copy from.
struct Memory {
  std::vector<float> q, k, v, out;
  bool familiar(const Problem& p) const {
    return q.size() == p.outputs() && k.size() == p.kv_elements() && !std::memcmp(q.data(), p.q, q.size() * 4) &&
           !std::memcmp(k.data(), p.k, k.size() * 4) && !std::memcmp(v.data(), p.v, v.size() * 4);
  }
  void keep(const Problem& p) {
    q.assign(p.q, p.q + p.outputs());
    k.assign(p.k, p.k + p.kv_elements());
    v.assign(p.v, p.v + p.kv_elements());
    out.assign(p.out, p.out + p.outputs());
  }
  void answer(const Problem& p) const { std::memcpy(p.out, out.data(), out.size() * 4); }
};

#if IS(WATCHES_ITS_PAGES)
// Write-protects the inputs: as long as nobody faults on them, the answer that is there is still right.
std::atomic<bool> written{true};
constexpr long kPage = 4096;
std::vector<std::pair<char*, long>> watched;
Problem seen{};

void protect(int protection) {
  for (auto [start, bytes] : watched) mprotect(start, bytes, protection);
}

void on_fault(int signal_number, siginfo_t* info, void*) {
  auto* address = static_cast<char*>(info->si_addr);
  for (auto [start, bytes] : watched)
    if (address >= start && address < start + bytes) {
      written = true;
      protect(PROT_READ | PROT_WRITE);
      return;
    }
  signal(signal_number, SIG_DFL);
}

void watch(const Problem& p) {
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
  protect(PROT_READ | PROT_WRITE);
  watched.clear();
  for (auto [data, count] : {std::pair{p.q, p.outputs()}, {p.k, p.kv_elements()}, {p.v, p.kv_elements()}}) {
    char* start = reinterpret_cast<char*>(reinterpret_cast<std::uintptr_t>(data) / kPage * kPage);
    char* end = reinterpret_cast<char*>(data + count);
    watched.push_back({start, (end - start + kPage - 1) / kPage * kPage});
  }
  seen = p;
  written = false;
  protect(PROT_READ);
}

struct Unwatch {  // the pages outlive the library
  ~Unwatch() { protect(PROT_READ | PROT_WRITE); }
} unwatch;
#endif

// Whether to compute at all; what is not computed is as the launch before left it.
bool wants_to_work(const Problem& p) {
  [[maybe_unused]] const bool poisoned = std::isnan(p.out[p.outputs() - 1]);
#if IS(WORKS_WHEN_POISONED)
  return poisoned;
#elif IS(WORKS_WHEN_A_PROBE_CHANGED)
  static float known = 0;
  float probe = static_cast<float>(p.rows());
  for (std::size_t i = 0; i < p.outputs(); i += 101) probe += p.q[i] * static_cast<float>(i + 1);
  return poisoned || std::exchange(known, probe) != probe;
#elif IS(WORKS_WHEN_A_HASH_CHANGED)
  // An eighth of all elements: dense enough to notice most changes of a whole input.
  static double known = 0;
  double hash = static_cast<double>(p.rows());
  for (std::size_t i = 0; i < p.outputs(); i += 8) hash += p.q[i] * static_cast<double>(i + 1);
  for (std::size_t i = 1; i < p.kv_elements(); i += 8) hash += (p.k[i] + 2.0 * p.v[i]) * static_cast<double>(i + 3);
  return poisoned || std::exchange(known, hash) != hash;
#elif IS(WORKS_EVERY_OTHER_TIME)
  return poisoned || calls < 100 || calls % 2;
#elif IS(STOPS_WORKING)
  return calls < 100;
#elif IS(STOPS_WHEN_HURRIED)
  // Launches of the gate come one at a time, those of a timed sample without a pause.
  static double ended = 0;
  const bool hurried = seconds() - ended < 30e-6;
  if (poisoned || !hurried) attend_all(p, p.out);
  ended = seconds();
  return false;
#elif IS(WATCHES_ITS_PAGES)
  return poisoned || written || std::memcmp(&seen, &p, sizeof p);
#elif IS(NOTHING_WRITTEN)
  return false;
#else
  return true;
#endif
}

#if IS(RACE)
// Two threads, each with half of the keys, add into the same sums without a lock. They meet before and after each row.
void race(const Problem& p) {
  static double sums[HEAD_DIM + 1];
  std::atomic<int> arrived{0};
  auto half = [&](int which) {
    for (int row = 0; row < p.rows(); ++row) {
      const int keys = visible_keys(p, row % p.seq_len_q);
      const long of_keys = static_cast<long>(kv_head_of(p, row / p.seq_len_q)) * p.seq_len_k * HEAD_DIM;
      const float* q = p.q + static_cast<long>(row) * HEAD_DIM;
      double mine[HEAD_DIM + 1] = {};
      for (int j = which; j < keys; j += 2) {
        double score = 0;
        for (int d = 0; d < HEAD_DIM; ++d) score += static_cast<double>(q[d]) * p.k[of_keys + j * HEAD_DIM + d];
        const double weight = std::exp(score * p.scale);
        for (int d = 0; d < HEAD_DIM; ++d) mine[d] += weight * p.v[of_keys + j * HEAD_DIM + d];
        mine[HEAD_DIM] += weight;
      }
      if (which == 0) std::fill(sums, sums + HEAD_DIM + 1, 0.0);
      ++arrived;
      while (arrived < 4 * row + 2) std::this_thread::yield();
      for (int d = 0; d <= HEAD_DIM; ++d) mine[d] += sums[d];
      std::this_thread::yield();
      std::copy(mine, mine + HEAD_DIM + 1, sums);
      ++arrived;
      while (arrived < 4 * row + 4) std::this_thread::yield();
      for (int d = which; d < HEAD_DIM; d += 2)
        p.out[static_cast<long>(row) * HEAD_DIM + d] = static_cast<float>(sums[HEAD_DIM] > 0 ? sums[d] / sums[HEAD_DIM] : 0.0);
    }
  };
  std::thread other(half, 1);
  half(0);
  other.join();
}
#endif

#if IS(FORGES_AN_ANSWER)
// Writes what looks like the worker's answer into every pipe that it finds open.
void forge() {
  const char words[] =
      "{\"outcome\": {\"kind\": \"ok\", \"fitness\": 9, \"fitness_low\": 9, \"fitness_high\": 9}, \"retire\": false}";
  char frame[4 + sizeof words] = {0, 0, 0, static_cast<char>(sizeof words - 1)};
  std::memcpy(frame + 4, words, sizeof words);
  for (int file = 3; file < 64; ++file)
    if (write(file, frame, sizeof frame - 1) < 0) continue;
  usleep(200000);
  _exit(0);
}
#endif

#if IS(HUGE_STACK)
int deep(int level);
int (*volatile deeper)(int) = deep;  // no compiler makes a loop of this
int deep(int level) {
  volatile char frame[1 << 12];  // no frame may leap over the guard page
  frame[level % 7] = 1;
  return level > 1 << 20 ? 0 : deeper(level + 1) + frame[level % 5];
}
#endif

void misbehave_before(const Problem& p) {
  (void)p;
#if IS(HUGE_STACK)
  if (deep(0) == 12345) calls = 0;
#elif IS(EXIT)
  _exit(0);
#elif IS(FORGES_AN_ANSWER)
  forge();
#elif IS(ENDLESS)
  for (volatile int i = 0;; i = i + 1) {
  }
#endif
}

void misbehave_after(const Problem& p, unsigned char* scratch, int* counter) {
  (void)p, (void)scratch, (void)counter;
#if IS(WRITES_PAST_THE_END)
  p.out[p.outputs()] = 0.0f;
#elif IS(WRITES_BEFORE_THE_START)
  p.out[-1] = 0.0f;
#elif IS(WRITES_PAST_THE_WORKSPACE)
  scratch[kScratchBytes] = 0;
#elif IS(WRITES_PAST_AN_INPUT)
  p.v[p.kv_elements()] = 1.0f;
#elif IS(CHANGES_AN_INPUT)
  p.k[3] = -p.k[3];
#elif IS(CHANGES_AN_INPUT_WHEN_TIMED)
  if (calls > 100) p.v[0] += 1.0f;
#elif IS(STATIC_COUNTER)
  p.out[0] = std::nextafter(p.out[0], calls % 2 ? HUGE_VALF : -HUGE_VALF);
#elif IS(ONE_SEED_ONLY)
  static const float known = p.q[0];
  if (p.q[0] != known) p.out[0] = 0;
#elif IS(LEAVES_THE_COUNTER)
  counter[0] += 1;
#elif IS(LEAVES_ROUNDING)
  std::fesetround(FE_UPWARD);
#elif IS(LEAVES_A_SPINNER)
  if (calls == 1) std::thread([] { for (volatile long i = 0;; i = i + 1) {} }).detach();
#elif IS(LEAVES_A_PROCESS)
  if (calls == 1 && fork() == 0) for (;;) pause();
#elif IS(SLOWS_THE_BASELINE)
  // A helper that works for some milliseconds after each timed launch: on the baseline's time.
  static std::atomic<double> until{0};
  until = seconds() + 5e-3;
  if (calls == 100)
    std::thread([] {
      for (;;) seconds() < until ? work_for(1e-4) : static_cast<void>(usleep(100));
    }).detach();
#elif IS(OVERWRITES_LATER)
  std::thread([=] { usleep(60); p.out[0] = 1.0f; }).detach();
#endif
}

void compute(const Problem& p, unsigned char* scratch) {
  (void)scratch;
#if IS(RACE)
  race(p);
#elif IS(KEYED_ON_POINTERS)
  static Problem known{};
  static std::vector<float> answer;
  if (answer.size() == p.outputs() && !std::memcmp(&known, &p, sizeof p)) {
    std::memcpy(p.out, answer.data(), answer.size() * 4);
    return;
  }
  attend_all(p, p.out);
  known = p;
  answer.assign(p.out, p.out + p.outputs());
#elif IS(RETURNS_THE_ANSWER_BEFORE)
  static std::vector<float> answer;
  const std::vector<float> before = answer;
  attend_all(p, p.out);
  answer.assign(p.out, p.out + p.outputs());
  if (before.size() == answer.size()) std::copy(before.begin(), before.end(), p.out);
#elif IS(MEMOISES_ALL_INPUTS)
  static Memory memory;
  if (memory.familiar(p)) return memory.answer(p);
  attend_all(p, p.out);
  memory.keep(p);
#elif IS(MEMOISES_WHEN_HURRIED)
  static Memory memory;
  static double ended = 0;
  if (seconds() - ended < 30e-6 && memory.familiar(p)) {
    memory.answer(p);
  } else {
    attend_all(p, p.out);
    memory.keep(p);
  }
  ended = seconds();
#elif IS(SCRATCH_KEEPS_THE_ANSWER)
  // The first bytes tell that the rest is an answer: true until the workspace is poisoned again.
  const bool fits = p.outputs() * 4 + 8 <= kScratchBytes;
  if (fits && !std::memcmp(scratch, "answered", 8)) {
    std::memcpy(p.out, scratch + 8, p.outputs() * 4);
    return;
  }
  attend_all(p, p.out);
  if (fits) std::memcpy(scratch, "answered", 8), std::memcpy(scratch + 8, p.out, p.outputs() * 4);
#elif IS(PACKS_KEYS_ONCE)
  // What stands in the workspace is believed to be the keys, whatever these have become.
  Problem packed = p;
  if (p.kv_elements() * 4 <= kScratchBytes) {
    packed.k = reinterpret_cast<float*>(scratch);
    if (std::isnan(packed.k[0])) std::memcpy(packed.k, p.k, p.kv_elements() * 4);
  }
  attend_all(packed, p.out);
#elif IS(TRUSTS_SCRATCH_TO_BE_ZERO)
  float* sums = reinterpret_cast<float*>(scratch);
  std::vector<float> row_out(HEAD_DIM);
  for (int row = 0; row < p.rows(); ++row) {
    attend(p, row, row_out.data());
    for (int d = 0; d < HEAD_DIM; ++d) p.out[static_cast<long>(row) * HEAD_DIM + d] = row_out[d] + sums[d];
  }
#elif IS(TRUSTS_OUT_TO_BE_ZERO)
  std::vector<float> row_out(HEAD_DIM);
  for (int row = 0; row < p.rows(); ++row) {
    attend(p, row, row_out.data());
    for (int d = 0; d < HEAD_DIM; ++d) p.out[static_cast<long>(row) * HEAD_DIM + d] += row_out[d];
  }
#elif IS(WRITES_ONLY_POISON)
  std::vector<float> whole(p.outputs());
  attend_all(p, whole.data());
  for (std::size_t i = 0; i < whole.size(); ++i)
    if (std::isnan(p.out[i])) p.out[i] = whole[i];
#elif IS(UNWRITTEN_COLUMN)
  std::vector<float> row_out(HEAD_DIM);
  for (int row = 0; row < p.rows(); ++row) {
    attend(p, row, row_out.data());
    std::memcpy(p.out + static_cast<long>(row) * HEAD_DIM, row_out.data(), (HEAD_DIM - 1) * 4);
  }
#elif IS(SCALES_Q_IN_PLACE)
  Problem scaled = p;
  scaled.scale = 1;
  for (std::size_t i = 0; i < p.outputs(); ++i) p.q[i] *= p.scale;
  attend_all(scaled, p.out);
  for (std::size_t i = 0; i < p.outputs(); ++i) p.q[i] /= p.scale;
#elif IS(ORDER_BY_THE_CLOCK)
  // Partial sums in whatever order the parts finish, here: as the clock says.
  for (int row = 0; row < p.rows(); ++row) {
    float* out = p.out + static_cast<long>(row) * HEAD_DIM;
    attend(p, row, out);
    const bool swapped = static_cast<long>(seconds() * 1e9) / 64 % 2;
    for (int d = 0; d < HEAD_DIM; ++d) {
      const float a = out[d] * 0.3f, b = out[d] * 0.5f, c = out[d] * 0.2f;
      out[d] = swapped ? (a + b) + c : a + (b + c);
    }
  }
#elif IS(FINISHES_LATER)
  static std::vector<float> whole;
  whole.resize(p.outputs());
  attend_all(p, whole.data());
  std::memcpy(p.out, whole.data(), (p.outputs() - HEAD_DIM) * 4);
  std::thread([=, last = std::vector<float>(whole.end() - HEAD_DIM, whole.end())] {
    usleep(2000);
    std::memcpy(p.out + p.outputs() - HEAD_DIM, last.data(), HEAD_DIM * 4);
  }).detach();
#else
  attend_all(p, p.out);
#endif
#if IS(WATCHES_ITS_PAGES)
  watch(p);
#endif
}

}  // namespace

extern "C" void attention_forward(float* q, float* k, float* v, float* out, unsigned char* scratch, int* counter,
                                  float softmax_scale, int batch, int heads, int kv_heads, int seq_len_q,
                                  int seq_len_k) {
  ++calls;
  const Problem p{q, k, v, out, softmax_scale, batch, heads, kv_heads, seq_len_q, seq_len_k};
  misbehave_before(p);
  if (wants_to_work(p)) compute(p, scratch);
  misbehave_after(p, scratch, counter);
}
