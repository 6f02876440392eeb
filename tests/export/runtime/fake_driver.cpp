// A CUDA driver that runs on the CPU: its modules are shared libraries, its kernels functions of (void** arguments).
// It notes its calls, and lets a test set the current stream, its capture, and errors. With QUIET it notes nothing: a
// benchmark times the calls.
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

namespace {
std::mutex mutex;
std::string notes;
std::atomic<std::uint64_t> stream{7}, capture{0};
std::atomic<int> launch_status{0};
thread_local void* current = nullptr;
thread_local std::vector<void*> below;  // contexts that were current before
thread_local int mode = 0;  // global: loading and allocating end a capture
char context;

#ifdef QUIET
#define note(line) ((void)0)
#else
void note(const std::string& line) {
  std::lock_guard<std::mutex> lock(mutex);
  notes += line + "\n";
}
#endif
int absent() { return current ? 0 : 201; }  // a thread begins without a context
int forbidden() { return !current ? 201 : capture && mode != 2 ? 900 : 0; }
}  // namespace

extern "C" {
const char* fake_notes() {
  static std::string told;
  std::lock_guard<std::mutex> lock(mutex);
  told.swap(notes);
  notes.clear();
  return told.c_str();
}
void fake_set(std::uint64_t new_stream, std::uint64_t new_capture) {
  stream = new_stream;
  capture = new_capture;
}
void fake_fail(int status) { launch_status = status; }
std::uint64_t fake_current_stream() { return stream; }
std::int32_t aoti_torch_get_current_cuda_stream(std::int32_t, void** found) {
  *found = reinterpret_cast<void*>(stream.load());
  return 0;
}

int cuInit(unsigned) { return 0; }
int cuGetErrorString(int status, const char** words) {
  *words = status == 719 ? "unspecified launch failure" : nullptr;
  return *words ? 0 : 1;
}
int cuDeviceGet(int* device, int index) {
  *device = index;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** found, int) {
  *found = &context;
  return 0;
}
int cuCtxGetCurrent(void** found) {
  *found = current;
  return 0;
}
int cuCtxPushCurrent_v2(void* pushed) {
  below.push_back(current);
  current = pushed;
  return 0;
}
int cuCtxPopCurrent_v2(void** popped) {
  *popped = current;
  current = below.back();
  below.pop_back();
  return 0;
}
int cuThreadExchangeStreamCaptureMode(int* other) {
  if (int status = absent()) return status;
  const int before = mode;
  mode = *other;
  *other = before;
  return 0;
}
int cuStreamGetCaptureInfo_v2(void*, int* found, std::uint64_t* number, void*, void*, void*) {
  if (int status = absent()) return status;
  *found = capture ? 1 : 0;
  *number = capture;
  return 0;
}
int cuStreamSynchronize(void*) { return forbidden(); }
int cuMemAlloc_v2(std::uint64_t* address, std::size_t size) {
  if (int status = forbidden()) return status;
  void* memory = malloc(size);
  memset(memory, 0xff, size);
  *address = reinterpret_cast<std::uint64_t>(memory);
  note("allocate " + std::to_string(size));
  return 0;
}
int cuStreamCreate(void** made, unsigned flags) {
  *made = reinterpret_cast<void*>(99);
  return forbidden() || flags != 1;
}
int cuStreamDestroy_v2(void*) { return absent(); }
int cuModuleLoadData(void** module, const void* image) {
  if (int status = forbidden()) return status;
  // The image is the path of a library: its real bytes would not say how long they are.
  *module = dlopen(static_cast<const char*>(image), RTLD_NOW | RTLD_LOCAL);
  note("load");
  return *module ? 0 : 200;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  if (int status = absent()) return status;
  *function = dlsym(module, name);
  return *function ? 0 : 500;
}
int cuModuleGetGlobal_v2(std::uint64_t* address, std::size_t* size, void* module, const char* name) {
  if (int status = absent()) return status;
  *address = reinterpret_cast<std::uint64_t>(dlsym(module, name));
  *size = 64;
  return *address ? 0 : 500;
}
int cuFuncGetAttribute(int* value, int, void*) {
  if (int status = absent()) return status;
  *value = 1024;
  return 0;
}
int cuFuncSetAttribute(void*, int attribute, int value) {
  if (int status = absent()) return status;
  note("attribute " + std::to_string(attribute) + " " + std::to_string(value));
  return 0;
}
int cuMemsetD8Async(std::uint64_t address, unsigned char value, std::size_t size, void*) {
  if (int status = absent()) return status;
  memset(reinterpret_cast<void*>(address), value, size);
  note("memset " + std::to_string(size));
  return 0;
}
int cuMemcpyDtoDAsync_v2(std::uint64_t to, std::uint64_t from, std::size_t size, void*) {
  if (int status = absent()) return status;
  memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), size);
  note("copy " + std::to_string(size));
  return 0;
}
int cuTensorMapEncodeTiled(void* map, int dtype, std::uint32_t rank, void* address, const std::uint64_t* extents,
                           const std::uint64_t* strides, const std::uint32_t* box, const std::uint32_t*, int, int swizzle,
                           int promotion, int) {
  if (int status = absent()) return status;
  if (reinterpret_cast<std::uintptr_t>(map) % 64 || box[0] > 256) return 1;
  for (std::uint32_t i = 0; i + 1 < rank; ++i)
    if (strides[i] % 16) return 1;
  memcpy(map, &address, 8);
  std::string line = "map " + std::to_string(dtype) + " " + std::to_string(swizzle) + " " + std::to_string(promotion);
  for (std::uint32_t i = 0; i < rank; ++i) line += " " + std::to_string(extents[i]);
  for (std::uint32_t i = 0; i + 1 < rank; ++i) line += " " + std::to_string(strides[i]);
  for (std::uint32_t i = 0; i < rank; ++i) line += " " + std::to_string(box[i]);
  note(line);
  return 0;
}
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* on, void** arguments, void**) {
  if (int status = absent()) return status;
  if (int status = launch_status) return status;
#ifndef QUIET
  char line[200];
  snprintf(line, sizeof line, "launch %u %u %u / %u %u %u + %u on %zu", gx, gy, gz, bx, by, bz, shared,
           reinterpret_cast<std::size_t>(on));
  note(line);
#endif
  reinterpret_cast<void (*)(void**)>(function)(arguments);
  return 0;
}
}
