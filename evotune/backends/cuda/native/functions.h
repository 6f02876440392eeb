// Functions of PyTorch and of the CUDA driver, found in the libraries that the process has loaded: no headers are needed.
//
// Of PyTorch they are functions of the stable C ABI (torch/csrc/inductor/aoti_torch/c/shim.h, torch/csrc/stable/c/shim.h;
// 2.10 and later).
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>

namespace native {

using Value = std::uint64_t;  // PyTorch's StableIValue: a bool, an int, a float, or a tensor's handle
using Tensor = void*;         // PyTorch's AtenTensorHandle
using Handle = void*;
using Error = std::int32_t;

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
  Error (*new_stable_ivalue)(Value**);       // the same
  Error (*delete_stable_ivalue)(Value*);     // the same
};

inline Torch torch;

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
  int (*GetErrorString)(int, const char**);
};

inline Driver driver;

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

inline void find_functions() {
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
  found(torch.new_stable_ivalue, in_torch, "torch_new_stable_ivalue");
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
  find(driver.GetErrorString, {cuda}, "cuGetErrorString");
}

inline void require(Error error, const char* call) {
  if (!error) return;
  const char* words = torch.exception ? torch.exception() : nullptr;
  throw std::runtime_error(std::string("evotune: ") + call + " failed" + (words ? std::string(": ") + words : ""));
}

inline void succeed(int status, const char* call) {
  if (!status) return;
  const char* words = nullptr;
  driver.GetErrorString(status, &words);
  throw std::runtime_error(std::string("evotune: ") + call + " gives CUDA error " + std::to_string(status) +
                           (words ? std::string(" (") + words + ")" : ""));
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

inline void* data_of(Tensor tensor) {
  void* data = nullptr;
  require(torch.get_data_ptr(tensor, &data), "get_data_ptr");
  return data;
}

}  // namespace native
