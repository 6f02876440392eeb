// Fused attention forward on tensor cores with mma.sync and asynchronous copies: the FlashAttention-2 class.
//
//   out = softmax(softmax_scale * q k^T) v, a block of BLOCK_N keys at a time, scores and weights in registers only.
//
// Shapes      q (batch, heads, seq_len_q, HEAD_DIM); k (batch, kv_heads, seq_len_k, HEAD_DIM); v and out the same with
//             VALUE_DIM, which is HEAD_DIM as a rule; 16-byte aligned. heads is a multiple of kv_heads: a group of
//             heads shares one kv head. Lengths >= 1.
//             STRIDED 0: contiguous. 1: strides are further arguments, in elements, any that keep rows contiguous and
//             16-byte aligned; between rows below 2^30.
//             CAUSAL: row i sees the keys j <= i (aligned to the top left corner, also when the lengths differ).
// Types       DTYPE_FLOAT16 or DTYPE_BFLOAT16 in and out, every sum in float32. softmax_scale > 0.
// Problem     HEAD_DIM and VALUE_DIM (multiples of 16; VALUE_DIM <= HEAD_DIM <= 256), CAUSAL, DTYPE, and features:
//             parts/features.h, parts/mask.h (with MASK_STEP: rows of the mask are whole vectors of so many elements,
//             aligned; 1, 4, 8 or 16); STRIDED, 0 if not given. Constant distances between rows are 6% faster, so views have
//             their own binary. VIEW_HEADS, VIEW_KV_HEADS, Q_ROW, K_ROW, V_ROW and OUT_ROW, 0 if not given: this
//             binary is for views whose heads are neighbours, with these numbers of heads and distances between rows.
//
// How it works. A tile is BLOCK_M rows of one head. WARPS_Q x WARPS_KV warps work on it: each has BLOCK_M / WARPS_Q
// rows and, of every block of keys, BLOCK_N / WARPS_KV keys. K and V blocks arrive by cp.async, STAGES deep.
//   S = Q K^T            accumulators of mma.m16n8k16, operands by ldmatrix
//   P = 2^(c (S - m))    c = softmax_scale log2(e): one multiply-add and one ex2 a score; masks only in edge blocks
//   O = alpha O + P V    P's accumulator layout is already that of the A operand
// The row sums l stay spread over four lanes until the end. Then O / l goes through shared memory to 16-byte stores.
// Blocks that hold no visible key are never read; the last block's missing keys are zeros in shared memory. A window
// moves the first block, too, and masks the blocks at both of its ends (mma/worker.cuh: attend_all). Features that
// change scores do so before the softmax (parts/score_change.cuh); sinks join a row's sum at its end (mma/tile.cuh:
// total).
// A mask's elements go from global memory to registers, before the products with whose scores they meet. Blocks of keys
// that padding hides are not loaded, and blocks of which it hides nothing are as without a mask. A warp leaves out the
// products of a block that bytes hide from all its rows, if these are there before the scores (MASK_AHEAD).
//
// Tunables (T = 32 * WARPS_Q * WARPS_KV threads)
//   BLOCK_M       rows a tile (16..256), a multiple of 16 * WARPS_Q.
//   BLOCK_N       keys a block (16..512), a multiple of 16 * WARPS_KV.
//   WARPS_Q       warps along the rows (1, 2, 4, 8).
//   WARPS_KV      warps along the keys (1, 2, 4, 8): each has its own softmax, merged at the end through shared memory.
//   STAGES        blocks of K and V in shared memory (1..8). With 1, K loads under the softmax and PV, V under QK.
//   V_WAIT        late: a second barrier, so that QK need not wait for V; early: one barrier a block. STAGES 1: late.
//   Q_IN_REGS     0/1: Q's fragments stay in registers, or are read again for every block.
//   SHARE_QK_SMEM 0/1: K and V overwrite Q in shared memory; needs Q_IN_REGS.
//   SWIZZLE       none, xor, pad: see mma/shared_rows.cuh.
//   KV_ORDER      forward or reverse: which end of the keys is first. Causal's masked blocks are at the far end.
//   RESCALE_LOG2  0: O is rescaled for every block. 4, 8: only when some row's maximum grew by more than 2^that; until
//                 then weights exceed 1, which float16 (up to 65504) and the float32 sums can hold.
//   SKIP_MASKED   0/1: in masked blocks, leave out products of 16 keys that no row of the warp sees.
//   KV_EVICTION   normal, or first: K and V leave the L2 cache first. For decode, which reads them once.
//   MASK_KEYS     neighbouring keys that a lane has (2, 4, 8, 16), unless the mask is padding: more need fewer loads of
//                 the mask, and other swizzles of K and V. A warp's keys are a multiple of 4 * MASK_KEYS, or it is 2.
//   MASK_AHEAD    0/1: the mask is loaded before this block's products, or a block ahead, which takes registers for
//                 longer. Not for padding.
//   SPLIT_KV      blocks of threads that share a tile's keys (1..64): fills the device when tiles are few.
//   MERGE         how their parts are merged. counter: through `partials`, by the last block to arrive. kernel: through
//                 `partials`, by a second kernel. cluster: through distributed shared memory (sm_90, SPLIT_KV 2..8).
//   PACK_GQA      0/1: the rows of a tile are (position, head of the group) pairs: fuller tiles if seq_len_q is small.
//   TILE_ORDER    by_row, by_row_descending: the tiles of a head are neighbours. by_head, by_head_descending: the tiles
//                 of all heads at the same rows are neighbours. Descending starts with the longest causal rows.
//   PERSISTENT    0: a block a tile. n: n blocks a multiprocessor walk over the tiles. Needs SPLIT_KV == 1.
//   MIN_CTAS      blocks a multiprocessor that the register allocation must allow (1..4).
//
//   A space may leave choices out: see mma/block.cuh.
//
// Decode (seq_len_q 1) is bound by how fast K and V arrive: SMs x bytes under way / latency (some 50 KB an SM fill an
// H200). So it needs PACK_GQA, which reads K and V once a group; BLOCK_M 16; a large (STAGES - 1) * BLOCK_N; and a
// SPLIT_KV with which batch * kv_heads * SPLIT_KV is just below 1, 2 or 3 times the multiprocessors: a second wave
// would start late.
//
// Constraints  BLOCK_M % (16 * WARPS_Q) == 0, BLOCK_N % (16 * WARPS_KV) == 0, columns % min(WARPS_KV, columns) == 0,
//              BLOCK_N / WARPS_KV % (4 * MASK_KEYS) == 0 or MASK_KEYS == 2,
//              SHARE_QK_SMEM <= Q_IN_REGS, PERSISTENT == 0 or SPLIT_KV == 1, MIN_CTAS * T <= the device's threads a
//              multiprocessor,
//              where columns = VALUE_DIM / 8, with MERGE cluster (VALUE_DIM / 8) / SPLIT_KV, a whole number.
// Launch       row_blocks = ceil((PACK_GQA ? seq_len_q * heads / kv_heads : seq_len_q) / BLOCK_M)
//              tile_heads = batch * (PACK_GQA ? kv_heads : heads); a grid's second number is at most 65535
//              tiles      = row_blocks * tile_heads
//              grid       PERSISTENT > 0:               (min(tiles, PERSISTENT * multiprocessors), 1)
//                         TILE_ORDER by_head...:        (tile_heads * SPLIT_KV, row_blocks)
//                         TILE_ORDER by_row...:         (row_blocks * SPLIT_KV, tile_heads)
//              block      (T)
//              and with SPLIT_KV > 1 and MERGE kernel then attention_merge, with the same arguments:
//              grid (tiles * BLOCK_M * VALUE_DIM / 256), block (64), no shared memory.
// Shared bytes main = SHARE_QK_SMEM ? max(q_bytes, stages_bytes) : q_bytes + stages_bytes
//              MERGE cluster, SPLIT_KV > 1:  main + 4 * WARPS_KV * BLOCK_M * (VALUE_DIM + 2 * SPLIT_KV) + 8
//              else, WARPS_KV > 1:           max(main, q_bytes + 4 * WARPS_KV * BLOCK_M * (VALUE_DIM + 2))
//              else:                         main
//              where q_bytes = BLOCK_M * row_bytes(HEAD_DIM),
//              stages_bytes = STAGES * BLOCK_N * (row_bytes(HEAD_DIM) + row_bytes(VALUE_DIM)),
//              row_bytes(D) = 2 * D + (SWIZZLE == pad ? 16 : 0).
// Workspace    with SPLIT_KV > 1, else unused: MERGE counter or kernel: partials float[tiles * SPLIT_KV * BLOCK_M *
//              (VALUE_DIM + 2)], any content; counter: counter int[tiles], zero once: every launch leaves zeros.
// Archs        sm_80 and later.
// Adds to 2_wmma.cu: fragments whose layout is known (mma.sync), so that scores and weights stay in registers, and
//              do not pass through shared memory; XOR swizzles; masked and whole blocks apart; splits of the keys over
//              blocks, and tiles packed with GQA heads, which fill the device where queries are few.
// References   FlashAttention-2, Dao 2023; PTX ISA: mma.m16n8k16, ldmatrix, cp.async; see the helpers.
#include "mma/block.cuh"
#include "mma/tile.cuh"
#include "mma/worker.cuh"
#include "parts/blocks.cuh"
#include "parts/features.h"
#include "parts/mask.h"
#include "parts/merge.cuh"

