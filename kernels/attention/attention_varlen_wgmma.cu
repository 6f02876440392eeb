// Attention over packed sequences of different lengths on Hopper: wgmma, TMA, specialised warps.
//
//   out = softmax(softmax_scale * q k^T) v, each sequence by itself.
//
// Shapes      q, out (tokens_q, heads, HEAD_DIM); k, v (tokens_k, kv_heads, HEAD_DIM), contiguous, 16-byte aligned.
//             Sequence i has the rows cu_seqlens_q[i] to cu_seqlens_q[i + 1] - 1, and the keys likewise. heads is a
//             multiple of kv_heads. A row without keys is 0. Rows that no sequence has are not written.
//             CAUSAL: a sequence's last row sees all of its keys, the row before one less, and so on.
// Types       DTYPE_FLOAT16 or DTYPE_BFLOAT16 in and out, every sum in float32; tables of int32. softmax_scale > 0.
// Problem     HEAD_DIM (32, 64, 96, 128), CAUSAL, DTYPE.
//
// How it works. As 5_wgmma.cu, with the same code (wgmma/consumer.cuh, wgmma/producer.cuh). Persistent blocks walk over
// the tiles, those with the most keys first (varlen/walk.cuh). One warp finds tiles, while those before are loaded and
// computed. It writes where a tile lies to shared memory, behind the mbarriers. The loading thread reads this at once.
// The consumers read it when Q has arrived. The loading thread asks for the next tile when it has a few blocks of this
// one left: a block that drew earlier would keep a tile from another block that is sooner free.
// Maps know no sequences, so a tile's last rows, and its last keys, may be those of the next sequence:
//   rows    are computed, and not stored: a warpgroup not all of whose 64 rows exist stores from registers, row by row.
//           One that has no row leaves all products out.
//   keys    are masked. Their weights are 0, but 0 times an infinite value or NaN is NaN: so each warpgroup writes
//           zeros over these values, in the sequence's last block, before its product reads them.
//
// Tunables. 5_wgmma.cu explains the ones that both kernels have.
//   CONSUMER_WARPGROUPS, BLOCK_N, STAGES, QUERY_STAGES, PRODUCER_REGISTERS, PING_PONG, Q_IN_REGS, EXP2_FMA_SHARE,
//   RESCALE_LOG2, KEEP_MAXIMUM, HALF_BLOCKS, HIDE_ENDS, SKIP_MASKED, L2_PROMOTION  as in 5_wgmma.cu.
//   PACK_GQA      0/1: the rows of a tile are those of several heads of a group, the heads of a position together.
//   STORE         bulk: through Q's shared memory and by TMA; direct: from registers, 4 bytes a lane.
//   WALK          snake, queue; HEAD_SECTION: see varlen/walk.cuh.
//   MIN_CTAS      blocks a multiprocessor (1..3).
//
// Constraints  as in 5_wgmma.cu, which explains the registers, with OVERLAP 1, WEIGHT_SETS 1, PRODUCER_WARPS 4.
// Launch       pack  = PACK_GQA ? the largest power of two, up to 64, that divides heads / kv_heads : 1
//              grid  (min(MIN_CTAS * multiprocessors, tiles)); (tokens_q * pack / (64 * CONSUMER_WARPGROUPS) +
//                    sequences) * heads / pack are no fewer than the tiles. Any grid is right.
//              block (128 * CONSUMER_WARPGROUPS + 128)
// Arguments    q_map, k_map, v_map, out_map by value: maps of the four tensors, with boxes (64 / pack, pack, panel) for
//              q and out, and (BLOCK_N, 1, panel) for k and v. A panel is 64 columns, 32 where HEAD_DIM is no multiple
//              of 64. Swizzled by the bytes of a panel's row, 128 or 64.
// Workspace    counter int[1], 0 before a launch and after it.
// Shared bytes 2 * HEAD_DIM * (QUERY_STAGES * 64 * CONSUMER_WARPGROUPS + 2 * STAGES * BLOCK_N)
//              + 16 * (QUERY_STAGES + 2 * STAGES) + 40 * QUERY_STAGES + 8
// Archs        sm_90a: for others attention_varlen.cu.
// Adds to 5_wgmma.cu: a walk over tiles of unequal lengths by a warp of its own, and values that are cleared.
// References   FlashAttention-3, Shah et al. 2024 (varlen); PTX ISA: see the helpers.
#include "varlen/tile.cuh"

#include "varlen/walk.cuh"
#include "wgmma/consumer.cuh"
#include "wgmma/producer.cuh"
#include "wgmma/rings.cuh"
#include "wgmma/tma.cuh"

namespace {

// The blocks of keys that are still to be loaded when the next tile is asked for: by our estimate they take as long as
// a draw, a search in the table and the first loads. Not measured.
constexpr int kAhead = (384 + BLOCK_N - 1) / BLOCK_N;

// Called by the second warp of the producers. It finds a tile while the one before it is loaded.
__device__ __forceinline__ void find_tiles(PackedWalk walk) {
  const bool tells = threadIdx.x % 32 == 0;
  Ring<QUERY_STAGES> ring;
  Ring<1> wanted;
  for (; walk.has(); walk.next()) {
    const PackedTile tile = walk.find();
    if (tells) {
      Walk::tell(ring, tile);
      wait_mbarrier(tile_wanted(), wanted.parity);
    }
    ring.advance();
    wanted.advance();
    __syncwarp();
  }
  if (tells) Walk::tell(ring, {});
}

// Called by one thread.
__device__ __forceinline__ void load_tiles(const Problem& problem) {
  Producer producer(problem);
  producer.prefetch_maps();
  for (;;) {
    const PackedTile tile = Walk::hear(producer.queries);
    if (tile.rows == 0) return arrive_at_mbarrier(query_full(producer.queries.stage));
    producer.load_tile(Place(problem, tile), kAhead, [] { arrive_at_mbarrier(tile_wanted()); });
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, MIN_CTAS)
    attention_varlen(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                     const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap out_map,
                     const int* cu_seqlens_q, const int* cu_seqlens_k, Element* out, float softmax_scale, int sequences,
                     int heads, int kv_heads, int* counter) {
  const int group = heads == kv_heads ? 1 : heads / kv_heads;
  const TileShape shape{PACK_GQA ? min(__ffs(group) - 1, 6) : 0};
  const float scale_log2 = softmax_scale * 1.44269504088896341f;
  const Problem problem{q_map, k_map, v_map, out_map, out, scale_log2, softmax_scale, heads, group, shape, {}, {}};
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);  // shows the compiler that a warp has one value

  if (threadIdx.x == 0) {
    for (int stage = 0; stage <= QUERY_STAGES; ++stage) start_mbarrier(tile_found(stage), 1);  // the last one: tile_wanted
    start_rings();
  }
  __syncthreads();

  if (warpgroup == CONSUMER_WARPGROUPS) {
    if constexpr (kMoveRegisters) give_registers<PRODUCER_REGISTERS>();
    if (threadIdx.x == 128 * CONSUMER_WARPGROUPS) load_tiles(problem);
    if (threadIdx.x / 32 == 4 * CONSUMER_WARPGROUPS + 1)
      find_tiles({cu_seqlens_q, cu_seqlens_k, sequences, heads >> shape.heads_log2, shape, counter});
  } else {
    if constexpr (kMoveRegisters) take_registers<kConsumerRegisters>();
    Consumer(problem, warpgroup).run();
  }
}
