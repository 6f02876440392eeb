// Sharing out the keys of sequences of different lengths: each block of threads gets as many tiles as any other.
//
// A unit is a tile of rows with all keys of its sequence: `heads` x `row_blocks` of them a sequence, in this order. A
// sequence of n keys has max(1, ceil(n / BLOCK_N)) tiles a unit. All tiles of all units form one line, unit after unit,
// and each block takes the same number in a row, but the last block takes the rest. So a block ends one unit,
// may do some whole ones, and begins another; and a unit of many keys is done by several blocks, one behind the other.
//
// A share is a whole number of tiles, rounded up. That may leave blocks at the end without any, but the others have no
// more than the most that any must have. Units of equal lengths then often consist of whole shares: 4096 tiles in 64
// units are 256 shares of 16 tiles for 264 blocks, where shares of 15 and 16 would cross the end of nearly every unit,
// and a block that crosses it must merge and begin anew while its copies wait.
//
// The lengths are known on the device only, so every warp adds them up itself: 32 sequences at a time. No copy can
// begin before that, so the sums of the first 32 sequences, mostly all, are kept.
//
// Archs      sm_80 and later.
// References FlashInfer, Ye et al. 2025 (load-balanced scheduling); Stream-K, Osama et al. 2023.
#pragma once

namespace {

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

}  // namespace
