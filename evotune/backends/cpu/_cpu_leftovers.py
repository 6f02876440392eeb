"""Finds threads, child processes and float settings that native code left behind."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from evotune.backends.base.session import Sampler
from evotune.backends.cpu import _openmp
from evotune.backends.cpu._libc import function

_GLANCE_S = 0.0005
_LONGEST_WAIT_S = 2.0  # a thread that waits for a core goes to sleep as soon as it gets one
_SPIN_S = 0.001  # on a core: five times as long as a pool spins after its work
_LOOK_S = 0.003
_BUSY_SHARE = 0.02  # of a core: a thread at rest uses none
_REST_S = 0.002  # the longest wait for threads at work before a sample of a baseline
_STARVED_S = 0.02  # the longest wait for threads that have no core
_DISTURBED = 4  # samples, and at least a tenth of all: other processes may disturb a few
_CLOCK_OF_THREAD = 6  # Linux: CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED


def float_environment_changed() -> bool:
    """Whether this thread flushes denormals, rounds otherwise than to nearest, or traps.

    The numbers come from a list, since Python computes an expression of literals beforehand.
    """
    one, tiny, least = _PROBES
    traps = function("fegetexcept")
    if traps is not None and traps():
        return True
    return tiny + one != one or one - tiny != one or least * one != least or least + least == 0


_PROBES = [1.0, 2.0**-60, 5e-324]


def kept_busy() -> str:
    """Names the other threads of this process that are busy now; "" when all rest.

    PyTorch's pool spins for milliseconds after its work, so this function ends it. A pool of the
    candidate's own may spin for some 200 µs before it sleeps. So the function first waits until no
    thread runs, and a thread that computes for a millisecond meanwhile is busy. After that no
    thread has work left, and one that still computes a little now and then is busy too. Only time
    on a core counts, so that the load of other processes makes no difference: a thread that gets no
    core for seconds takes none either.
    """
    _openmp.rest()
    began, started_s = cpu_seconds(), time.perf_counter()
    while running := _running_threads():
        spent = _spent(began, cpu_seconds())
        busy = [thread for thread in running if spent.get(thread, 0.0) > _SPIN_S]
        waited_s = time.perf_counter() - started_s
        if busy:
            return _in_words(len(busy), sum(spent.values()) / waited_s)
        if waited_s > _LONGEST_WAIT_S:
            return ""
        time.sleep(_GLANCE_S)
    return _look()


def _look() -> str:
    """Counts the threads that take a core from now on, when all rest, in words; "" if none does."""
    # The process's clock counts threads that come and go; it is exact while all threads rest.
    began, others_s, started_s = cpu_seconds(), _seconds_of_other_threads(), time.perf_counter()
    time.sleep(_LOOK_S)
    spent = _spent(began, cpu_seconds())
    elapsed_s = time.perf_counter() - started_s
    busy_s = max(sum(spent.values()), _seconds_of_other_threads() - others_s)
    if busy_s <= _BUSY_SHARE * elapsed_s:
        return ""
    return _in_words(max(1, sum(each > 0.0 for each in spent.values())), busy_s / elapsed_s)


def _in_words(threads: int, cores: float) -> str:
    counted = "1 thread" if threads == 1 else f"{threads} threads"
    return f"kept {counted} and {cores:.2f} cores busy after it returned"


def cpu_seconds() -> dict[int, float]:
    """How long each other thread was on a core so far, in seconds, exact to the microsecond.

    The process's own clock counts the time of running threads only at the system's next tick, up
    to 4 ms later: then the candidate's own work would look like a thread left behind.
    """
    own, found = threading.get_native_id(), {}
    for task in _tasks():
        thread = int(task.name)
        if thread != own:
            with contextlib.suppress(OSError, OverflowError):
                found[thread] = time.clock_gettime((~thread << 3) | _CLOCK_OF_THREAD)
    return found


def _spent(began: Mapping[int, float], now: Mapping[int, float]) -> dict[int, float]:
    """Seconds on a core since `began`, by thread. A new thread counts with all its seconds."""
    return {thread: seconds - began.get(thread, 0.0) for thread, seconds in now.items()}


def _seconds_of_other_threads() -> float:
    return time.process_time() - time.thread_time()


def _running_threads() -> set[int]:
    """The other threads of this process that run, or wait for nothing but a core."""
    found = set()
    for task in _tasks():
        with contextlib.suppress(OSError):
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            if state == "R" and int(task.name) != threading.get_native_id():
                found.add(int(task.name))
    return found


def _tasks() -> list[Path]:
    try:
        return list(Path("/proc/self/task").iterdir())
    except OSError:
        return []


def has_children() -> bool:
    """Whether this process has child processes, dead or alive; False where the system cannot
    tell."""
    for task in _tasks():
        with contextlib.suppress(OSError):
            if (task / "children").read_text().strip():
                return True
    return False


class BesideBaseline:
    """Watches the other threads while a baseline is timed.

    The baseline itself keeps `threads` - 1 of them busy, and a candidate's OpenMP threads may be
    the same ones. So this class counts how many threads had a core: one more than `threads` - 1 is
    a helper that a candidate left. Where the baseline leaves cores idle, a helper may go unseen,
    but it takes no core from the baseline.
    """

    def __init__(self, threads: int) -> None:
        self._most = threads - 1
        self._samples = 0
        self._disturbed = 0
        self._cores = 0.0
        self._pool: frozenset[int] = frozenset()
        self._starved = False

    def let_rest(self) -> None:
        """Waits for a candidate's own pool of threads, which may spin before it sleeps. Threads of
        PyTorch's pool may spin on: they are the baseline's too. On a busy machine a thread that has
        no core cannot go to sleep: it is waited for longer, and if it never gets one, the sample
        does not count."""
        if _running_threads() - self._pool:
            self._pool = _openmp.threads()
        began, started_s = cpu_seconds(), time.perf_counter()
        self._starved = False
        while running := _running_threads() - self._pool:
            waited_s = time.perf_counter() - started_s
            spent = _spent(began, cpu_seconds())
            self._starved = not any(spent.get(thread, 0.0) > _SPIN_S for thread in running)
            if waited_s > (_STARVED_S if self._starved else _REST_S):
                return
            time.sleep(_GLANCE_S / 10)
        self._starved = False

    def count(self, began: Mapping[int, float], elapsed_s: float) -> None:
        if self._starved:
            return
        shares = sorted(each / elapsed_s for each in _spent(began, cpu_seconds()).values())
        busy = [share for share in shares if share > _BUSY_SHARE]
        self._samples += 1
        if len(busy) > self._most:
            self._disturbed += 1
            self._cores += sum(busy[: len(busy) - self._most])

    def words(self) -> str:
        """In words, how busy helpers were in the samples since the last call; "" for too few."""
        samples, disturbed, cores = self._samples, self._disturbed, self._cores
        self._samples = self._disturbed = 0
        self._cores = 0.0
        if disturbed < _DISTURBED or 10 * disturbed < samples:
            return ""
        return f"kept {cores / disturbed:.2f} cores busy while the baseline was timed"


class UndisturbedSampler:
    """See `evotune.backends.base.session.Session.undisturbed`."""

    def __init__(self, sampler: Sampler, beside: BesideBaseline) -> None:
        self._sampler = sampler
        self._beside = beside

    def run(self) -> None:
        self._sampler.run()

    def time_us(self) -> float:
        self._beside.let_rest()
        began, started_s = cpu_seconds(), time.perf_counter()
        time_us = self._sampler.time_us()
        self._beside.count(began, time.perf_counter() - started_s)
        return time_us
