// Runs every cluster of a launch of KERNEL_FILE, compiled for the CPU by device.hpp, on arguments from Python.
#include <utility>

#include "device.hpp"

#include KERNEL_FILE

#ifndef CLUSTER_BLOCKS
#define CLUSTER_BLOCKS 1
#endif

namespace {
unsigned char shared_memory[1];  // only its address is asked for
}

struct Launch {
  int blocks, threads, shared_bytes;
  unsigned seed;
  int left_over;  // the bytes of shared memory before a block writes them
};

// `values` are the addresses of the arguments.
template <class... Parameters>
void run(const Launch& launch, void** values, int cluster_blocks, void (*kernel)(Parameters...)) {
  grid_size.x = launch.blocks;
  block_threads = launch.threads;
  for (first_block.x = 0; first_block.x < grid_size.x; first_block.x += cluster_blocks) {
    start_blocks(cluster_blocks, launch.shared_bytes, launch.left_over);
    run_cluster(cluster_blocks, block_threads, launch.seed + first_block.x, [&] {
      [&]<std::size_t... I>(std::index_sequence<I...>) {
        kernel(*static_cast<Parameters*>(values[I])...);
      }(std::index_sequence_for<Parameters...>());
      if (cluster->current->cluster_meeting >= 0) fail("a thread that leaves the cluster's barrier early");
    });
    end_blocks();
  }
}

extern "C" void run_attention_forward(const Launch* launch, void** values) {
  run(*launch, values, CLUSTER_BLOCKS, attention_forward);
}

#if defined(SHARES_TAIL) && SHARES_TAIL
extern "C" void run_attention_merge(const Launch* launch, void** values) {
  run(*launch, values, 1, attention_merge);
}
#endif