namespace {

constexpr bool kCluster = SPLIT_KV > 1 && MERGE == MERGE_CLUSTER;
constexpr bool kSecondKernel = SPLIT_KV > 1 && MERGE == MERGE_KERNEL;
constexpr int kParts = WARPS_KV * (kCluster ? SPLIT_KV : 1);  // merged in shared memory
constexpr int kBlockTiles = kValueTiles / (kCluster ? SPLIT_KV : 1);  // tiles of 8 columns that a block merges
constexpr int kMergers = WARPS_KV < kBlockTiles ? WARPS_KV : kBlockTiles;  // warps along the keys that share them
constexpr int kOwnTiles = kBlockTiles / kMergers;
constexpr int kLoadedTogether = SPLIT_KV < 16 ? SPLIT_KV : 16;  // parts of a cell that a thread loads at once

static_assert(HEAD_DIM % 16 == 0 && HEAD_DIM <= 256, "products of 16 columns, and output in registers");
static_assert(VALUE_DIM % 16 == 0 && VALUE_DIM <= HEAD_DIM, "`out` goes where Q was");
static_assert(kValueTiles % (kCluster ? SPLIT_KV : 1) == 0 && kBlockTiles % kMergers == 0, "warps share the columns");
static_assert(!kCluster || SPLIT_KV <= 8, "a cluster has up to eight blocks everywhere");
static_assert(SPLIT_KV == 1 || !PERSISTENT, "a persistent block has its tiles alone");
#if SPLIT_KV > 1 && MERGE == MERGE_CLUSTER && __CUDA_ARCH__ < 900
#error "clusters need sm_90"
#endif

using SplitParts = SplitPart<BLOCK_M, VALUE_DIM>;                              // in `partials`
using WarpParts = PartLayout<BLOCK_M, VALUE_DIM / (kCluster ? SPLIT_KV : 1)>;  // in shared memory

// The warps' parts come where the stages were. In a cluster they have a place of their own behind these, since other
// blocks may be ahead and send theirs early; the inbox lies behind it.
constexpr unsigned kStagesEnd = kStagesAt + STAGES * kStageBytes;
constexpr unsigned kPartsAt = kCluster && kStagesEnd > kQueryBytes ? kStagesEnd : kQueryBytes;
constexpr unsigned kInboxAt = kPartsAt + 4 * kParts * WarpParts::kFloats;

#if SPLIT_KV > 1 && MERGE == MERGE_CLUSTER
#define CLUSTER __cluster_dims__(SPLIT_KV, 1, 1)
#else
#define CLUSTER
#endif

// A warp's share of the work. The warps along the keys share the columns of the merged rows while there are any left.
struct MergingWorker : Worker<Tile> {
  using Worker::Worker;
  __device__ bool merges() const { return kMergers == WARPS_KV || warp_kv < kMergers; }
};

// Merges the PARTS of this block's warps, or of its whole cluster's. Each warp gets TILES column tiles, while there are
// any left.
template <int PARTS, int TILES>
__device__ __forceinline__ void merge_warps(const MergingWorker& worker, int split,
                                            PartFragments<kRowTiles, TILES>& merged) {
  if constexpr (PARTS == 1) {
    merged = worker.part;
  } else {
    float* parts = reinterpret_cast<float*>(shared_memory + kPartsAt);
    const int row_tile = worker.warp_q * kRowTiles;
    if constexpr (kCluster) {
      const unsigned inbox = worker.shared + kInboxAt;
      wait_for_open_inboxes();
      send_part<WarpParts, SPLIT_KV>(worker.part, worker.shared + kPartsAt, split * WARPS_KV + worker.warp_kv, split,
                                     inbox, row_tile, worker.tile.valid_rows());
      __syncthreads();  // this block's own part is there, and Q and the stages were read by all
      wait_for_inbox(inbox);
    } else {
      __syncthreads();  // the stages were read by all
      store_part<WarpParts>(worker.part, parts + worker.warp_kv * WarpParts::kFloats, row_tile);
      __syncthreads();
    }
    const auto part = [=](int p) { return parts + p * WarpParts::kFloats; };
    if (worker.merges())
      merge_parts<WarpParts, PARTS>(merged, part, row_tile, worker.warp_kv * TILES,
                                    worker.tile.problem.exponent_scale());
  }
}

// Merges the parts of a tile by `stride` threads; this one has the number `first`.
template <int CELLS>
__device__ __forceinline__ void merge_splits(const Tile& tile, const float* parts, int first, int stride) {
  const auto store = [&](int row, int column, const float(&o)[4]) {
#if STRIDED
    *reinterpret_cast<uint2*>(tile.row_at(tile.problem.out, tile.problem.out_strides, tile.first_row + row) + column) =
#else
    *reinterpret_cast<uint2*>(tile.problem.out + tile.offset<VALUE_DIM>(tile.first_row + row) + column) =
#endif
        make_uint2(pack<kBfloat16>(o[0], o[1]), pack<kBfloat16>(o[2], o[3]));
  };
  const auto total = [&](int row, int column, float sum, float maximum) {
    return tile.total(tile.first_row + row, column == 0, sum, maximum);
  };
  merge_split_parts<SplitParts, kLoadedTogether, CELLS>(parts, SPLIT_KV, tile.valid_rows(), first, stride,
                                                        tile.problem.exponent_scale(), store, total);
}

__device__ __forceinline__ void attend_tile(const Problem& problem, int head, int row_block, int split) {
  const Tile tile(problem, head, row_block);
  const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(shared_memory));
  if constexpr (kCluster) open_inbox(shared + kInboxAt, (kParts - WARPS_KV) * WarpParts::sent_bytes(tile.valid_rows()));
  MergingWorker worker(tile, shared);
  worker.attend_all(split);

