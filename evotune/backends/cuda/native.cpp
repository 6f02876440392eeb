// The native launcher of an exported package of attention kernels: a call of the operator runs from here to the
// driver without Python.
//
// Python decides which kernel serves a case, once: `decide` is an operator that Python implements and this file calls
// for a key that it does not know. Python answers with evotune_native_add, which stores the decision under that key.
//
// A key is everything that a decision depends on: dtypes, device, sizes, strides, alignment, mask, scale. A decision
// is a miss, a call of Python's launcher (for what this file does not do), or a program: buffers, arguments, launches.
//
// Needs no headers of PyTorch or CUDA. Of PyTorch it uses functions of the stable C ABI
// (torch/csrc/inductor/aoti_torch/c/shim.h, torch/csrc/stable/c/shim.h; 2.10 and later), of CUDA the driver's.
// Both are found in the libraries that the process has loaded.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

using Value = std::uint64_t;  // PyTorch's StableIValue: a bool, an int, a float, or a tensor's handle
using Tensor = void*;         // PyTorch's AtenTensorHandle
using Handle = void*;
using Error = std::int32_t;

// --- Functions of PyTorch and of the driver --------------------------------------------------------------------------

struct Torch {
  Error (*library_init_impl)(const char*, const char*, const char*, std::uint32_t, Handle*);
  Error (*library_impl)(Handle, const char*, void (*)(Value*, std::uint64_t, std::uint64_t), std::uint64_t);
  Error (*call_dispatcher)(const char*, const char*, Value*, std::uint64_t);
  std::uint64_t (*abi_version)();
  Error (*get_sizes)(Tensor, std::int64_t**);
  Error (*get_strides)(Tensor, std::int64_t**);
  Error (*get_dim)(Tensor, std::int64_t*);
  Error (*get_dtype)(Tensor, std::int32_t*);
  Error (*get_device_type)(Tensor, std::int32_t*);
  Error (*get_device_index)(Tensor, std::int32_t*);
  Error (*get_data_ptr)(Tensor, void**);
  Error (*empty_strided)(std::int64_t, const std::int64_t*, const std::int64_t*, std::int32_t, std::int32_t,
                         std::int32_t, Tensor*);
  Error (*new_tensor_handle)(Tensor, Tensor*);
  Error (*new_uninitialized_tensor)(Tensor*);
  Error (*delete_tensor_object)(Tensor);
  std::int32_t (*dtype_uint8)();
  Error (*get_current_cuda_stream)(std::int32_t, void**);
  bool (*grad_mode_is_enabled)();
  const char* (*exception)();                // of 2.13 and later
  Error (*delete_stable_ivalue)(Value*);     // the same
} torch;

struct Driver {
  int (*LaunchKernel)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                      void**);
  int (*TensorMapEncodeTiled)(void*, int, std::uint32_t, void*, const std::uint64_t*, const std::uint64_t*,
                              const std::uint32_t*, const std::uint32_t*, int, int, int, int);
  int (*CtxGetCurrent)(void**);
  int (*CtxPushCurrent)(void*);
  int (*CtxPopCurrent)(void**);
  int (*MemAlloc)(std::uint64_t*, std::size_t);
  int (*MemsetD8Async)(std::uint64_t, unsigned char, std::size_t, void*);
  int (*StreamCreate)(void**, unsigned);
  int (*StreamDestroy)(void*);
  int (*StreamSynchronize)(void*);
  int (*StreamGetCaptureInfo)(void*, int*, std::uint64_t*, void*, void*, void*);
  int (*ThreadExchangeStreamCaptureMode)(int*);
} driver;

template <typename Function>
bool found(Function& function, std::initializer_list<void*> libraries, const char* name) {
  for (void* library : libraries)
    if (library && (function = reinterpret_cast<Function>(dlsym(library, name)))) return true;
  return false;
}

template <typename Function>
void find(Function& function, std::initializer_list<void*> libraries, const char* name) {
  if (!found(function, libraries, name)) throw std::runtime_error(std::string("there is no ") + name);
}

