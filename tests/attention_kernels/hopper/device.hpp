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
template <class T> T __ldcg(const T* from) { return *from; }

inline Index first_block, grid_size;
#define threadIdx (cluster->current->thread)
#define blockIdx (Index{first_block.x + rank})
#define gridDim grid_size

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline float __int_as_float(int bits) { float value; std::memcpy(&value, &bits, 4); return value; }
inline int __float_as_int(float value) { int bits; std::memcpy(&bits, &value, 4); return bits; }
inline float __fdividef(float a, float b) { return a / b; }

// Barriers of `count` threads.
struct Meeting {
  int arrived = 0, generation = 0;
  void arrive(int count) {
    if (++arrived > count) fail("more threads at a barrier than it takes");
    if (arrived == count) {
      arrived = 0;
      ++generation;
    }
  }
  int meet(int count) {  // the number of this meeting
    const int mine = generation;
    arrive(count);
    wait_until([this, mine] { return generation != mine; });
    return mine;
  }
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
  Warp warps[32];
  Warpgroup warpgroups[4];
  std::map<int, int> stores_left;
};
inline std::vector<Block> blocks;  // of the cluster
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

inline const unsigned* exchange(unsigned word) {
  Warp& warp = own_block.warps[threadIdx.x / 32];
  const int mine = warp.meeting.generation;
  warp.words[mine % 2][threadIdx.x % 32] = word;
  warp.meeting.meet(32);
  return warp.words[mine % 2];
}
inline void __syncwarp() { exchange(0); }
inline float __shfl_xor_sync(unsigned, float value, int mask) {
  return __int_as_float(exchange(__float_as_int(value))[(threadIdx.x % 32) ^ mask]);
}
inline unsigned __shfl_sync(unsigned, unsigned value, int lane) { return exchange(value)[lane]; }
inline bool __any_sync(unsigned, bool value) {
  const unsigned* words = exchange(value);
  for (int i = 0; i < 32; ++i)
    if (words[i]) return true;
  return false;
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
inline float exp2_approximate(float x) { return std::exp2(x); }
inline float reciprocal_approximate(float x) { return 1.0f / x; }

// Swizzles exchange 16-byte chunks: address bits 4 .. 4 + n - 1 are xor-ed with bits 7 .. 7 + n - 1.
inline unsigned swizzled(unsigned at, int bits) { return at ^ ((at >> 7 & ((1u << bits) - 1)) << 4); }

inline Mbarrier& mbarrier(unsigned at) {
  shared_word<unsigned long long>(at);
  const auto found = own_block.mbarriers.find(at);
  if (found == own_block.mbarriers.end()) fail("an mbarrier that nobody started");
  return found->second;
}
inline void start_mbarrier(unsigned at, unsigned arrivals) {
  shared_word<unsigned long long>(at);
  own_block.mbarriers[at] = {static_cast<int>(arrivals), static_cast<int>(arrivals)};
}
inline void publish_mbarriers() {}
inline void arrive_at_mbarrier(unsigned at) {
  --mbarrier(at).missing;
  mbarrier(at).look();
}
inline void expect_bytes(unsigned at, unsigned bytes) {
  mbarrier(at).bytes += bytes;
  arrive_at_mbarrier(at);
}
inline void wait_mbarrier(unsigned at, unsigned parity) {
  wait_until([at, parity] { return mbarrier(at).phase != parity; });
}

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

template <class Visit>
void visit_box(const Tensor& tensor, unsigned shared, int column, int row, int head, int batch, Visit visit) {
  if (tensor.box[3] != 1) fail("a box of several batches");
  const unsigned row_bytes = 2 * tensor.box[0];
  if (tensor.swizzle_bits && shared % (128u << tensor.swizzle_bits)) fail("a box that the swizzle does not fit");
  for (int r = 0; r < tensor.box[1] * tensor.box[2]; ++r)
    for (int c = 0; c < tensor.box[0]; ++c) {
      const int at[4] = {column + c, row + r % tensor.box[1], head + r / tensor.box[1], batch};
      bool inside = true;
      long long offset = 0;
      for (int d = 3; d >= 0; --d) {
        inside &= at[d] >= 0 && at[d] < tensor.extents[d];
        offset += at[d] * tensor.strides[d];
      }
      visit(swizzled(shared + r * row_bytes + 2 * c, tensor.swizzle_bits), inside, offset);
    }
}

// Does something in another block of the cluster, which must not have left.
template <class Do>
void at_rank(int of, Do what) {
  if (cluster->alive[of] == 0) fail("something comes to a block that has left");
  const int own = rank;
  rank = of;
  what();
  rank = own;
}

constexpr int kLoads = 0, kStores = 1000, kSends = 2000;  // engines; 1 + w: warpgroup w's products
inline void load_box_at(int of, unsigned shared, const TensorMap& map, unsigned full, int column, int row, int head,
                        int batch) {
  const Tensor& tensor = map.tensor();
  at_rank(of, [&] {
    visit_box(tensor, shared, column, row, head, batch,
              [](unsigned at, bool, long long) { shared_word<uint16_t>(at) = 0x7fff; });
  });
  work_of(kLoads).push_back([=, &tensor] {
    at_rank(of, [&] {
      visit_box(tensor, shared, column, row, head, batch, [&](unsigned at, bool inside, long long offset) {
        shared_word<uint16_t>(at) = inside ? tensor.data[offset] : 0;
      });
      mbarrier(full).bytes -= 2 * tensor.box[0] * tensor.box[1] * tensor.box[2];
      mbarrier(full).look();
    });
    return true;
  });
}
inline void load_box(unsigned shared, const TensorMap& map, unsigned full, int column, int row, int head, int batch) {
  load_box_at(rank, shared, map, full, column, row, head, batch);
}
inline void store_box(const TensorMap& map, unsigned shared, int column, int row, int head, int batch) {
  const Tensor& tensor = map.tensor();
  const int thread = threadIdx.x;
  ++own_block.stores_left[thread];
  work_of(kStores + thread).push_back([=, &tensor] {
    visit_box(tensor, shared, column, row, head, batch, [&](unsigned at, bool inside, long long offset) {
      if (inside) tensor.data[offset] = shared_word<uint16_t>(at);
    });
    --own_block.stores_left[thread];
    return true;
  });
}
inline void wait_stores_read() {
  const int thread = threadIdx.x;
  wait_until([thread] { return own_block.stores_left[thread] == 0; });
}
inline void share_with_engines() {}
inline void store_word(unsigned shared, unsigned word) { shared_word<unsigned>(shared) = word; }
inline void load_words(float (&words)[4], unsigned shared) {
  if (shared % 16) fail("misaligned in shared memory");
  for (int i = 0; i < 4; ++i) words[i] = shared_word<float>(shared + 4 * i);
}
template <int COUNT> void give_registers() {}
template <int COUNT> void take_registers() {}

// Between the blocks of a cluster.
inline Meeting whole_cluster;
inline void arrive_at_cluster() {
  cluster->current->cluster_meeting = whole_cluster.generation;
  whole_cluster.arrive(blocks.size() * block_threads);
}
inline void wait_for_cluster() {
  int& mine = cluster->current->cluster_meeting;
  if (mine < 0) fail("a wait for the cluster without an arrival");
  wait_until([mine] { return whole_cluster.generation != mine; });
  mine = -1;
}
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
inline void arrive_in_block(unsigned at, int of) {
  at_rank(of, [at] { arrive_at_mbarrier(at); });
}
template <int BLOCKS>
void load_box_for_all(unsigned shared, const TensorMap& map, unsigned full, int column, int row, int head, int batch) {
  for (int of = 0; of < BLOCKS; ++of) load_box_at(of, shared, map, full, column, row, head, batch);
}
inline void wait_for_inbox(unsigned inbox) { wait_mbarrier(inbox, 0); }
inline unsigned in_block(unsigned shared, unsigned of) {
  if (of >= blocks.size()) fail("a block outside of the cluster");
  return shared | (of + 1) << 24;
}
inline void send(unsigned to, unsigned inbox, bool, float a, float b, float c, float d) {
  if (to >> 24 == 0 || to >> 24 != inbox >> 24) fail("sent nowhere, or counted elsewhere");
  work_of(kSends + threadIdx.x).push_back([=] {
    at_rank((to >> 24) - 1, [=] {
      const float words[4] = {a, b, c, d};
      for (int i = 0; i < 4; ++i) shared_word<float>((to & 0xffffff) + 4 * i) = words[i];
      mbarrier(inbox & 0xffffff).bytes -= 16;
      mbarrier(inbox & 0xffffff).look();
    });
    return true;
  });
}

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
};