  const int first_tile = (kCluster ? split * kBlockTiles : 0) + worker.warp_kv * kOwnTiles;
  PartFragments<kRowTiles, kOwnTiles> done;
  merge_warps<kParts>(worker, split, done);
  if constexpr (SPLIT_KV > 1 && !kCluster) {
    const int number = head * problem.row_blocks() + row_block;
    float* parts = problem.partials + static_cast<long long>(number) * SPLIT_KV * SplitParts::kFloats;
    if (worker.merges())
      store_split_part<SplitParts>(done, parts + split * SplitParts::kFloats, worker.warp_q * kRowTiles, first_tile,
                                   [rows = tile.valid_rows()](int row) { return row < rows; });
    if constexpr (!kSecondKernel)
      if (last_to_arrive(problem.counter + number, SPLIT_KV))
        merge_splits<SPLIT_KV < 16 ? 16 / SPLIT_KV : 1>(tile, parts, threadIdx.x, kThreads);
  } else {
    if constexpr (kParts == 1 && SHARE_QK_SMEM)
      __syncthreads();  // the stages were read by all, and `out` passes through the same memory
    if (worker.merges()) worker.store_rows(done, first_tile);
  }
}

}  // namespace

extern "C" __global__ void CLUSTER __launch_bounds__(kThreads, MIN_CTAS)
    attention_forward(const Element* q, const Element* k, const Element* v, Element* out, float* partials, int* counter,
                      float softmax_scale, int batch, int heads, int kv_heads, int seq_len_q, int seq_len_k
                      FEATURE_ARGUMENTS MASK_ARGUMENTS STRIDE_PARAMETERS) {
  if constexpr (VIEW_HEADS > 0) heads = VIEW_HEADS, kv_heads = VIEW_KV_HEADS;
  const Problem problem(q, k, v, out, partials, counter, softmax_scale, heads, kv_heads, seq_len_q, seq_len_k,
                        Features FEATURES_GIVEN MASK_FROM(MASK_GIVEN) STRIDE_ARGUMENTS);
  constexpr bool heads_first = TILE_ORDER == TILE_ORDER_BY_HEAD || TILE_ORDER == TILE_ORDER_BY_HEAD_DESCENDING;
  constexpr bool descending = TILE_ORDER == TILE_ORDER_BY_ROW_DESCENDING || TILE_ORDER == TILE_ORDER_BY_HEAD_DESCENDING;
  const int row_blocks = problem.row_blocks(), tile_heads = batch * (PACK_GQA ? kv_heads : heads);
  const auto attend = [&](int fast, int slow, int split) {
    const int head = heads_first ? fast : slow, row_block = heads_first ? slow : fast;
    attend_tile(problem, head, descending ? row_blocks - 1 - row_block : row_block, split);
  };

  if constexpr (PERSISTENT) {
    const int fast = heads_first ? tile_heads : row_blocks;
    for (int number = blockIdx.x; number < row_blocks * tile_heads; number += gridDim.x) {
      attend(number % fast, number / fast, 0);
      __syncthreads();  // the next tile's Q goes where this one's rows went out
    }
  } else {
    attend(blockIdx.x / SPLIT_KV, blockIdx.y, blockIdx.x % SPLIT_KV);
  }
}

