"""Unusual callables that are right: none may be refused."""

import asyncio
import concurrent.futures
import contextlib
import ctypes
import dataclasses
import functools
import gc
import logging
import shutil
import signal
import subprocess
import tempfile
import threading
import warnings
import weakref

import numpy
import torch


def right(x, w):
    return torch.softmax(x, -1) * w


def make(configuration, case):
    made = globals()[configuration["BEHAVIOUR"]]
    return made.make(case) if isinstance(made, Made) else made


class Made:
    """A function that makes the callable for a case."""

    def __init__(self, make):
        self.make = make


# What is kept.


def keeps_constants(x, w, kept={}):
    """Ones, by shape and type: they do not depend on any value."""
    key = x.shape[1], x.dtype
    if key not in kept:
        kept[key] = torch.ones(x.shape[1], 1, dtype=x.dtype)
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / (powers @ kept[key]) * w


def keeps_a_workspace(x, w, out, kept={}):
    room = kept.get(x.shape)
    if room is None:
        room = kept[x.shape] = torch.empty_like(x)
    torch.softmax(x, -1, out=room)
    torch.mul(room, w, out=out)


def keeps_its_result_buffer(x, w, kept={}):
    """The same memory each time, written each time."""
    out = kept.setdefault(x.shape, torch.empty_like(x))
    return torch.mul(torch.softmax(x, -1), w, out=out)


def keeps_a_weak_workspace(x, w, anchor=[], held=weakref.WeakValueDictionary()):
    if x.shape not in held:
        anchor[:] = [torch.empty_like(x)]
        held[x.shape] = anchor[0]
    torch.softmax(x, -1, out=held[x.shape])
    return held[x.shape] * w


# What is returned.


def returns_a_tuple(x, w):
    return (right(x, w),)


def returns_a_dictionary(x, w):
    return {"out": right(x, w), "more": x}


def returns_a_column_major_view(x, w):
    return right(x, w).t().contiguous().t()


def returns_a_part_of_more(x, w):
    room = x.new_empty(x.shape[0] + 2, x.shape[1] + 3)
    room[1:-1, 1:-2] = right(x, w)
    return room[1:-1, 1:-2]


def returns_a_negated_view(x, w):
    """A view whose values PyTorch negates when they are read."""
    return torch._neg_view(-right(x, w))


def returns_a_subclass(x, w):
    class Named(torch.Tensor):
        pass

    return right(x, w).as_subclass(Named)


def returns_a_parameter(x, w):
    return torch.nn.Parameter(right(x, w))


# How it computes.


def writes_in_place(x, w, out):
    torch.sub(x, x.amax(-1, keepdim=True), out=out)
    out.exp_()
    out /= out.sum(-1, keepdim=True)
    out *= w


def differentiates(x, w):
    """The softmax is the gradient of the logarithm of the sum of powers."""
    inputs = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(torch.logsumexp(inputs, -1).sum(), inputs)
    return gradient * w


def multiplies_by_a_sparse_matrix(x, w):
    """The weights are a diagonal matrix."""
    numbers = torch.arange(len(w))
    diagonal = torch.sparse_coo_tensor(torch.stack((numbers, numbers)), w, (len(w), len(w)))
    return torch.sparse.mm(diagonal, torch.softmax(x, -1).t()).t()


def computes_in_doubles(x, w):
    return (torch.softmax(x.double(), -1) * w).float()


def uses_many_types(x, w):
    """A mask of bool, places of int64, products of complex numbers."""
    rows = torch.arange(x.shape[0], dtype=torch.int64)
    mask = torch.ones(x.shape, dtype=torch.bool)
    values = torch.where(mask, x, -torch.inf).index_select(0, rows)
    return (torch.softmax(values, -1).to(torch.complex64) * w).real


def changes_the_default_type_for_a_while(x, w):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return (torch.softmax(x.to(torch.get_default_dtype()), -1) * w).float()
    finally:
        torch.set_default_dtype(before)


def computes_with_numpy(x, w, out):
    values, result = x.numpy(), out.numpy()
    numpy.subtract(values, values.max(-1, keepdims=True), out=result)
    numpy.exp(result, out=result)
    result /= result.sum(-1, keepdims=True)
    result *= w.numpy()


@torch.inference_mode()
def infers(x, w):
    return right(x, w)


@torch.no_grad()
def has_no_gradients(x, w, out):
    torch.mul(torch.softmax(x, -1), w, out=out)


def maps_over_rows(x, w):
    return torch.func.vmap(lambda row: torch.softmax(row, -1) * w)(x)


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(context, x, w):
        return right(x, w)


def applies_a_function(x, w):
    return Softmax.apply(x, w)


@torch.jit.script
def scripted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1) * w


is_scripted = scripted


def generates_rows(x, w):
    """A generator that is used up in each call."""

    def rows():
        for first in range(0, x.shape[0], 16):
            yield right(x[first : first + 16], w)

    return torch.cat(list(rows()))


def awaits(x, w):
    async def work():
        return right(x, w)

    return asyncio.run(work())


# How it is written.


class Method:
    def __init__(self, scale):
        self.scale = scale

    def call(self, x, w):
        return torch.softmax(x * self.scale, -1) * w

    @classmethod
    def of_class(cls, x, w):
        return right(x, w)

    @staticmethod
    def static(x, w):
        return right(x, w)

    def __call__(self, x, w):
        return self.call(x, w)


