// Tiles in shared memory as TMA writes them and wgmma reads them: swizzled panels.
//
// A tile of some rows and HEAD_DIM columns (of V and the output: VALUE_DIM) lies there as panels of kPanel columns,
// one after the other. A panel's row is kRowBytes = 2 kPanel bytes, 128 (64 where HEAD_DIM is no multiple of 64); rows
// follow each other without a gap. The swizzle exchanges the 16-byte chunks of a row: byte address bits 4 to 6 are
// xor-ed with bits 7 to 9 (of 64-byte rows bits 4 to 5 with 7 to 8). Panels are aligned to the 8 rows (1024 or 512
// bytes) after which this repeats.
//
// A matrix descriptor says where a wgmma operand begins, and its two strides:
//   rows are the operand's rows (Q, K: K-major)      stride offset: from 8 rows to the next 8 rows
//   rows are the summed-over index (V: MN-major)     stride offset: from 8 keys to the next 8 keys;
//                                                    leading offset: from a panel of columns to the next
// So V is an operand as it was loaded. Along the summed-over index, the next 16 elements begin 32 bytes further in the
// same rows (K-major: the hardware swizzles the sum of the addresses), or 16 rows further (MN-major).
//
// Archs      sm_90a.
// References PTX ISA: "Asynchronous Warpgroup Level Matrix Shared Memory Layout", "Strides", "Matrix Descriptor
//            Format"; "Swizzling Modes" of tensors. tests/attention_kernels/hopper is a model of all this.
#pragma once

namespace {

template <int HEAD_DIM_>
struct Panels {
  static_assert(HEAD_DIM_ % 32 == 0, "columns come in panels of 32 or 64");
  static constexpr int kPanel = HEAD_DIM_ % 64 == 0 ? 64 : 32;
  static constexpr int kCount = HEAD_DIM_ / kPanel;
  static constexpr unsigned kRowBytes = 2 * kPanel;
  static constexpr unsigned kGroupBytes = 8 * kRowBytes;  // after which the swizzle repeats
  static constexpr unsigned long long kSwizzleMode = kPanel == 64 ? 1 : 2;  // of 128, of 64 bytes

  // Where a panel of a tile of `rows` rows begins, and where a 16-byte chunk (0 .. HEAD_DIM / 8 - 1) of a row begins.
  static __device__ __forceinline__ constexpr unsigned panel_at(int rows, int panel) {
    return panel * rows * kRowBytes;
  }
  static __device__ __forceinline__ unsigned chunk_at(int rows, int row, int chunk) {
    constexpr int kChunks = kPanel / 8;
    const int swizzled = chunk % kChunks ^ (kPanel == 64 ? row % 8 : row / 2 % 4);
    return panel_at(rows, chunk / kChunks) + row * kRowBytes + swizzled * 16;
  }

  // Of an operand that begins `further_bytes` behind `shared`, both multiples of 16. All shared memory lies below 2^18, so
  // the sum of both does not leave its 14 bits, and the descriptors of a tile are one of them plus constants.
  static __device__ __forceinline__ unsigned long long descriptor(unsigned shared, unsigned further_bytes,
                                                                  unsigned leading_bytes) {
    const unsigned low = (shared >> 4) + ((further_bytes >> 4) | (leading_bytes >> 4) << 16);
    return static_cast<unsigned long long>(low) | static_cast<unsigned long long>(kGroupBytes >> 4) << 32 |
           kSwizzleMode << 62;
  }
  // Summed over columns (Q, K): columns 16 step to 16 step + 15 of the tile at `shared`. Has no leading offset.
  static __device__ __forceinline__ unsigned long long by_columns(unsigned shared, int rows, int step) {
    constexpr int kSteps = kPanel / 16;
    return descriptor(shared, panel_at(rows, step / kSteps) + step % kSteps * 32, 16);
  }
  // Summed over rows (V): rows 16 step to 16 step + 15.
  static __device__ __forceinline__ unsigned long long by_rows(unsigned shared, int rows, int step) {
    return descriptor(shared, step * 16 * kRowBytes, rows * kRowBytes);
  }
};

}  // namespace
