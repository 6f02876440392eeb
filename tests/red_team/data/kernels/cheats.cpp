// Wrong, broken or cheating kernels for the red team: fused attention forward, right but for what each name says.
//
//   out = softmax(softmax_scale * q k^T) v
//
// Shapes      q, out (batch, heads, seq_len_q, HEAD_DIM); k, v (batch, kv_heads, seq_len_k, HEAD_DIM), contiguous.
// Types       float32. Archs: any. Workspace: scratch (poisoned), counter (zero_once).
// Tunables    none: behaviours are functions. What each is to be caught by stands in tests/red_team/test_cpu.py.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cfenv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "cheat_arithmetic.h"

namespace {

constexpr std::size_t kScratchBytes = 32768;  // as the search space has it
int calls[static_cast<int>(Behaviour::kCount)] = {};  // launches since the library was loaded

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

// Whether to compute at all; what is not computed is as the launch before left it.
bool wants_to_work(const Problem& p) {
  [[maybe_unused]] const bool poisoned = std::isnan(p.out[p.outputs() - 1]);
  if (IS(works_when_poisoned)) {
    return poisoned;
  } else if (IS(works_when_a_probe_changed)) {
    static float known = 0;
    float probe = static_cast<float>(p.rows());
    for (std::size_t i = 0; i < p.outputs(); i += 101) probe += p.q[i] * static_cast<float>(i + 1);
    return poisoned || std::exchange(known, probe) != probe;
  } else if (IS(works_when_a_hash_changed)) {
    // An eighth of all elements: dense enough to notice most changes of a whole input.
    static double known = 0;
    double hash = static_cast<double>(p.rows());
    for (std::size_t i = 0; i < p.outputs(); i += 8) hash += p.q[i] * static_cast<double>(i + 1);
    for (std::size_t i = 1; i < p.kv_elements(); i += 8) hash += (p.k[i] + 2.0 * p.v[i]) * static_cast<double>(i + 3);
    return poisoned || std::exchange(known, hash) != hash;
  } else if (IS(works_every_other_time)) {
    return poisoned || calls[static_cast<int>(behaviour)] < 100 || calls[static_cast<int>(behaviour)] % 2;
  } else if (IS(stops_working)) {
    return calls[static_cast<int>(behaviour)] < 100;
  } else if (IS(stops_when_hurried)) {
    // Launches of the gate come one at a time, those of a timed sample without a pause.
    static double ended = 0;
    const bool hurried = seconds() - ended < 30e-6;
    if (poisoned || !hurried) attend_all(p, p.out);
    ended = seconds();
    return false;
  } else if (IS(watches_its_pages)) {
    return poisoned || written || std::memcmp(&seen, &p, sizeof p);
  } else if (IS(nothing_written)) {
    return false;
  } else {
    return true;
  }
}

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
        p.out[1L * row * HEAD_DIM + d] = static_cast<float>(sums[HEAD_DIM] > 0 ? sums[d] / sums[HEAD_DIM] : 0.0);
    }
  };
  std::thread other(half, 1);
  half(0);
  other.join();
}

// Writes what looks like the worker's answer into every pipe that it finds open.
void forge() {
  // A TrialDone as MessagePack, but for its token.
  const char words[] =
      "\205\244type\251TrialDone\245token\240\247outcome\204\244kind\242ok"
      "\247fitness\313@\042\000\000\000\000\000\000\253fitness_low\313@\042\000\000\000\000\000\000\254f"
      "itness_high\313@\042\000\000\000\000\000\000\246retire\302\250doubtful\302";
  char frame[4 + sizeof words] = {0, 0, 0, static_cast<char>(sizeof words - 1)};
  std::memcpy(frame + 4, words, sizeof words);
  for (int file = 3; file < 64; ++file)
    if (write(file, frame, sizeof frame - 1) < 0) continue;
  usleep(200000);
  _exit(0);
}

int deep(int level);
int (*volatile deeper)(int) = deep;  // no compiler makes a loop of this
int deep(int level) {
  volatile char frame[1 << 12];  // no frame may leap over the guard page
  frame[level % 7] = 1;
  return level > 1 << 20 ? 0 : deeper(level + 1) + frame[level % 5];
}

