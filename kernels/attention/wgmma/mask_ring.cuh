// The mask on its way through shared memory: producers bring it, a block of keys at a time, and consumers read it.
//
// MASK_BITS   A padding or boolean mask becomes a bit for each score. The producers read it ahead: a block of keys of
//             which it shows none to the tile is neither loaded nor computed. So with each block the consumers learn its
//             step (wgmma/tile.cuh), and whether it is the tile's last one. A tile with no visible key has one block.
//             A slot has 16 bytes for that, 2 step + last, then the rows: for each of the four lanes that share a row
//             kBitWords words. Bit 2 i + e is that of column 8 i + 2 (lane % 4) + e. Padding has one row for all.
//             A block's slot is ready with its keys, and free when these are given back. There is one slot more than
//             stages, so that the next block's bits are found before its stage is free.
//             Blocks that load keys for each other (CLUSTER) must load the same: they leave out what padding hides,
//             which is the same for both, and no more.
// MASK_TILES  A tile of the bias, MASK_STAGES deep, with mbarriers of its own: 16 bytes at a time by asynchronous
//             copies, or from any other address through registers. A row has kMaskRowBytes, so that neither 8 rows of
//             16-bit numbers (ldmatrix) nor 4 rows of floats (8 bytes a lane) share a bank.
//
// Contract    The producers' functions are called by their first kMaskWarps warps together.
//
// Archs       sm_90a.
// References  PTX ISA: "barrier{.cta}.red", "cp.async", "vote", "ldmatrix".
#pragma once

#include "../parts/arithmetic.cuh"
#include "../parts/mask.cuh"
#include "product.cuh"
#include "rings.cuh"
#include "tile.cuh"
#include "tma.cuh"

namespace {

#if MASK_BITS || MASK_TILES
// Whether the bytes of a block come in whole vectors of 16, so that all its keys exist. If so, that holds for the blocks
// of all later steps, too.
__device__ __forceinline__ bool is_whole(const Place& place, int step) {
  const AttnMask& mask = place.problem.mask;
  const long long strides = (mask.batch | mask.head | mask.row) * kMaskBytes;
  return (reinterpret_cast<long long>(mask.elements) | strides) % 16 == 0 &&
         place.first_key(step) + BLOCK_N <= place.problem.seq_len_k;
}

template <int WORDS>
__device__ __forceinline__ void load_vector(unsigned (&words)[WORDS], int at, const void* from) {
  const uint4 four = *static_cast<const uint4*>(from);
  words[at] = four.x, words[at + 1] = four.y, words[at + 2] = four.z, words[at + 3] = four.w;
}

// The bytes at .. at + 3 behind `from`, which are an aligned word, as far as they are of the first `count`; else zeros.
__device__ __forceinline__ unsigned aligned_word(const void* from, int at, int count) {
  const unsigned char* bytes = static_cast<const unsigned char*>(from) + at;
  if (at >= 0 && at + 4 <= count) return *reinterpret_cast<const unsigned*>(bytes);
  unsigned word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (at + i >= 0 && at + i < count) word |= static_cast<unsigned>(bytes[i]) << 8 * i;
  return word;
}

// The first `count` bytes from any address on, perhaps none; zeros behind them.
template <int WORDS>
__device__ __forceinline__ void load_bytes(unsigned (&words)[WORDS], const void* from, int count) {
  const int before = reinterpret_cast<unsigned long long>(from) % 4;
  if (WORDS % 4 == 0 && reinterpret_cast<unsigned long long>(from) % 16 == 0 && count >= 4 * WORDS) {
#pragma unroll
    for (int i = 0; i + 4 <= WORDS; i += 4) load_vector(words, i, static_cast<const char*>(from) + 4 * i);
    return;
  }
  count = min(count, 4 * WORDS);
  unsigned next = aligned_word(from, -before, count);
#pragma unroll
  for (int i = 0; i < WORDS; ++i) {
    const unsigned low = next;
    next = aligned_word(from, 4 * i + 4 - before, count);
    words[i] = __funnelshift_r(low, next, 8 * before);
  }
}
#endif

#if MASK_BITS
__device__ __forceinline__ unsigned bit_slot_at(int slot) { return shared_at(kMaskAt + slot * kBitSlotBytes); }
// A row 0 .. BLOCK_M - 1 of the tile.
__device__ __forceinline__ unsigned bit_row_at(int slot, int row) {
  return bit_slot_at(slot) + 16 + (MASK_IS_PADDING ? 0 : row * kBitRowBytes);
}

// What a producer warp knows of a tile's mask.
struct MaskFinder {
  const Problem& problem;
  const int thread = threadIdx.x - 128 * CONSUMER_WARPGROUPS;
  int from;       // padding: the steps from + i whose blocks have a visible key are the bits i of `seen`
  unsigned seen;

