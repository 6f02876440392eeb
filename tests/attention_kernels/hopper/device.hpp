// CUDA's language and Hopper's instructions on the CPU, as far as 4_tma.cu and 5_wgmma.cu use them, after the PTX ISA.
//
//   cluster        blocks that run together; what one sends to another arrives at any later time, or never if that has
//                  left.
//   mbarrier       arrivals and bytes that a phase waits for; the parity of the phase under way.
//   copies         done at any time after they were issued, with the swizzle of the map. What a load will overwrite is
//                  NaN from the moment it is issued, so that a stage given back too early is seen.
//   wgmma          done at any time before the wait that covers it; shared memory is read then, through the descriptor's
//                  canonical layout and swizzle, and sums are NaN in between, so that an early use is seen.
//   fragments      "Register Fragments" of wgmma, "ldmatrix".
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "fibers.hpp"

#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__
#define __grid_constant__
#define __launch_bounds__(threads, blocks)
#define __cluster_dims__(x, y, z)
#define __align__(bytes) __attribute__((aligned(bytes)))

struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int atomicAdd(int* to, int by) { return (*to += by) - by; }
template <class T> T __ldcg(const T* from) { return *from; }
template <class T> T __ldg(const T* from) { return *from; }

inline Index first_block, grid_size;
#define threadIdx (cluster->current->thread)
#define blockIdx (Index{first_block.x + rank})
#define gridDim grid_size

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned bits) {
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (bits & 31));
}
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline float __int_as_float(int bits) { float value; std::memcpy(&value, &bits, 4); return value; }
inline float __uint_as_float(unsigned bits) { return __int_as_float(static_cast<int>(bits)); }
inline int __float_as_int(float value) { int bits; std::memcpy(&bits, &value, 4); return bits; }
inline float __fdividef(float a, float b) { return a / b; }

// Barriers of `count` threads.
struct Meeting {
  int arrived = 0, generation = 0;
  void arrive(int count);
  int meet(int count);  // the number of this meeting
};

// The words that the lanes of a warp exchange.
struct Warp {
  Meeting meeting;
  unsigned words[2][32];
};

struct Mbarrier {
  int arrivals, missing;
  long long bytes = 0;
  unsigned phase = 0;
  void look() {
    if (missing < 0) fail("more arrivals than an mbarrier takes");
    if (missing == 0 && bytes == 0) {
      missing = arrivals;
      phase ^= 1;
    }
  }
};

// Products of a warpgroup, in the order of their issue.
struct Sums {
  std::vector<float> values;
  int pending = 0;
};
struct Operation {
  int issued = 0;
  float* d[128];
  unsigned a[128][4];
};
struct Warpgroup {
  std::deque<Operation> operations;  // those not yet done
  int done = 0, started[128] = {}, closed[128] = {};
  std::deque<int> groups[128];  // how many operations were issued at each close
  std::map<float*, Sums> sums;
};

struct Block {
  std::vector<unsigned char> shared_bytes;
  std::map<unsigned, Mbarrier> mbarriers;
  Meeting everybody, named[16];
  bool any[16][2];  // of the threads at a named barrier, by its generation
  Warp warps[32];
  Warpgroup warpgroups[4];
  std::map<int, int> stores_left;
};
extern std::vector<Block> blocks;  // of the cluster
// Begins a cluster of new blocks, whose shared memory is full of the byte `left_over`.
void start_blocks(int count, int shared_bytes, int left_over);
// Ends the process where threads still wait at a barrier.
void end_blocks();
#define own_block (blocks[rank])

// Shared memory: addresses count from 1024, as on sm_90, where the first KiB is the system's. Those of other blocks of
// the cluster have their rank + 1 in the bits from 24 on.
constexpr unsigned kSharedBase = 1024;
inline unsigned __cvta_generic_to_shared(const void*) { return kSharedBase; }

template <class T>
T& shared_word(unsigned at) {
  auto& shared_bytes = own_block.shared_bytes;
  if (at < kSharedBase || at - kSharedBase + sizeof(T) > shared_bytes.size()) fail("outside of shared memory");
  if (at % sizeof(T)) fail("misaligned in shared memory");
  return *reinterpret_cast<T*>(&shared_bytes[at - kSharedBase]);
}

