"""The compile processes. Each takes one job at a time, and no job is compiled by two at once.

A job whose process was killed is compiled once more, because something else may have killed the
process. If a process dies while it starts, its job is not to blame.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter, deque
from pathlib import Path
from typing import TypeAlias

from evotune.backends.base.launch import Binary, CompileFailure, CompileJob
from evotune.backends.base.time_limits import HeldUp, WatchedTime, allowance_s
from evotune.errors import EnvironmentProblem
from evotune.trial import TOO_NOISY, OutcomeKind
from evotune.util.processes import describe_status
from evotune.workers.child import Child, kill_all, wait_readable
from evotune.workers.messages import (
    COMPILE_WORKER,
    Compile,
    FromCompileWorker,
    LoadCompiler,
    MachineProblem,
    Started,
    ToCompileWorker,
)

Worker: TypeAlias = Child[ToCompileWorker, FromCompileWorker]
Compiled: TypeAlias = Binary | CompileFailure | MachineProblem

_MOST_PROCESSES = 256  # each has two file descriptors, and 1024 is a usual limit
_TOO_MANY_EXCEPTIONS = 3
_MOST_STARTS = 3
_CUT_SHORT = (OutcomeKind.COMPILE_TIMEOUT, OutcomeKind.UNDECIDED)
_GRACE_S = 5.0  # the child enforces the time-out itself; past this it hangs as well


class CompilePool:
    """A pool of compile processes. Submit jobs, then `handle` the children that `wait_readable`
    returns."""

    def __init__(
        self, folder: Path, cache: Path, *, processes: int = 0, timeout_s: float = 60.0
    ) -> None:
        self._folder = folder
        self._cache = cache
        self._scratch = folder / "scratch"
        shutil.rmtree(self._scratch, ignore_errors=True)  # a killed run leaves its folder behind
        self._scratch.mkdir(parents=True, exist_ok=True)  # its compilers may still write there
        self._timeout_s = timeout_s
        self._limit = min(processes or len(os.sched_getaffinity(0)), _MOST_PROCESSES)
        self._language = ""
        self._idle: list[Worker] = []
        self._busy: dict[Worker, tuple[CompileJob, WatchedTime, HeldUp]] = {}
        self._queue: deque[CompileJob] = deque()
        self._later: dict[str, CompileJob] = {}  # by key
        self._known: set[str] = set()
        self._exceptions = 0
        self._starting: set[Worker] = set()
        self._losses: Counter[str] = Counter()  # processes lost over a job, by its key

    @property
    def timeout_s(self) -> float:
        """How long one compiler may run."""
        return self._timeout_s

    @property
    def running(self) -> int:
        return len(self._busy)

    @property
    def queued(self) -> int:
        return len(self._queue)

    def children(self) -> list[Worker]:
        return list(self._busy)

    def submit(self, job: CompileJob) -> None:
        """Queues a job, unless it is queued or running already."""
        self._later.pop(job.key, None)
        if job.key not in self._known:
            self._known.add(job.key)
            self._queue.append(job)

    def submit_later(self, job: CompileJob) -> None:
        """Compiles a job when no other job is queued, so that its binary is in the cache when the
        job is submitted.
        """
        if job.key not in self._known:
            self._later[job.key] = job

    def warm(self, language: str) -> None:
        """Starts all processes before there is work. These and later processes load the language's
        compiler."""
        self._language = language
        while len(self._idle) + len(self._busy) < self._limit:
            self._idle.append(self._spawn())

    def start_queued(self) -> None:
        while (self._queue or self._later) and len(self._busy) < self._limit:
            child = self._free_child()
            if not self._queue:
                self.submit(next(iter(self._later.values())))
            job = self._queue.popleft()
            child.send(Compile(job, str(self._cache), str(self._scratch), self._timeout_s))
            self._busy[child] = (job, WatchedTime(), HeldUp(child.pid))

    def _free_child(self) -> Worker:
        """An idle child that is alive, else a new one."""
        while self._idle:
            child = self._idle.pop()
            if self._messages(child) is not None:
                return child
            child.reap()
        return self._spawn()

    def _messages(self, child: Worker) -> list[Compiled] | None:
        """The messages of `child`, without `Started`."""
        messages = child.receive()
        if messages:
            self._starting.discard(child)
            return [message for message in messages if not isinstance(message, Started)]
        return None if messages is None else []

    def handle(self, child: Worker) -> list[tuple[CompileJob, Binary | CompileFailure]]:
        """The results of a readable child. A job that ended two children fails.

        Raises EnvironmentProblem if the machine is at fault, so that no other job could succeed.
        """
        job, _, _ = self._busy[child]
        messages = self._messages(child)
        if messages is None:
            del self._busy[child]
            return self._died(child, job)
        if not messages:
            return []
        del self._busy[child]
        self._idle.append(child)
        self._forget(job)
        self._exceptions = 0
        result = messages[0]
        if isinstance(result, MachineProblem):
            raise EnvironmentProblem(result.problem)
        if isinstance(result, CompileFailure) and result.kind in _CUT_SHORT:
            self._idle.remove(child)  # parts of the compiler may still run
            child.kill()
        return [(job, result)]

    def _died(
        self, child: Worker, job: CompileJob
    ) -> list[tuple[CompileJob, Binary | CompileFailure]]:
        """Puts the dead child's job at the head of the queue, or fails the job."""
        status = child.reap()
        self._losses[job.key] += 1
        if child in self._starting:
            self._starting.discard(child)
            if self._losses[job.key] >= _MOST_STARTS:
                how = f"one {describe_status(status)}: {_last_line(child)}"
                if child.unreadable:
                    how = child.end_in_words(status)
                raise EnvironmentProblem(f"the compile processes do not start: {how}")
        else:
            self._count_exception(status, child)
            if status > 0 or self._losses[job.key] > 1:
                reason = child.end_in_words(status)
                return [(job, self._lost(job, OutcomeKind.COMPILE_CRASH, reason, child))]
        self._queue.appendleft(job)
        return []

    def _count_exception(self, status: int, child: Worker) -> None:
        """Raises EnvironmentProblem if compile processes raise `_TOO_MANY_EXCEPTIONS` times in a
        row: then they are broken, not the jobs."""
        self._exceptions += status > 0 or bool(child.unreadable)
        if self._exceptions >= _TOO_MANY_EXCEPTIONS:
            last = child.end_in_words(status) if child.unreadable else _last_line(child)
            raise EnvironmentProblem(f"the compile processes do not work: {last}")

    def expire(self) -> list[tuple[CompileJob, Binary | CompileFailure]]:
        """Kills children past their time limit, and returns the failures. Time in which a child
        could not run does not count. A child that has answered meanwhile is not late: this process
        may have waited for something else."""
        late = {}
        for child, (_, watched, held) in self._busy.items():
            more_s, is_longest = allowance_s(held, self._timeout_s)
            if watched.seconds() > self._timeout_s + _GRACE_S + more_s:
                late[child] = is_longest
        results: list[tuple[CompileJob, Binary | CompileFailure]] = []
        for child, is_longest in late.items():
            results += self.handle(child)
            if child not in self._busy:
                continue
            job, _, _ = self._busy.pop(child)
            child.kill()
            kind = OutcomeKind.UNDECIDED if is_longest else OutcomeKind.COMPILE_TIMEOUT
            reason = f"the compiler ran longer than {self._timeout_s:g} s and was killed"
            if is_longest:
                reason = f"{TOO_NOISY}: the compiler had no core for most of its time"
            results.append((job, self._lost(job, kind, reason, child)))
        return results

    def _lost(
        self, job: CompileJob, kind: OutcomeKind, reason: str, child: Worker
    ) -> CompileFailure:
        self._forget(job)
        return CompileFailure(kind, reason, child.log_tail(), 0.0)

    def _forget(self, job: CompileJob) -> None:
        self._known.discard(job.key)
        del self._losses[job.key]

    def wait(self, timeout_s: float) -> list[tuple[CompileJob, Binary | CompileFailure]]:
        """Runs queued jobs, waits at most `timeout_s` and returns results. For callers that do
        nothing but compile."""
        self.start_queued()
        results: list[tuple[CompileJob, Binary | CompileFailure]] = []
        for child in wait_readable(self.children(), timeout_s):
            results += self.handle(child)
        results += self.expire()
        return results

    def drop(self) -> None:
        """Forgets queued jobs and ends running ones."""
        for child in self._busy:
            child.kill()
        self._busy.clear()
        self._queue.clear()
        self._later.clear()
        self._known.clear()
        self._losses.clear()

    def close(self) -> None:
        kill_all((*self._busy, *self._idle))
        self._busy.clear()
        self._idle.clear()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _spawn(self) -> Worker:
        # The child imports CuPy, but a compiler must not open a GPU.
        environment = {"CUDA_VISIBLE_DEVICES": ""}
        child = Child(COMPILE_WORKER, self._folder / "compile.log", environment)
        self._starting.add(child)
        if self._language:
            child.send(LoadCompiler(self._language))
        return child


def _last_line(child: Worker) -> str:
    return (child.log_tail() or "it said nothing").splitlines()[-1]
