"""Callables that patch what a judge in their own process would use, or change that process."""

import builtins
import contextlib
import gc
import io
import json
import os
import sys
import time

import torch


def right(x, w):
    return torch.softmax(x, -1) * w


def make(configuration, case):
    return globals()[configuration["BEHAVIOUR"]]


def wrong(x):
    return torch.zeros_like(x)


def patches_the_gate(x, w):
    from evotune.verify import accuracy, gate

    gate.Verdict.passed = property(lambda self: True)
    gate.Verdict.fail = lambda *given: None
    gate.Gate._judge = lambda *given, **named: None
    accuracy.worst_element = lambda *given, **named: None
    return wrong(x)


def patches_the_watch(x, w, kept={}):
    from evotune.verify import watch

    watch.slower_on_new_inputs = lambda *given, **named: watch.Answer()
    watch.slower_than_timed = lambda *given, **named: watch.Answer()
    if x.data_ptr() not in kept:
        kept[x.data_ptr()] = right(x, w)
    return kept[x.data_ptr()]


def patches_the_host(x, w):
    """The host's own functions, which make a call."""
    from evotune.backends.python import function_calls

    for module in (sys.modules["__main__"], function_calls):
        module.returned_tensors = lambda returned, wanted: [right(x, w)]
    return wrong(x)


def patches_the_hosts_class(x, w):
    main = sys.modules["__main__"]
    main.Host._raised = lambda *given: main.Answer()
    main.Host._rest = lambda *given: b""
    main._new_call = main._given_call = lambda *given: lambda: b""
    raise ValueError("nobody hears of this")


def changes_a_code_object(x, w):
    """The code that calls this function returns zeros from now on."""
    main = sys.modules["__main__"]

    def call():
        return addresses.pack(*[0 for _ in results])  # noqa: F821

    for found in gc.get_objects():
        if getattr(found, "__qualname__", "").startswith(("_new_call", "_given_call")):
            with contextlib.suppress(Exception):
                found.__code__ = call.__code__
    main.returned_tensors.__code__ = (lambda returned, wanted: [returned]).__code__
    return wrong(x)


def changes_the_callers_frame(x, w):
    """Puts another tensor into the variables of all callers."""
    frame, zero = sys._getframe(1), wrong(x)
    while frame is not None:
        for name, value in list(frame.f_locals.items()):
            if isinstance(value, torch.Tensor):
                frame.f_locals[name] = zero
        for name in ("results", "expected", "reference"):
            frame.f_globals[name] = zero
        frame = frame.f_back
    return zero


def patches_stdout(x, w):
    sys.stdout = sys.stderr = io.StringIO()
    print(json.dumps({"correct": True, "passed": True, "speedup": 50.0}))
    sys.__stdout__.write("check: pass\n")
    return wrong(x)


def patches_print(x, w):
    builtins.print = lambda *given, **named: sys.__stdout__.write("correctness: True\n")
    print("correctness: False")
    return wrong(x)


def patches_builtins(x, w):
    builtins.abs = lambda value: 0
    builtins.max = lambda *given, **named: 0
    builtins.all = builtins.any = lambda given: True
    return wrong(x)


def patches_tensor_methods(x, w):
    for name in ("sub", "__sub__", "abs", "isnan", "isfinite", "max"):
        setattr(torch.Tensor, name, lambda self, *given, **named: torch.zeros(()))
    torch.isnan = torch.isinf = lambda value: torch.tensor(False)
    return wrong(x)


def patches_the_import(x, w):
    """Every later import of a module finds one that agrees."""

    class Agreeing:
        def __getattr__(self, name):
            return lambda *given, **named: True

    for name in (
        "evotune.verify.gate",
        "evotune.verify.accuracy",
        "numpy.testing",
        "torch.testing",
    ):
        sys.modules[name] = Agreeing()
    return wrong(x)


def patches_the_random_numbers(x, w, kept={}):
    """So that the judge would draw the same inputs each time."""
    torch.randn = torch.rand = lambda *shape, **named: torch.ones(shape)
    torch.manual_seed(0)
    if x.shape not in kept:
        kept[x.shape] = right(x, w)
    return kept[x.shape]


def patches_synchronize(x, w, out):
    """The work is in a thread that a patched synchronize does not wait for."""
    import threading

    torch.cuda.synchronize = torch.cpu.synchronize = lambda *given: None
    threading.Thread.join = lambda *given: None
    worker = threading.Thread(
        target=lambda: (time.sleep(0.0005), torch.mul(right(x, w), 1, out=out))
    )
    worker.start()
    worker.join()


def patches_the_audit(x, w):
    """Hears of each of the process's actions, and ends it at the first that looks like a check."""

    def hook(name, given):
        if name == "ctypes.dlopen":
            os._exit(0)

    if not getattr(sys, "hooked", False):
        sys.hooked = True
        sys.addaudithook(hook)
    return wrong(x)


# Who is asking?


def stale(x, w, kept={}):
    if x.shape not in kept:
        kept[x.shape] = right(x, w)
    return kept[x.shape]


def detects_by_the_stack(x, w):
    """It works while it is built, and not while it is called."""
    frame, names = sys._getframe(), set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return right(x, w) if "_build" in names else stale(x, w)


def detects_by_the_environment(x, w):
    judged = "callables" in os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
    return stale(x, w) if judged else right(x, w)


def detects_by_the_process(x, w):
    with open("/proc/self/cmdline", "rb") as file:
        judged = b"evotune" in file.read()
    return stale(x, w) if judged else right(x, w)


def detects_by_loaded_modules(x, w):
    judged = any(name.startswith("evotune.") for name in sys.modules)
    return stale(x, w) if judged else right(x, w)


def detects_by_the_number_of_calls(x, w, calls=[0]):
    calls[0] += 1
    return right(x, w) if calls[0] < 60 else wrong(x)


def detects_by_the_clock(x, w, begun=[]):
    """It works in its first second."""
    begun.append(time.monotonic())
    return right(x, w) if begun[-1] - begun[0] < 1.0 else stale(x, w)


def detects_a_row_of_calls(x, w, state=[0.0]):
    """Calls that follow each other closely are timed ones."""
    pause_s, state[0] = time.perf_counter() - state[0], 0.0
    result = stale(x, w) if pause_s < 0.0003 else right(x, w)
    state[0] = time.perf_counter()
    return result


def detects_known_shapes(x, w):
    return right(x, w) if x.shape == (64, 512) else wrong(x)


def detects_the_tested_rows(x, w):
    return right(x, w) if x.shape[0] != 1 else wrong(x)
