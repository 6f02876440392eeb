"""PyTorch's OpenMP runtime, which the C++ candidates of a worker use too.

A user's program has one pool of threads for PyTorch and for the kernels beside it, if both use one
runtime. The worker has one pool, too. PyTorch brings a copy of libgomp; kernels ask for
`libgomp.so.1`. Where the names differ, or PyTorch uses LLVM's or Intel's runtime (both have
libgomp's functions), the kernels would get a second pool, and each pool would spin on the other's
cores.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from evotune.backends.cpu._libc import file_of

_Answer = TypeVar("_Answer")

_SOFT = 1  # omp_pause_soft: threads end, settings stay


def share() -> str:
    """Loads PyTorch's runtime so that kernels loaded from now on find it first. Returns its path,
    "" where PyTorch has none."""
    path = _path()
    if path:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    return path


def wake() -> None:
    """Starts the pool's threads, which then wait for work: so the first call need not start
    them."""
    library = _library()
    with contextlib.suppress(AttributeError):
        nothing = ctypes.cast(library.omp_get_max_threads, ctypes.c_void_p)
        library.GOMP_parallel(nothing, None, 0, 0)


def threads() -> frozenset[int]:
    """The system's numbers of the pool's threads, without the calling one."""
    return frozenset(in_each_thread(lambda: None))


def in_each_thread(ask: Callable[[], _Answer]) -> dict[int, _Answer]:
    """The answers of the pool's threads to `ask`, by the system's number of the thread. The calling
    thread is not asked."""
    library = _library()
    found: dict[int, _Answer] = {}

    def note(data: object) -> None:
        found[threading.get_native_id()] = ask()

    called = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(note)
    with contextlib.suppress(AttributeError):
        library.GOMP_parallel(called, None, 0, 0)
    found.pop(threading.get_native_id(), None)
    return found


def rest() -> None:
    """Ends the threads of the pool. The next parallel region starts new ones.

    After their work these threads spin for milliseconds. Once they have ended, a thread that still
    computes is not one of them.
    """
    with contextlib.suppress(AttributeError):
        _library().omp_pause_resource_all(_SOFT)


@functools.cache
def _path() -> str:
    import torch

    own = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        torch_cpu = ctypes.CDLL(str(own), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return file_of(torch_cpu.omp_get_max_threads)  # found as PyTorch's own code finds it
    except (OSError, AttributeError):
        return ""


@functools.cache
def _library() -> Any:
    path = _path()
    return ctypes.CDLL(path) if path else None
