// A linear layer on Hopper: a matrix product by wgmma and TMA, with bias and GELU on its way out.
//
//   out = epilogue(x weight^T + bias), epilogue(y) = y or GELU(y) = y / 2 (1 + erf(y / sqrt(2)))
//
// Shapes      x (m, k), weight (n, k), bias (n), out (m, n), contiguous, 16-byte aligned; k a multiple of 8.
// Types       DTYPE_FLOAT16 or DTYPE_BFLOAT16 in and out, every sum in float32.
// How         D = A B^T by tiles of BLOCK_M x BLOCK_N, of which a consumer warpgroup has ROW_TILES x 64 rows in
//             registers. A and B are both K-major, as wgmma takes them from shared memory. One thread of the producer
//             warp loads BLOCK_K = 64 * K_PANELS columns of both at a time by TMA into a ring of STAGES, into the next
//             tile too. The blocks of a cluster have tiles of the same columns. Each loads a part of B, for all of
//             them.
//             SKINNY 0: A is x, B is weight. SKINNY 1: A is weight, B is x. An MMA has at least 64 rows of A, and 16
//             rows of B are enough: so weights, which are always many, fill the tile where x has few rows.
//             SPLIT_K clusters share the columns of a tile. Each block writes its sums to the workspace; the last one
//             to arrive adds them up, in the order of the parts, so that a launch always gives the same bits.
// Tunables
//   CONSUMER_WARPGROUPS  1, 2, 3
//   ROW_TILES            1, 2: BLOCK_M = 64 * ROW_TILES * (PINGPONG ? 1 : CONSUMER_WARPGROUPS)
//   PINGPONG             1: each consumer has tiles of its own, in turn (PERSISTENT 1, at least two consumers)
//   BLOCK_N              columns of a tile (16..256), a multiple of 16
//   K_PANELS             1, 2: columns that a stage has, in panels of 64
//   STAGES               stages of the ring (2..12)
//   CLUSTER              1, 2, 4: blocks that share B
//   SPLIT_K              1..16: clusters that share a set of tiles
//   PERSISTENT           0: a block a tile. 1: as many blocks as fit walk over the tiles (SPLIT_K 1)
//   TILE_GROUP           rows of sets of tiles that clusters work on together, so that they share A and B in the L2
//                        cache
//   MIN_CTAS             blocks a multiprocessor that the register allocation must allow (1..4)
//   L2_PROMOTION         0, 128, 256: bytes that a TMA load brings to the L2 cache at a time, in the maps alone
//   SKINNY, GELU         0/1, fixed by a space
// Constraints Registers of a thread: 65536 / (threads * MIN_CTAS), with threads in whole warpgroups, at most 255.
//             A consumer holds ROW_TILES * BLOCK_N / 2 sums and some 36 more. BLOCK_N is a multiple of 8 * CLUSTER.
// Launch      sets  = ceil(rows / (CLUSTER * BLOCK_M)) * ceil(columns / BLOCK_N), where (rows, columns) is (m, n),
//             SKINNY (n, m)
//             grid  CLUSTER * (PERSISTENT ? min(sets, MIN_CTAS * multiprocessors / CLUSTER) : sets * SPLIT_K)
//             block (128 * CONSUMER_WARPGROUPS + 32)
// Arguments   a_map, b_map by value: maps of A and B with boxes (64, 64) and (BLOCK_N / CLUSTER, 64), swizzled by 128
//             bytes
// Workspace   SPLIT_K > 1: parts float[CLUSTER * sets * SPLIT_K * BLOCK_M * BLOCK_N], counter int[CLUSTER * sets], zero
// Shared      128 * K_PANELS * STAGES * (BLOCK_M + BLOCK_N) + 16 * STAGES bytes
// Archs       sm_90a: for others linear_mma.cu.
// References  PTX ISA, "wgmma.mma_async", "cp.async.bulk.tensor".
#include "../attention/parts/arithmetic.cuh"
#include "../attention/parts/blocks.cuh"
#include "../attention/wgmma/panels.cuh"
#include "../attention/wgmma/product.cuh"
#include "../attention/wgmma/tma.cuh"
#include "linear_epilogue.cuh"
#include "linear_stages.cuh"
#include "linear_tiles.cuh"
#include "tma_2d.cuh"