void find_functions() {
  void* all = dlopen(nullptr, RTLD_LAZY);
  void* cpu = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  void* gpu = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  void* cuda = dlopen("libcuda.so.1", RTLD_LAZY);
  const auto in_torch = {cpu, gpu, all};
  find(torch.library_init_impl, in_torch, "aoti_torch_library_init_impl");
  find(torch.library_impl, in_torch, "torch_library_impl");
  find(torch.call_dispatcher, in_torch, "torch_call_dispatcher");
  find(torch.abi_version, in_torch, "aoti_torch_abi_version");
  find(torch.get_sizes, in_torch, "aoti_torch_get_sizes");
  find(torch.get_strides, in_torch, "aoti_torch_get_strides");
  find(torch.get_dim, in_torch, "aoti_torch_get_dim");
  find(torch.get_dtype, in_torch, "aoti_torch_get_dtype");
  find(torch.get_device_type, in_torch, "aoti_torch_get_device_type");
  find(torch.get_device_index, in_torch, "aoti_torch_get_device_index");
  find(torch.get_data_ptr, in_torch, "aoti_torch_get_data_ptr");
  find(torch.empty_strided, in_torch, "aoti_torch_empty_strided");
  find(torch.new_tensor_handle, in_torch, "aoti_torch_new_tensor_handle");
  find(torch.new_uninitialized_tensor, in_torch, "aoti_torch_new_uninitialized_tensor");
  find(torch.delete_tensor_object, in_torch, "aoti_torch_delete_tensor_object");
  find(torch.dtype_uint8, in_torch, "aoti_torch_dtype_uint8");
  find(torch.get_current_cuda_stream, {gpu, cpu, all}, "aoti_torch_get_current_cuda_stream");
  find(torch.grad_mode_is_enabled, in_torch, "aoti_torch_grad_mode_is_enabled");
  found(torch.delete_stable_ivalue, in_torch, "torch_delete_stable_ivalue");
  found(torch.exception, in_torch, "torch_exception_get_what_without_backtrace");
  find(driver.LaunchKernel, {cuda}, "cuLaunchKernel");
  find(driver.TensorMapEncodeTiled, {cuda}, "cuTensorMapEncodeTiled");
  find(driver.CtxGetCurrent, {cuda}, "cuCtxGetCurrent");
  find(driver.CtxPushCurrent, {cuda}, "cuCtxPushCurrent_v2");
  find(driver.CtxPopCurrent, {cuda}, "cuCtxPopCurrent_v2");
  find(driver.MemAlloc, {cuda}, "cuMemAlloc_v2");
  find(driver.MemsetD8Async, {cuda}, "cuMemsetD8Async");
  find(driver.StreamCreate, {cuda}, "cuStreamCreate");
  find(driver.StreamDestroy, {cuda}, "cuStreamDestroy_v2");
  find(driver.StreamSynchronize, {cuda}, "cuStreamSynchronize");
  find(driver.StreamGetCaptureInfo, {cuda}, "cuStreamGetCaptureInfo_v2");
  find(driver.ThreadExchangeStreamCaptureMode, {cuda}, "cuThreadExchangeStreamCaptureMode");
}

void require(Error error, const char* call) {
  if (!error) return;
  const char* words = torch.exception ? torch.exception() : nullptr;
  throw std::runtime_error(std::string("evotune: ") + call + " failed" + (words ? std::string(": ") + words : ""));
}

void succeed(int status, const char* call) {
  if (status) throw std::runtime_error(std::string("evotune: ") + call + " gives CUDA error " + std::to_string(status));
}

class Owned {  // a tensor's handle, given back at the end
 public:
  explicit Owned(Tensor tensor = nullptr) : tensor_(tensor) {}
  Owned(Owned&& other) noexcept : tensor_(other.release()) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(tensor_, other.tensor_);
    return *this;
  }
  ~Owned() {
    if (tensor_) torch.delete_tensor_object(tensor_);
  }
  Tensor get() const { return tensor_; }
  Tensor release() {
    Tensor tensor = tensor_;
    tensor_ = nullptr;
    return tensor;
  }

 private:
  Tensor tensor_;
};

void* data_of(Tensor tensor) {
  void* data = nullptr;
  require(torch.get_data_ptr(tensor, &data), "get_data_ptr");
  return data;
}

// --- Calls and their keys --------------------------------------------------------------------------------------------

constexpr int kMostDimensions = 8;
constexpr std::uintptr_t kAlignment = 16;

struct Call {
  Owned tensors[3];  // q, k, v
  void* data[3];
  bool is_causal;
  double scale;  // NaN for the usual one
  bool enable_gqa;
  std::int32_t dtype, device_type, device_index;
};

