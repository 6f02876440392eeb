// The threads of a cluster's blocks as fibers of one CPU thread, chosen at random: the schedule of a GPU at its worst.
//
// A fiber runs until it waits. Work that a GPU does on its own (copies, products) waits in `engines` and is done at any
// later time, in the order of each queue. When no fiber can go on, the kernel has deadlocked. `rank` is the number of
// the block, in its cluster, of the fiber or the work that runs.
#pragma once

#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

struct Index {
  unsigned x;
};

inline int rank = 0;

constexpr int kStackBytes = 64 << 10;

struct Fiber {
  int rank;
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  Index thread;
  std::function<bool()> ready;
  bool done = false;
  int cluster_meeting = -1;  // that it arrived at and did not wait for yet
};

struct Engine {
  std::deque<std::function<bool()>> work;  // false: not yet possible
};

struct Cluster {
  ucontext_t scheduler;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::map<std::pair<int, int>, Engine> engines;  // by rank and kind
  std::vector<int> alive;                         // threads of each block
  Fiber* current = nullptr;
  std::mt19937 random;
};

inline Cluster* cluster = nullptr;

inline std::deque<std::function<bool()>>& work_of(int kind) { return cluster->engines[{rank, kind}].work; }

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::exit(3);
}

inline void wait_until(std::function<bool()> ready) {
  Fiber* self = cluster->current;
  self->ready = std::move(ready);
  swapcontext(&self->context, &cluster->scheduler);
}

inline std::function<void()> fiber_body;

inline void fiber_main() {
  fiber_body();
  cluster->current->done = true;
  --cluster->alive[rank];
  swapcontext(&cluster->current->context, &cluster->scheduler);
}

inline void run_cluster(int blocks, int block_threads, unsigned seed, std::function<void()> body) {
  Cluster here;
  cluster = &here;
  here.random.seed(seed);
  here.alive.assign(blocks, block_threads);
  fiber_body = std::move(body);
  const int threads = blocks * block_threads;
  for (int i = 0; i < threads; ++i) {
    auto fiber = std::make_unique<Fiber>();
    fiber->stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
    fiber->rank = i / block_threads;
    fiber->thread.x = i % block_threads;
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack.get();
    fiber->context.uc_stack.ss_size = kStackBytes;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, fiber_main, 0);
    here.fibers.push_back(std::move(fiber));
  }
  const auto step_engine = [&](int of, Engine& engine) {
    rank = of;
    if (engine.work.empty() || !engine.work.front()()) return false;
    engine.work.pop_front();
    return true;
  };
  const auto step_fiber = [&](Fiber& fiber) {
    rank = fiber.rank;
    if (fiber.done || (fiber.ready && !fiber.ready())) return false;
    here.current = &fiber;
    swapcontext(&here.scheduler, &fiber.context);
    return true;
  };
  // In some schedules the engines are as late as they can be, in some schedules one of several blocks is.
  const bool lazy = seed % 2 == 1;
  const int slow = blocks > 1 && seed / 2 % 2 == 0 ? static_cast<int>(seed / 4 % blocks) : -1;
  bool others_moved = true;
  for (;;) {
    bool alive = false, moved = false, slow_moved = false;
    const unsigned start = here.random() % threads;
    for (int i = 0; i < threads; ++i) {
      Fiber& fiber = *here.fibers[(start + i) % threads];
      alive |= !fiber.done;
      if (fiber.rank == slow)
        slow_moved |= !others_moved && step_fiber(fiber);
      else
        moved |= step_fiber(fiber);
      if (!lazy && here.random() % 8 == 0)
        for (auto& [key, engine] : here.engines)
          if (here.random() % 2 == 0) moved |= step_engine(key.first, engine);
    }
    if (!alive) break;
    if (!moved && !slow_moved)
      for (auto& [key, engine] : here.engines) moved |= step_engine(key.first, engine);
    if (!moved && !slow_moved && !others_moved) fail("deadlock");
    others_moved = moved;
  }
  for (auto& [key, engine] : here.engines)
    while (!engine.work.empty())
      if (!step_engine(key.first, engine)) fail("work that could never be done");
  cluster = nullptr;
}
