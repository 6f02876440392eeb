// What the red team's CUDA kernels need of the instruction set. The model of tests/red_team/emulated, which runs the
// same kernels on a CPU, has functions of its own in this file's place.
//
// Archs      sm_80 and later.
// References PTX ISA, "cvt", "Special Registers: %globaltimer", "cp.async", "ld.global.nc", "mma.m16n8k16".
#ifndef RED_TEAM_INSTRUCTIONS
#define RED_TEAM_INSTRUCTIONS

#define INFINITY __uint_as_float(0x7f800000u)

namespace {

// To float16 and back.
__device__ __forceinline__ float half_rounded(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

#if DTYPE == DTYPE_FLOAT32

using Element = float;

__device__ __forceinline__ float widen(Element value) { return value; }
__device__ __forceinline__ Element narrow(float value) { return value; }

#else

using Element = unsigned short;  // the bits of a float16 or bfloat16, as DTYPE says

__device__ __forceinline__ float widen(Element bits) {
#if DTYPE == DTYPE_BFLOAT16
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
#else
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#endif
}

// Rounded to nearest even.
__device__ __forceinline__ Element narrow(float value) {
  Element bits;
#if DTYPE == DTYPE_BFLOAT16
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#endif
  return bits;
}

__device__ __forceinline__ void store_streaming(Element* to, Element value) {
  asm volatile("st.global.cs.u16 [%0], %1;" ::"l"(to), "h"(value) : "memory");
}

__device__ __forceinline__ unsigned pack(Element low, Element high) {
  return static_cast<unsigned>(high) << 16 | low;
}

#endif

__device__ __forceinline__ unsigned long long now_ns() {
  unsigned long long time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

// 16 bytes, from global to shared memory, past the registers.
__device__ __forceinline__ void copy_async(void* shared, const void* from) {
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most so many of this thread's latest groups are under way.
template <int GROUPS>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
}

__device__ __forceinline__ uint4 load_read_only(const uint4* from) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

// First to leave the L2 cache.
__device__ __forceinline__ uint4 load_evict_first(const uint4* from) {
  unsigned long long policy;
  uint4 value;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from), "l"(policy));
  return value;
}

__device__ __forceinline__ float exp2_approximate(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// d += a b by a warp: a is 16 x 16, b is 16 x 8, d is 16 x 8. With g = lane / 4 and t = lane % 4 a lane holds of d
// columns 2t, 2t + 1 of rows g and g + 8; of a the pairs of columns 2t and 2t + 8 of the same rows (rows first); of b
// the pairs of rows 2t and 2t + 8 of column g.
__device__ __forceinline__ void multiply_add(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#if DTYPE == DTYPE_BFLOAT16
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
#endif
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace

#endif
