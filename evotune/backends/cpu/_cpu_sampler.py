"""Times a row of calls on the CPU by the clock around them, or makes writes between the calls."""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from evotune.device.session import Intervention, Renewal

if TYPE_CHECKING:
    import torch

_LONGEST_RENEWING_NS = 30_000_000


class CpuSampler:
    """A call returns when it is done, so the clock around the calls gives the device's time. The
    clock starts after the first `untimed` calls."""

    def __init__(
        self, calls: Sequence[Callable[[], object]], before: Callable[[], None], untimed: int = 0
    ) -> None:
        self._calls = calls
        self._before = before
        self._untimed = untimed

    @property
    def count(self) -> int:
        return len(self._calls)

    def run(self) -> None:
        self._before()
        for call in self._calls:
            call()

    def time_us(self) -> float:
        self._before()
        for call in self._calls[: self._untimed]:
            call()
        timed = self._calls[self._untimed :]
        started = time.perf_counter_ns()
        for call in timed:
            call()
        return (time.perf_counter_ns() - started) / 1000 / len(timed)

    def watch(self, interventions: Sequence[Intervention], call_us: float) -> Sequence[bool]:
        """Makes the writes between calls. With enough calls there is one write between two: the
        pause stays as short as between any two calls, and no call can tell that inputs changed."""
        row: list[Callable[[], object]] = []
        made = 0
        for each in interventions:
            write = each.first + int(each.begin * (each.last - each.first))
            copies = [copy for pair in each.writes for copy in _writing(*pair)]
            pauses = range(max(made, each.first + 1), write + 1) or range(write, write + 1)
            ends = [len(copies) * (n + 1) // len(pauses) for n in range(len(pauses))]
            written = 0
            for pause, end in zip(pauses, ends, strict=True):
                row += self._calls[made:pause]
                row += copies[written:end]
                made, written = pause, end
        row += self._calls[made:]
        self._before()
        for call in row:
            call()
        return [True] * len(interventions)

    def time_while_renewing(self, renewals: Sequence[Sequence[Renewal]], turn: int) -> float:
        """Makes one renewal before each call. Calls that keep results take far longer then, so the
        row ends after 30 ms."""
        rows = [
            (*_renewing(renewals[number % len(renewals)], turn + number), call)
            for number, call in enumerate(self._calls)
        ]
        self._before()
        made = 0
        started = now = time.perf_counter_ns()
        for row in rows:
            for each in row:
                each()
            made += 1
            now = time.perf_counter_ns()
            if now - started > _LONGEST_RENEWING_NS:
                break
        return (now - started) / 1000 / made


def _renewing(renewals: Sequence[Renewal], turn: int) -> list[Callable[[], object]]:
    made = []
    for renewal in renewals:
        for number, target in enumerate(renewal.target):
            source = renewal.values[(turn + number) % len(renewal.values)]
            made += _writing(target[None], source[None, None])
    return made


def _writing(target: torch.Tensor, source: torch.Tensor) -> list[Callable[[], object]]:
    """Functions that copy a row of elements each. They do not use torch, which takes so long that
    calls would no longer follow each other closely. Both tensors must outlive the functions."""
    return [
        functools.partial(ctypes.memmove, to.data_ptr(), from_.data_ptr(), to.nbytes)
        for to, from_ in zip(target, source, strict=True)
    ]
