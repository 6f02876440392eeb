// What attention_paged.cu adds to rung 3: sequences whose keys lie in pages. A tile of rows and the keys that they see,
// equal shares of the keys for all blocks, and copies out of pages.
//
// The choices of the shared headers that are fixed in attention_paged.cu stand here: this file comes before them.
//
// Shares     A unit is a tile of rows with all keys of its sequence: `heads` x `row_blocks` of them a sequence, in this
//            order. A sequence of n keys has max(1, ceil(n / BLOCK_N)) tiles a unit. All tiles of all units form one
//            line, unit after unit, and each block takes the same number in a row, but the last block takes the rest.
//            So a block ends one unit, may do some whole ones, and begins another; and a unit of many keys is done by
//            several blocks, one behind the other.
//            A share is a whole number of tiles, rounded up. That may leave blocks at the end without any, but the
//            others have no more than the most that any must have. Units of equal lengths then often consist of whole
//            shares: 4096 tiles in 64 units are 256 shares of 16 tiles for 264 blocks, where shares of 15 and 16 would
//            cross the end of nearly every unit, and a block that crosses it must merge and begin anew while its copies
//            wait. The lengths are known on the device only, so every warp adds them up itself: 32 sequences at a time.
//            No copy can begin before that, so the sums of the first 32 sequences, mostly all, are kept.
// Copies     A thread copies one chunk of every kRows-th row of a tile. It reads the page numbers of the next tile one
//            step ahead of their use, so that a copy never waits for the table. It reads one number for the tile if all
//            its rows lie in one page, one for each page if the tile consists of whole pages, else one for each row.
//            Rows beyond the length become zeros, whatever lies in the page.
//            OWN_COPIES: a warp copies just the keys that it multiplies, so that the warps of a block need not wait for
//            others.
//
// Archs      sm_80 and later.
// References FlashInfer, Ye et al. 2025 (load-balanced scheduling); Stream-K, Osama et al. 2023.
#pragma once

#define STRIDED 1
#define PACK_GQA 1
#define Q_IN_REGS 1
#define SHARE_QK_SMEM 1  // Q comes straight into registers: it has no room of its own
#define SPLIT_KV 1
#define V_WAIT_EARLY 1
#define V_WAIT V_WAIT_EARLY
#define SWIZZLE_XOR 1
#define SWIZZLE SWIZZLE_XOR
#define KV_ORDER_FORWARD 1
#define KV_ORDER KV_ORDER_FORWARD

#include "../mma/block.cuh"
#include "../parts/arithmetic.cuh"
#include "../parts/async_copy.cuh"
#include "../parts/strides.cuh"

namespace {

// One sequence at a time: `seq_len_k` is the length of the one that is worked on.
struct Problem {
  const Element *q, *k, *v;
  const int* page_table;
  Element* out;
  float scale_log2;
  int group, queries, most_pages, seq_len_k;  // group: query heads per kv head
  Strides q_strides, k_strides, v_strides, out_strides;

  __device__ __forceinline__ int rows() const { return queries * group; }  // of a kv head
};

// BLOCK_M rows of a sequence and a kv head: row r is head r % group of the group, and query r / group.
struct Tile {
  const Problem& problem;
  int sequence, head, first_row, rows;

  __device__ __forceinline__ int valid_rows() const { return min(BLOCK_M, rows - first_row); }
  __device__ __forceinline__ int last_row() const { return min(first_row + BLOCK_M, rows) - 1; }
  template <class T>
  __device__ __forceinline__ T* row_at(T* tensor, const Strides& strides, int row) const {
    const int of_head = row % problem.group + head * problem.group;
    return strides.further(tensor + strides.head_at(sequence, of_head), row / problem.group);
  }
  __device__ __forceinline__ const Element* keys_at(const Element* pool, const Strides& strides) const {
    return pool + strides.head_at(0, head);
  }
  // Below 0 for rows before the first key: such a row sees none either.
  __device__ __forceinline__ int keys_seen(int row) const {
    return CAUSAL ? problem.seq_len_k - problem.queries + 1 + row / problem.group : problem.seq_len_k;
  }
};

struct Sequences {
  // Of a lane: tiles of its sequence, and of all from the first of the 32 up to it.
  struct Sums {
    unsigned own, up_to;
  };
  const int* lengths;
  int count, heads, row_blocks;  // heads: kv heads
  Sums first_sums;

