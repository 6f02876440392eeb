// Masks of consecutive bits.
//
// Archs      sm_80 and later.
// Reference  PTX ISA, "bmsk".
#pragma once

namespace {

// `count` ones from bit `from` on, as far as a word goes. Neither is below 0; both may be beyond 32.
__device__ __forceinline__ unsigned bit_range(int from, int count) {
  unsigned bits;
  asm("bmsk.clamp.b32 %0, %1, %2;\n" : "=r"(bits) : "r"(from), "r"(count));
  return bits;
}

}  // namespace
