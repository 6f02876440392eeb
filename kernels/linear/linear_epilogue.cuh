// The way out of linear.cu: bias, GELU, rounding, and stores of whole vectors.
//
// Sum i of a thread's row tile is row 16 warp + 8 (i / 2 % 2) + lane / 4, column 8 (i / 4) + 2 (lane % 4) + i % 2. So
// the four lanes of a quad have pairs of columns of the same 8. They exchange the words of four such blocks of columns:
// then each lane has 8 columns of one block, 16 bytes, and a quad stores 64 bytes in a row.
//
// Archs      sm_80 and later.
// References PTX ISA, "Register Fragments" of wgmma m64nNk16; Abramowitz and Stegun, Handbook of Mathematical
//            Functions, 7.1.26 (erf to 1.5e-7).
#pragma once

#include "../attention/parts/arithmetic.cuh"

namespace {

constexpr bool kBfloat16 = DTYPE == DTYPE_BFLOAT16;

__device__ __forceinline__ float widened(Element bits) { return to_float<kBfloat16>(bits); }

// y / 2 (1 + erf(y / sqrt(2))). For negative y this is y / 2 erfc(|y| / sqrt(2)), which loses no digits: 1 + erf would.
__device__ __forceinline__ float gelu(float y) {
  const float x = fabsf(y) * 0.70710678118654752f, t = __fdividef(1.0f, 1.0f + 0.3275911f * x);
  const float series =
      t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  const float half_erfc = 0.5f * series * __expf(-x * x);
  return y * (y < 0.0f ? half_erfc : 1.0f - half_erfc);
}

__device__ __forceinline__ float finished(float y) { return GELU ? gelu(y) : y; }
__device__ __forceinline__ unsigned finished(float first, float second) {
  return pack<kBfloat16>(finished(first), finished(second));
}

// Lane t of each quad gets word t of its lanes 0 .. 3.
__device__ __forceinline__ void transpose_in_quad(unsigned (&words)[4], int lane) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const bool odd = lane & 1;
    const unsigned got = __shfl_xor_sync(~0u, odd ? words[i] : words[i + 1], 1);
    (odd ? words[i] : words[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const bool high = lane & 2;
    const unsigned got = __shfl_xor_sync(~0u, high ? words[i] : words[i + 2], 2);
    (high ? words[i] : words[i + 2]) = got;
  }
}

// A thread's pair of a bias at an even `column`, which need not exist.
__device__ __forceinline__ float2 bias_pair(const Element* bias, int column, int columns) {
  if (columns % 2 == 0 && column < columns) {
    const unsigned pair = __ldg(reinterpret_cast<const unsigned*>(bias + column));
    return make_float2(widened(static_cast<Element>(pair)), widened(static_cast<Element>(pair >> 16)));
  }
  return make_float2(column < columns ? widened(__ldg(bias + column)) : 0.0f,
                     column + 1 < columns ? widened(__ldg(bias + column + 1)) : 0.0f);
}

// Stores the sums of TILES row tiles of 64 rows, the first of which begins at `first_row`.
template <int TILES>
__device__ __forceinline__ void store_in_rows(const float (&sums)[TILES][BLOCK_N / 2], int first_row, int first_column,
                                              int warp, int lane, const Element* bias, Element* out, int rows,
                                              int columns) {
  constexpr int kBlocks = BLOCK_N % 32 == 0 ? 4 : 2;  // blocks of 8 columns that are stored together
  const bool vectors = kBlocks == 4 && columns % 8 == 0;
#pragma unroll
  for (int block = 0; block < BLOCK_N / 8; block += kBlocks) {
    float2 of_bias[kBlocks];
#pragma unroll
    for (int j = 0; j < kBlocks; ++j)
      of_bias[j] = bias_pair(bias, first_column + 8 * (block + j) + lane % 4 * 2, columns);
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + 64 * tile + 16 * warp + 8 * half + lane / 4;
        Element* to_row = out + static_cast<long long>(row) * columns;
        unsigned words[4] = {};
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
          const int i = 4 * (block + j) + 2 * half;
          words[j] = finished(sums[tile][i] + of_bias[j].x, sums[tile][i + 1] + of_bias[j].y);
        }
        if (vectors) {
          transpose_in_quad(words, lane);
          const int column = first_column + 8 * (block + lane % 4);
          if (row < rows && column < columns)
            *reinterpret_cast<uint4*>(to_row + column) = make_uint4(words[0], words[1], words[2], words[3]);
        } else if (row < rows) {
#pragma unroll
          for (int j = 0; j < kBlocks; ++j) {
            const int column = first_column + 8 * (block + j) + lane % 4 * 2;
            if (column < columns) to_row[column] = static_cast<Element>(words[j]);
            if (column + 1 < columns) to_row[column + 1] = static_cast<Element>(words[j] >> 16);
          }
        }
      }
  }
}

// The same where the sums' rows are columns of `out`: 8 lanes have neighbours there.
template <int TILES>
__device__ __forceinline__ void store_in_columns(const float (&sums)[TILES][BLOCK_N / 2], int first_row,
                                                 int first_column, int warp, int lane, const Element* bias,
                                                 Element* out, int rows, int columns) {
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + 64 * tile + 16 * warp + 8 * half + lane / 4;
      if (row >= rows) continue;
      const float of_row = widened(__ldg(bias + row));
#pragma unroll
      for (int i = 2 * half; i < BLOCK_N / 2; i += 4) {
        const int column = first_column + i / 4 * 8 + lane % 4 * 2;
        const unsigned pair = finished(sums[tile][i] + of_row, sums[tile][i + 1] + of_row);
        Element* to = out + static_cast<long long>(column) * rows + row;
        if (column < columns) to[0] = static_cast<Element>(pair);
        if (column + 1 < columns) to[rows] = static_cast<Element>(pair >> 16);
      }
    }
}

}  // namespace
