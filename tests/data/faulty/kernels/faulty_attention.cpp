// Fused attention forward, correct and slow, with one fault on demand: what the gate must find.
//
//   out = softmax(softmax_scale * q k^T) v
//
// Shapes      q, out (batch, heads, seq_len_q, HEAD_DIM); k, v (batch, kv_heads, seq_len_k, HEAD_DIM), contiguous.
// Types       float32. Archs: any. Tunables: FAULT, one of the constants below.
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#if FAULT == FAULT_THROW
#include <stdexcept>
#elif FAULT == FAULT_SPINNER || FAULT == FAULT_TIME_BOMB
#include <thread>
#endif

#if FAULT == FAULT_COMPILE_ERROR
#error this kernel does not compile
#elif FAULT == FAULT_SLOW_COMPILE
template <unsigned long N>
constexpr unsigned long counted() {
  unsigned long sum = N;
  for (int i = 0; i < 200000; ++i) sum = sum * 31 + i;
  return N == 0 ? sum : sum + counted<N == 0 ? 0 : N - 1>();
}
constexpr unsigned long kSlow = counted<800>();
#elif FAULT == FAULT_MISSING_FUNCTION
extern "C" float defined_nowhere(float);
#elif FAULT == FAULT_MISSING_ENTRY
#define attention_forward attention_backward
#endif

namespace {

int calls = 0;  // launches since the library was loaded

// One row of queries against its `keys` keys.
void attend_row(const float* q, const float* k, const float* v, float* out, float scale, int keys) {
  std::vector<double> weights(keys);
  double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int j = 0; j < keys; ++j) {
    double score = 0;
    for (int d = 0; d < HEAD_DIM; ++d) score += static_cast<double>(q[d]) * k[j * HEAD_DIM + d];
    weights[j] = score * scale;
    maximum = std::max(maximum, weights[j]);
  }
  for (double& weight : weights) sum += weight = std::exp(weight - maximum);
  for (int d = 0; d < HEAD_DIM; ++d) {
    double value = 0;
    for (int j = 0; j < keys; ++j) value += weights[j] * v[j * HEAD_DIM + d];
    out[d] = static_cast<float>(value / sum);
  }
}

[[maybe_unused]] void crash() {
  void* page = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  *static_cast<volatile int*>(page) = 1;
}

[[maybe_unused]] int count_kernel(dl_phdr_info* library, size_t, void* count) {
  const std::string_view path = library->dlpi_name;
  if (path.size() > 4 && path.substr(path.size() - 4) == ".bin") ++*static_cast<int*>(count);
  return 0;
}

// Waits until this process has loaded a second kernel: the crash will look like that one's. It hardly
// uses its core while it waits, since a thread that does is found after its own kernel's trial.
[[maybe_unused]] void crash_beside_another_kernel() {
  for (int kernels = 0; kernels < 2; usleep(100000)) {
    kernels = 0;
    dl_iterate_phdr(count_kernel, &kernels);
  }
  crash();
}

void misbehave() {
#if FAULT == FAULT_SEGFAULT
  crash();
#elif FAULT == FAULT_ABORT
  std::abort();
#elif FAULT == FAULT_THROW
  throw std::runtime_error("thrown by the kernel");
#elif FAULT == FAULT_DIVIDE_TRAP
  volatile int zero = 0;
  zero = 1000 / zero;
#elif FAULT == FAULT_MISALIGNED
#if defined(__x86_64__)  // which does not mind, unless told to
  alignas(8) char bytes[16] = {};
  asm volatile("pushf; orl $0x40000, (%%rsp); popf; movl 1(%0), %%eax" : : "r"(bytes) : "rax", "memory", "cc");
#else
  raise(SIGBUS);
#endif
#elif FAULT == FAULT_ILLEGAL_INSTRUCTION
  __builtin_trap();
#elif FAULT == FAULT_EXIT
  std::_Exit(7);
#elif FAULT == FAULT_INFINITE_LOOP
  std::fputs("the kernel is in its loop\n", stderr);
  for (volatile int i = 0;; i = i + 1) {
  }
#elif FAULT == FAULT_SLOW
  std::fputs("the kernel takes its time\n", stderr);
  usleep(200000);
#elif FAULT == FAULT_STOP
  raise(SIGSTOP);
#elif FAULT == FAULT_KILL
  raise(SIGKILL);
#elif FAULT == FAULT_CHATTER
  std::puts("{\"outcome\": {\"kind\": \"ok\", \"fitness\": 9}}");  // looks like an answer to the harness
  std::fflush(stdout);
  const char frame[] = "\0\0\0\2{}";
  if (write(1, frame, 6) != 6) std::abort();
#elif FAULT == FAULT_GARBLES
  for (int fd = 3; fd < 64; ++fd)  // one of them is the worker's channel
    if (write(fd, "no message of the worker's", 26) == 26) std::fflush(stderr);
#elif FAULT == FAULT_ANSWERS_NONSENSE
  for (int fd = 3; fd < 64; ++fd)  // a whole message, and no answer
    if (write(fd, "\0\0\0\2[]", 6) == 6) std::fflush(stderr);
#elif FAULT == FAULT_SPINNER
  if (calls == 1) std::thread([] { for (volatile long i = 0;; i = i + 1) {} }).detach();
#elif FAULT == FAULT_TIME_BOMB
  if (calls == 1) std::thread(crash_beside_another_kernel).detach();
#elif FAULT == FAULT_MISSING_FUNCTION
  defined_nowhere(1.0f);
#endif
}

}  // namespace

