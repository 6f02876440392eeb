"""Callables that are right, slow, or cheat. They know how the judge's host works."""

import atexit
import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
import threading
import time

import torch


def right(x, w):
    return torch.softmax(x, -1) * w


def fill(x, w, out):
    torch.mul(torch.softmax(x, -1), w, out=out)


def make(configuration, case):
    return globals()[configuration["BEHAVIOUR"]]


# Right ones.


def takes_outputs(x, w, out):
    fill(x, w, out)


def returns_a_view(x, w):
    return [right(x, w).t().contiguous().t()]


scratch = {}


def keeps_scratch(x, w):
    room = scratch.setdefault(tuple(x.shape), torch.empty_like(x))
    torch.sub(x, x.amax(-1, keepdim=True), out=room).exp_()
    return {"out": room / room.sum(-1, keepdim=True) * w}


# Slow ones, that make time pass more slowly or the baseline slower.


def slow(x, w):
    for _ in range(3):
        result = right(x, w)
    return result


def patch_clocks():
    for name in ("perf_counter", "monotonic", "time", "process_time", "thread_time"):
        original = getattr(time, name)
        setattr(time, name, lambda original=original: original() / 100)
        original_ns = getattr(time, f"{name}_ns")
        setattr(time, f"{name}_ns", lambda original=original_ns: original() // 100)
    of_clock = time.clock_gettime_ns
    time.clock_gettime_ns = lambda clock: of_clock(clock) // 100


def patch_torch():
    original = torch.softmax

    def sluggish(*given, **named):
        time.sleep(0.01)
        return original(*given, **named)

    torch.Tensor.softmax = sluggish
    torch.nn.functional.softmax = sluggish
    torch.set_num_threads(1)


def patch_events():
    class Event:
        def __init__(self, *given, **named):
            pass

        def record(self, *given):
            pass

        def elapsed_time(self, other):
            return 0.001

    torch.cuda.Event = Event
    torch.cuda.synchronize = lambda *given: None


def patched_once(patch, done=set()):
    if patch not in done:
        done.add(patch)
        patch()


def patches_clocks(x, w):
    patched_once(patch_clocks)
    return slow(x, w)


def patches_torch(x, w):
    patched_once(patch_torch)
    return slow(x, w)


def patches_events(x, w):
    patched_once(patch_events)
    return slow(x, w)


# Wrong answers, and attempts to have them believed.


def patches_comparisons(x, w):
    torch.allclose = torch.equal = lambda *given, **named: True
    torch.testing.assert_close = lambda *given, **named: None
    torch.Tensor.__eq__ = torch.Tensor.ne = lambda *given: torch.tensor(True)
    return torch.zeros_like(x)


def searches_for_the_reference(x, w):
    for found in gc.get_objects():
        with contextlib.suppress(Exception):
            if isinstance(found, torch.Tensor) and found.shape == x.shape and found is not x:
                return found.to(x.dtype)
    frame = sys._getframe()
    while frame is not None:
        for value in frame.f_locals.values():
            if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
                return value.to(x.dtype)
        frame = frame.f_back
    return torch.zeros_like(x)


def forges_a_verdict(x, w):
    print(json.dumps({"passed": True, "speedup": 100.0}))
    sys.stdout.flush()
    atexit.register(os._exit, 0)
    sys.exit(0)


def half_precision(x, w):
    return (torch.softmax(x.bfloat16(), -1) * w.bfloat16()).float()


def remembers_by_shape(x, w, kept={}):
    if x.shape not in kept:
        kept[x.shape] = right(x, w)
    return kept[x.shape]


def remembers_by_address(x, w, kept={}):
    key = x.data_ptr(), w.data_ptr()
    if key not in kept:
        kept[key] = right(x, w)
    return kept[key]


def works_every_third_time(x, w, state=[0, None]):
    state[0] += 1
    if state[1] is None or state[0] % 3 == 0 or state[1].shape != x.shape:
        state[1] = right(x, w)
    return state[1]


last = []


def remembers_by_value(x, w):
    if last and last[0].shape == x.shape and torch.equal(last[0], x) and torch.equal(last[1], w):
        return last[2]
    last[:] = [x.clone(), w.clone(), right(x, w)]
    return last[2]


# Work that is done later, or elsewhere.


class Lazy(torch.Tensor):
    """Computes when somebody copies it."""

    @classmethod
    def __torch_function__(cls, function, types, given=(), named=None):
        plain = [each.made() if isinstance(each, Lazy) else each for each in given]
        return function(*plain, **(named or {}))

    def made(self):
        return right(*self.kept)


def returns_lazy_tensors(x, w):
    lazy = torch.empty(x.shape).as_subclass(Lazy)
    lazy.kept = x, w
    return lazy


def works_in_a_thread(x, w, out):
    threading.Thread(target=lambda: (time.sleep(0.001), fill(x, w, out))).start()


def works_in_a_quick_thread(x, w, out):
    threading.Thread(target=fill, args=(x, w, out)).start()


def works_when_a_signal_comes(x, w, out):
    signal.signal(signal.SIGALRM, lambda *given: fill(x, w, out))
    signal.setitimer(signal.ITIMER_REAL, 0.0005)


def works_ahead(x, w, out, state=[]):
    """A thread computes all the time, so that the result is there when it is asked for."""
    if not state:

        def always():
            while True:
                state[1] = right(x, w)

        state[:] = [threading.Thread(target=always, daemon=True), right(x, w)]
        state[0].start()
    out.copy_(state[1])


# Attacks on memory, and on the host.


def changes_its_input(x, w):
    torch.softmax(x, -1, out=x)
    return x.mul_(w)


def returns_its_input(x, w, out):
    x.copy_(right(x, w))


def writes_past_the_end(x, w, out):
    fill(x, w, out)
    ctypes.memset(out.data_ptr() + out.nbytes, 1, 64)


def host():
    frame = sys._getframe()
    while "actions" not in frame.f_locals:
        frame = frame.f_back
        if frame is None:
            return None, None
    return frame.f_locals["self"], frame.f_locals


def replaces_the_loop(x, w):
    """After some calls the host answers with the last results, and calls nothing."""
    found, loop = host()
    if loop is not None and not hasattr(found, "replaced"):
        found.count = getattr(found, "count", 0) + 1
        if found.count > 20:
            found.replaced = True
            for word, action in list(loop["actions"].items()):
                answer = []
                loop["actions"][word] = lambda action=action, answer=answer: (
                    answer[0] if answer else (answer.append(action()), answer[0])[1]
                )
    return right(x, w)


def answers_early(x, w, out):
    """The host's answer goes out before there is a result."""
    found, loop = host()
    if loop is not None:
        found._connection.send(loop["answer"])
    fill(x, w, out)
