// The mask of attention in the accumulators of mma.m16n8k16 and of wgmma: which of a lane's scores it hides, or what it
// adds to them. parts/mask.h says what masks are.
//
// Layout   In a block of keys a lane has TILES tiles of 8 columns; of each its rows' columns 2 t and 2 t + 1, with
//          t = lane % 4. So a row gives it 2 TILES scores, number 2 n + e for column e of tile n.
//          LANE_KEYS neighbouring keys belong to one lane: MASK_KEYS of a space with masks, else 2. With 2 column c is
//          key c. With 4, 8 or 16 the keys of 4 LANE_KEYS columns change places: score i is that of key
//          LANE_KEYS t + lane_key(i). A kernel makes it so by the order in which it takes rows of K and of V
//          (column_key), and a few wide loads get a row's elements.
// Loads    Each row begins at, and has, whole vectors of MASK_STEP elements: a load gets as many of them as a lane has
//          keys in a row, 16 bytes at most.
// Hiding   Bytes become bits, which R2P moves into predicates, so that a score needs no comparison. A warp whose keys
//          are all seen needs none of this.
// Bias     Scores are in their natural unit: one multiply-add scales a score and adds its bias, and the exponent of 2 is
//          another one, log2(e) s - log2(e) m. Rounded, log2(e) m is off by 2^-24 of it, and log2(e) times the lowest
//          float is infinite. So a row whose maximum is_far from 0 takes the difference s - m first. The running maximum
//          begins at the lowest float: keys that have it get the weight 1 where nothing is above. That of -inf is 0.
// Padding  One row of bytes for all rows of scores, so LANE_KEYS is 2. A warp loads a block's bytes side by side, and
//          votes. Before its first block it reads the whole row: SeenBlocks are those with a visible key.
//
// Archs      sm_80 and later.
// Contract   SeenBlocks and PaddingBits are for whole warps.
#pragma once

#include "arithmetic.cuh"
#include "mask.h"

#if defined(MASK_KEYS) && HAS_MASK && !MASK_IS_PADDING
#define LANE_KEYS MASK_KEYS
#else
#define LANE_KEYS 2
#endif
#ifndef MASK_AHEAD
#define MASK_AHEAD 0
#endif
#ifndef MASK_STEP
#define MASK_STEP 1
#endif

namespace {

constexpr bool kHidesByBytes = HAS_MASK && !MASK_IS_BIAS;
template <int BYTES>
struct MaskElementOf;
template <> struct MaskElementOf<1> { using Type = unsigned char; };
template <> struct MaskElementOf<2> { using Type = Element; };
template <> struct MaskElementOf<4> { using Type = float; };
constexpr int kMaskBytes = !MASK_IS_BIAS ? 1 : MASK_IS_FLOAT32 ? 4 : 2;  // of an element
using MaskElement = MaskElementOf<kMaskBytes>::Type;
__device__ __forceinline__ constexpr int least(int a, int b) { return a < b ? a : b; }
constexpr int kMaskVector = least(16 / kMaskBytes, least(MASK_STEP, LANE_KEYS));  // elements that a lane loads at once
constexpr float kLowestFloat = -3.402823466e38f;

// From a lane's first key in a block to the key of its score `i`.
__device__ __forceinline__ constexpr int lane_key(int i) { return i / LANE_KEYS * 4 * LANE_KEYS + i % LANE_KEYS; }
// The same for column e of tile n. A macro: with a call, kernels without masks have another machine code.
#if LANE_KEYS == 2
#define LANE_KEY(n, e) ((n) * 8 + (e))
#else
#define LANE_KEY(n, e) lane_key(2 * (n) + (e))
#endif
// The key of column `column` of tile `tile`, from the block's first one.
__device__ __forceinline__ constexpr int column_key(int tile, int column) {
  return lane_key(2 * tile + column % 2) + column / 2 * LANE_KEYS;
}

// BYTES that lie side by side, and are aligned as far as a load needs it. Fewer than four are the low ones of a word.
template <int BYTES>
struct MaskVector {
  unsigned words[(BYTES + 3) / 4];
  __device__ __forceinline__ explicit MaskVector(const char* from) {
    if constexpr (BYTES == 16) {
      const uint4 loaded = __ldg(reinterpret_cast<const uint4*>(from));
      words[0] = loaded.x, words[1] = loaded.y, words[2] = loaded.z, words[3] = loaded.w;
    } else if constexpr (BYTES == 8) {
      const uint2 loaded = __ldg(reinterpret_cast<const uint2*>(from));
      words[0] = loaded.x, words[1] = loaded.y;
    } else if constexpr (BYTES == 4) {
      words[0] = __ldg(reinterpret_cast<const unsigned*>(from));
    } else if constexpr (BYTES == 2) {
      words[0] = __ldg(reinterpret_cast<const unsigned short*>(from));
    } else {
      words[0] = __ldg(reinterpret_cast<const unsigned char*>(from));
    }
  }
};

// A lane's elements of one row of the mask in a block of keys.
template <int TILES>
struct MaskRow {
  static constexpr int kScores = 2 * TILES;
  unsigned words[kScores * kMaskBytes / 4];

