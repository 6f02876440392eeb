// Rows of 16-byte chunks in shared memory, laid out so that eight rows of one column meet no bank twice.
//
// ldmatrix reads the same chunk of eight consecutive rows at a time. Shared memory serves 128 bytes a cycle, eight
// chunks in different places modulo 128 bytes. Rows of 128, 256, 384 or 512 bytes put the eight into one place, rows of
// 64 or 192 bytes into two, rows of 160 or 224 bytes into four.
//   none  rows as they are: conflicts of 2 to 8 ways
//   xor   chunk c of row r lies where chunk c ^ f(r) would: no conflicts, no more memory; f(r) repeats after eight rows
//   pad   one more chunk a row: no conflicts, more memory, plain sums as addresses
// The base of a tile must be a multiple of a row's bytes where these are a power of two, else of 256 bytes: along()
// flips bits of an address, and the base must have none of these bits.
//
// Archs      sm_80 and later.
// Reference  PTX ISA, "ldmatrix".
#pragma once

namespace {

template <int CHUNKS, int SWIZZLE_KIND>
struct SharedRows {
  static_assert(CHUNKS % 2 == 0, "head dimensions are multiples of 16");
  static constexpr bool kXor = SWIZZLE_KIND == SWIZZLE_XOR;
  static constexpr int kRowBytes = 16 * (CHUNKS + (SWIZZLE_KIND == SWIZZLE_PAD ? 1 : 0));

  // Byte offset of a chunk.
  __device__ static __forceinline__ unsigned offset(unsigned row, unsigned chunk) {
    if constexpr (kXor) chunk ^= CHUNKS % 8 == 0 ? row & 7 : CHUNKS % 4 == 0 ? row >> 1 & 3 : row >> 2 & 1;
    return row * kRowBytes + chunk * 16;
  }

  // From the address of chunk 0 or 1 of a row to the chunk that lies `chunks` further; `chunks` is even.
  __device__ static __forceinline__ unsigned along(unsigned address, unsigned chunks) {
    if constexpr (!kXor || CHUNKS % 4 != 0) return address + chunks * 16;
    if constexpr (CHUNKS % 8 == 0 && (CHUNKS & (CHUNKS - 1)) == 0) return address ^ chunks * 16;
    if constexpr (CHUNKS % 8 == 0) return (address ^ (chunks & 7) * 16) + (chunks & ~7u) * 16;
    return (address ^ (chunks & 3) * 16) + (chunks & ~3u) * 16;
  }
};

}  // namespace