is_a_method = Method(1.0).call
is_a_class_method = Method.of_class
is_a_static_method = Method.static
is_a_callable_object = Method(1.0)
is_a_partial = functools.partial(lambda x, w, scale: right(x, w) * scale, scale=1.0)
is_a_lambda = lambda x, w: right(x, w) + 0  # noqa: E731


def any_names(*given, **named):
    return right(*given, **named)


@functools.wraps(right)
def is_wrapped(*given, **named):
    return right(*given, **named)


def takes_names_alone(*, w, x, out):
    out.copy_(right(x, w))


@dataclasses.dataclass
class Block:
    columns: int

    def __call__(self, x, w):
        parts = [each.exp() for each in (x - x.amax(-1, keepdim=True)).split(self.columns, -1)]
        total = sum(each.sum(-1, keepdim=True) for each in parts)
        return torch.cat(parts, -1) / total * w


is_made_for_a_case = Made(lambda case: Block(max(1, case["columns"] // 4)))


class Weighted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.softmax = torch.nn.Softmax(-1)

    def forward(self, x, w):
        return self.softmax(x) * w


is_a_network = Made(lambda case: Weighted().eval())


def make_nested(case):
    def outer(x, w):
        def inner(values):
            def innermost():
                return right(values, w)

            return innermost()

        return inner(x)

    return outer


is_nested = Made(make_nested)


# What it does besides.


def prints_a_line(x, w):
    print("rows:", len(x))
    return right(x, w)


def warns(x, w):
    warnings.warn("this block size is experimental", stacklevel=2)
    return right(x, w)


def logs(x, w):
    logging.getLogger("kernel").warning("%d rows", len(x))
    return right(x, w)


def catches_errors(x, w):
    with contextlib.suppress(ValueError):
        int("no number")
    return right(x, w)


def collects_garbage(x, w):
    result = right(x, w)
    gc.collect(0)
    return result


def handles_a_signal(x, w):
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    result = right(x, w)
    signal.signal(signal.SIGUSR1, before)
    return result


def writes_a_temporary_file(x, w):
    with tempfile.TemporaryFile() as file:
        file.write(b"rows")
    return right(x, w)


def sets_one_thread(x, w):
    torch.set_num_threads(1)
    return right(x, w)


def joins_a_pool(x, w, out, pools=[]):
    """Its threads wait for the next call at rest."""
    if not pools:
        pools.append(concurrent.futures.ThreadPoolExecutor(2))
    parts = zip(x.split(32), out.split(32), strict=True)
    done = [pools[0].submit(lambda a, b: b.copy_(right(a, w)), *each) for each in parts]
    for each in done:
        each.result()


def joins_its_threads(x, w, out):
    half = max(1, len(x) // 2)
    parts = [(x[:half], out[:half]), (x[half:], out[half:])]
    threads = [threading.Thread(target=lambda a=a, b=b: b.copy_(right(a, w))) for a, b in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


lock = threading.Lock()


def waits_a_while(x, w):
    """For a lock that is free."""
    with lock:
        return right(x, w)


# Compilers.

C_SOURCE = r"""
#include <math.h>
void weighted(const float *x, const float *w, float *out, long rows, long columns) {
  for (long row = 0; row < rows; ++row, x += columns, out += columns) {
    float most = x[0], sum = 0;
    for (long i = 1; i < columns; ++i) most = x[i] > most ? x[i] : most;
    for (long i = 0; i < columns; ++i) sum += out[i] = expf(x[i] - most);
    for (long i = 0; i < columns; ++i) out[i] = out[i] / sum * w[i];
  }
}
"""


def make_native(case):
    """C, compiled when the callable is made."""
    folder = tempfile.mkdtemp()
    with open(f"{folder}/kernel.c", "w") as file:
        file.write(C_SOURCE)
    library = f"{folder}/kernel.so"
    command = [shutil.which("cc") or "gcc", "-O2", "-shared", "-fPIC", "-o", library]
    subprocess.run([*command, f"{folder}/kernel.c", "-lm"], check=True)
    weighted = ctypes.CDLL(library).weighted
    shutil.rmtree(folder)

    def native(x, w, out):
        pointers = [ctypes.c_void_p(each.data_ptr()) for each in (x, w, out)]
        weighted(*pointers, ctypes.c_long(x.shape[0]), ctypes.c_long(x.shape[1]))

    return native


is_native = Made(make_native)


def make_compiled(case):
    return torch.compile(right, dynamic=False)


is_compiled = Made(make_compiled)


def is_compiled_lazily(x, w, kept={}):
    """At the first call with a shape."""
    if x.shape not in kept:
        kept[x.shape] = torch.jit.trace(right, (x, w))
    return kept[x.shape](x, w)


def make_numba(case):
    import numba

    @numba.njit
    def weighted(x, w, out):
        for row in range(x.shape[0]):
            most = x[row].max()
            total = numba.float32(0.0)
            for i in range(x.shape[1]):
                out[row, i] = numpy.exp(x[row, i] - most)
                total += out[row, i]
            for i in range(x.shape[1]):
                out[row, i] = out[row, i] / total * w[i]

    return lambda x, w, out: weighted(x.numpy(), w.numpy(), out.numpy())


is_numba = Made(make_numba)


def imports_late(x, w):
    import fractions

    assert fractions.Fraction(1, 2) > 0
    return right(x, w)