  __device__ __forceinline__ explicit MaskFinder(const Problem& of) : problem(of) {}

#if MASK_IS_PADDING
  // The first step from `step` on whose block has a visible key, or the end. A tile's first call has its first step.
  __device__ __forceinline__ int find(const Place& place, int step, int) {
    while (step < place.end_step) {
      if (step == place.first_step || step >= from + 32) look(place, step);
      if (const unsigned left = seen >> (step - from); left != 0) return step + __ffs(left) - 1;
      step = from + 32;
    }
    return place.end_step;
  }

  // Writes a block's bits.
  __device__ __forceinline__ void write(const Place& place, int step, int slot) const {
    constexpr unsigned kEven = 0x55555555;
#pragma unroll
    for (int word = 0; word < kBitWords; ++word) {
      const int column = 128 * word + 4 * thread, key = place.first_key(step) + column;
      unsigned bytes[1];
      load_bytes(bytes, place.mask_row(0, key), min(BLOCK_N - column, problem.seq_len_k - key));
      unsigned of_byte[4];  // bit 2 i + h: of byte `b` in the word of keys 8 i + 4 h
#pragma unroll
      for (int b = 0; b < 4; ++b) of_byte[b] = __ballot_sync(~0u, bytes[0] >> 8 * b & 1);
      const unsigned low = thread % 2 == 0 ? of_byte[0] : of_byte[2], high = thread % 2 == 0 ? of_byte[1] : of_byte[3];
      const unsigned bits = thread < 2 ? (low & kEven) | (high & kEven) << 1 : (low >> 1 & kEven) | (high & ~kEven);
      if (thread < 4) store_word(bit_row_at(slot, 0) + (thread * kBitWords + word) * 4, bits);
    }
  }

 private:
  // Each lane looks at the block of one step.
  __device__ __forceinline__ void look(const Place& place, int step) {
    from = step;
    const bool exists = step + thread < place.end_step;
    const bool sees = is_whole(place, step) ? exists && sees_block<true>(place, step + thread)
                                            : exists && sees_block<false>(place, step + thread);
    seen = __ballot_sync(~0u, sees);
  }
  template <bool WHOLE>
  __device__ __forceinline__ bool sees_block(const Place& place, int step) const {
    constexpr int kAtOnce = WHOLE ? 4 : 1;  // loads on their way
    unsigned any = 0;
#pragma unroll 1
    for (int column = 0; column < BLOCK_N; column += 16 * kAtOnce) {
      unsigned words[kAtOnce][4];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int key = place.first_key(step) + min(column + 16 * i, BLOCK_N - 16);
        if constexpr (WHOLE)
          load_vector(words[i], 0, place.mask_row(0, key));
        else
          load_bytes(words[i], place.mask_row(0, key), problem.seq_len_k - key);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) any |= words[i][0] | words[i][1] | words[i][2] | words[i][3];
    }
    return any != 0;
  }
#else
  // The same; the bits of the block that it finds are in the slot, or zeros at the end.
  __device__ __forceinline__ int find(const Place& place, int step, int slot) {
    for (; step < place.end_step; ++step) {
      const bool sees = BLOCK_N % 32 == 0 && is_whole(place, step) ? write_rows<true>(place, step, slot)
                                                                   : write_rows<false>(place, step, slot);
      __syncwarp();
      if (any_of_named(kMaskMeeting, 32 * kMaskWarps, sees) || CLUSTER > 1) break;
    }
    return step;
  }
  __device__ __forceinline__ void write(const Place&, int, int) const {}

 private:
  // Whether this thread's part of the block has a visible key: 32 keys of some rows. A row that does not exist has the
  // last one's.
  template <bool WHOLE>
  __device__ __forceinline__ bool write_rows(const Place& place, int step, int slot) const {
    constexpr int kParts = (BLOCK_N + 31) / 32, kItems = BLOCK_M * kParts, kWriters = 32 * kMaskWarps;
    constexpr int kMost = PRODUCER_WARPS == 1 || PRODUCER_REGISTERS >= 72 ? 4 : 2;  // items on their way
    constexpr int kAtOnce = !WHOLE || kItems < 2 * kWriters ? 1 : kItems < 4 * kWriters ? 2 : kMost;
    unsigned any = 0;
#pragma unroll 1
    for (unsigned first = thread; first < kItems; first += kAtOnce * kWriters) {
      unsigned words[kAtOnce][8];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const unsigned item = first + i * kWriters;
        const int row = item / kParts, column = item % kParts * 32;
        const int key = place.first_key(step) + column;
        const MaskElement* from = place.mask_row(row, key);
        if constexpr (WHOLE) {
          load_vector(words[i], 0, from), load_vector(words[i], 4, from + 16);
        } else {
          load_bytes(words[i], from, min(BLOCK_N - column, problem.seq_len_k - key));
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const unsigned item = first + i * kWriters;
        if (kItems % (kAtOnce * kWriters) != 0 && item >= kItems) break;
        const unsigned to = bit_row_at(slot, item / kParts) + item % kParts;
        const auto& w = words[i];
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {  // the lanes 0 and 1 of four, or 2 and 3
          unsigned bits = w[odd] + (w[2 + odd] << 2) + (w[4 + odd] << 4) + (w[6 + odd] << 6);
          any |= bits;
          bits |= bits >> 7;
          store_byte(to + 2 * odd * 4 * kBitWords, bits);
          store_byte(to + (2 * odd + 1) * 4 * kBitWords, bits >> 16);
        }
      }
    }
    return any != 0;
  }
#endif
};

