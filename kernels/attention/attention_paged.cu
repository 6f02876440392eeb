// Attention of a few rows a sequence on keys in pages, on tensor cores: decoding, speculation, short chunks.
//
//   out = softmax(softmax_scale * q k^T) v, each sequence by itself.
//
// Shapes      q, out (sequences, queries, heads, HEAD_DIM); k_pages, v_pages (pages, PAGE_SIZE, kv_heads, HEAD_DIM);
//             contiguous, 16-byte aligned; fewer than 2^31 slots. Key j of sequence i is slot j % PAGE_SIZE of page
//             page_table[i, j / PAGE_SIZE]; it has seq_lens[i] keys. Entries of the table and slots of a page beyond
//             the length are not used. heads is a multiple of kv_heads. A row without keys is 0.
//             CAUSAL: a sequence's last row sees all of its keys, the row before one less, and so on.
// Types       DTYPE_FLOAT16 or DTYPE_BFLOAT16 in and out, every sum in float32; tables of int32. softmax_scale > 0.
// Problem     HEAD_DIM (32, 64, 128), PAGE_SIZE (any), CAUSAL, DTYPE.
//
// How it works. The rows of a sequence that share a kv head, queries x group of them, are packed into tiles of BLOCK_M.
// Reading the keys takes nearly all of the time, so everything serves the copies: each block gets an equal share of all
// tiles of keys, whatever the lengths (paged/pages.cuh); the numbers of pages are read a tile ahead, and the copies
// run STAGES - 1 tiles ahead, from one sequence into the next (paged/pages.cuh). The arithmetic is that of
// 3_mma.cu (mma/worker.cuh). At the end of a block's keys of a unit, its warps' parts merge in shared memory.
// If others have keys of that unit, the part goes to `partials`, and the last block to arrive merges them in order.
//
// Tunables (T = 32 * WARPS_Q * WARPS_KV threads)
//   BLOCK_M      rows a tile (16..128), a multiple of 16 * WARPS_Q.
//   BLOCK_N      keys a tile (16..256), a multiple of 16 * WARPS_KV; copied by whole rows.
//   WARPS_Q      warps along the rows (1, 2, 4).
//   WARPS_KV     warps along the keys (1, 2, 4, 8): each has its own softmax.
//   STAGES       tiles of K and V in shared memory (2..8).
//   OWN_COPIES   1: each warp copies its own keys, and no barrier is in the loop; needs WARPS_Q 1.
//   KV_EVICTION  normal, or first: K and V leave the L2 cache before other data.
//   RESCALE_LOG2 0: outputs are rescaled for every tile of keys. 8: only when a maximum grew by more than 2^8.
//   SKIP_MASKED  0/1: groups of 16 keys that no row sees are not multiplied.
//   MIN_CTAS     blocks a multiprocessor that the register allocation must allow (1..4).
//   CTAS         blocks a multiprocessor that the space launches (1..8). The code does not depend on it.
//   MIN_TILES    tiles that a block gets at least, but the last (1..8): less to merge, but idle multiprocessors where
//                there are few tiles.
// Launch       T threads, grid: any number of blocks. Dynamic shared memory: STAGES times K and V, and the parts:
//              4 * WARPS_KV * min(BLOCK_M, rows) * (HEAD_DIM + 12) bytes, where rows = queries * heads / kv_heads.
// Workspace    partials: float[(blocks + units) * BLOCK_M * (HEAD_DIM + 2)], any content; counter: int[units], zero
//              once: every launch leaves zeros. Units: sequences * kv_heads * ceil(queries * group / BLOCK_M).
// Archs        sm_80 and later.
// Adds to 3_mma.cu: pages, equal shares of uneven lengths, copies that go on from tile to tile.
// References   Flash-Decoding, Dao et al. 2023; PagedAttention, Kwon et al. 2023; FlashInfer, Ye et al. 2025.
#include "paged/pages.cuh"

#include "mma/block.cuh"
#include "mma/worker.cuh"
#include "parts/arithmetic.cuh"
#include "parts/blocks.cuh"
#include "parts/merge.cuh"
#include "parts/strides.cuh"