inline int block_threads;
inline void __syncthreads() { own_block.everybody.meet(block_threads); }
inline void sync_named(int number, int threads) { own_block.named[number].meet(threads); }
inline void arrive_named(int number, int threads) { own_block.named[number].arrive(threads); }
inline bool any_of_named(int number, int threads, bool value) {
  Meeting& meeting = own_block.named[number];
  bool& any = own_block.any[number][meeting.generation % 2];
  any = value || (meeting.arrived > 0 && any);
  meeting.meet(threads);
  return any;
}

const unsigned* exchange(unsigned word);
inline void __syncwarp() { exchange(0); }
inline float __shfl_xor_sync(unsigned, float value, int mask) {
  return __int_as_float(exchange(__float_as_int(value))[(threadIdx.x % 32) ^ mask]);
}
inline unsigned __shfl_xor_sync(unsigned, unsigned value, int mask) { return exchange(value)[(threadIdx.x % 32) ^ mask]; }
inline unsigned __shfl_sync(unsigned, unsigned value, int lane) { return exchange(value)[lane]; }
inline float __shfl_sync(unsigned, float value, int lane) {
  return __int_as_float(exchange(__float_as_int(value))[lane]);
}
inline bool __any_sync(unsigned, bool value) {
  const unsigned* words = exchange(value);
  for (int i = 0; i < 32; ++i)
    if (words[i]) return true;
  return false;
}

inline unsigned __ballot_sync(unsigned, bool value) {
  const unsigned* words = exchange(value);
  unsigned found = 0;
  for (int i = 0; i < 32; ++i) found |= (words[i] & 1u) << i;
  return found;
}

// 16-bit elements.
inline float element(uint16_t bits, bool bfloat16) {
  if (bfloat16) return __int_as_float(static_cast<int>(bits) << 16);
  _Float16 value;
  std::memcpy(&value, &bits, 2);
  return value;
}
inline uint16_t rounded(float value, bool bfloat16) {
  uint16_t bits;
  if (bfloat16) {
    const uint32_t word = static_cast<uint32_t>(__float_as_int(value));
    if (std::isnan(value)) return 0x7fff;
    return static_cast<uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
  }
  const _Float16 half = static_cast<_Float16>(value);
  std::memcpy(&bits, &half, 2);
  return bits;
}
template <bool BFLOAT16>
unsigned pack(float low, float high) {
  return rounded(low, BFLOAT16) | static_cast<unsigned>(rounded(high, BFLOAT16)) << 16;
}
template <bool BFLOAT16>
float unpack_low(unsigned packed) {
  if (BFLOAT16) return __int_as_float(static_cast<int>(packed << 16));
  const uint16_t bits = static_cast<uint16_t>(packed);
  _Float16 value;
  std::memcpy(&value, &bits, 2);
  return static_cast<float>(value);
}
template <bool BFLOAT16>
float unpack_high(unsigned packed) { return unpack_low<BFLOAT16>(packed >> 16); }
inline long long wide_product(int a, int b) { return static_cast<long long>(a) * b; }
inline float exp2_approximate(float x) { return std::exp2(x); }
inline float maximum_or_nan(float a, float b) { return std::isnan(a) || a > b ? a : b; }
inline float reciprocal_approximate(float x) { return 1.0f / x; }
inline unsigned bit_range(int from, int count) {
  if (from < 0 || count < 0) fail("a range of bits that begins or ends below 0");
  const auto before = [](int bit) { return bit >= 32 ? ~0u : (1u << bit) - 1; };
  return from >= 32 ? 0 : before(count) << from;
}

// Swizzles exchange 16-byte chunks: address bits 4 .. 4 + n - 1 are xor-ed with bits 7 .. 7 + n - 1.
inline unsigned swizzled(unsigned at, int bits) { return at ^ ((at >> 7 & ((1u << bits) - 1)) << 4); }

Mbarrier& mbarrier(unsigned at);
void start_mbarrier(unsigned at, unsigned arrivals);
inline void publish_mbarriers() {}
void arrive_at_mbarrier(unsigned at);
void expect_bytes(unsigned at, unsigned bytes);
void wait_mbarrier(unsigned at, unsigned parity);

