// Serves a call from Python without PyTorch's dispatcher, which needs more time to box arguments than the launch takes.
//
// The function serves common calls: plain tensors, PyTorch in its plain state, and a decision that is a program or a
// miss. To any other call it answers None, and Python calls the operator instead.
//
// It reads tensors through the function table that PyTorch has for DLPack (torch.Tensor.__dlpack_c_exchange_api__), and
// calls functions of Python's stable ABI, which it finds in the process.
#include "launching.h"

namespace native {
namespace {

using Object = void*;  // PyObject*

struct Python {
  Object (*Type)(Object);
  Object (*GetAttr)(Object, Object);
  Object (*Vectorcall)(Object, Object const*, std::size_t, Object);
  int (*IsTrue)(Object);
  Object (*GetItem)(Object, Object);  // borrowed
  Object (*TupleGetItem)(Object, std::ptrdiff_t);  // borrowed
  std::ptrdiff_t (*TupleSize)(Object);
  double (*AsDouble)(Object);
  Object (*FromDouble)(double);
  long (*AsLong)(Object);
  void* (*AsVoidPtr)(Object);
  void (*IncRef)(Object);
  void (*DecRef)(Object);
  Object (*NewFunction)(void*, Object, Object);
  void (*SetString)(Object, const char*);
  Object (*Occurred)();
  void (*Clear)();
  Object (*SaveThread)();
  void (*RestoreThread)(Object);
  Object* RuntimeError;
} python;

void find_python() {
  void* all = dlopen(nullptr, RTLD_LAZY);
  const auto in_process = {all};
  find(python.Type, in_process, "PyObject_Type");
  find(python.GetAttr, in_process, "PyObject_GetAttr");
  find(python.Vectorcall, in_process, "PyObject_Vectorcall");
  find(python.IsTrue, in_process, "PyObject_IsTrue");
  find(python.GetItem, in_process, "PyDict_GetItemWithError");
  find(python.TupleGetItem, in_process, "PyTuple_GetItem");
  find(python.TupleSize, in_process, "PyTuple_Size");
  find(python.AsDouble, in_process, "PyFloat_AsDouble");
  find(python.FromDouble, in_process, "PyFloat_FromDouble");
  find(python.AsLong, in_process, "PyLong_AsLong");
  find(python.AsVoidPtr, in_process, "PyLong_AsVoidPtr");
  find(python.IncRef, in_process, "Py_IncRef");
  find(python.DecRef, in_process, "Py_DecRef");
  find(python.NewFunction, in_process, "PyCFunction_NewEx");
  find(python.SetString, in_process, "PyErr_SetString");
  find(python.Occurred, in_process, "PyErr_Occurred");
  find(python.Clear, in_process, "PyErr_Clear");
  find(python.SaveThread, in_process, "PyEval_SaveThread");
  find(python.RestoreThread, in_process, "PyEval_RestoreThread");
  find(python.RuntimeError, in_process, "PyExc_RuntimeError");
}

class Reference {  // one that this file owns
 public:
  explicit Reference(Object object) : object_(object) {}
  Reference(const Reference&) = delete;
  ~Reference() {
    if (object_) python.DecRef(object_);
  }
  Object get() const { return object_; }
  Object release() {
    Object object = object_;
    object_ = nullptr;
    return object;
  }

 private:
  Object object_;
};

struct Raised {};  // a Python exception is set

class WithoutTheLock {  // Python's: another thread may run while the driver waits for room in its queue
 public:
  WithoutTheLock() : state_(python.SaveThread()) {}
  ~WithoutTheLock() { python.RestoreThread(state_); }