extern "C" void attention_forward(float* q, float* k, float* v, float* out, float softmax_scale, int batch, int heads,
                                  int kv_heads, int seq_len_q, int seq_len_k) {
  ++calls;
  misbehave();
#if FAULT == FAULT_WIDE_LOADS  // as aligned loads of 32 bytes, which not every processor has
  if (reinterpret_cast<std::uintptr_t>(q) % 32) crash();
#endif
  const int rows = batch * heads * seq_len_q;
  const int group = heads / kv_heads;
#if FAULT == FAULT_SKIPS_WHEN_WRITTEN
  // Works only where it finds the harness's poison: as soon as nobody looks, it is fast.
  const bool looked_at = std::isnan(out[rows * HEAD_DIM - 1]);
#elif FAULT == FAULT_TRUSTS_A_PROBE
  // Works only when a few input values changed since its last call.
  static float known = 0;
  float probe = static_cast<float>(rows);
  for (int i = 0; i < rows * HEAD_DIM; i += 101) probe += q[i] * static_cast<float>(i + 1);
  const bool looked_at = std::isnan(out[0]) || probe != known;
  known = probe;
#else
  const bool looked_at = true;
#endif
#if FAULT == FAULT_WRONG_SCALE
  softmax_scale *= 1.01f;
#elif FAULT == FAULT_WRONG_WHEN_LONG  // longer than any edge shape
  if (seq_len_k > 1200) softmax_scale *= 1.01f;
#elif FAULT == FAULT_WRONG_WITHOUT_MASK
  if (!CAUSAL) softmax_scale *= 1.01f;
#endif
  for (int row = 0; row < rows; ++row) {
    if (!looked_at && row % 3 != 0) continue;
#if FAULT == FAULT_UNWRITTEN_ROWS
    if (row == rows - 1) continue;
#endif
    const int head = row / seq_len_q;
    const int kv_head = head / heads * kv_heads + head % heads / group;
    int keys = CAUSAL ? std::min(seq_len_k, row % seq_len_q + 1) : seq_len_k;
#if FAULT == FAULT_DROPPED_KEY
    keys = std::max(1, keys - 1);
#endif
    const long of_keys = static_cast<long>(kv_head) * seq_len_k * HEAD_DIM;
    attend_row(q + row * HEAD_DIM, k + of_keys, v + of_keys, out + row * HEAD_DIM, softmax_scale, keys);
  }
#if FAULT == FAULT_NAN
  out[rows * HEAD_DIM / 2] = std::nanf("");
#elif FAULT == FAULT_OUT_OF_BOUNDS
  out[rows * HEAD_DIM] = 0.0f;
#elif FAULT == FAULT_MUTATES_INPUT
  k[3] = -k[3];
#elif FAULT == FAULT_LATE_MUTATES_INPUT
  if (calls > 60) q[0] += 1.0f;  // only once it is being timed
#elif FAULT == FAULT_NONDETERMINISTIC
  out[0] = std::nextafter(out[0], calls % 2 ? FLT_MAX : -FLT_MAX);
#elif FAULT == FAULT_STATE_BETWEEN_CALLS
  // Answers from memory once it has seen these addresses.
  static const float* known = nullptr;
  static std::vector<float> answer;
  if (known == q && answer.size() == static_cast<std::size_t>(rows) * HEAD_DIM)
    std::memcpy(out, answer.data(), answer.size() * sizeof(float));
  known = q;
  answer.assign(out, out + rows * HEAD_DIM);
#endif
}
