// Runs every block of attention_wgmma.cu, compiled for the CPU by device.hpp, on tensors that Python gives.
#include "device.hpp"

#include "attention_wgmma.cu"

namespace {
unsigned char shared_memory[1];  // only its address is asked for
}

struct Launch {
  int blocks, threads, shared_bytes;
  unsigned seed;
};

extern "C" void run(const Launch* launch, const Tensor* tensors, float softmax_scale, int batch, int heads,
                    int kv_heads, int seq_len_q, int seq_len_k) {
  grid_size.x = launch->blocks;
  block_threads = launch->threads;
  TensorMap maps[4];
  for (int i = 0; i < 4; ++i) maps[i].opaque[0] = reinterpret_cast<unsigned long long>(tensors + i);
  for (unsigned number = 0; number < grid_size.x; ++number) {
    block_index.x = number;
    shared_bytes.assign(launch->shared_bytes, 0xff);
    mbarriers.clear();
    stores_left.clear();
    everybody = Meeting();
    for (Meeting& meeting : named) meeting = Meeting();
    for (Warp& warp : warps) warp = Warp();
    for (Warpgroup& group : warpgroups) group = Warpgroup();
    run_block(block_threads, launch->seed + number, [&] {
      attention_forward(maps[0], maps[1], maps[2], maps[3], tensors[3].data, softmax_scale, batch, heads, kv_heads,
                        seq_len_q, seq_len_k);
    });
    for (const Meeting& meeting : named)
      if (meeting.arrived) fail("a barrier that ends half full");
  }
}