namespace {

constexpr int kLoadedTogether = 8;  // parts of a cell that a thread loads at once

static_assert(HEAD_DIM == 32 || HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM is 32, 64 or 128");
static_assert(STAGES >= 2, "one tile is copied while another one is multiplied");
static_assert(!OWN_COPIES || WARPS_Q == 1, "no other warp has the same keys");

using SplitParts = SplitPart<BLOCK_M, HEAD_DIM>;  // in `partials`

// Shared memory: the stages (K, V, K, V, ...), and behind them the warps' parts. A part has kPartStride floats for each
// row that exists, then {m, l} of each row. {m, l} takes 8 bytes, but a part has 16 a row for it: so the next part
// begins at a multiple of 16 bytes, however many rows there are.
constexpr unsigned kPartsAt = STAGES * kStageBytes;
constexpr int kPartStride = HEAD_DIM + 8;  // eight more, so that the rows of a fragment are in different banks

// A warp's share of a block's tiles: copies of its own, arithmetic of Worker.
struct PagedWorker : Worker<Tile> {
  using Worker::Worker;

  // Takes the rows of a unit into registers, straight from global memory: they are few.
  __device__ __forceinline__ void begin_rows() {
    part.begin(kLowest);
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_of(i, half);
        const bool exists = row < tile.rows;
        const Element* from = tile.row_at(tile.problem.q, tile.problem.q_strides, exists ? row : 0) + lane % 4 * 2;
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 16; ++d)
#pragma unroll
          for (int right = 0; right < 2; ++right)
            query[i][d][2 * right + half] =
                exists ? *reinterpret_cast<const unsigned*>(from + 16 * d + 8 * right) : 0;
      }
    }
  }

  template <bool MASKED>
  __device__ __forceinline__ void attend_keys(int first_key) {
    const int key = first_key + warp_kv * kWarpKeys;
    const int last = min(tile.first_row + (warp_q + 1) * kWarpRows, tile.rows) - 1;
    const int seen = MASKED ? tile.keys_seen(last) - key : kWarpKeys;
    if (MASKED && SKIP_MASKED && seen <= 0) return;
    Scores scores;
    multiply_keys<MASKED>(scores, seen);
    weigh<MASKED>(scores, key);
    multiply_values<MASKED>(scores, seen);
  }

  // Merges the warps' parts. store(row, column, {m, l}, o) gets four columns of each row that exists.
  template <class Store>
  __device__ __forceinline__ void merge_warps(Store store) {
    float* parts = reinterpret_cast<float*>(shared_memory + kPartsAt);
    const int rows = min(BLOCK_M, tile.rows);  // places, whichever of the tile's rows exist
    const int part_floats = rows * (kPartStride + 4), valid = tile.valid_rows();
    __syncthreads();  // the parts of the unit before were read by all
    float* own = parts + warp_kv * part_floats;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = part.sum[i][half];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const int row = row_of(i, half) - tile.first_row;
        if (row >= valid) continue;
#pragma unroll
        for (int n = 0; n < kDimTiles; ++n)
          *reinterpret_cast<float2*>(own + row * kPartStride + n * 8 + lane % 4 * 2) =
              make_float2(part.output[i][n][2 * half], part.output[i][n][2 * half + 1]);
        if (lane % 4 == 0)
          *reinterpret_cast<float2*>(own + rows * kPartStride + 2 * row) = make_float2(part.maximum[i][half], sum);
      }
    __syncthreads();
    for (int cell = threadIdx.x; cell < valid * (HEAD_DIM / 4); cell += kThreads) {
      const int row = cell / (HEAD_DIM / 4), column = cell % (HEAD_DIM / 4) * 4;
      float2 statistics[WARPS_KV];
      float top = kLowest, sum = 0.0f, o[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int p = 0; p < WARPS_KV; ++p) {
        const float* from = parts + p * part_floats + rows * kPartStride + 2 * row;
        statistics[p] = *reinterpret_cast<const float2*>(from);
        top = fmaxf(top, statistics[p].x);
      }
#pragma unroll
      for (int p = 0; p < WARPS_KV; ++p) {
        const float weight = exp2_approximate((statistics[p].x - top) * tile.problem.scale_log2);
        const float4 theirs = *reinterpret_cast<const float4*>(parts + p * part_floats + row * kPartStride + column);
        sum += weight * statistics[p].y;
        o[0] += weight * theirs.x;
        o[1] += weight * theirs.y;
        o[2] += weight * theirs.z;
        o[3] += weight * theirs.w;
      }
      store(row, column, make_float2(top, sum), o);
    }
  }
};

