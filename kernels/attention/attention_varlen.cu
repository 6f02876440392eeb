// Attention over packed sequences of different lengths, on tensor cores: prefill and training batches without padding.
//
//   out = softmax(softmax_scale * q k^T) v, each sequence by itself.
//
// Shapes      q, out (tokens_q, heads, HEAD_DIM); k, v (tokens_k, kv_heads, HEAD_DIM), contiguous, 16-byte aligned.
//             Sequence i has the rows cu_seqlens_q[i] to cu_seqlens_q[i + 1] - 1, and the keys likewise; none has more
//             than longest_q rows. heads is a multiple of kv_heads. A row without keys is 0.
//             CAUSAL: a sequence's last row sees all of its keys, the row before one less, and so on.
// Types       DTYPE_FLOAT16 or DTYPE_BFLOAT16 in and out, every sum in float32; tables of int32. softmax_scale > 0.
// Problem     HEAD_DIM (32, 64, 96, 128), CAUSAL, DTYPE.
//
// How it works. A block of threads finds its tile in the table of boundaries (varlen/schedule.cuh) and works on it as
// 3_mma.cu does, with the same code (mma/worker.cuh): for it a sequence is a problem of its own, whose rows
// lie heads * HEAD_DIM apart. Blocks whose number has no tile leave at once.
//
// Tunables (T = 32 * WARPS_Q threads); 3_mma.cu explains the ones that it has too
//   BLOCK_M       rows a tile (16..256), a multiple of 16 * WARPS_Q.
//   BLOCK_N       keys a block (16..256), a multiple of 16.
//   WARPS_Q       warps along the rows (1, 2, 4, 8).
//   STAGES        blocks of K and V in shared memory (1..6).
//   V_WAIT, Q_IN_REGS, SHARE_QK_SMEM, SWIZZLE, KV_ORDER, RESCALE_LOG2, SKIP_MASKED, PACK_GQA, MIN_CTAS  as in 3_mma.cu.
//   TILE_ORDER    by_row: a sequence's tiles from its first rows on. by_row_descending: from its last rows on.
//                 by_level: the tiles furthest down in their sequences come first, over all sequences. The heads of a
//                 tile are neighbours.
// Launch       T threads, grid: tile numbers x heads (kv heads if packed). tokens_q (times the group if packed) /
//              BLOCK_M + sequences tile numbers are enough for every TILE_ORDER. Dynamic shared memory: Q and the
//              stages, or the larger of them with SHARE_QK_SMEM.
// Archs        sm_80 and later. Workspace: none.
// Adds to 3_mma.cu: a search for the tile, and an order by length.
// References   FlashAttention-2, Dao 2023.
#ifndef TILE_ORDER_BY_LEVEL
#define TILE_ORDER_BY_LEVEL 0
#endif
#define STRIDED 1  // choices of the shared headers that are fixed here
#define WARPS_KV 1
#define SPLIT_KV 1
#define KV_EVICTION_NORMAL 1
#define KV_EVICTION KV_EVICTION_NORMAL

#include "mma/block.cuh"
#include "mma/worker.cuh"
#include "parts/strides.cuh"
#include "varlen/schedule.cuh"

namespace {

static_assert(HEAD_DIM % 32 == 0 && HEAD_DIM <= 128, "HEAD_DIM is 32, 64, 96 or 128");

// One sequence.
struct Problem {
  const Element *q, *k, *v;
  Element* out;
  float scale_log2;
  int group, seq_len_q, seq_len_k;  // group: query heads per kv head
  Strides q_strides, k_strides, v_strides, out_strides;
};

// BLOCK_M rows of one head, or of one group of heads: then row r is head r % group of it, and position r / group.
struct Tile {
  const Problem& problem;
  int head, first_row, rows;  // head: a kv head if packed; rows: of the whole sequence

  __device__ int last_row() const { return min(first_row + BLOCK_M, rows) - 1; }
  __device__ int position(int row) const { return PACK_GQA ? row / problem.group : row; }
  template <class T>
  __device__ T* row_at(T* tensor, const Strides& strides, int row) const {
    const int of_head = PACK_GQA ? row % problem.group + head * problem.group : head;
    return strides.further(tensor + strides.head_at(0, of_head), position(row));
  }
  __device__ const Element* keys_at(const Element* tensor, const Strides& strides) const {
    return tensor + strides.head_at(0, PACK_GQA ? head : head / problem.group);
  }
  __device__ int keys_seen(int row) const {
    if (!CAUSAL) return problem.seq_len_k;
    return max(0, problem.seq_len_k - problem.seq_len_q + 1 + position(row));
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, MIN_CTAS)
    attention_varlen(const Element* q, const Element* k, const Element* v, const int* cu_seqlens_q,
                     const int* cu_seqlens_k, Element* out, float softmax_scale, int sequences, int heads, int kv_heads,
                     int longest_q) {
  const int group = heads / kv_heads, tile_heads = PACK_GQA ? kv_heads : heads, rows_each = PACK_GQA ? group : 1;
  const int number = static_cast<int>(blockIdx.x) / tile_heads, head = static_cast<int>(blockIdx.x) % tile_heads;
  const Boundaries boundaries{cu_seqlens_q, sequences, rows_each};
  const TilePlace place = TILE_ORDER == TILE_ORDER_BY_LEVEL
                              ? TilePlace::by_level(boundaries, number, (longest_q * rows_each + BLOCK_M - 1) / BLOCK_M)
                              : TilePlace::by_rows(boundaries, number);
  if (place.sequence < 0) return;

  const int first_q = cu_seqlens_q[place.sequence], first_k = cu_seqlens_k[place.sequence];
  const int seq_len_q = cu_seqlens_q[place.sequence + 1] - first_q, rows = seq_len_q * rows_each;
  const long long row = static_cast<long long>(heads) * HEAD_DIM;
  const long long keys_row = static_cast<long long>(kv_heads) * HEAD_DIM;
  const Strides of_rows(0, HEAD_DIM, row), of_keys(0, HEAD_DIM, keys_row);
  const Problem problem{q + first_q * row, k + first_k * keys_row, v + first_k * keys_row, out + first_q * row,
                        softmax_scale * 1.44269504088896341f, group, seq_len_q,
                        cu_seqlens_k[place.sequence + 1] - first_k, of_rows, of_keys, of_keys, of_rows};
  const int tiles = (rows + BLOCK_M - 1) / BLOCK_M;
  const int row_block = TILE_ORDER == TILE_ORDER_BY_ROW_DESCENDING ? tiles - 1 - place.row_block : place.row_block;
  const Tile tile{problem, head, row_block * BLOCK_M, rows};
  Worker worker(tile, static_cast<unsigned>(__cvta_generic_to_shared(shared_memory)));
  worker.attend_all(0);
  if constexpr (SHARE_QK_SMEM) __syncthreads();  // the stages were read by all, and `out` passes through their memory
  worker.store_rows(worker.part, 0);
}
