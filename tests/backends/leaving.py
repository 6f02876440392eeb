"""A process that runs kernels of data/leftovers.cpp and prints what a session says of each.

    python leaving.py LIBRARY REPEATS KERNEL...

Each kernel gets a session of its own, which takes the process's state as it finds it. Between
kernels only two kinds of leftovers are undone: those that would go on working, and those that would
hide a change by the next kernel.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from pathlib import Path

import torch

from evotune.backends.base.launch import Argument, LaunchPlan
from evotune.backends.cpu.cpu_session import CpuSession

DEFAULTS = {-6: 0, -3: 32 << 20, -1: 64 << 20}
"""mallopt's M_PERTURB, M_MMAP_THRESHOLD and M_TRIM_THRESHOLD, as a session sets them."""


def words_about(library: Path, kernel: str, repeats: int) -> list[str]:
    """All that a session says about the kernel in `repeats` trials; empty if it says nothing."""
    session = CpuSession()
    plan = LaunchPlan(kernel, (Argument("tensor", "x"),), (), ())
    x, y = torch.ones(64), torch.ones(512, 512)
    baseline = session.undisturbed(session.sampler([lambda: y @ y] * 3))
    baseline.time_us()
    said = [session.take_stock()]
    for _ in range(repeats):
        launch = session.bind(session.load(library, plan), plan, {"x": x.data_ptr()})
        launch()
        said.append(session.left_running())
        sampler = session.sampler([launch] * 3)
        for _ in range(5):
            sampler.time_us()
            baseline.time_us()
        launch()
        said.append(session.left_running(launch))
        said.append(session.take_stock())
    return [words for words in said if words]


def main() -> None:
    library, repeats, *kernels = sys.argv[1:]
    found, cores, libc = {}, os.sched_getaffinity(0), ctypes.CDLL(None)
    for kernel in kernels:
        found[kernel] = words_about(Path(library), kernel, int(repeats))
        ctypes.CDLL(library).stop()
        os.sched_setaffinity(0, cores)
        for timer in (signal.ITIMER_REAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)
        for hook in (sys.setprofile, sys.settrace, threading.setprofile):
            hook(None)
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
        for option, value in DEFAULTS.items():
            libc.mallopt(option, value)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