  __device__ __forceinline__ Sequences(const int* lengths, int count, int heads, int row_blocks)
      : lengths(lengths), count(count), heads(heads), row_blocks(row_blocks), first_sums(sums_from(0)) {}

  __device__ __forceinline__ static int tiles_of(int keys) { return max(1, (keys + BLOCK_N - 1) / BLOCK_N); }
  __device__ __forceinline__ int units() const { return heads * row_blocks; }  // of a sequence

  // For the sequence `first` + lane.
  __device__ __forceinline__ Sums sums_from(int first) const {
    const int lane = threadIdx.x % 32;
    const unsigned own = first + lane < count ? tiles_of(lengths[first + lane]) : 0;
    unsigned up_to = own;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const unsigned before = __shfl_up_sync(~0u, up_to, distance);
      if (lane >= distance) up_to += before;
    }
    return {own, up_to};
  }

  __device__ __forceinline__ unsigned total() const {
    unsigned sum = __shfl_sync(~0u, first_sums.up_to, 31);
#pragma unroll 1
    for (int first = 32; first < count; first += 32) sum += __shfl_sync(~0u, sums_from(first).up_to, 31);
    return sum * units();
  }
};

// A place in the line of tiles.
struct TileCursor {
  int sequence, head, row_block, tile;
  int keys, tiles;  // of the sequence, and of each of its units

  // The tile `number` of the line, which exists.
  __device__ __forceinline__ TileCursor(const Sequences& all, unsigned number) {
    const unsigned units = all.units();
    Sequences::Sums sums = all.first_sums;
    unsigned before = 0, behind;  // tiles of a unit of the sequences before these 32; lanes whose tiles go beyond it
    int first = 0;
#pragma unroll 1
    while (!(behind = __ballot_sync(~0u, (before + sums.up_to) * units > number)) && first + 32 < all.count) {
      before += __shfl_sync(~0u, sums.up_to, 31);
      sums = all.sums_from(first += 32);
    }
    const int lane = __ffs(static_cast<int>(behind)) - 1;
    sequence = first + lane;
    before += __shfl_sync(~0u, sums.up_to - sums.own, lane);
    enter(all);
    const unsigned within = number - before * units;
    const int unit = static_cast<int>(within / tiles);
    tile = static_cast<int>(within % tiles);
    head = unit / all.row_blocks;
    row_block = unit % all.row_blocks;
  }

  __device__ __forceinline__ void enter(const Sequences& all) {
    keys = all.lengths[sequence];
    tiles = Sequences::tiles_of(keys);
  }

  __device__ __forceinline__ void advance(const Sequences& all) {
    if (++tile == tiles) leave_unit(all);
  }

  // To the first tile of the next unit.
  __device__ __forceinline__ void leave_unit(const Sequences& all) {
    tile = 0;
    if (++row_block < all.row_blocks) return;
    row_block = 0;
    if (++head < all.heads) return;
    head = 0;
    if (++sequence < all.count) enter(all);
  }

  __device__ __forceinline__ int unit(const Sequences& all) const {
    return (sequence * all.heads + head) * all.row_blocks + row_block;
  }
};

// The tiles of a block: from `begin` to `end` - 1. Each block has `each` tiles, at least `least`; the last one that has
// any may have fewer.
struct Share {
  unsigned each, begin, end;

  __device__ __forceinline__ Share(unsigned total, unsigned blocks, unsigned least, unsigned block)
      : each(max(least, (total + blocks - 1) / blocks)), begin(min(block * each, total)),
        end(min(begin + each, total)) {}
  // The block that has a tile.
  __device__ __forceinline__ int block_of(unsigned tile) const { return static_cast<int>(tile / each); }
};

