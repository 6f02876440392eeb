"""Compile children: each takes one job at a time; the same job is never compiled twice at once."""

from __future__ import annotations

import os
import select
import shutil
import time
from collections import deque
from pathlib import Path

from evotune.device.launch import Binary, CompileFailure, CompileJob
from evotune.device.signals import describe_status
from evotune.errors import EnvironmentProblem
from evotune.execute.child import Child
from evotune.trial import OutcomeKind

_TOO_MANY_EXCEPTIONS = 3
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
            child = self._idle.pop() if self._idle else self._spawn()
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

    def handle(self, child: Child) -> list[tuple[CompileJob, Binary | CompileFailure]]:
        """Results a readable child has for us; a child that died fails its job.

        EnvironmentProblem when it is the machine that fails, so that no other job could succeed.
        """
        job, _ = self._busy[child]
        messages = child.receive()
        if messages is None:
            del self._busy[child]
            status = child.reap()
            self._count_exception(status, child)
            reason = f"the compile process {describe_status(status)}"
            return [(job, self._lost(job, OutcomeKind.COMPILE_CRASH, reason, child))]
        if not messages:
            return []
        del self._busy[child]
        self._idle.append(child)
        self._known.discard(job.key)
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

    def _count_exception(self, status: int, child: Child) -> None:
        """A compile process that raises time after time is broken itself."""
        self._exceptions += status > 0
        if self._exceptions >= _TOO_MANY_EXCEPTIONS:
            last = (child.log_tail() or "it said nothing").splitlines()[-1]
            raise EnvironmentProblem(f"the compile processes do not work: {last}")

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
        self._known.discard(job.key)
        return CompileFailure(kind, reason, child.log_tail(), 0.0)

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
        return Child("compile_worker", self._folder / "compile.log", environment)
