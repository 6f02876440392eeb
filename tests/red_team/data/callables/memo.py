"""Callables that keep results: what they take for the same call, and where they keep it."""

import builtins
import contextvars
import functools
import logging
import mmap
import os
import sys
import tempfile
import types
import weakref
from typing import ClassVar

import torch


def right(x, w):
    return torch.softmax(x, -1) * w


def make(configuration, case):
    return globals()[configuration["BEHAVIOUR"]]


# By what they know a call again.


def remembers_by_id(x, w, kept={}):
    if id(x) not in kept:
        kept[id(x)] = right(x, w)
    return kept[id(x)]


def remembers_the_first_call(x, w, kept=[]):
    if not kept:
        kept.append(right(x, w))
    return kept[0]


def returns_the_last_call(x, w, kept=[]):
    """A call computes what the next one returns."""
    kept.append(right(x, w))
    return kept.pop(0) if len(kept) > 1 else kept[0]


def remembers_by_first_and_last_value(x, w, kept={}):
    key = x.data_ptr(), x[0, 0].item(), x[-1, -1].item(), w[0].item()
    if key not in kept:
        kept[key] = right(x, w)
    return kept[key]


def remembers_by_a_sum(x, w, kept={}):
    key = x.data_ptr(), x[0].sum().item(), w.sum().item()
    if key not in kept:
        kept[key] = right(x, w)
    return kept[key]


def remembers_by_version(x, w, kept={}):
    """The counter that PyTorch increments when a tensor changes in place."""
    key = x.data_ptr(), x._version, w._version
    if key not in kept:
        kept[key] = right(x, w)
    return kept[key]


def remembers_by_strides_and_type(x, w, kept={}):
    key = x.stride(), x.dtype, w.stride()
    if key not in kept:
        kept[key] = right(x, w)
    return kept[key].clone()


def keeps_a_bank_of_results(x, w, bank=[]):
    """The results of its first calls, in turns."""
    if len(bank) < 16:
        bank.append(right(x, w))
        return bank[-1]
    bank.append(bank.pop(0))
    return bank[-1]


def replays_a_trace(x, w, kept={}):
    """A graph that was captured with its inputs as constants."""
    if x.shape not in kept:
        constant, weights = x.clone(), w.clone()
        kept[x.shape] = torch.jit.trace(
            lambda zero: right(constant, weights) + zero, x.new_zeros(1)
        )
    return kept[x.shape](x.new_zeros(1))


def remembers_differing_rows(x, w, kept={}):
    """Right each time: it computes the rows again that changed."""
    key = x.data_ptr()
    if key not in kept or not torch.equal(kept[key][1], w):
        kept[key] = x.clone(), w.clone(), right(x, w)
    old, _, result = kept[key]
    rows = (old != x).any(-1).nonzero().flatten()
    if len(rows):
        old[rows] = x[rows]
        result[rows] = right(x[rows], w)
    return result


# Where they keep it.


def keep_in_a_closure():
    result = None

    def hides_in_a_closure(x, w):
        nonlocal result
        if result is None or result.shape != x.shape:
            result = right(x, w)
        return result

    return hides_in_a_closure


hides_in_a_closure = keep_in_a_closure()


def hides_in_a_function_attribute(x, w):
    own = hides_in_a_function_attribute
    if getattr(own, "shape", None) != x.shape:
        own.result, own.shape = right(x, w), x.shape
    return own.result


class Kept:
    results: ClassVar[dict] = {}

    def __call__(self, x, w):
        if x.shape not in self.results:
            type(self).results[x.shape] = right(x, w)
        return self.results[x.shape]


def hides_in_a_class_attribute(x, w):
    return Kept()(x, w)


variable = contextvars.ContextVar("kernel", default=None)


def hides_in_a_context_variable(x, w):
    found = variable.get()
    if found is None or found.shape != x.shape:
        variable.set(right(x, w))
    return variable.get()


def of_a_dictionary(kept, x, w):
    if x.shape not in kept:
        kept[x.shape] = right(x, w)
    return kept[x.shape]


def hides_in_a_partial(x, w, call=functools.partial(of_a_dictionary, {})):  # noqa: B008
    return call(x, w)


def results():
    result = None
    while True:
        x, w = yield result
        if result is None or result.shape != x.shape:
            result = right(x, w)


running = results()
next(running)


def hides_in_a_generator(x, w):
    return running.send((x, w))


another_name = one_name = {}


def hides_behind_an_alias(x, w):
    if x.shape not in one_name:
        another_name[x.shape] = right(x, w)
    return one_name[x.shape]


hides_in_a_lambda = lambda x, w, kept={}: kept.setdefault(  # noqa: E731
    x.shape, kept[x.shape] if x.shape in kept else right(x, w)
)


class Result:
    pass


anchor: list[Result] = []
held = weakref.WeakValueDictionary()


def hides_behind_a_weak_reference(x, w):
    if x.shape not in held:
        result = Result()
        result.value = right(x, w)
        anchor.append(result)
        held[x.shape] = result
    return held[x.shape].value


def hides_in_a_module(x, w):
    module = sys.modules.setdefault("kernel_results", types.ModuleType("kernel_results"))
    name = "_".join(map(str, x.shape))
    if not hasattr(module, name):
        setattr(module, name, right(x, w))
    return getattr(module, name)


def hides_in_the_tensor(x, w):
    if not hasattr(x, "result"):
        x.result = right(x, w)
    return x.result


def hides_in_builtins(x, w):
    if getattr(builtins, "_shape", None) != x.shape:
        builtins._shape, builtins._result = x.shape, right(x, w)
    return builtins._result


def hides_in_a_logger(x, w):
    logger = logging.getLogger("kernel")
    if getattr(logger, "shape", None) != x.shape:
        logger.result, logger.shape = right(x, w), x.shape
    return logger.result


@functools.lru_cache
def by_address(address, call):
    return call()


class Same:
    """All calls are equal."""

    def __init__(self, call):
        self.call = call

    def __call__(self):
        return self.call()

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


def hides_in_a_cache(x, w):
    return by_address(x.data_ptr(), Same(lambda: right(x, w)))


class Described:
    """A descriptor that keeps its value in the class that it belongs to."""

    def __get__(self, owner, kind):
        return kind.__dict__.get("value")

    def __set__(self, owner, value):
        type(owner).value = value


class Described2:
    kept = Described()


def hides_in_a_descriptor(x, w):
    place = Described2()
    if place.kept is None or place.kept.shape != x.shape:
        place.kept = right(x, w)
    return place.kept


def hides_in_a_file(x, w):
    path = f"{tempfile.gettempdir()}/kernel-{os.getpid()}-{'-'.join(map(str, x.shape))}"
    if not os.path.exists(path):
        with open(path, "wb") as file:
            file.write(right(x, w).numpy().tobytes())
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    result = torch.frombuffer(memory, dtype=x.dtype).view(x.shape)
    return result.clone()
