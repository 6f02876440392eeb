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

extern Cluster* cluster;

[[noreturn]] void fail(const char* what);
void wait_until(std::function<bool()> ready);
// Leaves work to an engine of this block.
void do_later(int kind, std::function<bool()> work);
void run_cluster(int blocks, int block_threads, unsigned seed, std::function<void()> body);