// Asks for the table of pages, while the lengths that tell what to read of it are still on their way: else one load
// from memory begins behind the other. The blocks share the lines, a few each: of a wide table most may not be used.
__device__ __forceinline__ void prefetch_table(const int* table, unsigned entries) {
  constexpr unsigned kLines = 8, kEntries = 128 / sizeof(int);  // of a block; of a line
  const unsigned entry = (blockIdx.x * kLines + threadIdx.x) * kEntries;
  if (threadIdx.x < kLines && entry < entries) prefetch_to_l2(table + entry);
}

struct PagedCopy {
  static constexpr int kChunks = HEAD_DIM / 8;
  static constexpr int kTogether = OWN_COPIES ? 32 : kThreads;  // threads that copy together
  static constexpr int kKeys = OWN_COPIES ? kWarpKeys : BLOCK_N;
  static constexpr int kRows = kTogether / kChunks;  // at a time
  static constexpr int kPasses = kKeys / kRows;
  static constexpr bool kOnePage = PAGE_SIZE % kKeys == 0;
  static constexpr bool kFewPages = kKeys % PAGE_SIZE == 0 && PAGE_SIZE % kRows == 0;
  static constexpr int kSpan = kOnePage ? kKeys : kFewPages ? PAGE_SIZE : kRows;  // rows per page number
  static_assert(kTogether % kChunks == 0 && kKeys % kRows == 0, "threads copy whole rows");

  const Sequences& all;
  const Problem& problem;
  const int first_key, chunk;  // of a tile; of a row
  const unsigned at;           // of this thread's first chunk, in a block of shared memory
  KeyPolicy policy;
  TileCursor cursor;
  int left;  // tiles that are not yet under way
  int pages[kKeys / kSpan];

  __device__ __forceinline__ PagedCopy(const Sequences& all, const Problem& problem, const TileCursor& cursor, int left,
                                       int number, int slice)
      : all(all), problem(problem), first_key(slice * kKeys + number / kChunks), chunk(number % kChunks),
        at(Rows::offset(first_key, chunk)), cursor(cursor), left(left) {
    find_pages();
  }

  // Reads the numbers for the tile under the cursor.
  __device__ __forceinline__ void find_pages() {
    const int* table = problem.page_table + static_cast<long long>(cursor.sequence) * problem.most_pages;
#pragma unroll
    for (int i = 0; i < kKeys / kSpan; ++i) {
      const unsigned key = cursor.tile * BLOCK_N + first_key + i * kSpan;
      pages[i] = key < cursor.keys ? __ldg(table + key / PAGE_SIZE) : 0;
    }
  }

  template <bool WHOLE>
  __device__ __forceinline__ void copy(const Element* from, unsigned shared) const {
    const Element* head = from + static_cast<long long>(cursor.head) * HEAD_DIM + chunk * 8;
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const unsigned key = cursor.tile * BLOCK_N + first_key + i * kRows;
      const int slot = pages[i * kRows / kSpan] * PAGE_SIZE + static_cast<int>(key % PAGE_SIZE);
      const unsigned to = shared + (kRows % 8 == 0 ? at + i * kRows * Rows::kRowBytes
                                                   : Rows::offset(first_key + i * kRows, chunk));
      if constexpr (WHOLE) {
        policy.copy(to, problem.k_strides.source(head, slot));
      } else {
        const bool exists = key < cursor.keys;
        policy.copy(to, problem.k_strides.source(head, exists ? slot : 0), exists ? 16 : 0);
      }
    }
  }

  // Starts the copies of the next tile's keys and values to a stage, if there is one. Closes a group either way.
  __device__ __forceinline__ void start(unsigned stage) {
    if (left > 0) {
      if ((cursor.tile + 1) * BLOCK_N <= cursor.keys) {
        copy<true>(problem.k, stage);
        copy<true>(problem.v, stage + kKeyBytes);
      } else {
        copy<false>(problem.k, stage);
        copy<false>(problem.v, stage + kKeyBytes);
      }
      if (--left > 0) {
        cursor.advance(all);
        find_pages();
      }
    }
    close_copy_group();
  }
};

}  // namespace
