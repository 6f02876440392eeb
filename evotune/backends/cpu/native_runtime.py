"""Functions of the C library and of OpenMP that no Python module offers: handlers, allocator,
environment."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

_HANDLER, _MASK, _FLAGS = slice(0, 8), slice(8, 16), slice(136, 140)  # of struct sigaction
_SIGACTION_BYTES = 152  # 64-bit glibc and musl: handler, a mask of 1024 bits, flags, restorer
_SIGNALS = range(1, 65)
_SCHED_ATTR_BYTES = 56
_SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}

# The settings that prctl can read (linux/prctl.h), in words.
_PRCTL = {
    3: "whether it can be dumped",
    21: "its filter of system calls",
    30: "the slack of its timers",
    37: "whether it adopts orphans",
    39: "whether it may gain privileges",
    42: "whether it has huge pages",
}
_SPECULATION = 52
_SPECULATIONS = {0: "stores", 1: "branches"}


@functools.cache
def _library() -> Any:
    return ctypes.CDLL(None)


def function(name: str, result: Any = ctypes.c_int) -> Callable[..., Any] | None:
    """A function of the C library; None if it has no such function."""
    found = getattr(_library(), name, None)
    if found is not None:
        found.restype = result
    return found


class _Symbol(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def file_of(found: Any) -> str:
    """The path of the library that defines a ctypes function; "" if the system does not report
    it."""
    symbol = _Symbol()
    dladdr = function("dladdr")
    if dladdr is None or not dladdr(ctypes.cast(found, ctypes.c_void_p), ctypes.byref(symbol)):
        return ""
    return os.fsdecode(symbol.file)


def signal_handlers() -> dict[int, bytes]:
    """Maps each signal number to the handler's address, the signals blocked while it runs, and its
    flags. Python's `signal` knows only the handlers that Python set.
    """
    sigaction = function("sigaction")
    if sigaction is None:
        return {}
    found = {}
    action = (ctypes.c_ubyte * _SIGACTION_BYTES)()
    for number in _SIGNALS:
        if sigaction(number, None, action) == 0:  # glibc refuses its own two signals
            raw = bytes(action)
            found[number] = raw[_HANDLER] + raw[_MASK] + raw[_FLAGS]
    return found


def alternate_stack() -> bytes:
    """The description of the alternate stack for signal handlers, from sigaltstack."""
    sigaltstack = function("sigaltstack")
    stack = (ctypes.c_ubyte * 24)()
    if sigaltstack is None or sigaltstack(None, stack):
        return b""
    return bytes(stack[:12]) + bytes(stack[16:])  # without the padding between the fields


def scheduling(thread: int) -> bytes | None:
    """Policy, niceness, priority, slice and utilization limits of a thread; None if the system does
    not report it."""
    number = _SCHED_GETATTR.get(platform.machine())
    syscall = function("syscall", ctypes.c_long)
    if number is None or syscall is None:
        return None
    attributes = (ctypes.c_ubyte * _SCHED_ATTR_BYTES)()
    if syscall(number, thread, attributes, _SCHED_ATTR_BYTES, 0):
        return None
    return bytes(attributes)


def process_settings() -> dict[str, int]:
    """This process's settings that prctl can read, by their meaning. Speculation is among them:
    without it everything is slower."""
    prctl = function("prctl")
    if prctl is None:
        return {}
    found = {words: prctl(number, 0, 0, 0, 0) for number, words in _PRCTL.items()}
    for number, words in _SPECULATIONS.items():
        found[f"speculation on {words}"] = prctl(_SPECULATION, number, 0, 0, 0)
    return found


def environment() -> dict[bytes, bytes]:
    """The environment variables as C's getenv finds them; os.environ is only a copy."""
    entries = ctypes.POINTER(ctypes.c_char_p).in_dll(_library(), "environ")
    found: dict[bytes, bytes] = {}
    index = 0
    while entries and (entry := entries[index]) is not None:
        name, _, value = entry.partition(b"=")
        found[name] = value
        index += 1
    return found


