// The part of the model that no kernel changes. It is compiled once for many kernels.
#include "device.hpp"

// ---- ../hopper/fibers.hpp ----

Cluster* cluster = nullptr;

void fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::exit(3);
}

void wait_until(std::function<bool()> ready) {
  Fiber* self = cluster->current;
  self->ready = std::move(ready);
  swapcontext(&self->context, &cluster->scheduler);
}

void do_later(int kind, std::function<bool()> work) {
  cluster->engines[{rank, kind}].work.push_back(std::move(work));
}

static std::function<void()> fiber_body;

static void fiber_main() {
  fiber_body();
  if (own_block.stores_left[threadIdx.x] > 0) fail("a thread leaves before its stores have been read");
  cluster->current->done = true;
  --cluster->alive[rank];
  swapcontext(&cluster->current->context, &cluster->scheduler);
}

void run_cluster(int blocks, int block_threads, unsigned seed, std::function<void()> body) {
  Cluster here;
  cluster = &here;
  here.random.seed(seed);
  here.alive.assign(blocks, block_threads);
  fiber_body = std::move(body);
  const int threads = blocks * block_threads;
  for (int i = 0; i < threads; ++i) {
    auto fiber = std::make_unique<Fiber>();
    fiber->stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
    fiber->rank = i / block_threads;
    fiber->thread.x = i % block_threads;
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack.get();
    fiber->context.uc_stack.ss_size = kStackBytes;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, fiber_main, 0);
    here.fibers.push_back(std::move(fiber));
  }
  const auto step_engine = [&](int of, Engine& engine) {
    rank = of;
    if (engine.work.empty() || !engine.work.front()()) return false;
    engine.work.pop_front();
    return true;
  };
  const auto step_fiber = [&](Fiber& fiber) {
    rank = fiber.rank;
    if (fiber.done || (fiber.ready && !fiber.ready())) return false;
    here.current = &fiber;
    swapcontext(&here.scheduler, &fiber.context);
    return true;
  };
  // In some schedules the engines are as late as they can be, in some schedules one of several blocks is.
  const bool lazy = seed % 2 == 1;
  const int slow = blocks > 1 && seed / 2 % 2 == 0 ? static_cast<int>(seed / 4 % blocks) : -1;
  // Now and then a warp rests for some passes, or else all warps would go from wait to wait in step.
  const int warps = (threads + 31) / 32;
  int resting = -1, passes_left = 0;
  bool others_moved = true;
  for (;;) {
    bool alive = false, moved = false, slow_moved = false;
    if (passes_left-- == 0) {
      resting = warps > 1 ? static_cast<int>(here.random() % warps) : -1;
      passes_left = static_cast<int>(here.random() % 16);
    }
    const unsigned start = here.random() % threads;
    for (int i = 0; i < threads; ++i) {
      const int number = static_cast<int>(start + i) % threads;
      Fiber& fiber = *here.fibers[number];
      alive |= !fiber.done;
      if (number / 32 == resting)
        continue;
      else if (fiber.rank == slow)
        slow_moved |= !others_moved && step_fiber(fiber);
      else
        moved |= step_fiber(fiber);
      if (!lazy && here.random() % 8 == 0)
        for (auto& [key, engine] : here.engines)
          if (here.random() % 2 == 0) moved |= step_engine(key.first, engine);
    }
    if (!alive) break;
    if (!moved && !slow_moved && resting >= 0) {  // the others wait for the warp that rests
      resting = -1;
      continue;
    }
    if (!moved && !slow_moved)
      for (auto& [key, engine] : here.engines) moved |= step_engine(key.first, engine);
    if (!moved && !slow_moved && !others_moved) fail("deadlock");
    others_moved = moved;
  }
  for (auto& [key, engine] : here.engines)
    while (!engine.work.empty())
      if (!step_engine(key.first, engine)) fail("work that could never be done");
  cluster = nullptr;
}

// ---- ../hopper/device.hpp ----

Meeting whole_cluster;
void Meeting::arrive(int count) {
  if (++arrived > count) fail("more threads at a barrier than it takes");
  if (arrived == count) {
    arrived = 0;
    ++generation;
  }
}
int Meeting::meet(int count) {
  const int mine = generation;
  arrive(count);
  wait_until([this, mine] { return generation != mine; });
  return mine;
}

std::vector<Block> blocks;
void start_blocks(int count, int shared_bytes, int left_over) {
  blocks.assign(count, Block());
  for (Block& block : blocks) block.shared_bytes.assign(shared_bytes, left_over);
  whole_cluster = Meeting();
}
void end_blocks() {
  for (const Block& block : blocks)
    for (const Meeting& meeting : block.named)
      if (meeting.arrived) fail("a barrier that ends half full");
}

