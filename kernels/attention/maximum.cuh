// A maximum that keeps NaN, for kernels that would lose one otherwise.
//
// Archs      sm_80 and later.
// Reference  PTX ISA, "max".
#pragma once

namespace {

// The greater one; NaN if either is NaN, where fmaxf would give the other one.
__device__ __forceinline__ float maximum_or_nan(float a, float b) {
  float greater;
  asm("max.NaN.f32 %0, %1, %2;\n" : "=f"(greater) : "f"(a), "f"(b));
  return greater;
}

}  // namespace