void misbehave_before(const Problem& p) {
  (void)p;
  if (IS(huge_stack)) {
    if (deep(0) == 12345) calls[static_cast<int>(behaviour)] = 0;
  } else if (IS(exit)) {
    _exit(0);
  } else if (IS(forges_an_answer)) {
    forge();
  } else if (IS(endless)) {
    for (volatile int i = 0;; i = i + 1) {
    }
  }
}

void misbehave_after(const Problem& p, unsigned char* scratch, int* counter) {
  (void)p, (void)scratch, (void)counter;
  if (IS(writes_past_the_end)) {
    p.out[p.outputs()] = 0.0f;
  } else if (IS(writes_before_the_start)) {
    p.out[-1] = 0.0f;
  } else if (IS(writes_past_the_workspace)) {
    scratch[kScratchBytes] = 0;
  } else if (IS(writes_past_an_input)) {
    p.v[p.kv_elements()] = 1.0f;
  } else if (IS(changes_an_input)) {
    p.k[3] = -p.k[3];
  } else if (IS(changes_an_input_when_timed)) {
    if (calls[static_cast<int>(behaviour)] > 100) p.v[0] += 1.0f;
  } else if (IS(static_counter)) {
    p.out[0] = std::nextafter(p.out[0], calls[static_cast<int>(behaviour)] % 2 ? HUGE_VALF : -HUGE_VALF);
  } else if (IS(one_seed_only)) {
    static const float known = p.q[0];
    if (p.q[0] != known) p.out[0] = 0;
  } else if (IS(leaves_the_counter)) {
    counter[0] += 1;
  } else if (IS(leaves_rounding)) {
    std::fesetround(FE_UPWARD);
  } else if (IS(leaves_a_spinner)) {
    if (calls[static_cast<int>(behaviour)] == 1) std::thread([] { for (volatile long i = 0;; i = i + 1) {} }).detach();
  } else if (IS(leaves_a_process)) {
    if (calls[static_cast<int>(behaviour)] == 1 && fork() == 0) for (;;) pause();
  } else if (IS(slows_the_baseline)) {
    // A helper that works for some milliseconds after each timed launch: on the baseline's time.
    static std::atomic<double> until{0};
    until = seconds() + 5e-3;
    if (calls[static_cast<int>(behaviour)] == 100)
      std::thread([] {
        for (;;) seconds() < until ? work_for(1e-4) : static_cast<void>(usleep(100));
      }).detach();
  } else if (IS(overwrites_later)) {
    std::thread([=] { usleep(60); p.out[0] = 1.0f; }).detach();
  }
}

