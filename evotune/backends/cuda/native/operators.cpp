// The native launcher of an exported package of attention kernels: a call of the operator runs from here to the
// driver without Python. `python_calls.cpp` is the shorter way for calls of Python.
//
// Python decides which kernel serves a case, once: `_decide` is an operator that Python implements and this file calls
// for a key that it does not know. Python answers with evotune_native_add, which stores the decision under that key.
#include "launching.h"

namespace native {
namespace {

std::string names_space;  // the namespace of the operators

struct Arguments {
  Owned tensors[4];  // as in call.views
  Call call;
  std::int32_t dtype;
};

double number(Value value) {
  double found;
  std::memcpy(&found, &value, sizeof found);
  return found;
}

// The content of an optional value of PyTorch: null, or a value of its own on the heap, which the callee frees.
bool take_optional(Value value, Value& found) {
  if (!value) return false;
  Value* boxed = reinterpret_cast<Value*>(value);
  found = *boxed;
  if (torch.delete_stable_ivalue)
    torch.delete_stable_ivalue(boxed);
  else
    delete boxed;
  return true;
}

Value optional_of(Tensor tensor) {
  Value* boxed = nullptr;
  if (torch.new_stable_ivalue)
    require(torch.new_stable_ivalue(&boxed), "new_stable_ivalue");
  else
    boxed = new Value;
  *boxed = reinterpret_cast<Value>(tensor);
  return reinterpret_cast<Value>(boxed);
}

Arguments arguments_of(Value* stack) {
  Arguments arguments;
  for (int i = 0; i < 3; ++i) arguments.tensors[i] = Owned(reinterpret_cast<Tensor>(stack[i]));
  Value mask;
  const bool is_masked = take_optional(stack[6], mask);
  if (is_masked) arguments.tensors[3] = Owned(reinterpret_cast<Tensor>(mask));
  std::uint8_t flags[2];
  std::memcpy(&flags[0], &stack[3], 1);
  std::memcpy(&flags[1], &stack[5], 1);
  Call& call = arguments.call;
  call.is_causal = flags[0];
  call.enable_gqa = flags[1];
  call.scale = number(stack[4]);
  call.tensors = is_masked ? 4 : 3;
  for (int i = call.tensors - 1; i >= 0; --i) {  // q last: the output has its dtype, and lies on its device
    Tensor tensor = arguments.tensors[i].get();
    View& view = call.views[i];
    std::int64_t *sizes = nullptr, *strides = nullptr;
    require(torch.get_dim(tensor, &view.dimensions), "get_dim");
    require(torch.get_sizes(tensor, &sizes), "get_sizes");
    require(torch.get_strides(tensor, &strides), "get_strides");
    require(torch.get_dtype(tensor, &arguments.dtype), "get_dtype");
    require(torch.get_device_type(tensor, &call.device_type), "get_device_type");
    require(torch.get_device_index(tensor, &call.device_index), "get_device_index");
    view.sizes = sizes;
    view.strides = strides;
    view.kind = std::int64_t{arguments.dtype} << 32 | call.device_type << 16 | (call.device_index & 0xffff);
    view.data = data_of(tensor);
  }
  return arguments;
}

// Calls an operator that Python implements with the call's arguments. Its result is a tensor or a number.
Value ask(const Arguments& arguments, const char* name) {
  Value stack[7];
  for (int i = 0; i < arguments.call.tensors; ++i) {
    Tensor copy = nullptr;  // the dispatcher takes the handles over
    require(torch.new_tensor_handle(arguments.tensors[i].get(), &copy), "new_tensor_handle");
    stack[i] = reinterpret_cast<Value>(copy);
  }
  stack[6] = arguments.call.tensors > 3 ? optional_of(reinterpret_cast<Tensor>(stack[3])) : 0;
  stack[3] = arguments.call.is_causal;
  std::memcpy(&stack[4], &arguments.call.scale, sizeof arguments.call.scale);
  stack[5] = arguments.call.enable_gqa;
  const std::string whole = names_space + "::" + name;
  require(torch.call_dispatcher(whole.c_str(), "", stack, torch.abi_version()), name);
  return stack[0];
}

// The output's memory, with the strides that empty_like gives it. The decision has the strides of the first call with
// its key. Another call with that key may have other strides in dimensions of size 1, which a key leaves out.
Owned empty_like_q(const Arguments& arguments, const Decision& decision) {
  const Call& call = arguments.call;
  const View& q = call.views[0];
  bool is_dense = true, has_one_index = false;  // a dense tensor's strides are kept, whatever they are
  for (std::int64_t d = 0; d < q.dimensions; ++d) {
    if (q.sizes[d] == 1) has_one_index = true;
    else if (q.strides[d] != decision.strides[d]) is_dense = false;
  }
  Tensor made = nullptr;
  if (is_dense || !has_one_index) {
    require(torch.empty_strided(q.dimensions, q.sizes, is_dense ? q.strides : decision.strides.data(), arguments.dtype,
                                call.device_type, call.device_index, &made),
            "empty_strided");
  } else {
    require(torch.new_tensor_handle(arguments.tensors[0].get(), &made), "new_tensor_handle");
    Value stack[6] = {reinterpret_cast<Value>(made)};  // all options are None
    require(torch.call_dispatcher("aten::empty_like", "", stack, torch.abi_version()), "empty_like");
    made = reinterpret_cast<Tensor>(stack[0]);
  }
  return Owned(made);
}

// The output; nothing where no kernel serves the call.
Owned served(const Arguments& arguments) {
  const Call& call = arguments.call;
  std::shared_ptr<Decision> found = known(call);
  if (!found) found = decided(call, [&] { ask(arguments, "_decide"); });
  Decision& decision = *found;
  if (decision.kind == kPython)  // which counts it
    return Owned(reinterpret_cast<Tensor>(ask(arguments, "_launch")));
  decision.calls.fetch_add(1, std::memory_order_relaxed);
  if (decision.kind == kMiss) return Owned();
  Owned out = empty_like_q(arguments, decision);
  launch(decision, call, data_of(out.get()));
  return out;
}

// _attempt(Tensor q, Tensor k, Tensor v, bool is_causal, float scale, bool enable_gqa, Tensor? attn_mask) -> Tensor:
// undefined, which is None in Python, where no kernel serves the call.
void attempt(Value* stack, std::uint64_t, std::uint64_t) {
  Owned out = served(arguments_of(stack));
  if (!out.get()) {
    Tensor undefined = nullptr;
    require(torch.new_uninitialized_tensor(&undefined), "new_uninitialized_tensor");
    out = Owned(undefined);
  }
  stack[0] = reinterpret_cast<Value>(out.release());
}

// _served, with the same arguments: SDPA serves what no kernel does.
void serve(Value* stack, std::uint64_t, std::uint64_t) {
  const Arguments arguments = arguments_of(stack);
  Owned out = served(arguments);
  stack[0] = out.get() ? reinterpret_cast<Value>(out.release()) : ask(arguments, "_before");
}

// A float? of PyTorch.
double optional_number(Value value) {
  Value found;
  if (!take_optional(value, found)) return kUsual;
  return std::isnan(number(found)) ? -kUsual : number(found);  // a caller's NaN has a sign here
}

// attention(Tensor q, Tensor k, Tensor v, bool is_causal=False, float? scale=None, bool enable_gqa=False,
//           Tensor? attn_mask=None) -> Tensor
void attention(Value* stack, std::uint64_t count, std::uint64_t results) {
  const double scale = optional_number(stack[4]);
  std::memcpy(&stack[4], &scale, sizeof scale);
  serve(stack, count, results);
}

// The same for tensors that may require grad, or carry a tangent of forward mode (without grad mode, too), which this
// file cannot ask. The tensors may also be those of a compiler that traces: so it calls an operator, and looks at nothing.
void attention_with_autograd(Value* stack, std::uint64_t, std::uint64_t) {
  const double scale = optional_number(stack[4]);
  std::memcpy(&stack[4], &scale, sizeof scale);
  const std::string name = names_space + "::_with_grad";
  require(torch.call_dispatcher(name.c_str(), "", stack, torch.abi_version()), name.c_str());
}

thread_local std::string failure;

}  // namespace
}  // namespace native

#define EXPORTED extern "C" __attribute__((visibility("default")))

// Whether the library is that of a namespace already.
EXPORTED int evotune_native_is_open() { return !native::names_space.empty(); }

// Implements the operators of a namespace for a dispatch key, CUDA for one. Returns why that fails, or null.
EXPORTED const char* evotune_native_open(const char* space, const char* key) {
  using namespace native;
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

// Keeps a decision (its words are in decisions.h) under the key that Python was asked about in this thread, and returns
// its number.
EXPORTED std::int64_t evotune_native_add(const std::int64_t* words) {
  return native::keep(native::read_decision(words));
}

// Forgets which decisions were made for which keys: each case is asked about again.
EXPORTED void evotune_native_forget() { native::forget(); }

// The calls of a decision since the last time that it was asked; 0 of one that was dropped.
EXPORTED std::int64_t evotune_native_calls(std::int64_t number) { return native::calls_of(number); }

// Drops a decision whose key was forgotten: nobody will ask for its calls.
EXPORTED void evotune_native_drop(std::int64_t number) { native::drop(number); }