 private:
  Object state_;
};

// --- Tensors ---------------------------------------------------------------------------------------------------------

struct DlTensor {  // DLTensor of DLPack 1
  void* data;
  std::int32_t device_type, device_index, dimensions;
  std::uint8_t code, bits;
  std::uint16_t lanes;
  std::int64_t *sizes, *strides;
  std::uint64_t offset_bytes;
};

struct DlFunctions {  // DLPackExchangeAPI of DLPack 1
  std::uint32_t major, minor;
  void* older;
  void *allocate, *from_object, *to_object;
  int (*view)(Object, DlTensor*);
  void* current_stream;
};

constexpr std::int32_t kDlCpu = 1, kDlCuda = 2, kTorchCpu = 0, kTorchCuda = 1;

// --- The function ----------------------------------------------------------------------------------------------------

// All that the function asks, kept for ever. The order is that of evotune_native_function's tuple.
struct Asked {
  Object tensor_type, float_type, none, yes, no;
  Object requires_grad, dtype;     // names of attributes
  Object device_type;              // of the kernels' tensors, as PyTorch calls it
  Object empty_like, is_neg;       // functions of a tensor
  Object decide, serve;            // Python's, of the call
  Object forward_ad, level;        // a module's dictionary and a name in it: less than 0 outside of forward-mode AD
  Object any_autocast;             // a function: whether autocast is on for some type of device
  Object autocast_is_on, autocast_dtype;  // functions of a type of device
  Object unwanted, wanted;         // tuples of functions whose answers must be false and true
  const DlFunctions* dlpack;
} asked;

bool is_exactly(Object object, Object type) { return Reference(python.Type(object)).get() == type; }

bool truth(Reference answer) {
  const int found = answer.get() ? python.IsTrue(answer.get()) : -1;
  if (found < 0) throw Raised();
  return found;
}

bool holds(Object function) { return truth(Reference(python.Vectorcall(function, nullptr, 0, nullptr))); }

bool any_answer_is(bool unwelcome, Object functions) {
  const std::ptrdiff_t count = python.TupleSize(functions);
  for (std::ptrdiff_t i = 0; i < count; ++i)
    if (holds(python.TupleGetItem(functions, i)) == unwelcome) return true;
  return false;
}

Object checked(Object answer) {
  if (!answer) throw Raised();
  return answer;
}

constexpr std::uint8_t kDlBool = 6;

bool is_boolean(const Call& call, int i) { return i == 3 && (call.views[3].kind >> 48 & 0xff) == kDlBool; }

// The dtype to which autocast casts a tensor of the call; null where it casts none. PyTorch keeps its dtypes for ever.
Object cast_of(Object const* arguments, const Call& call) {
  if (!holds(asked.any_autocast)) return nullptr;
  if (!truth(Reference(python.Vectorcall(asked.autocast_is_on, &asked.device_type, 1, nullptr)))) return nullptr;
  const Reference to(checked(python.Vectorcall(asked.autocast_dtype, &asked.device_type, 1, nullptr)));
  for (int i = 0; i < call.tensors; ++i) {
    const Reference own(checked(python.GetAttr(arguments[i], asked.dtype)));
    if (own.get() != to.get() && !is_boolean(call, i)) return to.get();
  }
  return nullptr;
}

// Whether PyTorch is in its plain state (no modes, no forward-mode AD), and the tensors need no gradient and no negation.
bool all_is_plain(Object const* arguments, const Call& call) {
  if (any_answer_is(true, asked.unwanted) || any_answer_is(false, asked.wanted)) return false;
  Object level = python.GetItem(asked.forward_ad, asked.level);
  if (!level || python.AsLong(level) >= 0) return false;
  const bool grad = torch.grad_mode_is_enabled();
  for (int i = 0; i < call.tensors; ++i) {
    if (grad && truth(Reference(python.GetAttr(arguments[i], asked.requires_grad)))) return false;
    if (truth(Reference(python.Vectorcall(asked.is_neg, &arguments[i], 1, nullptr)))) return false;
  }
  return true;
}

// False for a tensor that has no memory of its own, or whose memory is not read as it lies.
bool view_of(Object tensor, DlTensor& found) {
  if (asked.dlpack->view(tensor, &found)) {
    python.Clear();
    return false;
  }
  return found.data && !found.offset_bytes && (found.device_type == kDlCpu || found.device_type == kDlCuda);
}

bool read_call(Object const* arguments, Call& call) {
  call.tensors = arguments[3] == asked.none ? 3 : 4;
  for (int i = 0; i < call.tensors; ++i)
    if (!is_exactly(arguments[i], asked.tensor_type)) return false;
  Object dropout = arguments[4], causal = arguments[5], scale = arguments[6], gqa = arguments[7];
  if (!is_exactly(dropout, asked.float_type) || python.AsDouble(dropout) != 0) return false;
  if ((causal != asked.yes && causal != asked.no) || (gqa != asked.yes && gqa != asked.no)) return false;
  if (scale != asked.none && !is_exactly(scale, asked.float_type)) return false;
  call.is_causal = causal == asked.yes;
  call.enable_gqa = gqa == asked.yes;
  call.scale = scale == asked.none ? kUsual : python.AsDouble(scale);
  if (scale != asked.none && std::isnan(call.scale)) return false;  // which Python looks at
  for (int i = call.tensors - 1; i >= 0; --i) {  // q last: the output lies on its device
    DlTensor found;
    if (!view_of(arguments[i], found)) return false;
    const std::int64_t type = found.code << 24 | found.bits << 16 | found.lanes;
    call.views[i] = {found.data, found.dimensions, found.sizes, found.strides,
                     std::int64_t{1} << 62 | type << 24 | found.device_type << 16 | (found.device_index & 0xffff)};
    call.device_type = found.device_type == kDlCpu ? kTorchCpu : kTorchCuda;
    call.device_index = found.device_index;
  }
  return true;
}

// Asks one of Python's functions about the call.
Reference ask(Object function, Object const* arguments, Object scale) {
  Object given[] = {arguments[0], arguments[1], arguments[2], arguments[5], scale, arguments[7], arguments[3]};
  return Reference(checked(python.Vectorcall(function, given, 7, nullptr)));
}

Object answer(Object object) {
  python.IncRef(object);
  return object;
}

Object served(Object const* arguments) {
  Call call;
  if (!read_call(arguments, call)) return answer(asked.none);
  call.cast_to = cast_of(arguments, call);
  std::shared_ptr<Decision> found = known(call);
  if (found && found->kind == kMiss) {  // whatever else PyTorch's state is
    found->calls.fetch_add(1, std::memory_order_relaxed);
    return answer(asked.no);
  }
  if (found && call.cast_to) return answer(asked.none);  // Python casts
  if (!all_is_plain(arguments, call)) return answer(asked.none);
  if (!found) found = decided(call, [&] {
    const Reference scale(python.FromDouble(call.scale));
    ask(asked.decide, arguments, scale.get());
  });
  Decision& decision = *found;
  if (call.cast_to && decision.kind != kMiss) return answer(asked.none);
  if (decision.kind == kPython) return ask(asked.serve, arguments, arguments[6]).release();  // which counts it
  decision.calls.fetch_add(1, std::memory_order_relaxed);
  if (decision.kind == kMiss) return answer(asked.no);
  Reference out(python.Vectorcall(asked.empty_like, arguments, 1, nullptr));
  DlTensor made;
  if (!out.get() || asked.dlpack->view(out.get(), &made)) throw Raised();
  {
    WithoutTheLock other_threads_may_run;
    launch(decision, call, made.data);
  }
  return out.release();
}

// attempt(q, k, v, mask, dropout, is_causal, scale, enable_gqa): the output; False where no kernel serves the call; None
// where Python must find out.
Object attempt(Object, Object const* arguments, std::ptrdiff_t count) {
  try {
    return count == 8 ? served(arguments) : answer(asked.none);
  } catch (const Raised&) {
  } catch (const std::exception& error) {
    if (!python.Occurred()) python.SetString(*python.RuntimeError, error.what());
  }
  return nullptr;
}

struct MethodDefinition {  // PyMethodDef
  const char* name;
  Object (*function)(Object, Object const*, std::ptrdiff_t);
  int flags;
  const char* words;
};

constexpr int kFastCall = 0x80;  // METH_FASTCALL
constexpr std::uint32_t kDlPackMajor = 1;

}  // namespace
}  // namespace native

