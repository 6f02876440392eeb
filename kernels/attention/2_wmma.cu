// Fused attention forward on tensor cores through nvcuda::wmma, with a ring of asynchronous copies: the second rung.
//
//   out = softmax(softmax_scale * q k^T) v, a block of BLOCK_N keys at a time, scores and weights in shared memory.
//
// Shapes      q, out (batch, heads, seq_len_q, HEAD_DIM); k, v (batch, kv_heads, seq_len_k, HEAD_DIM), contiguous,
//             16-byte aligned. heads is a multiple of kv_heads: a group of heads shares one kv head. Lengths >= 1.
//             CAUSAL: row i sees the keys j <= i (aligned to the top left corner, also when the lengths differ).
// Types       DTYPE_FLOAT16 or DTYPE_BFLOAT16 in and out, weights rounded to it, every sum in float32.
//             softmax_scale > 0.
// Problem     HEAD_DIM (32, 64, 96, 128), CAUSAL, DTYPE.
//
// How it works. A tile is BLOCK_M rows of one head. Its WARPS multiplying warps form WARPS_Q x WARPS_KV: each has
// BLOCK_M / WARPS_Q rows and, of every block, every WARPS_KV-th group of 16 keys. So a row's softmax stays in one warp:
//   S = Q K^T            16 x 16 products of WMMA, stored to the warp's own area of shared memory
//   P = 2^(c S - m)      c = softmax_scale log2(e); by rows, two lanes each; rounded, back to the area
//   O = alpha O + P V    O stays in accumulators
// WMMA does not say which elements of an accumulator a lane holds. To scale rows, the kernel asks once: it loads a
// matrix that counts its own elements. After that a lane knows from which lane to fetch each factor alpha.
// At the end the WARPS_KV parts of a row, each with a maximum and a sum of its own, are merged through shared memory.
// Blocks and stages that hold no visible key are never read; the last stage's missing keys are zeros in shared memory.
//
// Tunables
//   BLOCK_M         rows a tile (16, 32, 64, 128).
//   BLOCK_N         keys a block (32..128): how many share one round of the softmax.
//   K_TILE          keys a stage of the ring holds (16, 32, 64, 128): rows of K, or rows of V. A block passes as
//                   BLOCK_N / K_TILE stages of K, then as many of V. Where K_TILE < 16 * WARPS_KV, a stage has work for
//                   some of the warps only.
//   WARPS           warps that multiply (2, 4, 8, 16). WARPS_Q = min(WARPS, BLOCK_M / 16), WARPS_KV = WARPS / WARPS_Q.
//   PRODUCER_WARPS  0: all warps also copy, and one barrier of the block per stage keeps them together.
//                   1, 2, 4: that many more warps, which only copy; stages are handed over through mbarriers.
//   STAGES          stages of the ring (1..8). With 1, copies and products take turns; only other blocks fill the gaps.
//   SWIZZLE         layout of Q, K and V in shared memory: none, pad, tile: see wmma/block.cuh, also for why not xor.
//   VEC_WIDTH       elements a copy moves (2, 4, 8): cp.async of 4, 8 or 16 bytes; only the last bypasses L1.
//   Q_IN_REGS       0/1: Q's fragments stay in registers, or are read again for every K.
//   EPILOGUE        shared: O goes to shared memory as float32, and out by rows in 16-byte stores.
//                   registers: out of accumulators, in 4-byte stores; shared memory only if WARPS_KV > 1, to merge.
//   PERSISTENT      0: a block a tile. n: n blocks a multiprocessor walk over the tiles; copies run ahead.
//
// Constraints  BLOCK_N % K_TILE == 0, BLOCK_N % (16 * WARPS_KV) == 0
// Launch       row_blocks = ceil(seq_len_q / BLOCK_M), tile_heads = batch * heads; a grid's second number is <= 65535
//              grid  PERSISTENT > 0: (min(row_blocks * tile_heads, PERSISTENT * multiprocessors), 1)
//                    else:           (row_blocks, tile_heads)
//              block (32 * (WARPS + PRODUCER_WARPS))
// Shared bytes row_bytes * (STAGES * K_TILE + BLOCK_M) + BLOCK_M * WARPS_KV * max(work, part)
//              + (PRODUCER_WARPS > 0 ? 16 * (STAGES + 1) : 0)
//              where row_bytes = 2 * HEAD_DIM + (SWIZZLE == pad ? 16 : 0), work = 6 * (BLOCK_N / WARPS_KV + 8),
//              part = EPILOGUE == shared or WARPS_KV > 1 ? 4 * (HEAD_DIM + 8) : 0.
// Workspace    none.
// Archs        sm_80 and later.
// Adds to 1_scalar.cu: tensor cores, since plain instructions multiply too slowly; asynchronous copies in stages, so
//              that no warp waits for each block of keys; warps that share tiles by rows and by keys.
// References   CUDA C++ Programming Guide, "Warp Matrix Functions"; PTX ISA: "wmma", "cp.async", "mbarrier";
//              Milakov & Gimelshein 2018 (online softmax); see the helpers.
#include "wmma/block.cuh"
#include "wmma/ring.cuh"
#include "wmma/warp.cuh"

namespace {

// The work of the multiplying warps.
template <class Ring>
__device__ __forceinline__ void attend(const Problem& problem, unsigned shared, float scale_log2) {
  Ring ring(problem, shared);
  Warp warp(shared_memory);  // while the first copies are under way
  int number = blockIdx.x;
  do {
    const Tile tile(problem, number);
    ring.start_tile(tile, number == blockIdx.x);
    warp.start_tile(tile);
    if (Q_IN_REGS) ring.release_query();
    for (int block = 0; block < tile.keys_seen; block += BLOCK_N) {
      const int end = min(block + BLOCK_N, tile.keys_seen);
      for (int key = block, i = 0; key < end; key += K_TILE, ++i) {
        warp.multiply_keys(ring.acquire(), key, i);
        ring.release();
      }
      if (!Q_IN_REGS && end == tile.keys_seen) ring.release_query();
      warp.weigh_block(block, scale_log2);
      for (int key = block, i = 0; key < end; key += K_TILE, ++i) {
        warp.multiply_values(ring.acquire(), key, i);
        ring.release();
      }
    }
    warp.finish_tile(tile);
    number += gridDim.x;
  } while (PERSISTENT && number < problem.tiles);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    attention_forward(const Element* q, const Element* k, const Element* v, Element* out, float softmax_scale,
                      int batch, int heads, int kv_heads, int seq_len_q, int seq_len_k) {
  const int row_blocks = (seq_len_q + BLOCK_M - 1) / BLOCK_M;
  const int group = heads == kv_heads ? 1 : heads / kv_heads;
  const Problem problem{q, k, v, out, group, row_blocks, row_blocks * batch * heads, seq_len_q, seq_len_k};
  const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(shared_memory));
  const float scale_log2 = softmax_scale * 1.44269504088896341f;
  if constexpr (PRODUCER_WARPS == 0) {
    attend<OwnRing>(problem, shared, scale_log2);
  } else {
    start_barriers(shared);
    if (threadIdx.x >= 32 * WARPS)
      produce(problem, shared, threadIdx.x - 32 * WARPS);
    else
      attend<FedRing>(problem, shared, scale_log2);
  }
}
