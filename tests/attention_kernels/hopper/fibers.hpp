// A block's threads as fibers of one CPU thread, chosen at random: the schedule of a GPU at its worst.
//
// A fiber runs until it waits. Work that a GPU does on its own (copies, products) waits in `engines` and is done at any
// later time, in the order of each queue. When nobody can go on, the kernel has deadlocked.
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

struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  Index thread;
  std::function<bool()> ready;
  bool done = false;
};

struct Engine {
  std::deque<std::function<bool()>> work;  // false: not yet possible
};

struct Block {
  ucontext_t scheduler;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::map<int, Engine> engines;
  Fiber* current = nullptr;
  std::mt19937 random;
};

inline Block* block = nullptr;

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::exit(3);
}

inline void wait_until(std::function<bool()> ready) {
  Fiber* self = block->current;
  self->ready = std::move(ready);
  swapcontext(&self->context, &block->scheduler);
}

inline std::function<void()> fiber_body;

inline void fiber_main() {
  fiber_body();
  block->current->done = true;
  swapcontext(&block->current->context, &block->scheduler);
}

inline void run_block(int threads, unsigned seed, std::function<void()> body) {
  Block here;
  block = &here;
  here.random.seed(seed);
  fiber_body = std::move(body);
  for (int i = 0; i < threads; ++i) {
    auto fiber = std::make_unique<Fiber>();
    fiber->stack.resize(64 << 10);
    fiber->thread.x = i;
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack.data();
    fiber->context.uc_stack.ss_size = fiber->stack.size();
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, fiber_main, 0);
    here.fibers.push_back(std::move(fiber));
  }
  const auto step_engine = [&](Engine& engine) {
    if (engine.work.empty() || !engine.work.front()()) return false;
    engine.work.pop_front();
    return true;
  };
  const auto step_fiber = [&](Fiber& fiber) {
    if (fiber.done || (fiber.ready && !fiber.ready())) return false;
    here.current = &fiber;
    swapcontext(&here.scheduler, &fiber.context);
    return true;
  };
  // In some schedules the engines are late whenever they can be.
  const bool lazy = seed % 2 == 1;
  for (;;) {
    bool alive = false, moved = false;
    const unsigned start = here.random() % threads;
    for (int i = 0; i < threads; ++i) {
      Fiber& fiber = *here.fibers[(start + i) % threads];
      alive |= !fiber.done;
      moved |= step_fiber(fiber);
      if (!lazy && here.random() % 8 == 0)
        for (auto& [number, engine] : here.engines)
          if (here.random() % 2 == 0) moved |= step_engine(engine);
    }
    if (!alive) break;
    if (!moved)
      for (auto& [number, engine] : here.engines) moved |= step_engine(engine);
    if (!moved) fail("deadlock");
  }
  for (auto& [number, engine] : here.engines)
    while (!engine.work.empty())
      if (!step_engine(engine)) fail("work that could never be done");
  block = nullptr;
}