void compute(const Problem& p, unsigned char* scratch) {
  (void)scratch;
  if (IS(race)) {
    race(p);
  } else if (IS(keyed_on_pointers)) {
    static Problem known{};
    static std::vector<float> answer;
    if (answer.size() == p.outputs() && !std::memcmp(&known, &p, sizeof p)) {
      std::memcpy(p.out, answer.data(), answer.size() * 4);
      return;
    }
    attend_all(p, p.out);
    known = p;
    answer.assign(p.out, p.out + p.outputs());
  } else if (IS(returns_the_answer_before)) {
    static std::vector<float> answer;
    const std::vector<float> before = answer;
    attend_all(p, p.out);
    answer.assign(p.out, p.out + p.outputs());
    if (before.size() == answer.size()) std::copy(before.begin(), before.end(), p.out);
  } else if (IS(memoises_all_inputs)) {
    static Memory memory;
    if (memory.familiar(p)) return memory.answer(p);
    attend_all(p, p.out);
    memory.keep(p);
  } else if (IS(memoises_when_hurried)) {
    static Memory memory;
    static double ended = 0;
    if (seconds() - ended < 30e-6 && memory.familiar(p)) {
      memory.answer(p);
    } else {
      attend_all(p, p.out);
      memory.keep(p);
    }
    ended = seconds();
  } else if (IS(scratch_keeps_the_answer)) {
    // The first bytes tell that the rest is an answer: true until the workspace is poisoned again.
    const bool fits = p.outputs() * 4 + 8 <= kScratchBytes;
    if (fits && !std::memcmp(scratch, "answered", 8)) {
      std::memcpy(p.out, scratch + 8, p.outputs() * 4);
      return;
    }
    attend_all(p, p.out);
    if (fits) std::memcpy(scratch, "answered", 8), std::memcpy(scratch + 8, p.out, p.outputs() * 4);
  } else if (IS(packs_keys_once)) {
    // What stands in the workspace is believed to be the keys, whatever these have become.
    Problem packed = p;
    if (p.kv_elements() * 4 <= kScratchBytes) {
      packed.k = reinterpret_cast<float*>(scratch);
      if (std::isnan(packed.k[0])) std::memcpy(packed.k, p.k, p.kv_elements() * 4);
    }
    attend_all(packed, p.out);
  } else if (IS(trusts_scratch_to_be_zero)) {
    float* sums = reinterpret_cast<float*>(scratch);
    std::vector<float> row_out(HEAD_DIM);
    for (int row = 0; row < p.rows(); ++row) {
      attend(p, row, row_out.data());
      for (int d = 0; d < HEAD_DIM; ++d) p.out[static_cast<long>(row) * HEAD_DIM + d] = row_out[d] + sums[d];
    }
  } else if (IS(trusts_out_to_be_zero)) {
    std::vector<float> row_out(HEAD_DIM);
    for (int row = 0; row < p.rows(); ++row) {
      attend(p, row, row_out.data());
      for (int d = 0; d < HEAD_DIM; ++d) p.out[static_cast<long>(row) * HEAD_DIM + d] += row_out[d];
    }
  } else if (IS(writes_only_poison)) {
    std::vector<float> whole(p.outputs());
    attend_all(p, whole.data());
    for (std::size_t i = 0; i < whole.size(); ++i)
      if (std::isnan(p.out[i])) p.out[i] = whole[i];
  } else if (IS(unwritten_column)) {
    std::vector<float> row_out(HEAD_DIM);
    for (int row = 0; row < p.rows(); ++row) {
      attend(p, row, row_out.data());
      std::memcpy(p.out + static_cast<long>(row) * HEAD_DIM, row_out.data(), (HEAD_DIM - 1) * 4);
    }
  } else if (IS(scales_q_in_place)) {
    Problem scaled = p;
    scaled.scale = 1;
    for (std::size_t i = 0; i < p.outputs(); ++i) p.q[i] *= p.scale;
    attend_all(scaled, p.out);
    for (std::size_t i = 0; i < p.outputs(); ++i) p.q[i] /= p.scale;
  } else if (IS(order_by_the_clock)) {
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
  } else if (IS(finishes_later)) {
    static std::vector<float> whole;
    whole.resize(p.outputs());
    attend_all(p, whole.data());
    std::memcpy(p.out, whole.data(), (p.outputs() - HEAD_DIM) * 4);
    std::thread([=, last = std::vector<float>(whole.end() - HEAD_DIM, whole.end())] {
      usleep(2000);
      std::memcpy(p.out + p.outputs() - HEAD_DIM, last.data(), HEAD_DIM * 4);
    }).detach();
  } else {
    attend_all(p, p.out);
  }
  if (IS(watches_its_pages)) {
    watch(p);
  }
}

void launch(Behaviour which, const Problem& p, unsigned char* scratch, int* counter) {
  behaviour = which;
  ++calls[static_cast<int>(behaviour)];
  misbehave_before(p);
  if (wants_to_work(p)) compute(p, scratch);
  misbehave_after(p, scratch, counter);
}

}  // namespace

#define CHEAT(name)                                                                                                    \
  extern "C" void cheat_##name(float* q, float* k, float* v, float* out, unsigned char* scratch, int* counter,         \
                               float softmax_scale, int batch, int heads, int kv_heads, int seq_len_q, int seq_len_k,  \
                               int causal) {                                                                           \
    const Problem p{q, k, v, out, softmax_scale, batch, heads, kv_heads, seq_len_q, seq_len_k, causal};                \
    launch(Behaviour::name, p, scratch, counter);                                                                      \
  }
BEHAVIOURS(CHEAT)