  // `from`: the element of the lane's first key. Of the keys from there on `keys` exist, which may be below 0. The
  // elements of others are 0.
  __device__ __forceinline__ void load(const char* from, int keys) {
#pragma unroll
    for (unsigned& word : words) word = 0;
#pragma unroll
    for (int i = 0; i < kScores; i += kMaskVector)
      if (lane_key(i) < keys) {
        constexpr int bytes = kMaskVector * kMaskBytes;
        const MaskVector<bytes> loaded(from + lane_key(i) * kMaskBytes);
        const int at = i * kMaskBytes;
#pragma unroll
        for (int word = 0; word < (bytes + 3) / 4; ++word) words[at / 4 + word] |= loaded.words[word] << at % 4 * 8;
      }
  }

  // What is added to score i.
  __device__ __forceinline__ float bias(int i) const {
    if constexpr (MASK_IS_FLOAT32) return __uint_as_float(words[i]);
    constexpr bool bfloat16 = DTYPE == DTYPE_BFLOAT16;
    return i % 2 == 0 ? unpack_low<bfloat16>(words[i / 2]) : unpack_high<bfloat16>(words[i / 2]);
  }
};

// The same for bytes, in a bit a score: bit w of byte j is that of score 4 w + j; each word has 32 scores.
template <int TILES>
struct MaskBits {
  static constexpr int kWords = (2 * TILES + 31) / 32;
  unsigned bits[kWords];

  __device__ __forceinline__ MaskBits() {}
  __device__ __forceinline__ explicit MaskBits(const MaskRow<TILES>& row) {
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      bits[word] = 0;
#pragma unroll
      for (int i = 8 * word; i < min(8 * word + 8, TILES / 2); ++i) bits[word] += row.words[i] << i % 8;
    }
  }
  // Hidden scores become -inf; score(i) is one. In the order of the bits, since ptxas then moves them by R2P.
  template <class Score>
  __device__ __forceinline__ void hide(Score score) const {
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      unsigned seen = bits[word];
      asm("" : "+r"(seen));  // else ptxas tests the words of which the bits are made
#pragma unroll
      for (int bit = 0; bit < 32; ++bit)
        if (const int i = 32 * word + bit % 8 * 4 + bit / 8; i < 2 * TILES && !(seen >> bit & 1))
          score(i) = __int_as_float(0xff800000);
    }
  }
  __device__ __forceinline__ bool sees_any() const {
    unsigned any = 0;
#pragma unroll
    for (unsigned word : bits) any |= word;
    return any != 0;
  }
  __device__ __forceinline__ bool sees_all() const {
    bool all = true;
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      const int of_byte = min(TILES / 2 - 8 * word, 8);
      all &= bits[word] == ((1u << of_byte) - 1) * 0x01010101u;
    }
    return all;
  }
};

// Padding of a block of 8 TILES keys, as bits of the lane.
template <int TILES>
struct PaddingBits {
  static constexpr int kWords = (TILES + 3) / 4;  // 32 keys each
  unsigned bits[kWords];                          // a byte, until seal()

  // `from`: the byte of the block's first key. Of the keys from there on `keys` exist, which may be below 0.
  __device__ __forceinline__ void load(const char* from, int keys) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      const int key = 32 * word + lane;
      const bool exists = (TILES % 4 == 0 || key < 8 * TILES) && key < keys;
      bits[word] = exists ? __ldg(reinterpret_cast<const unsigned char*>(from) + key) : 0;
    }
  }
  __device__ __forceinline__ void seal() {
#pragma unroll
    for (unsigned& word : bits) word = __ballot_sync(~0u, word != 0) >> threadIdx.x % 4 * 2;
  }
  // The row of scores as in MaskBits.
  template <class Score>
  __device__ __forceinline__ void hide(Score score) const {
#pragma unroll
    for (int i = 0; i < 2 * TILES; ++i)
      if (!(bits[lane_key(i) / 32] >> lane_key(i) % 32 & 1)) score(i) = __int_as_float(0xff800000);
  }
  // Whether any key of the block is visible, for any lane: the same in all.
  __device__ __forceinline__ bool sees_any() const {
    unsigned any = 0;
#pragma unroll
    for (unsigned word : bits) any |= word;
    return __any_sync(~0u, any != 0);
  }
};

