// The registers and the shared memory of a block of the wgmma rungs: rings of Q, K and V, with their mbarriers.
//
// The kernel's macros choose the sizes; 5_wgmma.cu explains them. A stage's mbarriers are `full`, which counts bytes,
// and `empty`, which counts the consumers that gave it back.
//
// Archs      sm_90a.
// References PTX ISA: "setmaxnreg", "mbarrier".
#pragma once

#include "../parts/arithmetic.cuh"
#include "../parts/features.h"
#include "../parts/mask.cuh"
#include "../parts/score_change.cuh"
#include "choices.cuh"
#include "panels.cuh"
#include "tma.cuh"

namespace {

using Rows = Panels<HEAD_DIM>;        // of Q and K
using ValueRows = Panels<VALUE_DIM>;  // of V and the output

constexpr bool kBfloat16 = DTYPE == DTYPE_BFLOAT16;
constexpr bool kPingPong = PING_PONG && CONSUMER_WARPGROUPS > 1;
constexpr bool kSkipMasked = CAUSAL && SKIP_MASKED;
constexpr bool kThroughShared = STORE == STORE_BULK;
constexpr int kThreads = 128 * CONSUMER_WARPGROUPS + 32 * PRODUCER_WARPS;

// Registers of a thread: at entry, and of a consumer after the producer warpgroup has given registers away.
constexpr int kAllowed = 65536 / (kThreads * MIN_CTAS) / 8 * 8;
constexpr int kEntryRegisters = kAllowed < 256 ? kAllowed : 256;
constexpr int kShare = (kEntryRegisters * (CONSUMER_WARPGROUPS + 1) - PRODUCER_REGISTERS) / CONSUMER_WARPGROUPS / 8 * 8;
constexpr int kConsumerRegisters = kShare < 240 ? kShare : 240;
constexpr bool kMoveRegisters =
    PRODUCER_WARPS == 4 && kConsumerRegisters > kEntryRegisters && PRODUCER_REGISTERS < kEntryRegisters;

// Named barriers; 0 is __syncthreads().
constexpr int kFirstTurn = 1;
constexpr int kFirstStore = kFirstTurn + CONSUMER_WARPGROUPS;
constexpr int kMaskMeeting = kFirstStore + CONSUMER_WARPGROUPS;

// Threads that bring a mask to shared memory: the first ones of the producers.
constexpr int kMaskWarps = MASK_IS_PADDING ? 1 : PRODUCER_WARPS;

static_assert(CONSUMER_WARPGROUPS >= 1 && CONSUMER_WARPGROUPS <= 3, "warpgroups of 64 rows");
static_assert(PRODUCER_WARPS == 1 || PRODUCER_WARPS == 4, "a warp or a warpgroup loads");
static_assert(PRODUCER_REGISTERS % 8 == 0 && PRODUCER_REGISTERS >= 24, "setmaxnreg takes multiples of 8");
static_assert(BLOCK_N % 16 == 0 && BLOCK_N >= 16 && BLOCK_N <= 256, "a product has up to 256 columns");
static_assert(BLOCK_N % (8 * CLUSTER) == 0, "each block loads whole repeats of the swizzle");
static_assert(WEIGHT_SETS == 1 || (WEIGHT_SETS == 2 && OVERLAP), "there is nothing to pack under");
static_assert(!HALF_BLOCKS || (WEIGHT_SETS == 1 && BLOCK_N % 32 == 0), "halves are whole products, one by one");
static_assert(!HIDE_ENDS || (kThroughShared && QUERY_STAGES > 1), "the next tile's Q must not wait for this one's store");
static_assert(!KEEP_MAXIMUM || EXP2_FMA_SHARE == 0, "MUFU alone makes infinity of scores that are too large");
static_assert(WEIGHT_SETS == 1 || !HAS_WINDOW, "blocks at both ends of a window are masked, one by one");
static_assert(VALUE_DIM <= HEAD_DIM, "the output goes through Q's shared memory");
static_assert(QUERY_STAGES >= 1 && STAGES >= 1, "at least one");
static_assert(!HAS_MASK || (EXP2_FMA_SHARE == 0 && WEIGHT_SETS == 1 && !HALF_BLOCKS && !BIAS_IN_PRODUCT),
              "any key may be hidden, and blocks come one by one");
static_assert(MASK_STAGES >= 1, "at least one");

// Shared memory: the rings of Q, K and V, with BIAS_IN_PRODUCT the columns that K gets, with a mask its ring
// (wgmma/mask_ring.cuh), and behind them their mbarriers. Every tile begins at a multiple of 1024. With SPLIT_KV, the parts that other blocks send lie before the
// mbarriers, and the last mbarrier counts their bytes. Behind the mbarriers HIDE_ENDS and PACKED keep where tiles lie.
constexpr unsigned kGroupQueryBytes = 2 * 64 * HEAD_DIM;
constexpr unsigned kQueryBytes = CONSUMER_WARPGROUPS * kGroupQueryBytes;
constexpr unsigned kKeyBytes = 2 * BLOCK_N * HEAD_DIM, kValueBytes = 2 * BLOCK_N * VALUE_DIM;  // of a block
constexpr unsigned kKeysAt = QUERY_STAGES * kQueryBytes;
constexpr unsigned kValuesAt = kKeysAt + STAGES * kKeyBytes;
constexpr unsigned kBiasBytes = BIAS_IN_PRODUCT ? 32 * BLOCK_N : 0;
constexpr unsigned kBiasAt = kValuesAt + STAGES * kValueBytes;
constexpr int kBitSlots = STAGES + 1, kBitWords = (BLOCK_N + 127) / 128;  // words: of a thread's columns in a row
constexpr unsigned kBitRowBytes = 16 * kBitWords;
constexpr unsigned kBitSlotBytes = 16 + kBitRowBytes * (MASK_IS_PADDING ? 1 : BLOCK_M);
constexpr unsigned kMaskRowBytes = (BLOCK_N + 8) * kMaskBytes;  // of a bias: 8 rows begin in different banks
constexpr unsigned kMaskTileBytes = BLOCK_M * kMaskRowBytes;
constexpr unsigned kMaskAt = kBiasAt + kBiasBytes;
constexpr unsigned kMaskRingBytes = MASK_BITS ? kBitSlots * kBitSlotBytes : MASK_TILES ? MASK_STAGES * kMaskTileBytes : 0;
constexpr unsigned kPartsAt = kMaskAt + kMaskRingBytes;
constexpr int kMergedTiles = VALUE_DIM / 8 / SPLIT_KV;  // tiles of 8 columns that a block merges
constexpr unsigned kWarpPartBytes = 512 * (1 + kMergedTiles);
constexpr unsigned kPartBytes = 4 * CONSUMER_WARPGROUPS * kWarpPartBytes;
constexpr unsigned kBarriersAt = kPartsAt + (SPLIT_KV - 1) * kPartBytes;
constexpr int kRingBarriers = 2 * (QUERY_STAGES + 2 * STAGES);
constexpr int kBarriers = kRingBarriers + (MASK_TILES ? 2 * MASK_STAGES : 0);
static_assert(kGroupQueryBytes % 1024 == 0 && kKeyBytes % 1024 == 0 && kValueBytes % 1024 == 0,
              "the swizzle repeats after 1024 bytes");
extern __shared__ __align__(1024) unsigned char shared_memory[];

__device__ __forceinline__ unsigned shared_at(unsigned offset) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared_memory)) + offset;
}
__device__ __forceinline__ unsigned query_at(int stage, int group) {
  return shared_at(stage * kQueryBytes + group * kGroupQueryBytes);
}
__device__ __forceinline__ unsigned key_at(int stage) { return shared_at(kKeysAt + stage * kKeyBytes); }
__device__ __forceinline__ unsigned value_at(int stage) { return shared_at(kValuesAt + stage * kValueBytes); }