// TMA. A map's first word points to the Tensor that the harness got.
struct Tensor {
  uint16_t* data;
  int extents[4], box[4], swizzle_bits;  // innermost first
  long long strides[4];                  // in elements
};
struct __align__(64) TensorMap {
  unsigned long long opaque[16];
  const Tensor& tensor() const { return *reinterpret_cast<const Tensor*>(opaque[0]); }
};
inline void prefetch_map(const TensorMap&) {}

constexpr int kLoads = 0, kStores = 1000, kSends = 2000, kCopies = 3000;  // engines; 1 + w: warpgroup w's products
void load_box_at(int of, unsigned shared, const TensorMap& map, unsigned full, int column, int row, int head, int batch);
inline void load_box(unsigned shared, const TensorMap& map, unsigned full, int column, int row, int head, int batch) {
  load_box_at(rank, shared, map, full, column, row, head, batch);
}
inline void load_packed_box(unsigned shared, const TensorMap& map, unsigned full, int column, int head, int row) {
  load_box_at(rank, shared, map, full, column, head, row, 0);
}
void store_box(const TensorMap& map, unsigned shared, int column, int row, int head, int batch);
inline void store_packed_box(const TensorMap& map, unsigned shared, int column, int head, int row) {
  store_box(map, shared, column, head, row, 0);
}
void wait_stores_read();
inline void share_with_engines() {}
inline void store_word(unsigned shared, unsigned word) { shared_word<unsigned>(shared) = word; }
inline void store_byte(unsigned shared, unsigned byte) { shared_word<uint8_t>(shared) = static_cast<uint8_t>(byte); }
inline void store_words(unsigned shared, const unsigned (&words)[4]) {
  if (shared % 16) fail("misaligned in shared memory");
  for (int i = 0; i < 4; ++i) shared_word<unsigned>(shared + 4 * i) = words[i];
}
inline unsigned load_word(unsigned shared) { return shared_word<unsigned>(shared); }
inline void load_pair(unsigned& first, unsigned& second, unsigned shared) {
  if (shared % 8) fail("misaligned in shared memory");
  first = load_word(shared), second = load_word(shared + 4);
}
inline void store_zeros_16(unsigned shared) {
  if (shared % 16) fail("misaligned in shared memory");
  for (int i = 0; i < 4; ++i) shared_word<unsigned>(shared + 4 * i) = 0;
}
inline void load_words(float (&words)[4], unsigned shared) {
  if (shared % 16) fail("misaligned in shared memory");
  for (int i = 0; i < 4; ++i) words[i] = shared_word<float>(shared + 4 * i);
}
#ifndef HAS_OTHER_COPIES
// cp.async: each thread's copies in their order, at any time after they were issued.
template <int BYTES>
void copy_async(unsigned shared, const void* from, bool exists = true) {
  static_assert(BYTES == 16, "the kernel has no other copies");
  if (shared % 16 || reinterpret_cast<uintptr_t>(from) % 16) fail("a copy that is not aligned");
  store_words(shared, {~0u, ~0u, ~0u, ~0u});
  do_later(kCopies + threadIdx.x, [=] {
    unsigned words[4] = {};
    if (exists) std::memcpy(words, from, 16);
    store_words(shared, words);
    return true;
  });
}
inline void arrive_when_copied(unsigned at) {
  do_later(kCopies + threadIdx.x, [at] {
    arrive_at_mbarrier(at);
    return true;
  });
}
#endif

template <int COUNT> void give_registers() {}
template <int COUNT> void take_registers() {}