// Stores o / l, rounded; 0 where l is 0.
__device__ __forceinline__ void store_out(const Tile& tile, int row, int column, float sum, const float (&o)[4]) {
  const float inverse = sum == 0.0f ? 0.0f : __fdividef(1.0f, sum);
  Element* to = tile.row_at(tile.problem.out, tile.problem.out_strides, tile.first_row + row) + column;
  *reinterpret_cast<uint2*>(to) =
      make_uint2(pack<kBfloat16>(o[0] * inverse, o[1] * inverse), pack<kBfloat16>(o[2] * inverse, o[3] * inverse));
}

// Merges the `count` parts of a unit, which blocks stored one behind the other, in their order. In parts/merge.cuh the
// compiler knows the number of parts; here it does not. A load that is skipped at run time occupies its registers
// anyway, so the code does not skip loads: past the end it loads the last part again.
__device__ __forceinline__ void merge_blocks(const Tile& tile, const float* parts, int count) {
  const float scale = tile.problem.scale_log2;
#pragma unroll 1
  for (int cell = threadIdx.x; cell < tile.valid_rows() * (HEAD_DIM / 4); cell += kThreads) {
    const int row = cell / (HEAD_DIM / 4), column = cell % (HEAD_DIM / 4) * 4;
    const float* from = parts + SplitParts::element(row, column);
    const float* statistics_from = parts + SplitParts::statistics(row);
    float top = kLowest, sum = 0.0f, o[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
    for (int part = 0; part < count; part += kLoadedTogether) {
      float2 statistics[kLoadedTogether];
      float4 theirs[kLoadedTogether];
#pragma unroll
      for (int p = 0; p < kLoadedTogether; ++p) {
        const int at = min(part + p, count - 1) * SplitParts::kFloats;
        statistics[p] = __ldcg(reinterpret_cast<const float2*>(statistics_from + at));
        theirs[p] = __ldcg(reinterpret_cast<const float4*>(from + at));
      }
      float next = top;
#pragma unroll
      for (int p = 0; p < kLoadedTogether; ++p) next = fmaxf(next, statistics[p].x);
      const float alpha = exp2_approximate((top - next) * scale);
      top = next;
      sum *= alpha;
#pragma unroll
      for (int e = 0; e < 4; ++e) o[e] *= alpha;
#pragma unroll
      for (int p = 0; p < kLoadedTogether; ++p) {
        const float weight = part + p < count ? exp2_approximate((statistics[p].x - next) * scale) : 0.0f;
        sum += weight * statistics[p].y;
        o[0] += weight * theirs[p].x;
        o[1] += weight * theirs[p].y;
        o[2] += weight * theirs[p].z;
        o[3] += weight * theirs[p].w;
      }
    }
    store_out(tile, row, column, sum, o);
  }
}

// Ends the tiles of a unit, of which this block has done some; `parts` blocks from `first_block` on have any.
__device__ __forceinline__ void finish_unit(PagedWorker& worker, int block, int first_block, int parts, int unit,
                                            float* partials, int* counter) {
  const Tile& tile = worker.tile;
  if (parts == 1) {
    worker.merge_warps([&](int row, int column, float2 statistics, const float(&o)[4]) {
      store_out(tile, row, column, statistics.y, o);
    });
    return;
  }
  // Parts of a unit lie one behind the other: from a part to the next one, the block or the unit goes up by one.
  float* own = partials + static_cast<long long>(block + unit) * SplitParts::kFloats;
  worker.merge_warps([&](int row, int column, float2 statistics, const float(&o)[4]) {
    *reinterpret_cast<float4*>(own + SplitParts::element(row, column)) = make_float4(o[0], o[1], o[2], o[3]);
    if (column == 0) *reinterpret_cast<float2*>(own + SplitParts::statistics(row)) = statistics;
  });
  if (!last_to_arrive(counter + unit, parts)) return;
  const float* all = partials + static_cast<long long>(first_block + unit) * SplitParts::kFloats;
  merge_blocks(tile, all, parts);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, MIN_CTAS)
    attention_paged(const Element* q, const Element* k_pages, const Element* v_pages, const int* page_table,
                    const int* seq_lens, Element* out, float* partials, int* counter, float softmax_scale,
                    int sequences, int queries, int heads, int kv_heads, int most_pages) {
  prefetch_table(page_table, static_cast<unsigned>(sequences) * most_pages);
  const int group = heads / kv_heads, row_blocks = (queries * group + BLOCK_M - 1) / BLOCK_M;
  const Sequences all(seq_lens, sequences, kv_heads, row_blocks);
  const int block = static_cast<int>(blockIdx.x);
  const Share share(all.total(), gridDim.x, MIN_TILES, block);
  if (share.begin == share.end) return;

  const long long row = static_cast<long long>(heads) * HEAD_DIM;
  const long long keys_row = static_cast<long long>(kv_heads) * HEAD_DIM;
  const Strides rows(queries * row, HEAD_DIM, row), slots(0, HEAD_DIM, keys_row);
  Problem problem{q, k_pages, v_pages, page_table, out, softmax_scale * 1.44269504088896341f, group, queries,
                  most_pages, 0, rows, slots, slots, rows};
  TileCursor cursor(all, share.begin);
  Tile tile{problem, cursor.sequence, cursor.head, 0, problem.rows()};
  PagedWorker worker(tile, static_cast<unsigned>(__cvta_generic_to_shared(shared_memory)));
  PagedCopy copies(all, problem, cursor, static_cast<int>(share.end - share.begin),
                   OWN_COPIES ? worker.lane : static_cast<int>(threadIdx.x), OWN_COPIES ? worker.warp_kv : 0);

  int load_stage = 0;
  const auto start_copies = [&] {
    copies.start(worker.shared + load_stage * kStageBytes);
    load_stage = load_stage + 1 == STAGES ? 0 : load_stage + 1;
  };
#pragma unroll 1
  for (int i = 0; i < STAGES - 1; ++i) start_copies();

#pragma unroll 1
  for (unsigned done = share.begin; done < share.end;) {
    const unsigned first = done - cursor.tile;  // of the unit
    problem.seq_len_k = cursor.keys;
    tile.sequence = cursor.sequence;
    tile.head = cursor.head;
    tile.first_row = cursor.row_block * BLOCK_M;
    worker.begin_rows();
    // Found here, while the copies are under way: divisions in the loop or behind it would be waited for.
    const int seen_by_all = tile.keys_seen(tile.first_row);
    const int first_block = share.block_of(first), parts = share.block_of(first + cursor.tiles - 1) - first_block + 1;
    const unsigned end = min(share.end, first + cursor.tiles);
#pragma unroll 1
    for (; done < end; ++done) {
      wait_copy_groups<STAGES - 2>();
      if constexpr (OWN_COPIES)
        __syncwarp();
      else
        __syncthreads();  // this tile is here, and the last one was read by all
      start_copies();
      const int key = static_cast<int>(done - first) * BLOCK_N;
      if (key + BLOCK_N <= seen_by_all)
        worker.attend_keys<false>(key);
      else
        worker.attend_keys<true>(key);
      worker.stage = worker.stage + 1 == STAGES ? 0 : worker.stage + 1;
    }
    finish_unit(worker, block, first_block, parts, cursor.unit(all), partials, counter);
    cursor.leave_unit(all);
  }
  wait_copy_groups<0>();
}
