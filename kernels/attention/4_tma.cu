// Fused attention forward for Hopper, short: TMA loads, wgmma multiplies, one warp loads ahead.
//
//   out = softmax(softmax_scale * q k^T) v, a block of BLOCK_N keys at a time, scores, weights and sums in registers.
//
// Shapes      q, out (batch, heads, seq_len_q, HEAD_DIM); k, v (batch, kv_heads, seq_len_k, HEAD_DIM), 16-byte aligned,
//             each with strides of its own, in elements: any multiples of 8 that keep rows contiguous, between rows
//             below 2^30. heads is a multiple of kv_heads: a group of heads shares one kv head. Lengths >= 1.
//             CAUSAL: row i sees the keys j <= i (aligned to the top left corner, also when the lengths differ).
// Types       DTYPE_FLOAT16 or DTYPE_BFLOAT16 in and out, every sum in float32. softmax_scale > 0.
// Problem     HEAD_DIM (32, 64, 96, 128), CAUSAL, DTYPE.
//
// How it works. A tile is 64 * CONSUMER_WARPGROUPS rows of one head. One thread of the producer warp has TMA copy Q,
// and K and V in blocks of BLOCK_N keys, into a ring of STAGES stages. It waits only for a stage to be empty, so it
// runs ahead of the consumers, into the next tile too. A consumer warpgroup has 64 rows, and goes from block to block:
//   S = Q K^T            wgmma, both operands from shared memory as they were loaded
//   P = 2^(c (S - m))    c = softmax_scale log2(e), m the rows' maximum so far: online softmax
//   O = alpha O + P V    wgmma: P from registers, V from shared memory as it was loaded; alpha = 2^(c (m before - m))
// While one warpgroup computes exponentials, the tensor cores can multiply for another. Nothing makes the warpgroups
// take turns: 5_wgmma.cu does. Rows that do not exist are not stored; keys that do not exist arrive as zeros, and are
// masked.
//
// Tunables
//   CONSUMER_WARPGROUPS  1, 2, 3: BLOCK_M = 64 * CONSUMER_WARPGROUPS rows a tile, which share each block of K and V.
//   BLOCK_N              keys a block (16..256), a multiple of 16.
//   STAGES               blocks of K and of V in shared memory (1..8).
//   VALUES_WAIT          early: a warpgroup waits for P V as soon as it is issued. late: together with the next S, so
//                        that both products run back to back; P's registers are then in use beside S's.
//   RESCALE_LOG2         0: O is scaled whenever a row's maximum grew. 4, 8: only when it grew by more than 2^that;
//                        until then weights exceed 1, which float16 (up to 65504) and the float32 sums can hold.
//   PERSISTENT           0: a block a tile. 1: as many blocks as fit, each walks over the tiles. Only the grid differs.
//   MIN_CTAS             blocks a multiprocessor that the register allocation must allow (1..4).
//
// Constraints  Registers of a thread: 65536 / (threads * MIN_CTAS), with threads in whole warpgroups, rounded down to a
//              multiple of 8, at most 255. A consumer holds BLOCK_N / 2 scores, HEAD_DIM / 2 sums, BLOCK_N / 4 pairs of
//              weights (VALUES_WAIT late), and some 30 more.
// Launch       tiles = ceil(seq_len_q / BLOCK_M) * batch * heads
//              grid  (PERSISTENT ? min(tiles, MIN_CTAS * multiprocessors) : tiles)
//              block (128 * CONSUMER_WARPGROUPS + 32)
// Arguments    q_map, k_map, v_map by value: maps of the three tensors, with their strides, and boxes (1, 1, 64, panel)
//              for q, (1, 1, BLOCK_N, panel) for k and v; a panel is 64 columns, 32 where HEAD_DIM is no multiple of
//              64. Swizzled by the bytes of a panel's row, 128 or 64.
// Workspace    none.
// Shared bytes 2 * HEAD_DIM * (BLOCK_M + 2 * STAGES * BLOCK_N) + 16 * (1 + 2 * STAGES)
// Archs        sm_90a: for others 3_mma.cu.
// Adds to 3_mma.cu: TMA, and a warp that only loads, so that other threads spend no instructions on copies; MMA of 64
//              rows by a whole warpgroup (wgmma), whose operands need no loads from shared memory into registers.
// Next         5_wgmma.cu: scores issued ahead, warpgroups that take turns, output by TMA, clusters.
// References   Milakov & Gimelshein 2018 (online softmax); PTX ISA: see the helpers.
#include "parts/arithmetic.cuh"
#include "parts/strides.cuh"
#include "wgmma/panels.cuh"
#include "wgmma/product.cuh"
#include "wgmma/tma.cuh"