const unsigned* exchange(unsigned word) {
  Warp& warp = own_block.warps[threadIdx.x / 32];
  const int mine = warp.meeting.generation;
  warp.words[mine % 2][threadIdx.x % 32] = word;
  warp.meeting.meet(32);
  return warp.words[mine % 2];
}
Mbarrier& mbarrier(unsigned at) {
  shared_word<unsigned long long>(at);
  const auto found = own_block.mbarriers.find(at);
  if (found == own_block.mbarriers.end()) fail("an mbarrier that nobody started");
  return found->second;
}
void start_mbarrier(unsigned at, unsigned arrivals) {
  shared_word<unsigned long long>(at);
  own_block.mbarriers[at] = {static_cast<int>(arrivals), static_cast<int>(arrivals)};
}
void arrive_at_mbarrier(unsigned at) {
  --mbarrier(at).missing;
  mbarrier(at).look();
}
void expect_bytes(unsigned at, unsigned bytes) {
  mbarrier(at).bytes += bytes;
  arrive_at_mbarrier(at);
}
void wait_mbarrier(unsigned at, unsigned parity) {
  wait_until([at, parity] { return mbarrier(at).phase != parity; });
}

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

void load_box_at(int of, unsigned shared, const TensorMap& map, unsigned full, int column, int row, int head, int batch) {
  const Tensor& tensor = map.tensor();
  at_rank(of, [&] {
    visit_box(tensor, shared, column, row, head, batch,
              [](unsigned at, bool, long long) { shared_word<uint16_t>(at) = 0x7fff; });
  });
  do_later(kLoads, [=, &tensor] {
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
void store_box(const TensorMap& map, unsigned shared, int column, int row, int head, int batch) {
  const Tensor& tensor = map.tensor();
  const int thread = threadIdx.x;
  ++own_block.stores_left[thread];
  do_later(kStores + thread, [=, &tensor] {
    visit_box(tensor, shared, column, row, head, batch, [&](unsigned at, bool inside, long long offset) {
      if (inside) tensor.data[offset] = shared_word<uint16_t>(at);
    });
    --own_block.stores_left[thread];
    return true;
  });
}
void wait_stores_read() {
  const int thread = threadIdx.x;
  wait_until([thread] { return own_block.stores_left[thread] == 0; });
}
void arrive_at_cluster() {
  cluster->current->cluster_meeting = whole_cluster.generation;
  whole_cluster.arrive(blocks.size() * block_threads);
}
void wait_for_cluster() {
  int& mine = cluster->current->cluster_meeting;
  if (mine < 0) fail("a wait for the cluster without an arrival");
  wait_until([mine] { return whole_cluster.generation != mine; });
  mine = -1;
}
void arrive_in_block(unsigned at, int of) {
  at_rank(of, [at] { arrive_at_mbarrier(at); });
}
void send(unsigned to, unsigned inbox, bool, float a, float b, float c, float d) {
  if (to >> 24 == 0 || to >> 24 != inbox >> 24) fail("sent nowhere, or counted elsewhere");
  do_later(kSends + threadIdx.x, [=] {
    at_rank((to >> 24) - 1, [=] {
      const float words[4] = {a, b, c, d};
      for (int i = 0; i < 4; ++i) shared_word<float>((to & 0xffffff) + 4 * i) = words[i];
      mbarrier(inbox & 0xffffff).bytes -= 16;
      mbarrier(inbox & 0xffffff).look();
    });
    return true;
  });
}

void load_matrix(unsigned (&tiles)[4], unsigned shared) {
  const int lane = threadIdx.x % 32;
  const unsigned* rows = exchange(shared);
  for (int i = 0; i < 4; ++i) tiles[i] = shared_word<unsigned>(rows[8 * i + lane / 4] + lane % 4 * 4);
  exchange(0);
}

uint16_t operand(unsigned long long descriptor, int mn, int k, bool by_rows) {
  const unsigned start = (descriptor & 0x3fff) << 4;
  const unsigned leading = (descriptor >> 16 & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
  const int mode = static_cast<int>(descriptor >> 62);
  if (mode == 0) fail("a swizzle mode that the model does not have");
  if (descriptor >> 49 & 7) fail("a base offset");
  const unsigned row_bytes = 256 >> mode;  // 128, 64, 32
  const int row_elements = row_bytes / 2;
  const unsigned offset = by_rows ? mn / row_elements * leading + mn % row_elements * 2 + k % 8 * row_bytes + k / 8 * stride
                                  : mn % 8 * row_bytes + mn / 8 * stride + k * 2;
  return shared_word<uint16_t>(swizzled(start + offset, 4 - mode));
}

void close_products() {
  Warpgroup& group = own_block.warpgroups[threadIdx.x / 128];
  const int thread = threadIdx.x % 128;
  group.groups[thread].push_back(group.started[thread]);
}
void wait_products(int left) {
  Warpgroup& group = own_block.warpgroups[threadIdx.x / 128];
  auto& groups = group.groups[threadIdx.x % 128];
  while (static_cast<int>(groups.size()) > left) {
    const int needed = groups.front();
    groups.pop_front();
    wait_until([&group, needed] { return group.done >= needed; });
  }
}

void issue(float* d, int count, bool add, const unsigned (&a)[4],
           std::function<void(Warpgroup&, const Operation&)> do_it) {
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
    do_later(1 + threadIdx.x / 128, [&group, count, do_it] {
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
void multiply(Warpgroup& group, const Operation& operation, unsigned long long b, int n, bool bfloat16, bool by_rows,
              const std::function<uint16_t(int, int)>& a) {
  std::vector<float> columns(16 * n), rows(64 * 16);
  for (int k = 0; k < 16; ++k)
    for (int column = 0; column < n; ++column)
      columns[k * n + column] = element(operand(b, column, k, by_rows), bfloat16);
  for (int row = 0; row < 64; ++row)
    for (int k = 0; k < 16; ++k) rows[row * 16 + k] = element(a(row, k), bfloat16);
  for (int thread = 0; thread < 128; ++thread) {
    std::vector<float>& sums = group.sums[operation.d[thread]].values;
    for (int i = 0; i < n / 2; ++i) {
      const int row = thread / 32 * 16 + i / 2 % 2 * 8 + thread % 32 / 4, column = i / 4 * 8 + thread % 4 * 2 + i % 2;
      for (int k = 0; k < 16; ++k) sums[i] += rows[row * 16 + k] * columns[k * n + column];
    }
  }
}

// ---- device.hpp ----

static std::map<int, bool> any_of_block;
bool __syncthreads_or(bool value) {
  if (value) any_of_block[rank] = true;
  __syncthreads();
  const bool found = any_of_block[rank];
  __syncthreads();
  if (threadIdx.x == 0) any_of_block[rank] = false;
  __syncthreads();
  return found;
}

struct Copy {
  unsigned to;
  const void* from;
  bool exists;
};
using CopyGroup = std::vector<Copy>;
static std::vector<std::deque<CopyGroup>> copies_of_threads;  // the last group is open

void start_copies(int threads) { copies_of_threads.assign(threads, std::deque<CopyGroup>(1)); }
static void put(unsigned to, const uint32_t (&words)[4]) {
  for (int i = 0; i < 4; ++i) shared_word<uint32_t>(to + 4 * i) = words[i];
}
void copy_async_16(unsigned shared, const void* from, int bytes) {
  if (reinterpret_cast<uintptr_t>(from) % 16) fail("a copy from an address that is not aligned");
  put(shared, {~0u, ~0u, ~0u, ~0u});
  copies_of_threads[threadIdx.x].back().push_back({shared, from, bytes != 0});
}
void close_copy_group() { copies_of_threads[threadIdx.x].emplace_back(); }
void wait_copy_groups(int left) {
  auto& groups = copies_of_threads[threadIdx.x];
  for (; static_cast<int>(groups.size()) > left + 1; groups.pop_front())
    for (const Copy& copy : groups.front()) {
      uint32_t words[4];
      std::memcpy(words, copy.from, 16);  // the address must be valid, even where zeros are written
      if (!copy.exists) std::fill_n(words, 4, 0);
      put(copy.to, words);
    }
}

void load_matrix_transposed(unsigned (&tiles)[4], unsigned shared) {
  const int lane = threadIdx.x % 32, row = lane % 4 * 2, column = lane / 4;
  const unsigned* rows = exchange(shared);
  for (int i = 0; i < 4; ++i) {
    const unsigned low = shared_word<uint16_t>(rows[8 * i + row] + 2 * column);
    const unsigned high = shared_word<uint16_t>(rows[8 * i + row + 1] + 2 * column);
    tiles[i] = low | high << 16;
  }
  exchange(0);
}

void multiply_add(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, const float (&c)[4], bool bfloat16) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float rows[2][16], columns[2][16];
  const auto take = [&](float (&to)[16], const unsigned* words, int first_lane, int first_k) {
    for (int i = 0; i < 4; ++i)
      for (int half = 0; half < 2; ++half)
        to[first_k + 2 * i + half] = element(static_cast<uint16_t>(words[first_lane + i] >> 16 * half), bfloat16);
  };
  for (int i = 0; i < 4; ++i) take(rows[i % 2], exchange(a[i]), 4 * g, i / 2 * 8);
  for (int i = 0; i < 2; ++i) {
    const unsigned* words = exchange(i ? b1 : b0);
    for (int column = 0; column < 2; ++column) take(columns[column], words, 4 * (2 * t + column), i * 8);
  }
  for (int i = 0; i < 4; ++i) {
    d[i] = c[i];
    for (int k = 0; k < 16; ++k) d[i] += rows[i / 2][k] * columns[i % 2][k];
  }
}
