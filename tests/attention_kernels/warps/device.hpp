// The instructions of 3_mma.cu, 2_wmma.cu and 1_scalar.cu that ../hopper/device.hpp lacks, after the PTX ISA.
//
//   shared memory  a pointer to the block's own.
//   copies         cp.async is done by the wait that covers it, no earlier; until then there is NaN in its place. The
//                  copies of parts/async_copy.cuh are done at once: a wait that is too short is not seen.
//   mma, ldmatrix  done by a warp's lanes together, on words that they exchange.
//   wmma           each lane reads whole operands, and has eight elements in a row of every accumulator.
#pragma once

#include <algorithm>
#include <type_traits>

#define HAS_OTHER_COPIES
#include "../hopper/device.hpp"

#undef __launch_bounds__
#define __launch_bounds__(...)

inline unsigned block_y, block_z;
struct BlockIndex {
  unsigned x, y, z;
};
#undef blockIdx
#define blockIdx (BlockIndex{first_block.x + rank, block_y, block_z})
inline unsigned char* shared_memory_of_block() { return own_block.shared_bytes.data(); }
#define shared_memory shared_memory_of_block()

inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float exp2f(float x) { return std::exp2(x); }
inline float fmaxf(float a, float b) { return std::fmax(a, b); }
inline float fmaf(float a, float b, float c) { return std::fma(a, b, c); }
inline float __shfl_xor_sync(unsigned mask, float value, unsigned lanes) {
  return __shfl_xor_sync(mask, value, static_cast<int>(lanes));
}

inline float fminf(float a, float b) { return std::fmin(a, b); }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline unsigned __shfl_up_sync(unsigned, unsigned value, int lanes) {
  const int lane = threadIdx.x % 32;
  return exchange(value)[lane < lanes ? lane : lane - lanes];
}

bool __syncthreads_or(bool value);

// ---- parts/async_copy.cuh: copies ----

// Begins a block whose threads have copied nothing.
void start_copies(int threads);
void copy_async_16(unsigned shared, const void* from, int bytes = 16);
template <bool EVICT_FIRST = false>
struct CopyPolicy {
  void copy(unsigned shared, const void* from, int bytes = 16) const { copy_async_16(shared, from, bytes); }
};
void close_copy_group();
inline void prefetch_to_l2(const void*) {}
void wait_copy_groups(int left);
template <int GROUPS> void wait_copy_groups() { wait_copy_groups(GROUPS); }

// ---- parts/async_copy.cuh: mbarriers ----

template <int BYTES>
void copy_async(unsigned shared, const void* from, bool exists = true) {
  if (reinterpret_cast<uintptr_t>(from) % BYTES) fail("a copy from an address that is not aligned");
  uint16_t words[BYTES / 2];
  std::memcpy(words, from, BYTES);
  for (int i = 0; i < BYTES / 2; ++i) shared_word<uint16_t>(shared + 2 * i) = exists ? words[i] : 0;
}
inline void arrive_when_copied(unsigned at) { arrive_at_mbarrier(at); }
template <int NUMBER, int THREADS>
void sync_some() {
  sync_named(NUMBER, THREADS);
}

// ---- mma.h ----

struct __half {
  uint16_t bits;
};
struct __nv_bfloat16 {
  uint16_t bits;
};
namespace nvcuda::wmma {
struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major };

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  T all[256];  // by rows of the matrix in memory
};
template <int M, int N, int K, class T>
struct fragment<accumulator, M, N, K, T> {
  static constexpr int num_elements = 8;
  T x[8];
};
template <class Fragment>
void fill_fragment(Fragment& fragment, float value) {
  for (float& x : fragment.x) x = value;
}
template <class Fragment, class T>
void load_matrix_sync(Fragment& fragment, const T* from, int leading) {
  __syncwarp();
  for (int i = 0; i < 256; ++i) fragment.all[i] = from[i / 16 * leading + i % 16];
  __syncwarp();
}
template <class Fragment>
void load_matrix_sync(Fragment& fragment, const float* from, int leading, layout_t) {
  __syncwarp();
  const int first = threadIdx.x % 32 * 8;
  for (int i = 0; i < 8; ++i) fragment.x[i] = from[(first + i) / 16 * leading + (first + i) % 16];
  __syncwarp();
}
template <class Fragment>
void store_matrix_sync(float* to, const Fragment& fragment, int leading, layout_t) {
  __syncwarp();
  const int first = threadIdx.x % 32 * 8;
  for (int i = 0; i < 8; ++i) to[(first + i) / 16 * leading + (first + i) % 16] = fragment.x[i];
  __syncwarp();
}
template <class Accumulator, class T, class Layout>
void mma_sync(Accumulator& d, const fragment<matrix_a, 16, 16, 16, T, row_major>& a,
              const fragment<matrix_b, 16, 16, 16, T, Layout>& b, const Accumulator& c) {
  constexpr bool bfloat16 = std::is_same_v<T, __nv_bfloat16>, by_columns = std::is_same_v<Layout, col_major>;
  const int first = threadIdx.x % 32 * 8;
  for (int i = 0; i < 8; ++i) {
    const int row = (first + i) / 16, column = (first + i) % 16;
    float sum = c.x[i];
    for (int k = 0; k < 16; ++k)
      sum += element(a.all[16 * row + k].bits, bfloat16) *
             element(b.all[by_columns ? 16 * column + k : 16 * k + column].bits, bfloat16);
    d.x[i] = sum;
  }
}
}  // namespace nvcuda::wmma

// ---- parts/arithmetic.cuh: sums, fragments ----

void load_matrix_transposed(unsigned (&tiles)[4], unsigned shared);

template <bool BFLOAT16>
void multiply_add(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, float c0, float c1, float c2,
                  float c3) {
  multiply_add(d, a, b0, b1, {c0, c1, c2, c3}, BFLOAT16);
}
template <bool BFLOAT16>
void multiply(float (&product)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  multiply_add<BFLOAT16>(product, a, b0, b1, 0.0f, 0.0f, 0.0f, 0.0f);
}

// ---- parts/blocks.cuh: the last block; blocks run one after the other ----

inline bool last_to_arrive(int* counter, int count) {
  bool last = false;
  __syncthreads();
  if (threadIdx.x == 0) {
    last = (*counter)++ == count - 1;
    if (last) *counter = 0;
  }
  return __syncthreads_or(last);
}

// ---- parts/blocks.cuh: clusters; a model of clusters of 3_mma.cu is missing ----

inline void send(unsigned, unsigned, bool, float, float) { fail("a cluster"); }

// ---- parts/arithmetic.cuh: elements ----

template <bool BFLOAT16>
float to_float(uint16_t bits) {
  return element(bits, BFLOAT16);
}
template <bool BFLOAT16>
uint16_t to_element(float value) {
  return rounded(value, BFLOAT16);
}
template <int WIDTH>
struct alignas(2 * WIDTH) VectorOf {
  uint16_t at[WIDTH];
};
template <int WIDTH>
VectorOf<WIDTH> load_vector(const uint16_t* from) {
  return *reinterpret_cast<const VectorOf<WIDTH>*>(from);
}
