// Kernels that reach one ceiling of a GPU each: tensor cores, FMA, exponentials (MUFU), issue slots, shared memory, L2,
// DRAM, and an empty kernel.
//
// Inputs are zero, so that power never limits the clocks. Statements in `asm volatile` stay as they are; the loops'
// own instructions are a few in a hundred. Each thread has CHAINS independent chains, which hide the latency.
//
// Tunables   BFLOAT  the tensor cores' inputs are bfloat16, not float16
// Archs      sm_75 and later; tensor cores by mma.sync, on sm_90a by wgmma. On sm_75 and on later ones than sm_90a
//            tensor_peak does nothing.
// References PTX ISA: "mma.sync.m16n8k16", "wgmma.mma_async", "Asynchronous warpgroup level matrix shared memory layout".
#define CHAINS 8
#define STEPS 16  // in one round

#if BFLOAT
#define TYPE "bf16"
#else
#define TYPE "f16"
#endif

namespace {

// Uses the value, which the compiler does not know to be zero.
__device__ __forceinline__ void keep(float value, float* memory) {
  if (value == 1234.5f) memory[threadIdx.x] = value;
}

}  // namespace

extern "C" __global__ void empty() {}

// CHAINS x STEPS FMAs of each thread a round.
extern "C" __global__ void __launch_bounds__(1024) fma_peak(float* memory, int rounds) {
  const float a = memory[0], b = memory[1];
  float x[CHAINS];
  for (int i = 0; i < CHAINS; ++i) x[i] = memory[i];
#pragma unroll 1
  for (int round = 0; round < rounds; ++round)
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
      for (int i = 0; i < CHAINS; ++i) asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(x[i]) : "f"(a), "f"(b));
  float sum = 0;
  for (int i = 0; i < CHAINS; ++i) sum += x[i];
  keep(sum, memory);
}

// CHAINS x STEPS instructions of each thread a round: additions for the FMA pipes, rotations for the ALU. On some GPUs
// one pipe alone cannot take an instruction in every issue slot. The ALU takes half an instruction a cycle, so it gets
// a quarter of the chains; it gets half of them where the FMA pipes take no more than the ALU does. Each instruction
// reads one register. A scheduler's register file delivers two operands a cycle, so an instruction of three operands
// (fma, prmt) would need 1.5 cycles. Operand caches help only while instructions stay in one pipe.
#define ALU_CHAINS (__CUDA_ARCH__ == 750 || __CUDA_ARCH__ == 800 ? CHAINS / 2 : CHAINS / 4)
extern "C" __global__ void __launch_bounds__(1024) issue_peak(float* memory, int rounds) {
  constexpr int alu_each = CHAINS / (ALU_CHAINS);
  float x[CHAINS];
  for (int i = 0; i < CHAINS; ++i) x[i] = memory[i];
#pragma unroll 1
  for (int round = 0; round < rounds; ++round)
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
      for (int i = 0; i < CHAINS; ++i)
        if (i % alu_each == 0)
          asm volatile("shf.l.wrap.b32 %0, %0, %0, 1;" : "+f"(x[i]));
        else
          asm volatile("add.f32 %0, %0, 0f3F800000;" : "+f"(x[i]));
  float sum = 0;
  for (int i = 0; i < CHAINS; ++i) sum += x[i];
  keep(sum, memory);
}

// CHAINS x STEPS exponentials of each thread a round.
extern "C" __global__ void __launch_bounds__(1024) exp2_peak(float* memory, int rounds) {
  float x[CHAINS];
  for (int i = 0; i < CHAINS; ++i) x[i] = memory[i];
#pragma unroll 1
  for (int round = 0; round < rounds; ++round)
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
      for (int i = 0; i < CHAINS; ++i) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x[i]));
  float sum = 0;
  for (int i = 0; i < CHAINS; ++i) sum += x[i];
  keep(sum, memory);
}

// STEPS loads of 16 bytes of each thread a round; a warp's are contiguous, so that no banks conflict.
extern "C" __global__ void __launch_bounds__(1024) shared_peak(float* memory, int rounds) {
  __shared__ uint4 words[1024];
  words[threadIdx.x] = make_uint4(0, 0, 0, 0);
  __syncthreads();
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(words + threadIdx.x));
  uint4 x[4];
