// Launches of KERNEL_FILE, compiled for the CPU by device.hpp: RUN(entry) for each of ENTRIES.
#include "device.hpp"

#include KERNEL_FILE

#ifndef CLUSTER
#define CLUSTER 1
#endif
#define RUN(entry) \
  extern "C" void run_##entry(const Launch* launch, void** values) { run(*launch, values, entry, CLUSTER); }
ENTRIES
