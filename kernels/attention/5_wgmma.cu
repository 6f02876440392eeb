// Fused attention forward for Hopper: wgmma, TMA, specialised warps. The FlashAttention-3 class.
//
//   out = softmax(softmax_scale * q k^T) v, a block of BLOCK_N keys at a time, scores, weights and sums in registers.
//
// Shapes      q (batch, heads, seq_len_q, HEAD_DIM), k (batch, kv_heads, seq_len_k, HEAD_DIM); out and v the same with
//             VALUE_DIM in place of HEAD_DIM. 16-byte aligned, each with strides of its own, in elements: any multiples
//             of 8 that keep rows contiguous, between rows below 2^30. heads is a multiple of kv_heads: a group of
//             heads shares one kv head. Lengths >= 1.
//             CAUSAL: row i sees the keys j <= i (aligned to the top left corner, also when the lengths differ).
//             attn_mask: parts/mask.h; any addresses and strides, between rows below 2^31.
// Types       DTYPE_FLOAT16 or DTYPE_BFLOAT16 in and out, every sum in float32. softmax_scale > 0.
// Problem     HEAD_DIM (32, 64, 96, 128, 192, 256), VALUE_DIM (of the same, at most HEAD_DIM), CAUSAL, DTYPE, and
//             features: parts/features.h. A mask: parts/mask.h, and MASK_STEP: rows of the mask begin at, and have,
//             whole vectors of so many elements (1, 2).
//
// How it works. A tile is 64 * CONSUMER_WARPGROUPS rows of one head. One thread of the producer warps loads Q, and K
// and V in blocks of BLOCK_N keys, by TMA, STAGES deep, the last block first. It runs ahead of the consumers by as many
// blocks as there is room for, across tiles too. Each consumer warpgroup has 64 rows:
//   S = Q K^T            wgmma, both from shared memory as they were loaded (Q from registers with Q_IN_REGS)
//   P = 2^(c (S - m))    c = softmax_scale log2(e); masks only in blocks that not all rows of the warpgroup see whole
//   O = alpha O + P V    wgmma: P from registers, V from shared memory as it was loaded
// A window ends the walk over the blocks early, and masks the last ones, too. Features that change scores do so before
// the softmax (parts/score_change.cuh); sinks join a row's sum at its end (wgmma/tile.cuh: total).
// Of a padding or boolean mask, the producer warps make bits ahead of the consumers, and leave out the blocks of keys
// that it hides from all rows of a tile (wgmma/mask_ring.cuh). A bias is added before the softmax.
// Then O / l goes through Q's shared memory and out by TMA, which leaves out rows that do not exist. Keys that do not
// exist arrive as zeros, and are masked.
//
// Tunables
//   CONSUMER_WARPGROUPS  1, 2, 3: BLOCK_M = 64 * CONSUMER_WARPGROUPS rows a tile.
//   BLOCK_N              keys a block (16..256), a multiple of 16.
//   STAGES               blocks of K and of V in shared memory (1..8).
//   QUERY_STAGES         1, 2: tiles whose Q (and output) are in shared memory. With 2, a persistent block loads the
//                        next tile's Q while it works on this tile.
//   PRODUCER_WARPS       1, or 4: only a whole warpgroup can give registers away (setmaxnreg).
//   PRODUCER_REGISTERS   24..56, a multiple of 8: registers of a producer thread, with PRODUCER_WARPS 4. Consumers get
//                        the rest, up to 240.
//   OVERLAP              0/1: the next block's scores are issued before this block's values; see wgmma/consumer.cuh.
//   WEIGHT_SETS          1, 2: sets of registers for packed weights. 2 needs OVERLAP.
//   PING_PONG            0/1: warpgroups take turns in issuing products. Needs CONSUMER_WARPGROUPS > 1.
//   Q_IN_REGS            0/1: Q's fragments stay in registers: products of 128 keys then read a third less.
//   EXP2_FMA_SHARE       sixteenths of the weights that multiply-adds compute, not MUFU (0..16).
//   RESCALE_LOG2         0: O is rescaled for every block. 4, 8: only when some row's maximum grew by more than 2^that;
//                        until then weights exceed 1, which float16 (up to 65504) and the float32 sums can hold.
//   KEEP_MAXIMUM         0/1: weights are relative to the maximum of the blocks before; a block whose scores are far
//                        above it is computed again. See wgmma/consumer.cuh. No difference with a soft cap.
//   BIAS_IN_PRODUCT      0/1: a bias that is linear in the key comes out of the product Q K^T: see wgmma/key_bias.cuh.
//   MASK_VIA             a bias goes through shared memory, copied by all producer warps (shared), or is loaded by the
//                        consumers while the scores' product runs (direct).
//   MASK_STAGES          blocks of a bias in shared memory (1..3), with MASK_VIA shared.
//   STORE                bulk: through shared memory and TMA; direct: from registers, 4 bytes a lane.
//   SPLIT_KV             1, 2, 4, 8: blocks of a cluster that share the keys of a tile, in whole blocks of keys. They
//                        merge their sums over distributed shared memory: see wgmma/merge.cuh. For grids of few tiles.
//   PACK_GQA             0/1: the rows of a tile are those of several heads of a group, so that few queries fill it.
//   CLUSTER              1, 2: blocks of a cluster that have tiles side by side. Each loads its part of every block of
//                        K and V for all of them (multicast). CAUSAL: they all go through the keys of the last tile.
//   HALF_BLOCKS          0/1: of a block at either end of the keys only the half that rows of the warpgroup see is
//                        computed. See wgmma/consumer.cuh.
//   HIDE_ENDS            0/1: the factors of a tile's rows are computed under its last product, and its output is read
//                        from shared memory under the next tile's first block. Needs STORE bulk and QUERY_STAGES 2.
//   SKIP_MASKED          0/1: with CAUSAL, and at the far end of a window, a warpgroup leaves out blocks of keys that
//                        only other warpgroups of its tile see.
//   PERSISTENT           0: a block a tile. n: n blocks a multiprocessor walk over the tiles.
//   SHARE_TAIL           0/1: a last round of fewer tiles than blocks is shared out: each block takes equally many
//                        blocks of keys. See wgmma/tile.cuh, wgmma/merge.cuh. Not for CAUSAL, nor for windows.
//   WALK, HEAD_SECTION, ROW_ORDER  the order of the tiles: see wgmma/tile.cuh.
//   L2_PROMOTION         128, 256: bytes that a TMA load brings to the L2 cache at a time. In the maps alone.
//   MIN_CTAS             blocks a multiprocessor that the register allocation must allow (1..3).
//
// Constraints  Registers of a thread: at entry 65536 / (threads * MIN_CTAS), with threads in whole warpgroups, rounded
//              down to a multiple of 8, at most 255. A consumer holds BLOCK_N / 2 scores, VALUE_DIM / 2 sums,
//              BLOCK_N / 4 pairs of weights a set, HEAD_DIM / 4 pairs of Q with Q_IN_REGS, and some 30 more; ptxas
//              wants the operands of one product (BLOCK_N / 2 or VALUE_DIM / 2 registers, and 30) within the registers
//              at entry.
//              SPLIT_KV > 1: PERSISTENT 0, STORE direct, VALUE_DIM a multiple of 8 * SPLIT_KV, CLUSTER 1. BLOCK_N is a
//              multiple of 8 * CLUSTER. SHARE_TAIL: PERSISTENT > 0, CLUSTER 1. Windows: WEIGHT_SETS 1.
//              KEEP_MAXIMUM: EXP2_FMA_SHARE 0.
//              HALF_BLOCKS: WEIGHT_SETS 1, BLOCK_N a multiple of 32. HIDE_ENDS: STORE bulk, QUERY_STAGES 2.
//              Masks: WEIGHT_SETS 1, EXP2_FMA_SHARE 0, no HALF_BLOCKS, no BIAS_IN_PRODUCT.
// Launch       pack  = PACK_GQA ? the largest power of two, up to 64, that divides heads / kv_heads : 1
//              sets  = ceil(seq_len_q / (CLUSTER * BLOCK_M / pack)) * batch * heads / pack
//              grid  (CLUSTER * SPLIT_KV * (PERSISTENT > 0 ? min(sets, PERSISTENT * multiprocessors / CLUSTER) : sets))
//              block (128 * CONSUMER_WARPGROUPS + 32 * PRODUCER_WARPS)
//              SHARE_TAIL, no CAUSAL, no window: grid (min(sets * ceil(seq_len_k / BLOCK_N), PERSISTENT *
//              multiprocessors)), and where that does not divide `sets` then attention_merge, with the same grid and
//              arguments: block (1024), no shared memory.
// Arguments    q_map, k_map, v_map, out_map by value: maps of the four tensors, with their strides, and boxes
//              (1, pack, 64 / pack, panel) for q and out, (1, 1, BLOCK_N / CLUSTER, panel) for k and v. A panel is 64
//              columns, 32 where HEAD_DIM (of v and out: VALUE_DIM) is no multiple of 64. Swizzled by the bytes of a
//              panel's row, 128 or 64.
// Workspace    SHARE_TAIL, no CAUSAL, no window, else unused: parts float[(blocks + sets % blocks - 1) * BLOCK_M *
//              (VALUE_DIM + 2)] for a grid of `blocks`, any content.
// Shared bytes 2 * (HEAD_DIM * QUERY_STAGES * BLOCK_M + (HEAD_DIM + VALUE_DIM) * STAGES * BLOCK_N)
//              + 16 * (QUERY_STAGES + 2 * STAGES)
//              BIAS_IN_PRODUCT: + 32 * BLOCK_N. HIDE_ENDS: + 32 * QUERY_STAGES
//              padding or boolean: + (STAGES + 1) * (16 + 16 * ceil(BLOCK_N / 128) * (padding ? 1 : BLOCK_M))
//              MASK_VIA shared: + MASK_STAGES * (BLOCK_M * (BLOCK_N + 8) * (2 or 4 bytes) + 16)
//              SPLIT_KV > 1: + 8 + 32 * BLOCK_M * (SPLIT_KV - 1) * (VALUE_DIM / 8 / SPLIT_KV + 1)
// Archs        sm_90a: for others 3_mma.cu.
// Adds to 4_tma.cu: scores issued ahead and warpgroups that take turns, so that products run while exponentials are
//              computed; weights that wait for no maximum; some exponentials by multiply-adds; registers moved from
//              the producer to the consumers; clusters that load once for two blocks; splits, packed heads, features.
// References   FlashAttention-3, Shah et al. 2024; PTX ISA: see the helpers. Lab book: docs/lab/wgmma.md.
#include "parts/arithmetic.cuh"
#include "parts/blocks.cuh"
#include "parts/features.h"
#include "parts/mask.h"
#include "parts/strides.cuh"
#include "wgmma/choices.cuh"
#include "wgmma/consumer.cuh"
#include "wgmma/key_bias.cuh"
#include "wgmma/merge.cuh"
#include "wgmma/producer.cuh"
#include "wgmma/rings.cuh"
#include "wgmma/tile.cuh"
#include "wgmma/tma.cuh"

