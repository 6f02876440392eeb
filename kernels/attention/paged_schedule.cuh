// Sharing out the keys of sequences of different lengths: each block of threads gets as many tiles as any other.
//
// A unit is a tile of rows with all keys of its sequence: `heads` x `row_blocks` of them a sequence, in this order. A
// sequence of n keys has max(1, ceil(n / BLOCK_N)) tiles a unit. All tiles of all units form one line, unit after unit,
// and each block takes as many in a row as any other, or one more. So a block ends one unit, may do some whole ones,
// and begins another; and a unit of many keys is done by several blocks, one behind the other.
//
// The lengths are known on the device only, so every warp adds them up itself: 32 sequences at a time.
//
// Archs      sm_80 and later.
// References FlashInfer, Ye et al. 2025 (load-balanced scheduling); Stream-K, Osama et al. 2023.
#pragma once

namespace {

struct Sequences {
  const int* lengths;
  int count, heads, row_blocks;  // heads: kv heads

  __device__ __forceinline__ static int tiles_of(int keys) { return max(1, (keys + BLOCK_N - 1) / BLOCK_N); }
  __device__ __forceinline__ int units() const { return heads * row_blocks; }  // of a sequence

  // Tiles of the sequence `first` + lane, and of this and all from `first` on before it.
  __device__ __forceinline__ unsigned tiles_up_to(int first, unsigned& tiles) const {
    const int lane = threadIdx.x % 32;
    tiles = first + lane < count ? tiles_of(lengths[first + lane]) : 0;
    unsigned sum = tiles;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const unsigned before = __shfl_up_sync(~0u, sum, distance);
      if (lane >= distance) sum += before;
    }
    return sum;
  }

  __device__ __forceinline__ unsigned total() const {
    unsigned sum = 0, tiles;
    for (int first = 0; first < count; first += 32) sum += __shfl_sync(~0u, tiles_up_to(first, tiles), 31);
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
    unsigned before = 0;
    for (int first = 0;; first += 32) {
      unsigned own;
      const unsigned up_to = before + all.tiles_up_to(first, own);
      const unsigned behind = __ballot_sync(~0u, up_to * units > number);
      if (behind || first + 32 >= all.count) {
        const int lane = __ffs(static_cast<int>(behind)) - 1;
        sequence = first + lane;
        before = __shfl_sync(~0u, up_to - own, lane);
        break;
      }
      before = __shfl_sync(~0u, up_to, 31);
    }
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

// The tiles of a block: from `begin` to `end` - 1. The first `rest` blocks have `each` + 1 tiles, the others `each`;
// blocks beyond the number that gives each at least `least` tiles have none.
struct Share {
  unsigned each, rest, begin, end;

  __device__ __forceinline__ Share(unsigned total, unsigned most_blocks, unsigned least, unsigned block) {
    const unsigned blocks = min(most_blocks, max(1u, total / least));
    each = total / blocks;
    rest = total % blocks;
    begin = min(block, blocks) * each + min(block, rest);
    end = begin + (block < rest ? each + 1 : block < blocks ? each : 0);
  }
  // The block that has a tile.
  __device__ __forceinline__ int block_of(unsigned tile) const {
    const unsigned of_larger = rest * (each + 1);
    return static_cast<int>(tile < of_larger ? tile / (each + 1) : rest + (tile - of_larger) / each);
  }
};

}  // namespace
