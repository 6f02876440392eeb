"""Compile children: each takes one job at a time; the same job is never compiled twice at once.

A job whose process was killed is compiled once more, since somebody else may have killed it. One
that dies while it starts says nothing of its job.
"""

from __future__ import annotations

import os
import select
import shutil
import time
from collections import Counter, deque
from pathlib import Path

from evotune.device.launch import Binary, CompileFailure, CompileJob
from evotune.device.signals import describe_status
from evotune.errors import EnvironmentProblem
from evotune.execute.child import Child
from evotune.trial import Json, OutcomeKind

_TOO_MANY_EXCEPTIONS = 3
_MOST_STARTS = 3
_READY = {"ready": True}
_GRACE_S = 5.0  # the child enforces the time-out itself; past this it hangs as well


class CompilePool:
    """Submit jobs, then `handle` the children that `select` says are readable."""

    def __init__(
        self, folder: Path, cache: Path, *, processes: int = 0, timeout_s: float = 60.0
    ) -> None:
        self._folder = folder
        self._cache = cache
        self._scratch = folder / "scratch"
        shutil.rmtree(self._scratch, ignore_errors=True)  # a killed run leaves its own behind
        self._scratch.mkdir(parents=True)
        self._timeout_s = timeout_s
        self._limit = processes or len(os.sched_getaffinity(0))
        self._idle: list[Child] = []
        self._busy: dict[Child, tuple[CompileJob, float]] = {}
        self._queue: deque[CompileJob] = deque()
        self._known: set[str] = set()
        self._exceptions = 0
        self._starting: set[Child] = set()
        self._losses: Counter[str] = Counter()  # processes lost over a job, by its key

    @property
    def running(self) -> int:
        return len(self._busy)

    @property
    def queued(self) -> int:
        return len(self._queue)

    def children(self) -> list[Child]:
        return list(self._busy)

    def submit(self, job: CompileJob) -> None:
        """Queued once; a job that is queued or running already is not taken again."""
        if job.key not in self._known:
            self._known.add(job.key)
            self._queue.append(job)

    def warm(self, language: str) -> None:
        """Starts all processes and has them load the compiler, before there is work."""
        while len(self._idle) + len(self._busy) < self._limit:
            child = self._spawn()
            child.send({"warm": language})
            self._idle.append(child)

    def start_queued(self) -> None:
        while self._queue and len(self._busy) < self._limit:
            child = self._free_child()
            job = self._queue.popleft()
            child.send(
                {
                    "job": job.to_json(),
                    "cache": str(self._cache),
                    "scratch": str(self._scratch),
                    "timeout_s": self._timeout_s,
                }
            )
            self._busy[child] = (job, time.monotonic() + self._timeout_s + _GRACE_S)

    def _free_child(self) -> Child:
        """One that waits and lives, else a new one."""
        while self._idle:
            child = self._idle.pop()
            if self._messages(child) is not None:
                return child
            child.reap()
        return self._spawn()

    def _messages(self, child: Child) -> list[Json] | None:
        """As `Child.receive`, without the one that says that it has started."""
        messages = child.receive()
        if messages and messages[0] == _READY:
            self._starting.discard(child)
            return messages[1:]
        return messages

    def handle(self, child: Child) -> list[tuple[CompileJob, Binary | CompileFailure]]:
        """Results a readable child has for us; a child that died twice over a job fails it.

        EnvironmentProblem when it is the machine that fails, so that no other job could succeed.
        """
        job, _ = self._busy[child]
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
        message = messages[0]
        if "problem" in message:
            raise EnvironmentProblem(message["problem"])
        if "binary" in message:
            return [(job, Binary.from_json(message["binary"]))]
        failure = CompileFailure.from_json(message["failure"])
        if failure.kind is OutcomeKind.COMPILE_TIMEOUT:  # parts of the compiler may still run
            self._idle.remove(child)
            child.kill()
        return [(job, failure)]

    def _died(
        self, child: Child, job: CompileJob
    ) -> list[tuple[CompileJob, Binary | CompileFailure]]:
        """Queues its job again, as the next one, or fails it."""
        status = child.reap()
        self._losses[job.key] += 1
        if child in self._starting:
            self._starting.discard(child)
            if self._losses[job.key] >= _MOST_STARTS:
                how = f"one {describe_status(status)}: {_last_line(child)}"
                raise EnvironmentProblem(f"the compile processes do not start: {how}")
        else:
            self._count_exception(status, child)
            if status > 0 or self._losses[job.key] > 1:
                reason = f"the compile process {describe_status(status)}"
                return [(job, self._lost(job, OutcomeKind.COMPILE_CRASH, reason, child))]
        self._queue.appendleft(job)
        return []

    def _count_exception(self, status: int, child: Child) -> None:
        """A compile process that raises time after time is broken itself."""
        self._exceptions += status > 0
        if self._exceptions >= _TOO_MANY_EXCEPTIONS:
            raise EnvironmentProblem(f"the compile processes do not work: {_last_line(child)}")

    def expire(self) -> list[tuple[CompileJob, Binary | CompileFailure]]:
        """Kills children past their deadline. To be asked after `handle`: this process may have
        been stopped (Ctrl-Z) while they finished."""
        now = time.monotonic()
        late = [child for child, (_, deadline) in self._busy.items() if now > deadline]
        results: list[tuple[CompileJob, Binary | CompileFailure]] = []
        for child in late:
            job, _ = self._busy.pop(child)
            child.kill()
            reason = f"the compiler ran longer than {self._timeout_s:g} s and was killed"
            results.append((job, self._lost(job, OutcomeKind.COMPILE_TIMEOUT, reason, child)))
        return results

    def _lost(
        self, job: CompileJob, kind: OutcomeKind, reason: str, child: Child
    ) -> CompileFailure:
        self._forget(job)
        return CompileFailure(kind, reason, child.log_tail(), 0.0)

    def _forget(self, job: CompileJob) -> None:
        self._known.discard(job.key)
        del self._losses[job.key]

    def wait(self, timeout_s: float) -> list[tuple[CompileJob, Binary | CompileFailure]]:
        """Runs queued jobs and waits for results: for callers that do nothing but compile."""
        self.start_queued()
        results: list[tuple[CompileJob, Binary | CompileFailure]] = []
        readable, _, _ = select.select(self.children(), [], [], timeout_s)
        for child in readable:
            results += self.handle(child)
        results += self.expire()
        return results

    def drop(self) -> None:
        """Forgets queued jobs and ends running ones."""
        for child in self._busy:
            child.kill()
        self._busy.clear()
        self._queue.clear()
        self._known.clear()
        self._losses.clear()

    def close(self) -> None:
        for child in (*self._busy, *self._idle):
            child.kill()
        self._busy.clear()
        self._idle.clear()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _spawn(self) -> Child:
        # CuPy is imported there, and a compiler has no business on a GPU.
        # What NVRTC finds in the driver's cache comes without the log that says its registers.
        environment = {"CUDA_VISIBLE_DEVICES": "", "CUDA_CACHE_DISABLE": "1"}
        child = Child("compile_worker", self._folder / "compile.log", environment)
        self._starting.add(child)
        return child


def _last_line(child: Child) -> str:
    return (child.log_tail() or "it said nothing").splitlines()[-1]