#ifndef VALUES_WAIT_LATE  // a space numbers its choices from 1, so no choice has the value 0
#define VALUES_WAIT_LATE 0
#endif
#define BLOCK_M (64 * CONSUMER_WARPGROUPS)

namespace {

using Rows = Panels<HEAD_DIM>;
constexpr bool kBfloat16 = DTYPE == DTYPE_BFLOAT16;
constexpr bool kLate = VALUES_WAIT == VALUES_WAIT_LATE;
constexpr int kThreads = 128 * CONSUMER_WARPGROUPS + 32;
constexpr float kLowest = -1e30f;  // first running maximum: finite, so that -inf scores never meet -inf - -inf

// Shared memory: Q, the stages of K, the stages of V, the mbarriers. Every tile begins at a multiple of 1024.
constexpr unsigned kGroupBytes = 2 * 64 * HEAD_DIM;  // 64 rows of Q
constexpr unsigned kBlockBytes = 2 * BLOCK_N * HEAD_DIM;
constexpr unsigned kKeysAt = CONSUMER_WARPGROUPS * kGroupBytes;
constexpr unsigned kValuesAt = kKeysAt + STAGES * kBlockBytes;
constexpr unsigned kBarriersAt = kValuesAt + STAGES * kBlockBytes;
constexpr int kBarriers = 2 + 4 * STAGES;
constexpr unsigned kSharedBytes = kBarriersAt + 8 * kBarriers;
static_assert(BLOCK_N % 16 == 0 && BLOCK_N >= 16 && BLOCK_N <= 256, "a product has up to 256 columns");
static_assert(kGroupBytes % 1024 == 0 && kBlockBytes % 1024 == 0, "the swizzle repeats after 1024 bytes");
extern __shared__ __align__(1024) unsigned char shared_memory[];

__device__ __forceinline__ unsigned shared_at(unsigned offset) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared_memory)) + offset;
}
__device__ __forceinline__ unsigned query_at(int group) { return shared_at(group * kGroupBytes); }
__device__ __forceinline__ unsigned key_at(int stage) { return shared_at(kKeysAt + stage * kBlockBytes); }
__device__ __forceinline__ unsigned value_at(int stage) { return shared_at(kValuesAt + stage * kBlockBytes); }

// Two mbarriers for Q, each stage of K and each stage of V. Full: its bytes are there. Empty: all consumer warps have
// read it. The n-th use of a stage waits for phase n of full, and the producer before it for phase n - 1 of empty.
__device__ __forceinline__ unsigned full(int number) { return shared_at(kBarriersAt + 16 * number); }
__device__ __forceinline__ unsigned empty(int number) { return full(number) + 8; }
constexpr int kQuery = 0, kKey = 1, kValue = 1 + STAGES;  // the first number of each

struct Problem {
  int batch, heads, kv_heads, seq_len_q, seq_len_k;
  __device__ __forceinline__ int row_blocks() const { return (seq_len_q + BLOCK_M - 1) / BLOCK_M; }
  __device__ __forceinline__ int tiles() const { return row_blocks() * batch * heads; }
  __device__ __forceinline__ int keys_seen(int row) const { return CAUSAL ? min(seq_len_k, row + 1) : seq_len_k; }
};

// Tiles of a head follow each other, so that its K and V stay in the L2 cache. The first one is another row block in
// each head: a persistent block then gets long and short tiles of a causal mask, whatever the grid.
struct Tile {
  int batch, head, kv_head, first_row, blocks;  // blocks: of keys that some row of the tile sees
  __device__ __forceinline__ Tile(const Problem& problem, int number) {
    const int row_blocks = problem.row_blocks(), any_head = number / row_blocks;
    batch = any_head / problem.heads;
    head = any_head % problem.heads;
    kv_head = head / (problem.heads / problem.kv_heads);
    first_row = (row_blocks - 1 - (number + any_head) % row_blocks) * BLOCK_M;
    blocks = (problem.keys_seen(min(first_row + BLOCK_M, problem.seq_len_q) - 1) + BLOCK_N - 1) / BLOCK_N;
  }
};

