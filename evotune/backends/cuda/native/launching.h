// Launches a decision's kernels on PyTorch's current stream.
#pragma once

#include "decisions.h"

namespace native {

constexpr std::size_t kMostMaps = 256;
constexpr std::int64_t kArenaBytes = 1 << 20, kSliceBytes = 256;

// Memory of zeros on one device, for counters. It is never freed, since a captured graph that uses it may be replayed
// at any time. It does not come from PyTorch's allocator, since memory allocated there during a capture belongs to the
// graph.
struct Arena {
  std::uint64_t address = 0;
  std::int64_t left = 0;
};

inline std::unordered_map<int, Arena> arenas;  // under counters_mutex

class Current {  // makes a context current, where another one or none is
 public:
  explicit Current(void* context) {
    void* found = nullptr;
    succeed(driver.CtxGetCurrent(&found), "cuCtxGetCurrent");
    if (found == context) return;
    succeed(driver.CtxPushCurrent(context), "cuCtxPushCurrent");
    pushed_ = true;
  }
  ~Current() {
    void* popped = nullptr;
    if (pushed_) driver.CtxPopCurrent(&popped);
  }

 private:
  bool pushed_ = false;
};

inline Owned scratch(const Call& call, std::int64_t bytes) {
  const std::int64_t one = 1;
  Tensor made = nullptr;
  require(torch.empty_strided(1, &bytes, &one, torch.dtype_uint8(), call.device_type, call.device_index, &made),
          "empty_strided");
  return Owned(made);
}

class Relaxed {  // lets this thread allocate and wait while it, or another one, captures a stream
 public:
  Relaxed() { succeed(driver.ThreadExchangeStreamCaptureMode(&mode_), "cuThreadExchangeStreamCaptureMode"); }
  ~Relaxed() { driver.ThreadExchangeStreamCaptureMode(&mode_); }

 private:
  int mode_ = 2;
};

inline std::uint64_t zeros(std::int64_t bytes) {
  Relaxed relaxed;
  std::uint64_t address = 0;
  void* own = nullptr;  // a stream that waits for no other
  succeed(driver.MemAlloc(&address, bytes), "cuMemAlloc");
  succeed(driver.StreamCreate(&own, 1), "cuStreamCreate");
  succeed(driver.MemsetD8Async(address, 0, bytes, own), "cuMemsetD8Async");
  succeed(driver.StreamSynchronize(own), "cuStreamSynchronize");
  succeed(driver.StreamDestroy(own), "cuStreamDestroy");
  return address;
}

// Zeros for a counter: one of this stream that no decision has any more, else new memory. Under counters_mutex.
inline void* zeros_for(std::int32_t device, void* stream, std::uint64_t capture, std::int64_t bytes) {
  const auto spare = spare_counters.find({device, stream, bytes});
  if (!capture && spare != spare_counters.end() && !spare->second.empty()) {
    void* data = spare->second.back();
    spare->second.pop_back();
    return data;
  }
  Arena& arena = arenas[device];
  if (arena.left < bytes) {
    const std::int64_t size = std::max(bytes, kArenaBytes);
    arena.address = zeros(size);
    arena.left = size;
  }
  void* data = reinterpret_cast<void*>(arena.address);
  arena.address += bytes;
  arena.left -= bytes;
  return data;
}

// The workspace of this stream, or of this stream in its capture.
inline void* counter(Decision& decision, const Call& call, std::size_t number, void* stream) {
  int status = 0;
  std::uint64_t capture = 0;
  succeed(driver.StreamGetCaptureInfo(stream, &status, &capture, nullptr, nullptr, nullptr), "cuStreamGetCaptureInfo");
  if (status != 1) capture = 0;
  std::lock_guard<std::mutex> lock(decision.mutex);
  for (const Counter& each : decision.counters)
    if (each.stream == stream && each.capture == capture && each.workspace == number) return each.data;
  const std::int64_t bytes = (decision.workspaces[number].bytes + kSliceBytes - 1) / kSliceBytes * kSliceBytes;
  std::lock_guard<std::mutex> counters_lock(counters_mutex);
  void* data = zeros_for(call.device_index, stream, capture, bytes);
  decision.counters.push_back({stream, capture, number, data, call.device_index, bytes});
  return data;
}

inline void encode(Decision& decision, MapOf& map, void* data, EncodedMap& encoded) {
  std::lock_guard<std::mutex> lock(decision.mutex);
  const auto found = map.encoded.find(data);
  if (found != map.encoded.end()) {
    encoded = found->second;
    return;
  }
  succeed(driver.TensorMapEncodeTiled(&encoded, static_cast<int>(map.dtype), map.extents.size(), data,
                                      map.extents.data(), map.strides.data(), map.box.data(), map.ones.data(), 0,
                                      static_cast<int>(map.swizzle), static_cast<int>(map.promotion), 0),
          "cuTensorMapEncodeTiled");
  if (map.encoded.size() >= kMostMaps) map.encoded.clear();
  map.encoded.emplace(data, encoded);
}

// Launches on the call's tensors and the output's memory, which come in the order q, k, v, output, mask, workspaces.
inline void launch(Decision& decision, const Call& call, void* out) {
  Current current(decision.context);
  void* stream = nullptr;
  require(torch.get_current_cuda_stream(call.device_index, &stream), "get_current_cuda_stream");
  constexpr std::size_t kMostPlaces = 5 + kMostWorkspaces;
  void* data[kMostPlaces] = {call.views[0].data, call.views[1].data, call.views[2].data, out};
  if (call.tensors > 3) data[4] = call.views[3].data;
  const std::size_t first = call.tensors + 1;
  Owned kept[kMostWorkspaces];
  for (std::size_t i = 0; i < decision.workspaces.size(); ++i) {
    if (decision.workspaces[i].zero_once) {
      data[first + i] = counter(decision, call, i, stream);
    } else {
      kept[i] = scratch(call, decision.workspaces[i].bytes);
      data[first + i] = data_of(kept[i].get());
    }
  }
  void* values[kMostArguments];
  EncodedMap maps[kMostMapArguments];
  int map_count = 0;
  for (std::size_t i = 0; i < decision.arguments.size(); ++i) {
    Argument& argument = decision.arguments[i];
    if (argument.kind == kPointer) {
      values[i] = &data[argument.place];
    } else if (argument.kind == kScalar) {
      values[i] = &argument.bits;
    } else {
      encode(decision, *argument.map, data[argument.place], maps[map_count]);
      values[i] = &maps[map_count++];
    }
  }
  for (const Launch& each : decision.launches)
    succeed(driver.LaunchKernel(each.function, each.grid[0], each.grid[1], each.grid[2], each.block[0], each.block[1],
                                each.block[2], each.shared_bytes, stream, values, nullptr),
            "cuLaunchKernel");
}

}  // namespace native