// Lane l gives the address of row l % 8 of tile l / 8, and gets elements 2 (l % 4) and the next of row l / 4 of each.
inline void load_matrix(unsigned (&tiles)[4], unsigned shared) {
  const int lane = threadIdx.x % 32;
  const unsigned* rows = exchange(shared);
  for (int i = 0; i < 4; ++i) tiles[i] = shared_word<unsigned>(rows[8 * i + lane / 4] + lane % 4 * 4);
  exchange(0);
}

// Where an operand's element is. Canonical layouts in PTX ISA, "Shared Memory Matrix Layout", of 2-byte elements:
//   K-major   Swizzle o ((8, m), (8, 2 k)) : ((row, SBO), (1, 8))            row: 64 elements (128B) or 32 (64B)
//   MN-major  Swizzle o ((8, w, m), (8, k)) : ((1, 8, LBO), (row, SBO))      w: row / 8 chunks of 8
inline uint16_t operand(unsigned long long descriptor, int mn, int k, bool by_rows) {
  const unsigned start = (descriptor & 0x3fff) << 4;
  const unsigned leading = (descriptor >> 16 & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
  const int mode = static_cast<int>(descriptor >> 62);
  if (mode != 1 && mode != 2) fail("a swizzle mode that the model does not have");
  if (descriptor >> 49 & 7) fail("a base offset");
  const unsigned row_bytes = mode == 1 ? 128 : 64;
  const int row_elements = row_bytes / 2;
  const unsigned offset = by_rows ? mn / row_elements * leading + mn % row_elements * 2 + k % 8 * row_bytes + k / 8 * stride
                                  : mn % 8 * row_bytes + mn / 8 * stride + k * 2;
  return shared_word<uint16_t>(swizzled(start + offset, mode == 1 ? 3 : 2));
}

inline void fence_products() {}
inline void close_products() {
  Warpgroup& group = own_block.warpgroups[threadIdx.x / 128];
  const int thread = threadIdx.x % 128;
  group.groups[thread].push_back(group.started[thread]);
}
template <int GROUPS>
void wait_products() {
  Warpgroup& group = own_block.warpgroups[threadIdx.x / 128];
  auto& groups = group.groups[threadIdx.x % 128];
  while (groups.size() > GROUPS) {
    const int needed = groups.front();
    groups.pop_front();
    wait_until([&group, needed] { return group.done >= needed; });
  }
}
template <int COUNT> void pin(float (&)[COUNT]) {}
inline void finish_first(float value) {
  if (value < 0) fail("a negative sum of weights");
}
template <int COUNT> void finish_first(float value, const unsigned (&)[COUNT]) { finish_first(value); }

template <class DoIt>
void issue(float* d, int count, bool add, const unsigned (&a)[4], DoIt do_it) {
  Warpgroup& group = own_block.warpgroups[threadIdx.x / 128];
  const int thread = threadIdx.x % 128, number = group.started[thread]++;
  while (group.done + static_cast<int>(group.operations.size()) <= number) group.operations.emplace_back();
  Operation& operation = group.operations[number - group.done];
  operation.d[thread] = d;
  for (int i = 0; i < 4; ++i) operation.a[thread][i] = a[i];
  Sums& sums = group.sums[d];
  if (sums.pending++ == 0) sums.values.assign(d, d + count);
  if (!add) sums.values.assign(count, 0.0f);
  for (int i = 0; i < count; ++i) d[i] = std::numeric_limits<float>::quiet_NaN();
  if (++operation.issued == 128)
    work_of(1 + threadIdx.x / 128).push_back([&group, count, do_it] {
      Operation& first = group.operations.front();
      if (first.issued != 128) return false;
      do_it(group, first);
      for (float* to : first.d) {
        Sums& finished = group.sums[to];
        if (--finished.pending == 0) {
          std::copy(finished.values.begin(), finished.values.end(), to);
          group.sums.erase(to);
        }
      }
      group.operations.pop_front();
      ++group.done;
      return true;
    });
}

// Register 4 i + 2 h + e of thread 32 w + 4 g + t: row 16 w + 8 h + g, column 8 i + 2 t + e.
template <int N, bool BFLOAT16, class ElementOfA>
void multiply(Warpgroup& group, const Operation& operation, unsigned long long b, bool by_rows, ElementOfA a) {
  std::vector<float> columns(16 * N);
  for (int k = 0; k < 16; ++k)
    for (int n = 0; n < N; ++n) columns[k * N + n] = element(operand(b, n, k, by_rows), BFLOAT16);
  for (int thread = 0; thread < 128; ++thread) {
    std::vector<float>& sums = group.sums[operation.d[thread]].values;
    for (int i = 0; i < N / 2; ++i) {
      const int row = thread / 32 * 16 + i / 2 % 2 * 8 + thread % 32 / 4, n = i / 4 * 8 + thread % 4 * 2 + i % 2;
      for (int k = 0; k < 16; ++k) sums[i] += element(a(row, k), BFLOAT16) * columns[k * N + n];
    }
  }
}

template <int N>
struct Product {
  template <bool BFLOAT16, bool ADD>
  static void of_shared(float (&d)[N / 2], unsigned long long a, unsigned long long b) {
    issue(d, N / 2, ADD, {0, 0, 0, 0}, [=](Warpgroup& group, const Operation& operation) {
      multiply<N, BFLOAT16>(group, operation, b, false, [=](int row, int k) { return operand(a, row, k, false); });
    });
  }
  // A's registers are pairs (row g, k 2 t), (g + 8, 2 t), (g, 2 t + 8), (g + 8, 2 t + 8).
  template <bool BFLOAT16, bool ADD, int TRANSPOSED>
  static void of_registers(float (&d)[N / 2], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                           unsigned long long b) {
    issue(d, N / 2, ADD, {a0, a1, a2, a3}, [=](Warpgroup& group, const Operation& operation) {
      multiply<N, BFLOAT16>(group, operation, b, TRANSPOSED, [&](int row, int k) {
        const int thread = row / 16 * 32 + row % 8 * 4 + k % 8 / 2;
        const unsigned pair = operation.a[thread][row % 16 / 8 + k / 8 * 2];
        return static_cast<uint16_t>(k % 2 ? pair >> 16 : pair);
      });
    });
  }
};