// Loads COUNT rows, a panel of columns at a time, which the mbarrier `full` counts.
template <int COUNT>
__device__ __forceinline__ void load(unsigned to, const TensorMap& map, unsigned full, int row, int head, int batch) {
#pragma unroll
  for (int panel = 0; panel < Rows::kCount; ++panel)
    load_box(to + Rows::panel_at(COUNT, panel), map, full, panel * Rows::kPanel, row, head, batch);
}

__device__ __forceinline__ void produce(const Problem& problem, const TensorMap& q, const TensorMap& k,
                                        const TensorMap& v) {
  Ring<1> query;
  Ring<STAGES> ring;  // of K and of V: both move on together
  for (int number = blockIdx.x; number < problem.tiles(); number += gridDim.x) {
    const Tile tile(problem, number);
    wait_mbarrier(empty(kQuery), query.parity ^ 1);
    expect_bytes(full(kQuery), CONSUMER_WARPGROUPS * kGroupBytes);
    for (int group = 0; group < CONSUMER_WARPGROUPS; ++group)
      load<64>(query_at(group), q, full(kQuery), tile.first_row + 64 * group, tile.head, tile.batch);
    query.advance();
    for (int block = 0; block < tile.blocks; ++block) {
      const int key = kKey + ring.stage, value = kValue + ring.stage;
      wait_mbarrier(empty(key), ring.parity ^ 1);
      expect_bytes(full(key), kBlockBytes);
      load<BLOCK_N>(key_at(ring.stage), k, full(key), block * BLOCK_N, tile.kv_head, tile.batch);
      wait_mbarrier(empty(value), ring.parity ^ 1);
      expect_bytes(full(value), kBlockBytes);
      load<BLOCK_N>(value_at(ring.stage), v, full(value), block * BLOCK_N, tile.kv_head, tile.batch);
      ring.advance();
    }
  }
}

// 64 rows of each tile. A thread has two of them, `half` 0 and 1, and of each a quarter of the columns: of scores and
// sums register i is row 16 warp + 8 (i / 2 % 2) + lane / 4, column 8 (i / 4) + 2 (lane % 4) + i % 2.
struct Consumer {
  const Problem& problem;
  const float scale;  // log2(e) softmax_scale
  const int group, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  Ring<1> query;
  Ring<STAGES> ring;
  float scores[BLOCK_N / 2], output[HEAD_DIM / 2], maximum[2], sum[2];
  unsigned weights[BLOCK_N / 4];  // pairs

  __device__ Consumer(const Problem& problem, float scale, int group) : problem(problem), scale(scale), group(group) {}

  __device__ __forceinline__ int row_of(const Tile& tile, int half) const {
    return tile.first_row + 64 * group + 16 * warp + 8 * half + lane / 4;
  }
  __device__ __forceinline__ void give_back(int number) const {
    if (lane == 0) arrive_at_mbarrier(empty(number));
  }

  __device__ __forceinline__ void issue_scores(int stage) {
    fence_products();
    Product<BLOCK_N>::of_shared<kBfloat16, false>(scores, Rows::by_columns(query_at(group), 64, 0),
                                                  Rows::by_columns(key_at(stage), BLOCK_N, 0));
#pragma unroll
    for (int step = 1; step < HEAD_DIM / 16; ++step)
      Product<BLOCK_N>::of_shared<kBfloat16, true>(scores, Rows::by_columns(query_at(group), 64, step),
                                                   Rows::by_columns(key_at(stage), BLOCK_N, step));
    close_products();
  }

  __device__ __forceinline__ void issue_values(int stage) {
    fence_products();  // the weights are in registers
#pragma unroll
    for (int step = 0; step < BLOCK_N / 16; ++step)
      Product<HEAD_DIM>::of_registers<kBfloat16, true, 1>(output, weights[4 * step], weights[4 * step + 1],
                                                          weights[4 * step + 2], weights[4 * step + 3],
                                                          Rows::by_rows(value_at(stage), BLOCK_N, step));
    close_products();
  }

  // Masks the keys that a row does not see. `first`: the number of the thread's first key.
  __device__ __forceinline__ void mask(const Tile& tile, int first) {
    const int seen[2] = {problem.keys_seen(row_of(tile, 0)) - first, problem.keys_seen(row_of(tile, 1)) - first};
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; ++i)
      if (i / 4 * 8 + i % 2 >= seen[i / 2 % 2]) scores[i] = __int_as_float(0xff800000);  // -inf
  }

  // Scores become packed weights; the sums so far are scaled to the new maximum.
  __device__ __forceinline__ void weigh() {
    float top[2] = {maximum[0], maximum[1]}, alpha[2];
    bool grown = false;
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; ++i) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], scores[i]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half] = fmaxf(top[half], __shfl_xor_sync(~0u, top[half], 1));
      top[half] = fmaxf(top[half], __shfl_xor_sync(~0u, top[half], 2));
      if ((top[half] - maximum[half]) * scale <= static_cast<float>(RESCALE_LOG2)) top[half] = maximum[half];
      grown |= top[half] != maximum[half];
      alpha[half] = exp2_approximate((maximum[half] - top[half]) * scale);
      maximum[half] = top[half];
      sum[half] *= alpha[half];
    }
    if (__any_sync(~0u, grown))
