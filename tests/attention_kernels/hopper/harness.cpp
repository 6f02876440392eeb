// Runs every cluster of attention_wgmma.cu's launches, compiled for the CPU by device.hpp, on arguments from Python.
#include "device.hpp"

#include "attention_wgmma.cu"

namespace {
unsigned char shared_memory[1];  // only its address is asked for
}

struct Launch {
  int blocks, threads, shared_bytes;
  unsigned seed;
};

struct Arguments {
  const Tensor* tensors;
  float softmax_scale;
  int batch, heads, kv_heads, seq_len_q, seq_len_k;
  long long out_stride_batch, out_stride_head, out_stride_row;
  float* parts;
};

template <class Kernel>
void run(const Launch& launch, const Arguments& given, int cluster_blocks, Kernel kernel) {
  grid_size.x = launch.blocks;
  block_threads = launch.threads;
  TensorMap maps[4];
  for (int i = 0; i < 4; ++i) maps[i].opaque[0] = reinterpret_cast<unsigned long long>(given.tensors + i);
  for (first_block.x = 0; first_block.x < grid_size.x; first_block.x += cluster_blocks) {
    blocks.assign(cluster_blocks, Block());
    for (Block& block : blocks) block.shared_bytes.assign(launch.shared_bytes, 0xff);
    whole_cluster = Meeting();
    run_cluster(cluster_blocks, block_threads, launch.seed + first_block.x, [&] {
      kernel(maps[0], maps[1], maps[2], maps[3], given.tensors[3].data, given.softmax_scale, given.batch, given.heads,
             given.kv_heads, given.seq_len_q, given.seq_len_k, given.out_stride_batch, given.out_stride_head,
             given.out_stride_row, given.parts);
      if (cluster->current->cluster_meeting >= 0) fail("a thread that leaves the cluster's barrier early");
    });
    for (const Block& block : blocks)
      for (const Meeting& meeting : block.named)
        if (meeting.arrived) fail("a barrier that ends half full");
  }
}

extern "C" void run_attention_forward(const Launch* launch, const Arguments* given) {
  run(*launch, *given, CLUSTER_BLOCKS, attention_forward);
}

#if SHARES_TAIL
extern "C" void run_attention_merge(const Launch* launch, const Arguments* given) {
  run(*launch, *given, 1, attention_merge);
}
#endif