// A consumer's side: what a block is, and the bits of a lane in a row.
__device__ __forceinline__ int block_in_slot(int slot) { return load_word(bit_slot_at(slot)); }
__device__ __forceinline__ void keep_seen(unsigned (&visible)[kBitWords], int slot, int row) {
#pragma unroll
  for (int word = 0; word < kBitWords; ++word)
    visible[word] &= load_word(bit_row_at(slot, row) + (threadIdx.x % 4 * kBitWords + word) * 4);
}
#endif

#if MASK_TILES
__device__ __forceinline__ unsigned mask_tile_at(int stage) { return shared_at(kMaskAt + stage * kMaskTileBytes); }

// Brings a block's tile to shared memory, 16 bytes at a time. A row that does not exist gets the last one's bias, and a
// key that does not exist 0.
template <bool WHOLE>
__device__ __forceinline__ void copy_mask_rows(const Place& place, int step, int stage) {
  constexpr int kChunks = BLOCK_N * kMaskBytes / 16;  // of a row
  constexpr int kLanes = kChunks <= 4 ? 4 : kChunks <= 8 ? 8 : kChunks <= 16 ? 16 : 32;
  constexpr int kRows = 32 * kMaskWarps / kLanes;  // at once
  const unsigned thread = threadIdx.x - 128 * CONSUMER_WARPGROUPS;
  const int first = place.first_key(step), keys = place.problem.seq_len_k - first;
#pragma unroll(WHOLE ? 4 : 1)
  for (int pass = 0; pass < BLOCK_M / kRows; ++pass) {
    const int row = thread / kLanes + pass * kRows;
    const char* from = reinterpret_cast<const char*>(place.mask_row(row, first)) + thread % kLanes * 16;
    const unsigned to = mask_tile_at(stage) + row * kMaskRowBytes + thread % kLanes * 16;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; chunk += kLanes) {
      if (kChunks % kLanes != 0 && chunk + thread % kLanes >= kChunks) continue;
      if constexpr (WHOLE) {
        copy_async<16>(to + 16 * chunk, from + 16 * chunk);
      } else {
        unsigned words[4];
        load_bytes(words, from + 16 * chunk, keys * kMaskBytes - 16 * (chunk + thread % kLanes));
        store_words(to + 16 * chunk, words);
      }
    }
  }
}

// Brings it to a stage that is free, at whose `full` each thread arrives.
__device__ __forceinline__ void copy_mask_tile(const Place& place, int step, int stage) {
  if (is_whole(place, step)) {
    copy_mask_rows<true>(place, step, stage);
    arrive_when_copied(mask_full(stage));
  } else {
    copy_mask_rows<false>(place, step, stage);
    arrive_at_mbarrier(mask_full(stage));
  }
}
#endif

// ---- a consumer's bias ----

#if MASK_TILES
// Of a warp's 16 rows in a block. Called in the order of the columns, with constants.
struct BlockBias {
  unsigned at;
  unsigned words[4];

  // `row`: the warp's first one in the tile.
  __device__ __forceinline__ void open(int stage, int row) {
    const int lane = threadIdx.x % 32;
    at = mask_tile_at(stage) + (MASK_IS_FLOAT32 ? (row + lane / 4) * kMaskRowBytes + lane % 4 * 8
                                                : (row + lane % 8) * kMaskRowBytes + lane / 8 * 16);
  }
  // What is added to the score of column 8 tile + 2 (lane % 4) + e in row lane / 4 + 8 half.
  __device__ __forceinline__ float of(int half, int tile, int e) {
    const unsigned from = at + half * 8 * kMaskRowBytes + tile * 8 * kMaskBytes;
    if constexpr (MASK_IS_FLOAT32) {
      if (e == 0) load_pair(words[0], words[1], from);
      return __int_as_float(words[e]);
    }
    if (tile % 4 == 0 && e == 0) load_matrix(words, from);  // four tiles
    return e == 0 ? unpack_low<kBfloat16>(words[tile % 4]) : unpack_high<kBfloat16>(words[tile % 4]);
  }
};
#elif MASK_IS_BIAS
// The same, from registers that were loaded from global memory.
struct BlockBias {
  MaskRow<BLOCK_N / 8> rows[2];

  __device__ __forceinline__ void load(const Place& place, int row, int key) {
    const bool whole = key + BLOCK_N <= place.problem.seq_len_k;
    key += threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const char* from = reinterpret_cast<const char*>(place.mask_row(row + threadIdx.x % 32 / 4 + 8 * half, key));
      pin(from);
      if (whole)
        rows[half].load(from, BLOCK_N);
      else
        rows[half].load(from, place.problem.seq_len_k - key);
    }
  }
  __device__ __forceinline__ float of(int half, int tile, int e) const { return rows[half].bias(2 * tile + e); }
};
#endif

}  // namespace