__device__ __forceinline__ unsigned barrier_at(int number) { return shared_at(kBarriersAt + 8 * number); }
__device__ __forceinline__ unsigned query_full(int stage) { return barrier_at(stage); }
__device__ __forceinline__ unsigned key_full(int stage) { return barrier_at(QUERY_STAGES + stage); }
__device__ __forceinline__ unsigned value_full(int stage) { return barrier_at(QUERY_STAGES + STAGES + stage); }
constexpr int kFirstEmpty = QUERY_STAGES + 2 * STAGES;
__device__ __forceinline__ unsigned query_empty(int stage) { return barrier_at(kFirstEmpty + stage); }
__device__ __forceinline__ unsigned key_empty(int stage) { return barrier_at(kFirstEmpty + QUERY_STAGES + stage); }
__device__ __forceinline__ unsigned value_empty(int stage) {
  return barrier_at(kFirstEmpty + QUERY_STAGES + STAGES + stage);
}
__device__ __forceinline__ unsigned mask_full(int stage) { return barrier_at(kRingBarriers + stage); }
__device__ __forceinline__ unsigned mask_empty(int stage) { return barrier_at(kRingBarriers + MASK_STAGES + stage); }

// Where a tile lies, in shared memory: a thread of the producers writes it, and consumers read 32 bytes of it.
template <int COUNT>
__device__ __forceinline__ void store_tile_words(unsigned at, const int (&words)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) store_word(at + 4 * i, words[i]);
}
__device__ __forceinline__ void load_tile_words(int (&words)[8], unsigned at) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float four[4];
    load_words(four, at + 16 * half);
#pragma unroll
    for (int i = 0; i < 4; ++i) words[4 * half + i] = __float_as_int(four[i]);
  }
}

// Called by one thread, before the block's (or the cluster's) barrier.
__device__ __forceinline__ void start_rings() {
  for (int i = 0; i < kRingBarriers; ++i) {
    const bool empty = i >= kFirstEmpty, query = empty && i < kFirstEmpty + QUERY_STAGES;
    // The number of arrivals that end a phase. `full`: 1, the producer; of K, each warp that brings a mask's bits.
    // `empty` of K and V: every consumer warp of
    // all blocks of the cluster. `empty` of Q: every consumer warp, or one thread of each warpgroup if the output
    // goes through Q's memory: the thread that stored it.
    const int givers = query ? (kThroughShared ? 1 : 4) : 4 * CLUSTER;
    const int bringers = MASK_BITS && i >= QUERY_STAGES && i < QUERY_STAGES + STAGES ? kMaskWarps : 1;
    start_mbarrier(barrier_at(i), empty ? CONSUMER_WARPGROUPS * givers : bringers);
  }
  if constexpr (MASK_TILES)
    for (int stage = 0; stage < MASK_STAGES; ++stage) {
      start_mbarrier(mask_full(stage), 32 * kMaskWarps);
      start_mbarrier(mask_empty(stage), 4 * CONSUMER_WARPGROUPS);
    }
  publish_mbarriers();
}

}  // namespace