#if SPLIT_KV > 1 && MERGE == MERGE_KERNEL
// A thread merges four columns of a row, and a block works on one tile. The 1 below asks for at least one resident
// block: without it, the compiler saves registers to fit more blocks, and the loads wait for each other.
constexpr int kMergeThreads = 64;
static_assert(SplitParts::kCells % kMergeThreads == 0, "a block has one tile");

extern "C" __global__ void __launch_bounds__(kMergeThreads, 1)
    attention_merge(const Element* q, const Element* k, const Element* v, Element* out, float* partials, int* counter,
                    float softmax_scale, int batch, int heads, int kv_heads, int seq_len_q, int seq_len_k
                    FEATURE_ARGUMENTS MASK_ARGUMENTS STRIDE_PARAMETERS) {
  constexpr int blocks = SplitParts::kCells / kMergeThreads;  // per tile
  if constexpr (VIEW_HEADS > 0) heads = VIEW_HEADS, kv_heads = VIEW_KV_HEADS;
  const Problem problem(q, k, v, out, partials, counter, softmax_scale, heads, kv_heads, seq_len_q, seq_len_k,
                        Features FEATURES_GIVEN MASK_FROM(MASK_GIVEN) STRIDE_ARGUMENTS);
  const int number = blockIdx.x / blocks, row_blocks = problem.row_blocks();
  const Tile tile(problem, number / row_blocks, number % row_blocks);
  const float* parts = partials + static_cast<long long>(number) * SPLIT_KV * SplitParts::kFloats;
  merge_splits<1>(tile, parts, blockIdx.x % blocks * kMergeThreads + threadIdx.x, SplitParts::kCells);
}
#endif
