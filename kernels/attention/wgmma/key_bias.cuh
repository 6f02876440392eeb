// A bias that is linear in the key, computed by the product Q K^T: for key j of a block it gives q k + r j, and a score
// takes no operation for it. ALiBi of causal attention is such a bias, and so is a score modification that adds a small
// multiple of the distance.
//
// K gets 16 more columns, of which three are not 0, and Q as many:
//   k'  256 j, j, j / 256   the same in each block: written once. Numbers of up to 8 bits are exact.
//   q'  h, m, l             of the row: r = 256 h + m + l / 256, each rounded from the rest that the others leave
// So r has 22 bits or more, or is up to 2^-33 off. r is the bias from one key to the next over softmax_scale, since the
// softmax multiplies scores by that. In float16 a row is NaN where |r| is above 1.6e7, as with a softmax_scale of 1e-9.
// The bias of the block's first key is the same for all of a row's scores: it shifts the row's maximum
// (Softmax::weigh).
//
// The keys lie in rows of 32 bytes. The swizzle exchanges the row's two chunks of 16 bytes where address bit 7 is 1;
// it repeats after 8 rows, 256 bytes. The product has HEAD_DIM / 16 + 1 steps in place of HEAD_DIM / 16.
//
// Archs      sm_90a.
// References PTX ISA: as in wgmma/panels.cuh.
#pragma once

#include "../parts/arithmetic.cuh"
#include "tma.cuh"

namespace {

constexpr unsigned kKeyRowBytes = 32;

// Q's fragment for a thread's two rows: pairs of columns 2 t and 2 t + 1 of lane % 4 = t.
template <bool BFLOAT16>
struct RowBias {
  unsigned pairs[2];

  __device__ __forceinline__ void set(int half, float rise) {
    const float high = unpack_low<BFLOAT16>(pack<BFLOAT16>(rise / 256.0f, 0.0f));
    const float rest = fmaf(-256.0f, high, rise);  // exact
    const float middle = unpack_low<BFLOAT16>(pack<BFLOAT16>(rest, 0.0f));
    const int column = threadIdx.x % 4;
    const float low = 256.0f * (rest - middle);
    pairs[half] = column == 0 ? pack<BFLOAT16>(high, middle) : column == 1 ? pack<BFLOAT16>(low, 0.0f) : 0u;
  }
};

// Where 8 of the 16 columns of a key lie.
__device__ __forceinline__ unsigned key_bias_chunk(unsigned shared, int key, int chunk) {
  return shared + key * kKeyRowBytes + (chunk ^ (key / 4 & 1)) * 16;
}

// Writes k'. Called by all `threads` of the block, before they meet.
template <bool BFLOAT16>
__device__ __forceinline__ void write_key_bias(unsigned shared, int threads) {
  for (int word = threadIdx.x; word < BLOCK_N * 8; word += threads) {
    const int key = word / 8, pair = word % 8;
    const float number = static_cast<float>(key);
    const unsigned value = pair == 0   ? pack<BFLOAT16>(256.0f * number, number)
                           : pair == 1 ? pack<BFLOAT16>(number / 256.0f, 0.0f)
                                       : 0u;
    store_word(key_bias_chunk(shared, key, pair / 4) + pair % 4 * 4, value);
  }
  share_with_engines();
}

__device__ __forceinline__ unsigned long long key_bias_operand(unsigned shared) {
  constexpr unsigned long long kRowsOf32Bytes = 3;
  return static_cast<unsigned long long>((shared & 0x3ffff) >> 4) | 1ull << 16 |
         static_cast<unsigned long long>(8 * kKeyRowBytes >> 4) << 32 | kRowsOf32Bytes << 62;
}

}  // namespace