// ---- biases ----

// Whether a bias may be the lowest float.
constexpr bool kReachesFar = MASK_IS_BIAS && (MASK_IS_FLOAT32 || DTYPE == DTYPE_BFLOAT16);

// Before a row's first key. Finite, so that scores of -inf never meet -inf - -inf.
constexpr float kFirstMaximum = kReachesFar ? kLowestFloat : -1e30f;

__device__ __forceinline__ bool is_far(float maximum) { return kReachesFar && fabsf(maximum) > 0x1p20f; }

// ---- padding ----

// The place of the bit of rank `rank` in `bits`, from 0 on.
__device__ __forceinline__ int place_of_bit(unsigned bits, int rank) {
  int place = 0;
#pragma unroll
  for (int width = 16; width > 0; width /= 2) {
    const int before = __popc(bits >> place & ((1u << width) - 1));
    if (rank >= before) rank -= before, place += width;
  }
  return place;
}

// The blocks of BLOCK keys, from block `first` on and before `end`, in which padding leaves some key visible. More than
// 32 blocks are seen in runs of 2, 4, 8, ..., whole ones up to `end`; so the first one may begin before `first`.
template <int BLOCK>
struct SeenBlocks {
  int count;       // blocks
  int shift;       // a run has 2^shift of them
  int order;       // of run number `lane`, among those seen, its place
  unsigned whole;  // a bit for each place: all its keys are visible

  SeenBlocks() = default;
  // Before the padding is read: the first run alone.
  __device__ __forceinline__ SeenBlocks(int first, int end) : shift(0), whole(0) {
    while ((end - 1) >> shift >= 32) ++shift;
    order = first >> shift;
    count = min(max(end - (order << shift), 0), 1 << shift);
  }
  // `row`: the padding of a batch, `keys` bytes. KEEPS_FIRST: the first run counts even if it is hidden.
  template <bool KEEPS_FIRST = false>
  __device__ __forceinline__ static SeenBlocks of(const char* row, int keys, int first, int end) {
    constexpr int step = least(MASK_STEP, 16);  // keys that a lane loads at once
    const int lane = threadIdx.x % 32;
    SeenBlocks found(first, end);
    const int shift = found.shift, place = found.order, last = (end - 1) >> shift;
    const int of_run = (BLOCK / step) << shift;  // loads
    unsigned seen = 0, hidden = 0;
#pragma unroll 4
    for (int key = (place << shift) * BLOCK; key < min(end * BLOCK, keys); key += 32 * step) {
      bool some = false, every = true;
      if (const int from = key + lane * step; from < keys) {
        constexpr unsigned ones = step < 4 ? 0x01010101u >> 32 - 8 * step : 0x01010101u;
        const MaskVector<step> loaded(row + from);
        unsigned any = 0, all = ones;
#pragma unroll
        for (unsigned word : loaded.words) any |= word, all &= word;
        some = any != 0, every = all == ones;
      }
      const int begin = lane * of_run - key / step, from = min(max(begin, 0), 32);
      const unsigned own = bit_range(from, min(max(begin + of_run, 0), 32) - from);
      seen |= __ballot_sync(~0u, some) & own, hidden |= __ballot_sync(~0u, !every) & own;
    }
    const bool within = lane >= place && lane <= last;
    const unsigned runs = __ballot_sync(~0u, within && (seen != 0 || (KEEPS_FIRST && lane == place)));
    found.whole = __ballot_sync(~0u, hidden == 0);
    found.order = place_of_bit(runs, lane);
    found.count = __popc(runs) << shift;
    if (last >= 0 && runs >> last & 1) found.count -= ((last + 1) << shift) - end;
    return found;
  }

  // The number of the block, and whether all its keys are visible; `index` is below `count`, and the same in all lanes.
  __device__ __forceinline__ int number(int index) const {
    const int place = __shfl_sync(~0u, static_cast<unsigned>(order), index >> shift);
    return (place << shift) + (index & ((1 << shift) - 1));
  }
  __device__ __forceinline__ bool is_whole(int number) const { return whole >> (number >> shift) & 1; }
};

}  // namespace
