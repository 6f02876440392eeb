// Rows of a matrix, each shared out to a team of warps: vector loads and stores, and reductions over the team.
//
// A team is WARPS_PER_ROW warps; a block has ROWS teams. A thread of a team has the vectors thread, thread +
// kTeamThreads, ... of its row, `WIDTH` numbers each. Rows begin at a multiple of a vector only where the number of
// columns is one: kernels have a path for WIDTH numbers at a time and one for single numbers.
//
// Tunables  WARPS_PER_ROW  warps that share a row (1..32); with 1, no barrier and no shared memory is needed
//           ROWS           rows of a block
//           VECTOR_BYTES   bytes of a load or store (4, 8, 16)
//           LOAD           cached; streaming: read once, evicted first (ld.cs); past_l1: kept in the L2 cache only
//                          (ld.cg)
//           STORE          cached; streaming: evicted first (st.cs)
// Shared    4 * 2 * ROWS * WARPS_PER_ROW bytes: a number a warp for each of two reductions
// Archs     sm_80 and later.
// Reference PTX ISA, "Cache Operators".
#pragma once

#include "../attention/parts/arithmetic.cuh"

namespace {

#if DTYPE == DTYPE_FLOAT32
using Number = float;
#else
using Number = Element;
#endif

constexpr int kTeamThreads = 32 * WARPS_PER_ROW;
constexpr int kBlockThreads = kTeamThreads * ROWS;
constexpr int kVector = VECTOR_BYTES / sizeof(Number);  // numbers of a vector

extern __shared__ __align__(16) unsigned char shared_memory[];

__device__ __forceinline__ float widened(float value) { return value; }
__device__ __forceinline__ float widened(Element bits) { return to_float<DTYPE == DTYPE_BFLOAT16>(bits); }
__device__ __forceinline__ void narrow(float value, float& to) { to = value; }
__device__ __forceinline__ void narrow(float value, Element& to) { to = to_element<DTYPE == DTYPE_BFLOAT16>(value); }

template <int WIDTH>
union Vector {
  typename WordOf<WIDTH * sizeof(Number)>::Type word;
  Number at[WIDTH];
  __device__ __forceinline__ Vector() {}
};

// WIDTH numbers. KEPT_IN_CACHE: read with the default policy whatever LOAD is.
template <int WIDTH, bool KEPT_IN_CACHE = false>
__device__ __forceinline__ Vector<WIDTH> load_vector_of(const Number* from) {
  Vector<WIDTH> vector;
  const auto* word = reinterpret_cast<const decltype(vector.word)*>(from);
#if LOAD == LOAD_STREAMING
  vector.word = KEPT_IN_CACHE ? *word : __ldcs(word);
#elif LOAD == LOAD_PAST_L1
  vector.word = KEPT_IN_CACHE ? *word : __ldcg(word);
#else
  vector.word = *word;
#endif
  return vector;
}

template <int WIDTH>
__device__ __forceinline__ void widen(float (&to)[WIDTH], const Vector<WIDTH>& vector) {
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) to[i] = widened(vector.at[i]);
}

template <int WIDTH, bool KEPT_IN_CACHE = false>
__device__ __forceinline__ void load(float (&to)[WIDTH], const Number* from) {
  widen(to, load_vector_of<WIDTH, KEPT_IN_CACHE>(from));
}

template <int WIDTH>
__device__ __forceinline__ void store(Number* to, const float (&values)[WIDTH]) {
  Vector<WIDTH> vector;
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) narrow(values[i], vector.at[i]);
  auto* word = reinterpret_cast<decltype(vector.word)*>(to);
#if STORE == STORE_STREAMING
  __stcs(word, vector.word);
#else
  *word = vector.word;
#endif
}

struct Maximum {
  static __device__ __forceinline__ float of(float a, float b) { return fmaxf(a, b); }
};
struct Sum {
  static __device__ __forceinline__ float of(float a, float b) { return a + b; }
};

// Reduces the values of the team; each of its threads gets the result. All threads of the block call it, once for each
// SLOT (0, 1).
template <class Operation, int SLOT>
__device__ __forceinline__ float reduce(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = Operation::of(value, __shfl_xor_sync(~0u, value, step));
  if constexpr (WARPS_PER_ROW > 1) {
    float* of_warp = reinterpret_cast<float*>(shared_memory) + SLOT * ROWS * WARPS_PER_ROW;
    const int warp = threadIdx.x / 32, first = warp / WARPS_PER_ROW * WARPS_PER_ROW;
    if (threadIdx.x % 32 == 0) of_warp[warp] = value;
    __syncthreads();
    value = of_warp[first];
#pragma unroll
    for (int i = 1; i < WARPS_PER_ROW; ++i) value = Operation::of(value, of_warp[first + i]);
  }
  return value;
}

// The thread's row and its number in the team. Threads of a team without a row work on the last row, since they take
// part in barriers, and store nothing.
struct Place {
  int thread, row;
  bool exists;

  __device__ __forceinline__ explicit Place(int rows) : thread(threadIdx.x % kTeamThreads) {
    row = blockIdx.x * ROWS + threadIdx.x / kTeamThreads;
    exists = row < rows;
    row = min(row, rows - 1);
  }
};

}  // namespace