// Between the blocks of a cluster.
extern Meeting whole_cluster;
void arrive_at_cluster();
void wait_for_cluster();
inline void open_inbox(unsigned inbox, unsigned bytes) {
  if (threadIdx.x == 0) {
    start_mbarrier(inbox, 1);
    expect_bytes(inbox, bytes);
  }
  arrive_at_cluster();
}
inline void wait_for_open_inboxes() { wait_for_cluster(); }
inline void sync_cluster() {
  arrive_at_cluster();
  wait_for_cluster();
}
void arrive_in_block(unsigned at, int of);
template <int BLOCKS>
void load_box_for_all(unsigned shared, const TensorMap& map, unsigned full, int column, int row, int head, int batch) {
  for (int of = 0; of < BLOCKS; ++of) load_box_at(of, shared, map, full, column, row, head, batch);
}
inline void wait_for_inbox(unsigned inbox) { wait_mbarrier(inbox, 0); }
inline unsigned in_block(unsigned shared, unsigned of) {
  if (of >= blocks.size()) fail("a block outside of the cluster");
  return shared | (of + 1) << 24;
}
void send(unsigned to, unsigned inbox, bool, float a, float b, float c, float d);

template <int COUNT>
struct Ring {
  int stage = 0;
  unsigned parity = 0;
  void advance() {
    if (++stage == COUNT) {
      stage = 0;
      parity ^= 1;
    }
  }
  void skip(int uses) {
    while (uses-- > 0) advance();
  }
};

// Lane l gives the address of row l % 8 of tile l / 8, and gets elements 2 (l % 4) and the next of row l / 4 of each.
void load_matrix(unsigned (&tiles)[4], unsigned shared);
void multiply_add(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, const float (&c)[4], bool bfloat16);
template <bool BFLOAT16>
void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const float before[4] = {sum[0], sum[1], sum[2], sum[3]};
  multiply_add(sum, a, b0, b1, before, BFLOAT16);
}

// Where an operand's element is. Canonical layouts in PTX ISA, "Shared Memory Matrix Layout", of 2-byte elements:
//   K-major   Swizzle o ((8, m), (8, 2 k)) : ((row, SBO), (1, 8))            row: 64 elements (128B), 32 (64B) or 16 (32B)
//   MN-major  Swizzle o ((8, w, m), (8, k)) : ((1, 8, LBO), (row, SBO))      w: row / 8 chunks of 8
uint16_t operand(unsigned long long descriptor, int mn, int k, bool by_rows);

inline void fence_products() {}
void close_products();
void wait_products(int left);
template <int GROUPS> void wait_products() { wait_products(GROUPS); }
template <int COUNT> void pin(float (&)[COUNT]) {}
inline void pin(const char*&) {}
inline void finish_first(float value) {
  if (value < 0) fail("a negative sum of weights");
}
template <int COUNT> void finish_first(float value, const unsigned (&)[COUNT]) { finish_first(value); }

void issue(float* d, int count, bool add, const unsigned (&a)[4],
           std::function<void(Warpgroup&, const Operation&)> do_it);
// `a` gives the element of a row and a k.
void multiply(Warpgroup& group, const Operation& operation, unsigned long long b, int n, bool bfloat16, bool by_rows,
              const std::function<uint16_t(int, int)>& a);

template <int N>
struct Product {
  static_assert(N % 16 == 0 && N >= 16 && N <= 256, "the kernel has no other products");
  template <bool BFLOAT16, bool ADD>
  static void of_shared(float (&d)[N / 2], unsigned long long a, unsigned long long b) {
    issue(d, N / 2, ADD, {0, 0, 0, 0}, [=](Warpgroup& group, const Operation& operation) {
      multiply(group, operation, b, N, BFLOAT16, false, [=](int row, int k) { return operand(a, row, k, false); });
    });
  }
  // A's registers are pairs (row g, k 2 t), (g + 8, 2 t), (g, 2 t + 8), (g + 8, 2 t + 8).
  template <bool BFLOAT16, bool ADD, int TRANSPOSED>
  static void of_registers(float (&d)[N / 2], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                           unsigned long long b) {
    issue(d, N / 2, ADD, {a0, a1, a2, a3}, [=](Warpgroup& group, const Operation& operation) {
      multiply(group, operation, b, N, BFLOAT16, TRANSPOSED, [&](int row, int k) {
        const int thread = row / 16 * 32 + row % 8 * 4 + k % 8 / 2;
        const unsigned pair = operation.a[thread][row % 16 / 8 + k / 8 * 2];
        return static_cast<uint16_t>(k % 2 ? pair >> 16 : pair);
      });
    });
  }
};