#if CLUSTER_BLOCKS > 1
#define CLUSTER_DIMS __cluster_dims__(CLUSTER_BLOCKS, 1, 1)
#else
#define CLUSTER_DIMS
#endif

namespace {

static_assert(SPLIT_KV == 1 || SPLIT_KV == 2 || SPLIT_KV == 4 || SPLIT_KV == 8, "clusters have up to eight blocks");
static_assert(CLUSTER == 1 || SPLIT_KV == 1, "blocks that share keys load different ones");
static_assert(SPLIT_KV == 1 || !PERSISTENT, "a cluster has one tile");
static_assert(SPLIT_KV == 1 || !kThroughShared, "a block has some of the columns, which are no box");
static_assert(!SHARE_TAIL || (PERSISTENT && CLUSTER == 1), "only blocks that walk on their own share the last tiles");
static_assert(VALUE_DIM % (8 * SPLIT_KV) == 0, "the blocks of a cluster share the columns");
static_assert(HEAD_SECTION >= 1, "at least one");

}  // namespace

extern "C" __global__ void CLUSTER_DIMS __launch_bounds__(kThreads, MIN_CTAS)
    attention_forward(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                      const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap out_map, Element* out,
                      float softmax_scale, int batch, int heads, int kv_heads, int seq_len_q, int seq_len_k,
                      long long out_stride_batch, long long out_stride_head, long long out_stride_row,
                      float* parts FEATURE_ARGUMENTS MASK_ARGUMENTS) {
  const Strides out_strides(out_stride_batch, out_stride_head, out_stride_row);
  const Problem problem = problem_of(q_map, k_map, v_map, out_map, out, out_strides, softmax_scale, batch, heads,
                                     kv_heads, seq_len_q, seq_len_k, parts,
                                     Features FEATURES_GIVEN MASK_FROM(MASK_GIVEN));
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);  // shows the compiler that a warp has one value

  if (threadIdx.x == 0) start_rings();
  if constexpr (kBiasRides) write_key_bias<kBfloat16>(shared_at(kBiasAt), kThreads);
  if constexpr (SPLIT_KV > 1) open_inbox(barrier_at(kBarriers), inbox_bytes(Place(problem, Walk(problem.tail))));
  if constexpr (CLUSTER > 1)
    sync_cluster();
  else
    __syncthreads();

  if (warpgroup == CONSUMER_WARPGROUPS) {
    if constexpr (kMoveRegisters) give_registers<PRODUCER_REGISTERS>();
#if MASK_BITS || MASK_TILES
    if (threadIdx.x < 128 * CONSUMER_WARPGROUPS + 32 * kMaskWarps) Producer(problem).run();
#else
    if (threadIdx.x == 128 * CONSUMER_WARPGROUPS) Producer(problem).run();
#endif
    if constexpr (SPLIT_KV > 1) {
      __syncwarp();
      wait_for_open_inboxes();  // every thread that arrived at the cluster's barrier waits there too
    }
  } else {
    if constexpr (kMoveRegisters) take_registers<kConsumerRegisters>();
    Consumer(problem, warpgroup).run();
  }
  if constexpr (CLUSTER > 1) {
    __syncwarp();
    sync_cluster();  // the others may still load into this block's memory, and give back stages to it
  }
}

#if SHARES_TAIL
extern "C" __global__ void __launch_bounds__(kMergeThreads, 1)
    attention_merge(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                    const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap out_map, Element* out,
                    float softmax_scale, int batch, int heads, int kv_heads, int seq_len_q, int seq_len_k,
                    long long out_stride_batch, long long out_stride_head, long long out_stride_row,
                    float* parts FEATURE_ARGUMENTS MASK_ARGUMENTS) {
  const Strides out_strides(out_stride_batch, out_stride_head, out_stride_row);
  merge_tail(problem_of(q_map, k_map, v_map, out_map, out, out_strides, softmax_scale, batch, heads, kv_heads,
                        seq_len_q, seq_len_k, parts, Features FEATURES_GIVEN MASK_FROM(MASK_GIVEN)));
}
#endif
