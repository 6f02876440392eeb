"""Processes that keep pairs of cores busy, and how busy the cores really were.

Started as a program, this module is one of those processes: `python spinning.py SHARE CORE CORE`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CORES = 2  # that what is measured and the spinning processes share
_TURN_S = 0.05


def pairs_of_cores(count: int) -> list[list[int]]:
    """At most `count` pairs of the cores that this process may use."""
    own = sorted(os.sched_getaffinity(0))
    pairs = [own[at : at + CORES] for at in range(0, len(own) - CORES + 1, CORES)] or [own]
    return pairs[:count]


def _spin(share: float, cores: Sequence[int]) -> None:
    os.sched_setaffinity(0, cores)
    parent = os.getppid()
    while os.getppid() == parent:
        began = time.perf_counter()
        while time.perf_counter() - began < _TURN_S * share:
            pass
        if share < 1:
            time.sleep(_TURN_S * (1 - share))


@contextmanager
def spinning(count: float, pairs: Sequence[Sequence[int]]) -> Iterator[list[list[int]]]:
    """Keeps `count` processes busy on each pair of cores; a fraction is the share of the time of
    one. Yields, for each pair, the process numbers that spin all the time."""
    shares = [1.0] * int(count) + [count % 1] * (count % 1 > 0)
    spinners: list[subprocess.Popen[bytes]] = []
    always: list[list[int]] = []
    try:
        for cores in pairs:
            # Workers have sessions of their own, and Linux may share the cores equally between
            # sessions: all spinning processes in one session would count as one.
            here = [
                subprocess.Popen(
                    [sys.executable, "-I", "-S", __file__, str(share), *map(str, cores)],
                    start_new_session=True,
                )
                for share in shares
            ]
            spinners += here
            always.append([spinner.pid for spinner in here[: int(count)]])
        yield always
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


@dataclass(frozen=True)
class Spun:
    """How long processes that spin all the time have had a core so far."""

    processes: int
    at_s: float
    cores_s: float

    @staticmethod
    def so_far(processes: Sequence[int]) -> Spun:
        ticks = 0
        for process in processes:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return Spun(len(processes), time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"))

    def beside(self, later: Spun) -> float | None:
        """The other busy processes on the same two cores, on average between the two. One that
        spins all the time had a share s of a core, so 2 / s were busy, itself among them. None
        where no process spins."""
        had_s = later.cores_s - self.cores_s
        if not self.processes or not had_s:
            return None
        return round(CORES * self.processes * (later.at_s - self.at_s) / had_s - 1, 1)


if __name__ == "__main__":
    _spin(float(sys.argv[1]), [int(core) for core in sys.argv[2:]])
