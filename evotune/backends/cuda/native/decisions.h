// Decisions on calls, and the keys under which they are kept.
//
// A key is everything that a decision depends on: dtypes, device, sizes, strides, alignment, mask, scale, and the dtype to
// which autocast casts. A decision is a miss, a call of Python's launcher (for launches that native code does not make), or a program: buffers,
// arguments, launches. Python makes it, once for each key.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "functions.h"

namespace native {

// --- Calls and their keys --------------------------------------------------------------------------------------------

constexpr std::uintptr_t kAlignment = 16;

struct View {  // of one tensor; sizes and strides belong to it
  void* data;
  std::int64_t dimensions;
  const std::int64_t *sizes, *strides;
  std::int64_t kind;  // its dtype and device; each way of calling has numbers of its own
};

struct Call {
  View views[4];  // q, k, v, and the mask if there is one
  int tensors;    // 3 or 4
  bool is_causal;
  double scale;  // kUsual where the caller gave none
  bool enable_gqa;
  std::int32_t device_type, device_index;  // as PyTorch's C functions number them
  const void* cast_to = nullptr;  // the dtype to which autocast casts tensors of the call; null where it casts none
};

constexpr double kUsual = std::numeric_limits<double>::quiet_NaN();

inline bool is_usual(double scale) { return std::isnan(scale) && !std::signbit(scale); }

using Key = std::vector<std::int64_t>;

inline std::uint64_t hash_of(const Key& key) {
  std::uint64_t hash = key.size();
  for (std::int64_t word : key) hash = (hash << 7 | hash >> 57) ^ static_cast<std::uint64_t>(word);
  hash *= 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 32;
}

struct Hash {
  std::size_t operator()(const Key& key) const { return hash_of(key); }
};

inline void make_key(const Call& call, Key& key) {
  key.clear();
  std::uintptr_t addresses = 0;
  for (int i = 0; i < call.tensors; ++i) {
    const View& view = call.views[i];
    key.push_back(view.dimensions);
    key.push_back(view.kind);
    for (std::int64_t d = 0; d < view.dimensions; ++d) {
      key.push_back(view.sizes[d]);
      key.push_back(view.sizes[d] == 1 ? 0 : view.strides[d]);
    }
    addresses |= reinterpret_cast<std::uintptr_t>(view.data);
  }
  std::int64_t scale = -1;
  if (!is_usual(call.scale)) std::memcpy(&scale, &call.scale, sizeof scale);
  key.push_back(scale);
  key.push_back((call.is_causal ? 1 : 0) | (call.enable_gqa ? 2 : 0) | (addresses % kAlignment ? 4 : 0));
  if (call.cast_to) key.push_back(reinterpret_cast<std::int64_t>(call.cast_to));
}

// --- Decisions -------------------------------------------------------------------------------------------------------

constexpr int kMostArguments = 64, kMostWorkspaces = 16, kMostMapArguments = 4;  // _native_launcher.py has them too

enum Kind : std::int64_t { kMiss = 0, kPython = 1, kProgram = 2 };
enum ArgumentKind : std::int64_t { kPointer = 0, kScalar = 1, kMap = 2 };

struct alignas(64) EncodedMap {
  unsigned char bytes[128];
};

struct MapOf {  // the driver's order: the innermost dimension first
  std::int64_t dtype, swizzle, promotion;
  std::vector<std::uint64_t> extents, strides;
  std::vector<std::uint32_t> box, ones;
  std::unordered_map<void*, EncodedMap> encoded;
};

struct Argument {
  std::int64_t kind, place;
  std::uint64_t bits;
  std::unique_ptr<MapOf> map;
};

struct Workspace {
  std::int64_t bytes;
  bool zero_once;
};

struct Launch {
  void* function;
  unsigned grid[3], block[3], shared_bytes;
};

struct Counter {  // a workspace that is zero between launches, of one stream, or of one in a capture
  void* stream;
  std::uint64_t capture;
  std::size_t workspace;
  void* data;
  std::int32_t device;
  std::int64_t bytes;
};

inline std::mutex counters_mutex;
// Counters of decisions that are gone, by device, stream and size. Those of captures are not among them: a graph may be
// replayed at any time. Never destroyed, since a thread may end after the library's variables are.
inline auto& spare_counters = *new std::map<std::tuple<std::int32_t, void*, std::int64_t>, std::vector<void*>>;

struct Decision {
  Decision() = default;
  Decision(const Decision&) = delete;
  ~Decision() {
    std::lock_guard<std::mutex> lock(counters_mutex);
    for (const Counter& each : counters)
      if (!each.capture) spare_counters[{each.device, each.stream, each.bytes}].push_back(each.data);
  }

  Kind kind;
  void* context;
  std::vector<std::int64_t> sizes, strides;  // of the output
  std::vector<Workspace> workspaces;
  std::vector<Argument> arguments;
  std::vector<Launch> launches;
  std::vector<Counter> counters;
  std::mutex mutex;  // of the encoded maps and the counters
  std::atomic<std::int64_t> calls{0};
};

inline std::shared_mutex decisions_mutex;
inline std::unordered_map<Key, std::shared_ptr<Decision>, Hash> decisions;
inline std::unordered_map<std::int64_t, std::shared_ptr<Decision>> numbered;  // until Python drops them
inline std::int64_t next_number = 0;
inline std::atomic<std::uint64_t> forgotten{0};     // how often all keys were forgotten
inline thread_local Key asked_for;  // the key that Python is asked about

class Asking {  // about a key. What Python does meanwhile may ask about another one
 public:
  explicit Asking(const Key& key) : before_(key) { std::swap(before_, asked_for); }
  ~Asking() { std::swap(before_, asked_for); }

