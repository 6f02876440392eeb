"""Work on the parts of a long report, by several processes at once."""

from __future__ import annotations

import collections
import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from evotune.errors import EnvironmentProblem
from evotune.execute.entry import die_with_parent
from evotune.python_process import started_by_a_library

_MOST = 8  # this process reads parts and writes results, and cannot feed any number of others
_WAITING = 2  # parts in memory for each process beside the part in work
_Part = TypeVar("_Part")
_Result = TypeVar("_Result")


def available() -> int:
    """Number of processes for the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, _MOST)


def mapped(
    work: Callable[[_Part], _Result], parts: Iterable[_Part], processes: int
) -> Iterator[_Result]:
    """`map(work, parts)`, in that order, with a few parts in memory. Raises any error of `work`.

    With less than two `processes`, this process does all work. Else `work`, the parts and the
    results are pickled between this process and its own children: no file is ever unpickled.
    EnvironmentProblem when a process dies."""
    if processes < 2:
        yield from map(work, parts)
        return
    with started_by_a_library():
        pool = ProcessPoolExecutor(
            processes,
            # Not forked: a child would have the connection to the store.
            mp_context=multiprocessing.get_context("spawn"),
            initializer=die_with_parent,
            initargs=(os.getpid(),),
        )
    waiting: collections.deque[Future[_Result]] = collections.deque()
    try:
        for part in parts:
            with _interrupts_later(), started_by_a_library():
                waiting.append(pool.submit(work, part))
            if len(waiting) > (1 + _WAITING) * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise EnvironmentProblem(
            "a process that worked on the report was killed, perhaps for want of memory: "
            "free some, then try again"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _interrupts_later() -> Iterator[None]:
    """Blocks Ctrl-C while a process may start, since the child inherits the mask: Ctrl-C is for
    this process, which ends the children."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
