// Runs every cluster of attention_wgmma.cu, compiled for the CPU by device.hpp, on tensors that Python gives.
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
  for (first_block.x = 0; first_block.x < grid_size.x; first_block.x += CLUSTER_BLOCKS) {
    blocks.assign(CLUSTER_BLOCKS, Block());
    for (Block& block : blocks) block.shared_bytes.assign(launch->shared_bytes, 0xff);
    whole_cluster = Meeting();
    run_cluster(CLUSTER_BLOCKS, block_threads, launch->seed + first_block.x, [&] {
      attention_forward(maps[0], maps[1], maps[2], maps[3], tensors[3].data, softmax_scale, batch, heads, kv_heads,
                        seq_len_q, seq_len_k);
      if (cluster->current->cluster_meeting >= 0) fail("a thread that leaves the cluster's barrier early");
    });
    for (const Block& block : blocks)
      for (const Meeting& meeting : block.named)
        if (meeting.arrived) fail("a barrier that ends half full");
  }
}