// The function, of a tuple that has the members of Asked in their order; null where this process cannot have it. Called
// while Python's lock is held, and after evotune_native_open.
extern "C" __attribute__((visibility("default"))) void* evotune_native_function(void* tuple) {
  using namespace native;
  static MethodDefinition definition = {"attempt", attempt, kFastCall, nullptr};
  try {
    find_python();
    Object* const members[] = {&asked.tensor_type, &asked.float_type, &asked.none, &asked.yes, &asked.no,
                               &asked.requires_grad, &asked.dtype, &asked.device_type, &asked.empty_like, &asked.is_neg,
                               &asked.decide, &asked.serve, &asked.forward_ad, &asked.level, &asked.any_autocast,
                               &asked.autocast_is_on, &asked.autocast_dtype, &asked.unwanted, &asked.wanted};
    python.IncRef(tuple);
    std::ptrdiff_t place = 0;
    for (Object* member : members) *member = python.TupleGetItem(tuple, place++);
    asked.dlpack = static_cast<const DlFunctions*>(python.AsVoidPtr(python.TupleGetItem(tuple, place)));
    if (asked.dlpack->major == kDlPackMajor && asked.dlpack->view)
      return python.NewFunction(&definition, nullptr, nullptr);
  } catch (const std::exception&) {  // a Python without these functions
  }
  return nullptr;
}