 private:
  Key before_;
};

// The decision of the call, null where there is none yet. Each thread keeps the decisions that it used last, one in each
// slot, and finds them without a lock. A call holds its decision, which may be forgotten and dropped meanwhile.
inline std::shared_ptr<Decision> known(const Key& key) {
  struct Slot {
    std::shared_ptr<Decision> decision;
    Key key;
    std::uint64_t forgotten = 0;
  };
  thread_local std::array<Slot, 64> slots;
  Slot& slot = slots[hash_of(key) % slots.size()];
  const std::uint64_t now = forgotten.load(std::memory_order_acquire);
  if (slot.decision && slot.forgotten == now && slot.key == key) return slot.decision;
  std::shared_lock<std::shared_mutex> lock(decisions_mutex);
  const auto found = decisions.find(key);
  if (found == decisions.end()) return nullptr;
  slot.key = key;
  slot.forgotten = now;
  return slot.decision = found->second;
}

inline std::shared_ptr<Decision> known(const Call& call) {
  thread_local Key key;
  make_key(call, key);
  return known(key);
}

// The decision of a call that has none yet. `ask` has Python make it, under the key `asked_for`.
template <typename Ask>
std::shared_ptr<Decision> decided(const Call& call, const Ask& ask) {
  Key wanted;
  make_key(call, wanted);
  for (int attempts = 0; attempts < 2; ++attempts) {  // another thread may forget all decisions meanwhile
    const Asking asking(wanted);
    ask();
    if (std::shared_ptr<Decision> found = known(wanted)) return found;
  }
  throw std::runtime_error("evotune: no decision was made");
}

// A decision in words:
// - kind, and that is all except for a program;
// - context; the output's dimensions, sizes, strides;
// - workspaces: how many, and for each bytes, zero_once;
// - arguments: how many, and for each its kind with
//   a pointer's place; a scalar's bits; a map's place, dtype, swizzle, promotion, rank, extents, rank - 1 strides, box;
// - launches: how many, and for each function, grid, block, shared bytes.
inline std::shared_ptr<Decision> read_decision(const std::int64_t* words) {
  auto made = std::make_shared<Decision>();
  auto next = [&words] { return *words++; };
  made->kind = static_cast<Kind>(next());
  if (made->kind == kProgram) {
    made->context = reinterpret_cast<void*>(next());
    const std::int64_t dimensions = next();
    for (std::int64_t i = 0; i < dimensions; ++i) made->sizes.push_back(next());
    for (std::int64_t i = 0; i < dimensions; ++i) made->strides.push_back(next());
    for (std::int64_t count = next(); count > 0; --count) {
      const std::int64_t bytes = next();
      made->workspaces.push_back({bytes, next() != 0});
    }
    for (std::int64_t count = next(); count > 0; --count) {
      Argument argument{next(), 0, 0, nullptr};
      if (argument.kind == kScalar) {
        argument.bits = static_cast<std::uint64_t>(next());
      } else {
        argument.place = next();
      }
      if (argument.kind == kMap) {
        argument.map = std::make_unique<MapOf>();
        MapOf& map = *argument.map;
        map.dtype = next();
        map.swizzle = next();
        map.promotion = next();
        const std::int64_t rank = next();
        for (std::int64_t i = 0; i < rank; ++i) map.extents.push_back(next());
        for (std::int64_t i = 0; i < rank - 1; ++i) map.strides.push_back(next());
        if (rank == 1) map.strides.push_back(0);
        for (std::int64_t i = 0; i < rank; ++i) map.box.push_back(static_cast<std::uint32_t>(next()));
        map.ones.assign(rank, 1);
      }
      made->arguments.push_back(std::move(argument));
    }
    for (std::int64_t count = next(); count > 0; --count) {
      Launch launch{};
      launch.function = reinterpret_cast<void*>(next());
      for (unsigned& extent : launch.grid) extent = static_cast<unsigned>(next());
      for (unsigned& extent : launch.block) extent = static_cast<unsigned>(next());
      launch.shared_bytes = static_cast<unsigned>(next());
      made->launches.push_back(launch);
    }
  }
  return made;
}

// Keeps a decision under the key that Python was asked about in this thread, and returns its number.
inline std::int64_t keep(std::shared_ptr<Decision> made) {
  std::unique_lock<std::shared_mutex> lock(decisions_mutex);
  decisions[asked_for] = made;
  numbered.emplace(next_number, std::move(made));
  return next_number++;
}

// The calls of a decision since the last time that it was asked; 0 of one that was dropped.
inline std::int64_t calls_of(std::int64_t number) {
  std::shared_lock<std::shared_mutex> lock(decisions_mutex);
  const auto found = numbered.find(number);
  return found == numbered.end() ? 0 : found->second->calls.exchange(0);
}

inline void forget() {
  std::unique_lock<std::shared_mutex> lock(decisions_mutex);
  decisions.clear();
  forgotten.fetch_add(1, std::memory_order_release);
}

// Drops a decision whose key was forgotten. It is freed when no thread uses it any more.
inline void drop(std::int64_t number) {
  std::unique_lock<std::shared_mutex> lock(decisions_mutex);
  numbered.erase(number);
}

}  // namespace native