#pragma unroll
      for (int i = 0; i < HEAD_DIM / 2; ++i) output[i] *= alpha[i / 2 % 2];
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; ++i) {
      scores[i] = exp2_approximate(fmaf(scores[i], scale, -maximum[i / 2 % 2] * scale));
      sum[i / 2 % 2] += scores[i];
    }
#pragma unroll
    for (int i = 0; i < BLOCK_N / 4; ++i) weights[i] = pack<kBfloat16>(scores[2 * i], scores[2 * i + 1]);
  }

  __device__ __forceinline__ void wait_values(int stage) {
    wait_products<0>();
    pin(output);
    give_back(kValue + stage);
  }

  __device__ __forceinline__ void attend(const Tile& tile) {
    maximum[0] = maximum[1] = kLowest;
    sum[0] = sum[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; ++i) output[i] = 0.0f;
    const int seen_by_all = problem.keys_seen(tile.first_row + 64 * group);
    wait_mbarrier(full(kQuery), query.parity);
    for (int block = 0; block < tile.blocks; ++block) {
      wait_mbarrier(full(kKey + ring.stage), ring.parity);
      issue_scores(ring.stage);
      wait_products<0>();
      pin(scores);
      give_back(kKey + ring.stage);
      if (kLate && block > 0) wait_values((ring.stage + STAGES - 1) % STAGES);
      if (block == tile.blocks - 1) give_back(kQuery);
      if ((block + 1) * BLOCK_N > seen_by_all) mask(tile, block * BLOCK_N + lane % 4 * 2);
      weigh();
      wait_mbarrier(full(kValue + ring.stage), ring.parity);
      issue_values(ring.stage);
      if (!kLate || block == tile.blocks - 1) wait_values(ring.stage);
      ring.advance();
    }
    query.advance();
  }

  __device__ __forceinline__ void store(const Tile& tile, Element* out, const Strides& strides) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = sum[half] + __shfl_xor_sync(~0u, sum[half], 1);
      total += __shfl_xor_sync(~0u, total, 2);
      const float factor = __fdividef(1.0f, total);
      const int row = row_of(tile, half);
      if (row < problem.seq_len_q) {
        Element* to = strides.further(out + strides.head_at(tile.batch, tile.head), row) + lane % 4 * 2;
#pragma unroll
        for (int i = 2 * half; i < HEAD_DIM / 2; i += 4)
          *reinterpret_cast<unsigned*>(to + i / 4 * 8) = pack<kBfloat16>(output[i] * factor, output[i + 1] * factor);
      }
    }
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, MIN_CTAS)
    attention_forward(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                      const __grid_constant__ TensorMap v_map, Element* out, float softmax_scale, int batch, int heads,
                      int kv_heads, int seq_len_q, int seq_len_k, long long out_stride_batch,
                      long long out_stride_head, long long out_stride_row) {
  const Problem problem{batch, heads, kv_heads, seq_len_q, seq_len_k};
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);  // shows the compiler that a warp has one value
  if (threadIdx.x == 0) {
    for (int i = 0; i < kBarriers / 2; ++i) {
      start_mbarrier(full(i), 1);
      start_mbarrier(empty(i), 4 * CONSUMER_WARPGROUPS);
    }
    publish_mbarriers();
  }
  __syncthreads();
  if (warpgroup == CONSUMER_WARPGROUPS) {
    if (threadIdx.x % 32 == 0) produce(problem, q_map, k_map, v_map);
    return;
  }
  const Strides strides(out_stride_batch, out_stride_head, out_stride_row);
  Consumer consumer(problem, softmax_scale * 1.44269504088896341f, warpgroup);
  for (int number = blockIdx.x; number < problem.tiles(); number += gridDim.x) {
    const Tile tile(problem, number);
    consumer.attend(tile);
    consumer.store(tile, out, strides);
  }
}