class _Mallinfo(ctypes.Structure):
    """struct mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


_MIB = 1 << 20
_MOST_DYNAMIC_BYTES = 32 * _MIB  # glibc's limits rise with the blocks freed, up to here
_MOST_BLOCKS = 256
_ROOM_BYTES = 16 << 10  # glibc asks for 128 KiB more than it needs, and some for alignment
_FILLED_BYTES = 2000  # above the sizes that glibc caches per thread
_PATTERN = 0xA7


def settle_allocator() -> None:
    """Raises the thresholds of glibc's allocator until they no longer change.

    Two limits decide when the allocator maps a large block on its own, and when it returns memory
    from the end of its heap. They rise with each mapped block that is freed, up to 32 MiB. Once
    they are at their highest, only a call of mallopt changes them.
    """
    if (calls := _allocator()) is not None:
        _, free, info = calls
        with _all_in_use(_MOST_DYNAMIC_BYTES - _MIB // 4) as blocks:
            if blocks and info().hblks:
                free(blocks.pop())  # a mapped block, if the limits were lower: freeing raises them


def allocator_behaviour() -> dict[str, int]:
    """How malloc treats blocks of several sizes, because its settings cannot be read. Empty if it
    is not glibc's malloc, or if memory ran out.

    The result does not depend on how many arenas threads may have.
    """
    calls = _allocator()
    if calls is None:
        return {}
    malloc, free, info = calls
    mapped = info().hblks
    with _all_in_use(_MOST_DYNAMIC_BYTES - _MIB) as blocks:
        if not blocks:
            return {}
        grown = info()
        free(blocks.pop())
        after = info()
        large = malloc(_MOST_DYNAMIC_BYTES + 8 * _MIB)
        maps = grown.hblks != mapped
        found = {
            "maps 31 MiB": int(maps),
            # Only a heap that has just grown ends in a known room. It does not grow for mapped
            # blocks, as where MALLOC_TRIM_THRESHOLD_ is set: Dask sets it for its workers.
            "room": 0 if maps else grown.keepcost // _ROOM_BYTES,
            "returns 31 MiB": int(after.arena < grown.arena),
            "maps 40 MiB": int(info().hblks != after.hblks),
        }
        free(large)
    return {**found, "fills": int(_fills(malloc, free))}


@contextlib.contextmanager
def _all_in_use(size: int) -> Iterator[list[int]]:
    """Blocks of `size` bytes that use up malloc's free memory, so that the last one came from the
    system; an empty list when memory ran out. The blocks still in the list at the end are freed."""
    calls = _allocator()
    assert calls is not None
    malloc, free, info = calls
    blocks: list[int] = []
    before = now = info()
    while (now.arena, now.hblks) == (before.arena, before.hblks):
        block = malloc(size)
        if block is None or len(blocks) == _MOST_BLOCKS:
            for each in blocks:
                free(each)
            blocks.clear()
            break
        blocks.append(block)
        now = info()
    try:
        yield blocks
    finally:
        for each in blocks:
            free(each)


def _fills(malloc: Callable[..., Any], free: Callable[..., Any]) -> bool:
    """Whether a block that was just freed comes back filled with one byte."""
    block = malloc(_FILLED_BYTES)
    if not block:
        return False
    ctypes.memset(block, _PATTERN, _FILLED_BYTES)
    free(block)
    again = malloc(_FILLED_BYTES)
    if not again:
        return False
    middle = ctypes.string_at(again + 64, _FILLED_BYTES - 128)  # malloc writes links at the ends
    free(again)
    return again == block and middle == middle[:1] * len(middle) and middle[0] != _PATTERN


@functools.cache
def _allocator() -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]] | None:
    malloc, free = function("malloc", ctypes.c_void_p), function("free", None)
    info = function("mallinfo2", _Mallinfo)
    if malloc is None or free is None or info is None:
        return None
    malloc.argtypes, free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]  # type: ignore[attr-defined]
    return malloc, free, info


# PyTorch's OpenMP runtime, which the C++ candidates of a worker use too.
#
# A user's program has one pool of threads for PyTorch and for the kernels, if both use one runtime.
# The worker has one pool, too. PyTorch brings a copy of libgomp; kernels load `libgomp.so.1`. If
# the names differ, or PyTorch uses LLVM's or Intel's runtime (both have libgomp's functions), the
# kernels would get a second pool, and each pool would spin on the other's cores.
_Answer = TypeVar("_Answer")

_SOFT = 1  # omp_pause_soft: threads end, settings stay


def share() -> str:
    """Loads PyTorch's runtime so that kernels loaded from now on find it first. Returns its path,
    or "" if PyTorch has none."""
    path = _path()
    if path:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    return path


def wake() -> None:
    """Starts the pool's threads, so that the first call need not start them."""
    library = _openmp_library()
    with contextlib.suppress(AttributeError):
        nothing = ctypes.cast(library.omp_get_max_threads, ctypes.c_void_p)
        library.GOMP_parallel(nothing, None, 0, 0)


def threads() -> frozenset[int]:
    """The system's numbers of the pool's threads, without the calling thread."""
    return frozenset(in_each_thread(lambda: None))


def in_each_thread(ask: Callable[[], _Answer]) -> dict[int, _Answer]:
    """The results of `ask`, called in each thread of the pool except the calling one, by the
    system's thread number."""
    library = _openmp_library()
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
        _openmp_library().omp_pause_resource_all(_SOFT)


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
def _openmp_library() -> Any:
    path = _path()
    return ctypes.CDLL(path) if path else None
