// Runs every block, or cluster of blocks, of a launch, one after the other, each by device.hpp's threads.
#pragma once
#include <utility>

#include "device.hpp"

struct Launch {
  int grid[3];
  int threads, shared_bytes;
  unsigned seed;
  int left_over;  // the bytes of shared memory before a block writes them
};

template <class... Parameters>
void run(const Launch& launch, void** values, void (*kernel)(Parameters...), int cluster_blocks = 1) {
  grid_size.x = launch.grid[0];
  block_threads = launch.threads;
  unsigned number = 0;
  for (block_z = 0; block_z < unsigned(launch.grid[2]); ++block_z)
    for (block_y = 0; block_y < unsigned(launch.grid[1]); ++block_y)
      for (first_block.x = 0; first_block.x < grid_size.x; first_block.x += cluster_blocks) {
        start_blocks(cluster_blocks, launch.shared_bytes, launch.left_over);
        start_copies(block_threads);
        run_cluster(cluster_blocks, block_threads, launch.seed + ++number, [&] {
          [&]<std::size_t... I>(std::index_sequence<I...>) {
            kernel(*static_cast<Parameters*>(values[I])...);
          }(std::index_sequence_for<Parameters...>());
        });
        end_blocks();
      }
}
