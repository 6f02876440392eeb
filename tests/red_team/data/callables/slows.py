"""Right callables that try to look faster than they are, mostly by slowing the baseline."""

import contextlib
import ctypes
import gc
import mmap
import os
import sys
import threading
import time

import torch


def right(x, w):
    return torch.softmax(x, -1) * w


def slow(x, w):
    for _ in range(3):
        result = right(x, w)
    return result


def make(configuration, case):
    return globals()[configuration["BEHAVIOUR"]]


def once(work, done=set()):
    if work.__qualname__ not in done:
        done.add(work.__qualname__)
        work()


def spins_elsewhere(x, w):
    """A thread that works most of the time, wherever the baseline is."""

    def begin():
        def spin():
            while True:
                torch.ones(1 << 16).sum()

        threading.Thread(target=spin, daemon=True).start()

    once(begin)
    return right(x, w)


def spins_now_and_then(x, w):
    def begin():
        def spin():
            while True:
                until = time.perf_counter() + 0.01
                while time.perf_counter() < until:
                    pass
                time.sleep(0.01)

        threading.Thread(target=spin, daemon=True).start()

    once(begin)
    return right(x, w)


def empties_the_caches(x, w):
    """A thread that walks through memory all the time."""

    def begin():
        def walk():
            memory = torch.zeros(1 << 24)
            while True:
                memory.add_(1)
                time.sleep(0.0005)

        threading.Thread(target=walk, daemon=True).start()

    once(begin)
    return right(x, w)


def takes_much_memory(x, w, kept=[]):
    if not kept:
        kept.append(mmap.mmap(-1, 256 << 20))
    return slow(x, w)


def is_nice_to_nobody(x, w):
    """The highest priority that it may have."""

    def begin():
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, -20)
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

    once(begin)
    return slow(x, w)


def slows_all_later_imports(x, w):
    def begin():
        sys.meta_path.insert(0, type("Slow", (), {"find_spec": lambda *given: time.sleep(0.1)}))

    once(begin)
    return slow(x, w)


def turns_the_collector_on(x, w):
    def begin():
        gc.set_threshold(1)
        gc.unfreeze()

    once(begin)
    return slow(x, w)


def changes_the_switch_interval(x, w):
    sys.setswitchinterval(1e-6)
    return slow(x, w)


def waits_for_a_call(x, w):
    """Sleeps, so that a clock of processor time sees little."""
    time.sleep(0.0005)
    return right(x, w)


def yields_its_core(x, w):
    for _ in range(20):
        os.sched_yield()
    return slow(x, w)


def limits_the_threads_of_others(x, w):
    """Variables that a compiler or another library reads."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    return slow(x, w)


def patches_a_clock_in_c(x, w):
    """The page of the system's clocks cannot be written; this tries."""
    libc = ctypes.CDLL(None)
    for line in open("/proc/self/maps"):  # noqa: SIM115
        if "[vdso]" in line or "[vvar]" in line:
            first, last = (int(each, 16) for each in line.split()[0].split("-"))
            libc.mprotect(ctypes.c_void_p(first), ctypes.c_size_t(last - first), 5)
    return slow(x, w)