using Key = std::vector<std::int64_t>;

struct Hash {
  std::size_t operator()(const Key& key) const {
    std::uint64_t hash = 1469598103934665603u;
    for (std::int64_t word : key) hash = (hash ^ static_cast<std::uint64_t>(word)) * 1099511628211u;
    return hash ^ hash >> 29;
  }
};

void make_key(Call& call, Key& key) {
  key.clear();
  std::int64_t scale;
  std::memcpy(&scale, &call.scale, sizeof scale);
  if (std::isnan(call.scale)) scale = -1;
  std::uintptr_t addresses = 0;
  for (int i = 0; i < 3; ++i) {
    Tensor tensor = call.tensors[i].get();
    std::int64_t dimensions = 0, *sizes = nullptr, *strides = nullptr;
    std::int32_t dtype = 0, type = 0, index = 0;
    require(torch.get_dim(tensor, &dimensions), "get_dim");
    require(torch.get_sizes(tensor, &sizes), "get_sizes");
    require(torch.get_strides(tensor, &strides), "get_strides");
    require(torch.get_dtype(tensor, &dtype), "get_dtype");
    require(torch.get_device_type(tensor, &type), "get_device_type");
    require(torch.get_device_index(tensor, &index), "get_device_index");
    key.push_back(dimensions);
    key.push_back(std::int64_t{dtype} << 32 | type << 16 | (index & 0xffff));
    for (std::int64_t d = 0; d < dimensions; ++d) {
      key.push_back(sizes[d]);
      key.push_back(sizes[d] == 1 ? 0 : strides[d]);
    }
    call.data[i] = data_of(tensor);
    addresses |= reinterpret_cast<std::uintptr_t>(call.data[i]);
    if (i == 0) {
      call.dtype = dtype;
      call.device_type = type;
      call.device_index = index;
    }
  }
  key.push_back(scale);
  key.push_back((call.is_causal ? 1 : 0) | (call.enable_gqa ? 2 : 0) | (addresses % kAlignment ? 4 : 0));
}

// --- Decisions -------------------------------------------------------------------------------------------------------

constexpr std::size_t kMostMaps = 256;
constexpr int kMostArguments = 64, kMostWorkspaces = 16, kMostMapArguments = 4;  // _native_launcher.py has them too
constexpr std::int64_t kArenaBytes = 1 << 20, kSliceBytes = 256;

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
};

struct Decision {
  Kind kind;
  void* context;
  std::vector<std::int64_t> sizes, strides;  // of the output
  std::vector<Workspace> workspaces;
  std::vector<Argument> arguments;
  std::vector<Launch> launches;
  std::vector<Counter> counters;
  std::mutex mutex;     // of the encoded maps and the counters
  std::atomic<std::int64_t> calls{0};
};

// Zeros of one device, for counters. They are never given back, since a graph may be replayed at any time; and PyTorch's
// allocator does not know them, since memory that it hands out in a capture belongs to the graph.
struct Arena {
  std::uint64_t address = 0;
  std::int64_t left = 0;
};

std::shared_mutex decisions_mutex;
std::unordered_map<Key, Decision*, Hash> decisions;
std::vector<std::unique_ptr<Decision>> all_decisions;
std::mutex arenas_mutex;
std::unordered_map<int, Arena> arenas;
thread_local Key asked_for;  // the key that Python is asked about
std::string names_space;     // the namespace of the operators

Decision* known(const Key& key) {
  std::shared_lock<std::shared_mutex> lock(decisions_mutex);
  const auto found = decisions.find(key);
  return found == decisions.end() ? nullptr : found->second;
}

// Calls an operator that Python implements with the call's arguments. Its result is a tensor or a number.
Value ask(const Call& call, const char* name) {
  Value stack[6];
  for (int i = 0; i < 3; ++i) {
    Tensor copy = nullptr;  // the dispatcher takes the handles over
    require(torch.new_tensor_handle(call.tensors[i].get(), &copy), "new_tensor_handle");
    stack[i] = reinterpret_cast<Value>(copy);
  }
  stack[3] = call.is_causal;
  std::memcpy(&stack[4], &call.scale, sizeof call.scale);
  stack[5] = call.enable_gqa;
  const std::string whole = names_space + "::" + name;
  require(torch.call_dispatcher(whole.c_str(), "", stack, torch.abi_version()), name);
  return stack[0];
}