#pragma unroll 1
  for (int round = 0; round < rounds; ++round)
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      uint4& to = x[step % 4];
      asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w)
                   : "r"(address));
    }
  float sum = 0;
  for (const uint4& each : x) sum += __uint_as_float(each.x ^ each.y ^ each.z ^ each.w);
  keep(sum, memory);
}

// Reads `count` elements of 16 bytes a round, which stay in L2. All blocks together read each once.
extern "C" __global__ void __launch_bounds__(1024) l2_peak(const uint4* memory, float* out, int count, int rounds) {
  const int stride = gridDim.x * blockDim.x;
  unsigned sum = 0;
#pragma unroll 1
  for (int round = 0; round < rounds; ++round)
#pragma unroll 8
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
      uint4 x;
      asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                   : "l"(memory + i));
      sum |= x.x | x.y | x.z | x.w;
    }
  keep(__uint_as_float(sum), out);
}

// Copies `count` elements of 16 bytes.
extern "C" __global__ void __launch_bounds__(1024) dram_peak(const uint4* from, uint4* to, long long count) {
  const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
#pragma unroll 4
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride)
    __stcs(to + i, __ldcs(from + i));
}

#if __CUDA_ARCH__ == 900

#define SUMS_NAMES \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SUMS_4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define SUMS_16(i) SUMS_4(i), SUMS_4(i + 4), SUMS_4(i + 8), SUMS_4(i + 12)

// STEPS products m64n128k16 of each warpgroup a round, both operands in shared memory.
extern "C" __global__ void __launch_bounds__(256) tensor_peak(float* memory, int rounds) {
  __shared__ __align__(1024) uint4 operands[(64 + 128) * 128 / sizeof(uint4)];  // rows of 128 bytes
  for (int i = threadIdx.x; i < sizeof(operands) / sizeof(uint4); i += blockDim.x) operands[i] = make_uint4(0, 0, 0, 0);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  // Descriptor: address / 16, 8 rows in 1024 bytes, swizzle of 128 bytes.
  const unsigned long long base = static_cast<unsigned long long>(__cvta_generic_to_shared(operands)) >> 4;
  const unsigned long long layout = 1ull << 62 | 64ull << 32 | 1ull << 16;
  const unsigned long long a = layout | base, b = layout | (base + 64 * 128 / 16);
  float sums[64];
  for (int i = 0; i < 64; ++i) sums[i] = 0;
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
      asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {" SUMS_NAMES "}, %64, %65, 1, 1, 1, 0, 0;"
                   : SUMS_16(0), SUMS_16(16), SUMS_16(32), SUMS_16(48)
                   : "l"(a + step % 4 * 2), "l"(b + step % 4 * 2));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
  float sum = 0;
  for (int i = 0; i < 64; ++i) sum += sums[i];
  keep(sum, memory);
}

#else

// CHAINS x STEPS products m16n8k16 of each warp a round.
extern "C" __global__ void __launch_bounds__(512) tensor_peak(float* memory, int rounds) {
#if __CUDA_ARCH__ >= 800 && __CUDA_ARCH__ < 900
  unsigned a[4], b[2];
  for (int i = 0; i < 4; ++i) a[i] = __float_as_uint(memory[i]);
  for (int i = 0; i < 2; ++i) b[i] = __float_as_uint(memory[i + 4]);
  float sums[CHAINS][4];
  for (int i = 0; i < CHAINS; ++i)
    for (int j = 0; j < 4; ++j) sums[i][j] = 0;
#pragma unroll 1
  for (int round = 0; round < rounds; ++round)
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
      for (int i = 0; i < CHAINS; ++i)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE
                     ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sums[i][0]), "+f"(sums[i][1]), "+f"(sums[i][2]), "+f"(sums[i][3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  float sum = 0;
  for (int i = 0; i < CHAINS; ++i)
    for (int j = 0; j < 4; ++j) sum += sums[i][j];
  keep(sum, memory);
#endif
}

#endif
