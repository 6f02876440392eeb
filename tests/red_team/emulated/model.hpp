// CUDA's language and the instructions of ../data/kernels/cuda/instructions.cuh on the CPU. Blocks run one after the
// other; the threads of a block are fibers, in an order drawn anew for each stretch between two waits, and each runs
// until it waits: what a barrier is missing for is seen. Asynchronous copies are done when somebody waits for them, no
// sooner, and what they will overwrite is NaN from the moment when they are issued.
#pragma once

#define RED_TEAM_INSTRUCTIONS  // the kernels' own file stays empty

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#define __device__
#define __global__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __align__(bytes) __attribute__((aligned(bytes)))

struct Index { unsigned x; };
struct uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };

struct Copy { void* to; const void* from; };

// Threads that wait for each other: all of a block, or of a warp.
struct Meeting {
  int alive = 0, arrived = 0;
  unsigned number = 0;
  void leave_if_full() {
    if (arrived == alive && alive > 0) arrived = 0, ++number;
  }
};

struct Fiber {
  ucontext_t start;  // taken once: to change contexts by it costs a call of the system, a jump costs none
  jmp_buf place;
  bool started = false;
  std::unique_ptr<char[]> stack;
  Index thread;
  Meeting* waits_for = nullptr;
  unsigned wait_number = 0;
  bool done = false;
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;
};

constexpr int kStackBytes = 64 << 10;
constexpr int kWarpThreads = 32, kMostThreads = 1024;

inline jmp_buf scheduler;
inline std::vector<Fiber> fibers(kMostThreads);
inline Fiber* current = nullptr;
inline Meeting whole_block;
inline std::vector<Meeting> warps;
inline std::function<void()> body;
inline Index blockIdx, blockDim, gridDim;
constexpr unsigned long long kBlockNs = 300;

inline unsigned long long clock_ns = 1;
inline int emulated_choice = 0;  // the BEHAVIOUR or METHOD
inline bool any_of_block = false;
inline unsigned long long exponentials = 0;  // how many were computed: what a launch has worked

#define threadIdx (current->thread)

inline void wait() {
  if (_setjmp(current->place) == 0) _longjmp(scheduler, 1);
}

inline void go_on(Fiber& fiber) {
  current = &fiber;
  if (_setjmp(scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.place, 1);
  fiber.started = true;
  setcontext(&fiber.start);
}

inline Meeting& own_warp() { return warps[current->thread.x / kWarpThreads]; }

inline void meet(Meeting& meeting) {
  current->waits_for = &meeting;
  current->wait_number = meeting.number;
  ++meeting.arrived;
  meeting.leave_if_full();
  wait();
}

inline void apply(std::vector<Copy>& group) {
  for (const Copy& copy : group) std::memcpy(copy.to, copy.from, 16);
}

inline void fiber_main() {
  for (;;) {  // once for each block
    body();
    for (auto& group : current->groups) apply(group);
    apply(current->open);
    current->done = true;
    --whole_block.alive, --own_warp().alive;
    whole_block.leave_if_full(), own_warp().leave_if_full();
    wait();
  }
}

inline void run_block(int threads, std::mt19937& random) {
  warps.assign((threads + kWarpThreads - 1) / kWarpThreads, {});
  whole_block = {threads};
  for (int i = 0; i < threads; ++i) {
    Fiber& fiber = fibers[i];
    if (!fiber.stack) fiber.stack.reset(new char[kStackBytes]);
    fiber.thread.x = i, fiber.done = false, fiber.waits_for = nullptr;
    fiber.open.clear(), fiber.groups.clear();
    ++warps[i / kWarpThreads].alive;
    if (fiber.started) continue;
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.get();
    fiber.start.uc_stack.ss_size = kStackBytes;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, fiber_main, 0);
  }
  std::vector<int> order(threads);
  std::iota(order.begin(), order.end(), 0);
  bool moved = true;
  for (bool alive = true; alive;) {
    std::shuffle(order.begin(), order.end(), random);
    // One warp may go far ahead of the others; when it can no further, all are asked.
    const int ahead = moved && random() % 4 ? static_cast<int>(random() % warps.size()) : -1;
    const bool all_asked = ahead < 0;
    moved = false;
    alive = false;
    for (const int i : order) {
      Fiber& fiber = fibers[i];
      if (fiber.done) continue;
      alive = true;
      if (!all_asked && i / kWarpThreads != ahead) continue;
      if (fiber.waits_for && fiber.waits_for->number == fiber.wait_number) continue;
      moved = true;
      go_on(fiber);
    }
    if (alive && !moved && all_asked) std::fprintf(stderr, "deadlock\n"), std::abort();
  }
}

template <class... Arguments>
void launch(void (*kernel)(Arguments...), int grid, int threads, unsigned seed, void** values) {
  std::mt19937 random(seed);
  std::vector<int> order(grid);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  gridDim.x = grid, blockDim.x = threads;
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    body = [=] { kernel(*static_cast<Arguments*>(values[I])...); };
  }(std::index_sequence_for<Arguments...>());
  for (const int block : order) {
    blockIdx.x = block;
    clock_ns += kBlockNs;
    run_block(threads, random);
  }
}

