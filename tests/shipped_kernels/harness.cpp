// Runs every block of a launch of KERNEL_FILE, compiled for the CPU by device.hpp: RUN(entry) for each of ENTRIES.
#include <utility>

#include "device.hpp"

#include KERNEL_FILE

struct Launch {
  int grid[3];
  int threads, shared_bytes;
  unsigned seed;
};

template <class... Parameters>
void run(const Launch& launch, void** values, void (*kernel)(Parameters...)) {
  grid_size.x = launch.grid[0];
  block_threads = launch.threads;
  unsigned number = 0;
  for (block_z = 0; block_z < unsigned(launch.grid[2]); ++block_z)
    for (block_y = 0; block_y < unsigned(launch.grid[1]); ++block_y)
      for (first_block.x = 0; first_block.x < grid_size.x; ++first_block.x) {
        blocks.assign(1, Block());
        blocks[0].shared_bytes.assign(launch.shared_bytes, 0xff);
        run_cluster(1, block_threads, launch.seed + ++number, [&] {
          [&]<std::size_t... I>(std::index_sequence<I...>) {
            kernel(*static_cast<Parameters*>(values[I])...);
          }(std::index_sequence_for<Parameters...>());
        });
      }
}

#define RUN(entry) \
  extern "C" void run_##entry(const Launch* launch, void** values) { run(*launch, values, entry); }
ENTRIES