#if CLUSTER > 1
#define CLUSTER_DIMS __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTER_DIMS
#endif

namespace {

constexpr int kThreads = 128 * CONSUMER_WARPGROUPS + 32;
constexpr int kSums = ROW_TILES * BLOCK_N / 2;  // of a consumer's thread
static_assert(SPLIT_K == 1 || !PERSISTENT, "a block merges one tile");
static_assert(!PINGPONG || PERSISTENT, "consumers that take turns need several tiles");

// Each block counts the bytes of all of its stage. B's may arrive before its own thread has announced them.
__device__ __forceinline__ void produce(const Problem& problem, const TensorMap& a, const TensorMap& b) {
  constexpr int kRows = BLOCK_N / CLUSTER;  // of B, that this block loads
  const int first = number_in_cluster() * kRows;
  prefetch_map(a);
  prefetch_map(b);
  Ring<STAGES> ring;
  for (Walk walk; walk.has(problem); walk.next()) {
    const Share share(problem, walk);
    for (int step = share.first; step < share.end; ++step) {
      wait_mbarrier(empty(ring.stage), ring.parity ^ 1);
      expect_bytes(full(ring.stage), kStageBytes);
#pragma unroll
      for (int panel = 0; panel < K_PANELS; ++panel) {
        const int from = step * BLOCK_K + 64 * panel;
        const unsigned to_b = b_at(ring.stage) + Columns::panel_at(BLOCK_N, panel) + first * Columns::kRowBytes;
        if constexpr (CLUSTER > 1)
          load_box_2d_for_all<CLUSTER>(to_b, b, full(ring.stage), from, share.column + first);
        else
          load_box_2d(to_b, b, full(ring.stage), from, share.column);
#pragma unroll
        for (int tile = 0; tile < kTilesOfA; ++tile)
          load_box_2d(a_at(ring.stage, tile) + Columns::panel_at(64, panel), a, full(ring.stage), from,
                      share.row + 64 * tile);
      }
      ring.advance();
    }
  }
}

struct Consumer {
  const Problem& problem;
  const int warpgroup, group = PINGPONG ? 0 : warpgroup;  // the group has 64 * ROW_TILES rows of a tile
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  Ring<STAGES> ring;
  float sums[ROW_TILES][BLOCK_N / 2];
  __device__ Consumer(const Problem& problem, int warpgroup) : problem(problem), warpgroup(warpgroup) {}

  // Turns with PINGPONG. A parity tells neighbouring phases of a stage apart and no others, so a consumer may wait for
  // its stages only after the one before it has waited for all of its own.
  static __device__ __forceinline__ int turn_of(int warpgroup) { return 1 + warpgroup % CONSUMER_WARPGROUPS; }
  __device__ __forceinline__ void give_turn() const { arrive_named(turn_of(warpgroup + 1), 256); }
  __device__ __forceinline__ void begin() {
    if constexpr (PINGPONG) {
      ring.skip(warpgroup * problem.steps);
      if (warpgroup == CONSUMER_WARPGROUPS - 1) give_turn();
    }
  }
  // To all blocks that load into the stage.
  __device__ __forceinline__ void give_back(int stage) const {
    if constexpr (CLUSTER > 1) {
      if (lane < CLUSTER) arrive_in_block(empty(stage), lane);
    } else {
      if (lane == 0) arrive_at_mbarrier(empty(stage));
    }
  }