Decision& decision_on(Call& call) {
  thread_local Key key;
  make_key(call, key);
  if (Decision* found = known(key)) return *found;
  const Key wanted = key;
  for (int attempts = 0; attempts < 2; ++attempts) {  // what Python does meanwhile may call here again
    asked_for = wanted;
    ask(call, "_decide");
    if (Decision* found = known(wanted)) return *found;
  }
  throw std::runtime_error("evotune: no decision was made");
}

// --- Launching -------------------------------------------------------------------------------------------------------

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

Owned scratch(const Call& call, std::int64_t bytes) {
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

std::uint64_t zeros(std::int64_t bytes) {
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

// The workspace of this stream, or of this stream in its capture.
void* counter(Decision& decision, const Call& call, std::size_t number, void* stream) {
  int status = 0;
  std::uint64_t capture = 0;
  succeed(driver.StreamGetCaptureInfo(stream, &status, &capture, nullptr, nullptr, nullptr), "cuStreamGetCaptureInfo");
  if (status != 1) capture = 0;
  std::lock_guard<std::mutex> lock(decision.mutex);
  for (const Counter& each : decision.counters)
    if (each.stream == stream && each.capture == capture && each.workspace == number) return each.data;
  const std::int64_t bytes = (decision.workspaces[number].bytes + kSliceBytes - 1) / kSliceBytes * kSliceBytes;
  std::lock_guard<std::mutex> arena_lock(arenas_mutex);
  Arena& arena = arenas[call.device_index];
  if (arena.left < bytes) {
    const std::int64_t size = std::max(bytes, kArenaBytes);
    arena.address = zeros(size);
    arena.left = size;
  }
  void* data = reinterpret_cast<void*>(arena.address);
  arena.address += bytes;
  arena.left -= bytes;
  decision.counters.push_back({stream, capture, number, data});
  return data;
}

void encode(Decision& decision, MapOf& map, void* data, EncodedMap& encoded) {
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

Owned launched(Decision& decision, Call& call) {
  Tensor made = nullptr;
  require(torch.empty_strided(decision.sizes.size(), decision.sizes.data(), decision.strides.data(), call.dtype,
                              call.device_type, call.device_index, &made),
          "empty_strided");
  Owned out(made);
  Current current(decision.context);
  void* stream = nullptr;
  require(torch.get_current_cuda_stream(call.device_index, &stream), "get_current_cuda_stream");
  constexpr std::size_t kMostPlaces = 4 + kMostWorkspaces;
  void* data[kMostPlaces] = {call.data[0], call.data[1], call.data[2], data_of(out.get())};
  Owned kept[kMostPlaces];
  for (std::size_t i = 0; i < decision.workspaces.size(); ++i) {
    if (decision.workspaces[i].zero_once) {
      data[4 + i] = counter(decision, call, i, stream);
    } else {
      kept[i] = scratch(call, decision.workspaces[i].bytes);
      data[4 + i] = data_of(kept[i].get());
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
  return out;
}

// The output; nothing where no kernel serves the call.
Owned served(Call& call) {
  Decision& decision = decision_on(call);
  if (decision.kind == kPython)  // which counts it
    return Owned(reinterpret_cast<Tensor>(ask(call, "_launch")));
  decision.calls.fetch_add(1, std::memory_order_relaxed);
  return decision.kind == kProgram ? launched(decision, call) : Owned();
}

// --- The operators ---------------------------------------------------------------------------------------------------

Call call_of(Value* stack, double scale) {
  Call call;
  for (int i = 0; i < 3; ++i) call.tensors[i] = Owned(reinterpret_cast<Tensor>(stack[i]));
  std::uint8_t flags[2];
  std::memcpy(&flags[0], &stack[3], 1);
  std::memcpy(&flags[1], &stack[5], 1);
  call.is_causal = flags[0];
  call.enable_gqa = flags[1];
  call.scale = scale;
  return call;
}

double number(Value value) {
  double found;
  std::memcpy(&found, &value, sizeof found);
  return found;
}

// _attempt(Tensor q, Tensor k, Tensor v, bool is_causal, float scale, bool enable_gqa) -> Tensor: undefined, which is
// None in Python, where no kernel serves the call.
void attempt(Value* stack, std::uint64_t, std::uint64_t) {
  Call call = call_of(stack, number(stack[4]));
  Owned out = served(call);
  if (!out.get()) {
    Tensor undefined = nullptr;
    require(torch.new_uninitialized_tensor(&undefined), "new_uninitialized_tensor");
    out = Owned(undefined);
  }
  stack[0] = reinterpret_cast<Value>(out.release());
}

// _served, with the same arguments: SDPA serves what no kernel does.
void serve(Value* stack, std::uint64_t, std::uint64_t) {
  Call call = call_of(stack, number(stack[4]));
  Owned out = served(call);
  stack[0] = out.get() ? reinterpret_cast<Value>(out.release()) : ask(call, "_before");
}

// A float? of PyTorch: null, or a value of its own on the heap, which the callee frees.
double optional_number(Value value) {
  if (!value) return NAN;
  Value* boxed = reinterpret_cast<Value*>(value);
  const double found = number(*boxed);
  if (torch.delete_stable_ivalue)
    torch.delete_stable_ivalue(boxed);
  else
    delete boxed;
  return std::isnan(found) ? INFINITY : found;  // NaN is the usual scale here; SDPA gives NaN for both
}

// attention(Tensor q, Tensor k, Tensor v, bool is_causal=False, float? scale=None, bool enable_gqa=False) -> Tensor
void attention(Value* stack, std::uint64_t count, std::uint64_t results) {
  const double scale = optional_number(stack[4]);
  std::memcpy(&stack[4], &scale, sizeof scale);
  serve(stack, count, results);
}

// The same for tensors that may require grad, which this file cannot ask. The tensors may also be those of a compiler
// that traces: so it calls an operator, and looks at nothing.
void attention_with_autograd(Value* stack, std::uint64_t, std::uint64_t) {
  const double scale = optional_number(stack[4]);
  std::memcpy(&stack[4], &scale, sizeof scale);
  const std::string name = names_space + (torch.grad_mode_is_enabled() ? "::_with_grad" : "::_served");
  require(torch.call_dispatcher(name.c_str(), "", stack, torch.abi_version()), name.c_str());
}

thread_local std::string failure;

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

// Whether the library is that of a namespace already.
EXPORTED int evotune_native_is_open() { return !names_space.empty(); }

// Implements the operators of a namespace for a dispatch key, CUDA for one. Returns why that fails, or null.
EXPORTED const char* evotune_native_open(const char* space, const char* key) {
  try {
    find_functions();
    names_space = space;
    Handle library = nullptr;  // kept until the process ends
    require(torch.library_init_impl(space, key, __FILE__, __LINE__, &library), "library_init_impl");
    require(torch.library_impl(library, "_attempt", attempt, torch.abi_version()), "library_impl");
    require(torch.library_impl(library, "_served", serve, torch.abi_version()), "library_impl");
    require(torch.library_impl(library, "attention", attention, torch.abi_version()), "library_impl");
    const std::string autograd = std::string("Autograd") + key;
    require(torch.library_init_impl(space, autograd.c_str(), __FILE__, __LINE__, &library), "library_init_impl");
    require(torch.library_impl(library, "attention", attention_with_autograd, torch.abi_version()), "library_impl");
    return nullptr;
  } catch (const std::exception& error) {
    failure = error.what();
    return failure.c_str();
  }
}

// Stores a decision under the key that Python was asked about in this thread, and returns its number. `words`:
// - kind, and that is all except for a program;
// - context; the output's dimensions, sizes, strides;
// - workspaces: how many, and for each bytes, zero_once;
// - arguments: how many, and for each its kind with
//   a pointer's place; a scalar's bits; a map's place, dtype, swizzle, promotion, rank, extents, rank - 1 strides, box;
// - launches: how many, and for each function, grid, block, shared bytes.
EXPORTED std::int64_t evotune_native_add(const std::int64_t* words) {
  auto made = std::make_unique<Decision>();
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
  std::unique_lock<std::shared_mutex> lock(decisions_mutex);
  decisions[asked_for] = made.get();
  all_decisions.push_back(std::move(made));
  return static_cast<std::int64_t>(all_decisions.size()) - 1;
}

// The calls of a decision since the last time that it was asked.
EXPORTED std::int64_t evotune_native_calls(std::int64_t number) {
  std::shared_lock<std::shared_mutex> lock(decisions_mutex);
  return all_decisions[number]->calls.exchange(0);
}
