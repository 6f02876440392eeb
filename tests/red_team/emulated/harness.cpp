// One kernel file and what Python calls of it: KERNEL_FILE, and RUN(entry) for each of ENTRIES.
#include "model.hpp"

#define BEHAVIOUR emulated_choice
#define METHOD emulated_choice
#include KERNEL_FILE

extern "C" void choose(int value) { emulated_choice = value; }
extern "C" unsigned long long count_exponentials() { return exponentials; }
extern "C" void let_pass(unsigned long long time_ns) { clock_ns += time_ns; }

#define RUN(entry)                                                                             \
  extern "C" void run_##entry(int grid, int threads, unsigned seed, void** values) {           \
    launch(entry, grid, threads, seed, values);                                                \
  }
ENTRIES
