"""Time limits that leave out the time for which a process could not run.

On a machine that has eight runnable threads for each core, a right kernel or a compiler takes eight
times as long. Linux counts for each thread how long it was ready to run and had no core; such a
wait does not count towards a limit. Nor does the time for which all processes were stopped: in a
container that was paused, a machine that was suspended, or by SIGSTOP.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Text = TypeVar("Text", str, bytes)

_MOST = 10
"""How many times its limit a process may take, waits included."""
_LEAST_S = 0.01
_LOOK_S = 0.5
_LONGEST_LOOK_S = 1.0
_NS = 1e-9


class WatchedTime:
    """Counts the seconds since it was made. The caller must read it at least every `_LOOK_S`.

    At most `_LONGEST_LOOK_S` counts of the time between two looks. In a longer gap this process did
    not run, so the processes that it watches may not have run either.
    """

    def __init__(self) -> None:
        self._looked_s = time.monotonic()
        self._seen_s = 0.0

    def seconds(self) -> float:
        now_s = time.monotonic()
        self._seen_s += min(now_s - self._looked_s, _LONGEST_LOOK_S)
        self._looked_s = now_s
        return self._seen_s


class HeldUp:
    """How long a process and its children waited for a core since this object was made. A child
    that has ended counts with its time at the last look. Of several threads, the one that waited
    longest counts. 0 if the system does not report it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._began = dict(_waits(pid))
        self._seen: dict[tuple[int, int], float] = {}

    def seconds(self) -> float:
        self._seen |= dict(_waits(self._pid))
        longest: dict[int, float] = {}
        for (pid, thread), waited_s in self._seen.items():
            since = waited_s - self._began.get((pid, thread), 0.0)
            longest[pid] = max(longest.get(pid, 0.0), since)
        return sum(longest.values())


class Patience:
    """A limit on the processes of one job, in seconds, without the time in which they could not
    run."""

    def __init__(self, limit_s: float) -> None:
        self._left_s = limit_s
        self._room_s = (_MOST - 1) * limit_s

    @property
    def exhausted(self) -> bool:
        """Whether the process has waited for a core as long as it may."""
        return self._room_s <= 0.0

    def status(self, process: subprocess.Popen[bytes]) -> int | None:
        """Waits for the process. Returns its exit status, or None if it took too long and was
        killed."""
        held, counted_s = HeldUp(process.pid), 0.0
        while True:
            status = self._watched(process)
            if status is not None:
                return status
            more_s = min(held.seconds() - counted_s, self._room_s)
            if more_s < _LEAST_S:
                process.kill()
                process.wait()
                return None
            counted_s += more_s
            self._room_s -= more_s
            self._left_s += more_s

    def _watched(self, process: subprocess.Popen[bytes]) -> int | None:
        """The process's exit status; None if no time is left."""
        limit_s, watched = self._left_s, WatchedTime()
        while True:
            try:
                return process.wait(max(0.0, min(_LOOK_S, self._left_s)))
            except subprocess.TimeoutExpired:
                self._left_s = limit_s - watched.seconds()
                if self._left_s < _LEAST_S:
                    return None


def communicate(process: subprocess.Popen[Text], limit_s: float) -> tuple[Text, Text]:
    """Returns what the process writes, as `Popen.communicate` does. Raises TimeoutExpired if the
    process takes longer, and leaves it running. Time in which all processes were stopped does not
    count."""
    watched = WatchedTime()
    while True:
        try:
            return process.communicate(timeout=min(_LOOK_S, limit_s))
        except subprocess.TimeoutExpired:
            if watched.seconds() >= limit_s:
                raise


def allowance_s(held: HeldUp, limit_s: float) -> tuple[float, bool]:
    """The seconds by which waits extend a limit, and whether that is the longest possible
    extension."""
    most_s = (_MOST - 1) * limit_s
    held_s = held.seconds()
    return min(held_s, most_s), held_s >= most_s


def _waits(pid: int) -> Iterator[tuple[tuple[int, int], float]]:
    """(process, thread) -> the seconds that the thread has waited for a core, for a process and its
    children."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return
    for task in tasks:
        with contextlib.suppress(OSError, ValueError, IndexError):
            yield (pid, int(task.name)), int((task / "schedstat").read_text().split()[1]) * _NS
        children = ""
        with contextlib.suppress(OSError):
            children = (task / "children").read_text()
        for child in children.split():
            yield from _waits(int(child))


# Runs a tool of the machine, a disassembler or a profiler: it may be missing, hang or fail.
@dataclass(frozen=True, slots=True)
class Tool:
    """A program under its usual name. If it has no output, `failure` is raised with a line that
    says why."""

    name: str
    limit_s: float
    failure: type[Exception]

    def run(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs the program to its end, whatever its exit status."""
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=None if environment is None else dict(environment),
            )
        except OSError as error:
            raise self.failure(f"{self.name} does not start: {error.strerror}") from error
        try:
            with process:
                try:
                    output, errors = communicate(process, self.limit_s)
                except BaseException:
                    process.kill()
                    raise
            return subprocess.CompletedProcess(command, process.returncode, output, errors)
        except subprocess.TimeoutExpired as error:
            raise self.failure(f"{self.name} did not end within {self.limit_s:g} s") from error

    def output(self, command: Sequence[str]) -> str:
        """The tool's standard output. Raises its failure if the status is not 0."""
        done = self.run(command)
        if done.returncode:
            words = done.stderr.strip().splitlines()
            last = " ".join(words[-1].split()) if words else f"status {done.returncode}"
            raise self.failure(f"{self.name} failed: {last}")
        return done.stdout