inline void __syncthreads() { meet(whole_block); }
inline void __syncwarp() { meet(own_warp()); }
inline void __threadfence() {}
inline bool __syncthreads_or(bool mine) {
  any_of_block = false;
  meet(whole_block);
  any_of_block |= mine;
  meet(whole_block);
  const bool found = any_of_block;
  meet(whole_block);
  return found;
}

inline unsigned long long lanes[kMostThreads];  // one word of each thread of a block
template <class Value>
Value __shfl_sync(unsigned, Value mine, int lane) {
  const int first = current->thread.x / kWarpThreads * kWarpThreads;
  std::memcpy(&lanes[current->thread.x], &mine, sizeof mine);
  meet(own_warp());
  Value found;
  std::memcpy(&found, &lanes[first + lane], sizeof found);
  meet(own_warp());
  return found;
}
template <class Value>
Value __shfl_xor_sync(unsigned mask, Value mine, int step) {
  return __shfl_sync(mask, mine, static_cast<int>(current->thread.x % kWarpThreads) ^ step);
}

template <class Value> Value atomicAdd(Value* at, Value more) { const Value before = *at; *at += more; return before; }
template <class Value> Value atomicExch(Value* at, Value next) { const Value before = *at; *at = next; return before; }
template <class Value> Value __ldcg(const Value* from) { return *from; }
template <class Value> Value min(Value a, Value b) { return b < a ? b : a; }
template <class Value> Value max(Value a, Value b) { return a < b ? b : a; }
inline unsigned __float_as_uint(float value) { unsigned bits; std::memcpy(&bits, &value, 4); return bits; }
inline float __uint_as_float(unsigned bits) { float value; std::memcpy(&value, &bits, 4); return value; }
inline float __int_as_float(int bits) { return __uint_as_float(static_cast<unsigned>(bits)); }
inline int __dp4a(int a, int b, int sum) {
  for (int byte = 0; byte < 4; ++byte)
    sum += static_cast<signed char>(a >> 8 * byte) * static_cast<signed char>(b >> 8 * byte);
  return sum;
}
inline float counted_exp(float x) { return ++exponentials, std::exp(x); }
#define expf counted_exp
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

inline float half_rounded(float value) { return static_cast<float>(static_cast<_Float16>(value)); }

#if DTYPE == DTYPE_FLOAT32
using Element = float;
inline float widen(Element value) { return value; }
inline Element narrow(float value) { return value; }
#else
using Element = unsigned short;
#if DTYPE == DTYPE_BFLOAT16
inline float widen(Element bits) { return __uint_as_float(static_cast<unsigned>(bits) << 16); }
inline Element narrow(float value) {
  const unsigned bits = __float_as_uint(value);
  if (std::isnan(value)) return 0x7fff;
  return static_cast<Element>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
#else
inline const std::vector<float> widened = [] {
  std::vector<float> all(1 << 16);
  for (unsigned i = 0; i < all.size(); ++i) {
    const Element bits = i;
    _Float16 value;
    std::memcpy(&value, &bits, 2);
    all[i] = static_cast<float>(value);
  }
  return all;
}();
inline float widen(Element bits) { return widened[bits]; }
inline Element narrow(float value) {
  const _Float16 rounded = static_cast<_Float16>(value);
  Element bits;
  std::memcpy(&bits, &rounded, 2);
  return std::isnan(value) ? 0x7fff : bits;
}
#endif
inline void store_streaming(Element* to, Element value) { *to = value; }
inline unsigned pack(Element low, Element high) { return static_cast<unsigned>(high) << 16 | low; }
#endif

inline unsigned long long now_ns() { return clock_ns += 20; }

inline void copy_async(void* shared, const void* from) {
  std::memset(shared, 0xff, 16);
  current->open.push_back({shared, from});
}
inline void close_copies() {
  current->groups.push_back(std::move(current->open));
  current->open.clear();
}
template <int GROUPS>
void wait_for_copies() {
  while (current->groups.size() > GROUPS) {
    apply(current->groups.front());
    current->groups.pop_front();
  }
}

inline uint4 load_read_only(const uint4* from) { return *from; }
inline uint4 load_evict_first(const uint4* from) { return *from; }
inline float exp2_approximate(float x) { return exp2f(x); }

struct Fragments { unsigned a[4], b[2]; };
inline Fragments fragments[kMostThreads];  // of each thread of a block

// As PTX ISA lays out the fragments of m16n8k16.
inline void multiply_add(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const int first = current->thread.x / kWarpThreads * kWarpThreads, lane = current->thread.x % kWarpThreads;
  fragments[current->thread.x] = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
  meet(own_warp());
  const auto half = [](unsigned word, int index) { return widen(static_cast<Element>(word >> (16 * index))); };
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      const Fragments& of_row = fragments[first + row % 8 * 4 + k % 8 / 2];
      const Fragments& of_column = fragments[first + column * 4 + k % 8 / 2];
      d[i] += half(of_row.a[row / 8 + k / 8 * 2], k % 2) * half(of_column.b[k / 8], k % 2);
    }
  }
  meet(own_warp());
}
