// Kernels that disturb a candidate: they run beside it, or just before it. A correct candidate gives the same results.
//
// Each of these kernels ends after `time_ns` at the latest, so the candidate never waits for ever. The blocks of a
// kernel that runs beside it have random lifetimes, drawn from `seed`. So the candidate's blocks, which wait for room,
// start at irregular times.
//
// Archs sm_80 and later. The dynamic shared memory of a launch limits how many of its blocks fit on a multiprocessor.
namespace {

__device__ __forceinline__ unsigned mixed(unsigned x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

__device__ __forceinline__ unsigned long long now_ns() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

// Between a quarter of it and all.
__device__ __forceinline__ unsigned long long deadline(unsigned time_ns, unsigned seed) {
  const unsigned drawn = mixed(seed ^ (blockIdx.x * 0x9e3779b9u));
  return now_ns() + time_ns / 4 + drawn % (time_ns - time_ns / 4 + 1);
}

}  // namespace

// Reads and writes `count` (a power of 2) elements of 16 bytes again and again: takes bandwidth of L2 and memory.
extern "C" __global__ void __launch_bounds__(512)
    evotune_take_bandwidth(uint4* words, unsigned count, unsigned time_ns, unsigned seed) {
  const unsigned long long end = deadline(time_ns, seed);
  unsigned at = mixed(seed + blockIdx.x) + threadIdx.x;
  while (now_ns() < end) {
    uint4 read[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) read[i] = words[(at + i * 512 * gridDim.x) & (count - 1)];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      read[i].x += i + 1;
      words[(at + i * 512 * gridDim.x) & (count - 1)] = read[i];
    }
    at += 8 * 512 * gridDim.x;
  }
}

// Few threads on every multiprocessor that issue without a pause, of several kinds of instructions.
extern "C" __global__ void __launch_bounds__(128) evotune_take_issue_slots(float* result, unsigned time_ns,
                                                                           unsigned seed) {
  const unsigned long long end = deadline(time_ns, seed);
  float a = threadIdx.x + 1.0f, b = seed * 1e-9f, c = 0.5f, d = 0.25f;
  unsigned e = threadIdx.x;
  while (now_ns() < end) {
#pragma unroll 16
    for (int i = 0; i < 64; ++i) {
      a = fmaf(a, 0.999f, b);
      c = fmaf(c, 1.001f, d);
      e = e * 5u + 1u;
      b = __shfl_xor_sync(0xffffffffu, b, 1);
      d = exp2f(d - 1.0f);
    }
  }
  if (a + c + d + e == -1.0f) *result = a;  // never, but the compiler does not know
}

// Only takes up room on the multiprocessors, so that the candidate's blocks start one after another.
extern "C" __global__ void __launch_bounds__(64) evotune_take_room(unsigned time_ns, unsigned seed) {
  const unsigned long long end = deadline(time_ns, seed);
  while (now_ns() < end) __nanosleep(200);
}

// Writes `word` to all shared memory of every multiprocessor and to most of its registers. Launch it with all the
// shared memory that a block can have: then a multiprocessor holds one block. A block lasts `time_ns`, so that every
// multiprocessor gets a block before another one gets its second.
// `nothing` is 0. The compiler does not know that, so it cannot keep the equal values in one register.
constexpr int kRegisters = 208;
extern "C" __global__ void __launch_bounds__(256)
    evotune_dirty(unsigned bytes, unsigned word, unsigned time_ns, unsigned nothing) {
  extern __shared__ unsigned shared[];
  const unsigned long long end = now_ns() + time_ns;
  for (unsigned i = threadIdx.x; i < bytes / 4; i += blockDim.x) shared[i] = word;
  unsigned kept[kRegisters];
#pragma unroll
  for (int i = 0; i < kRegisters; ++i) kept[i] = word + i * nothing;
  do {
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) kept[i] += kept[(i + 1) % kRegisters] * nothing;
  } while (now_ns() < end);
  unsigned sum = nothing;
#pragma unroll
  for (int i = 0; i < kRegisters; ++i) sum ^= kept[i] * nothing;
  if (sum != 0) shared[threadIdx.x] = sum;
}