  __device__ __forceinline__ void multiply(const Share& share, const Walk& walk) {
#pragma unroll
    for (int tile = 0; tile < ROW_TILES; ++tile)
#pragma unroll
      for (int i = 0; i < BLOCK_N / 2; ++i) sums[tile][i] = 0.0f;
    int last = -1;  // the stage whose MMA is under way
    if constexpr (PINGPONG) sync_named(turn_of(warpgroup), 256);
    for (int step = share.first; step < share.end; ++step) {
      wait_mbarrier(full(ring.stage), ring.parity);
      fence_products();
#pragma unroll
      for (int part = 0; part < BLOCK_K / 16; ++part)
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; ++tile)
          Product<BLOCK_N>::of_shared<kBfloat16, true>(
              sums[tile], Columns::by_columns(a_at(ring.stage, group * ROW_TILES + tile), 64, part),
              Columns::by_columns(b_at(ring.stage), BLOCK_N, part));
      close_products();
      wait_products<1>();
      if (last >= 0) give_back(last);
      last = ring.stage;
      ring.advance();
    }
    if constexpr (PINGPONG) {
      if (walk.has_more(problem)) give_turn();
      ring.skip((CONSUMER_WARPGROUPS - 1) * problem.steps);
    }
    wait_products<0>();
    if (last >= 0) give_back(last);
#pragma unroll
    for (int tile = 0; tile < ROW_TILES; ++tile) pin(sums[tile]);
  }

  // The place of this thread's sums among a part's: those of neighbouring threads are neighbours.
  __device__ __forceinline__ float* part_at(float* parts, int tile, int part, int number) const {
    const long long threads = (static_cast<long long>(tile) * SPLIT_K + part) * kSums + number;
    return parts + threads * (128 * CONSUMER_WARPGROUPS) + threadIdx.x;
  }
  __device__ __forceinline__ void put_part(float* parts, const Share& share) const {
#pragma unroll
    for (int i = 0; i < kSums; ++i)
      *part_at(parts, share.tile, share.part, i) = sums[i / (BLOCK_N / 2)][i % (BLOCK_N / 2)];
  }
  __device__ __forceinline__ void add_parts(float* parts, const Share& share) {
#pragma unroll 1
    for (int part = 0; part < SPLIT_K; ++part)
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        float& sum = sums[i / (BLOCK_N / 2)][i % (BLOCK_N / 2)];
        sum = __ldcg(part_at(parts, share.tile, part, i)) + (part > 0 ? sum : 0.0f);
      }
  }

  __device__ __forceinline__ void store(const Share& share, const Element* bias, Element* out) const {
    const int first_row = share.row + 64 * group * ROW_TILES;
    if constexpr (SKINNY)
      store_in_columns(sums, first_row, share.column, warp, lane, bias, out, problem.rows, problem.columns);
    else
      store_in_rows(sums, first_row, share.column, warp, lane, bias, out, problem.rows, problem.columns);
  }
};

}  // namespace

extern "C" __global__ void CLUSTER_DIMS __launch_bounds__(kThreads, MIN_CTAS)
    linear(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, const Element* bias,
           Element* out, float* parts, int* counter, int m, int n, int k) {
  const Problem problem(m, n, k);
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);  // shows the compiler that a warp has one value
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      start_mbarrier(full(stage), 1);
      start_mbarrier(empty(stage), 4 * kConsumersOfTile * CLUSTER);
    }
    publish_mbarriers();
  }
  if constexpr (CLUSTER > 1) {
    __syncwarp();
    sync_cluster();
  } else {
    __syncthreads();
  }
  Consumer consumer(problem, warpgroup);
  if (warpgroup == CONSUMER_WARPGROUPS) {
    if (threadIdx.x % 32 == 0) produce(problem, a_map, b_map);
    __syncwarp();
  } else {
    consumer.begin();
    for (Walk walk = PINGPONG ? Walk(warpgroup, CONSUMER_WARPGROUPS) : Walk(); walk.has(problem); walk.next()) {
      const Share share(problem, walk);
      consumer.multiply(share, walk);
      if constexpr (SPLIT_K == 1)
        consumer.store(share, bias, out);
      else
        consumer.put_part(parts, share);
    }
  }
  if constexpr (CLUSTER > 1) {
    __syncwarp();
    sync_cluster();  // the others may still load into this block's memory, and give back stages to it
  }
  if constexpr (SPLIT_K > 1) {
    const Share share(problem, Walk());
    if (!last_to_arrive(counter + share.tile, SPLIT_K) || warpgroup == CONSUMER_WARPGROUPS) return;
    consumer.add_parts(parts, share);
    consumer.store(share, bias, out);
  }
}
