"""A machine on a simulated clock: its samplers return made-up times."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

from evotune.backends.base.session import Sampler

CANDIDATE, BASELINE = (lambda: "candidate"), (lambda: "baseline")


class SimulatedMachine:
    """Every call takes its own time times the machine's slowdown at that moment, times noise."""

    def __init__(
        self,
        times_us: Mapping[str, float],
        *,
        slowdown: Callable[[float], float] = lambda now_us: 1.0,
        noise: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._times_us = times_us
        self._slowdown = slowdown
        self._noise = noise
        self._rng = random.Random(seed)
        self.now_us = 0.0
        self.samples: list[str] = []
        self.rows: list[list[str]] = []
        self.warm_bytes = 0
        self.untimed_calls = 0
        self.rests_after = 0  # rests after this many samples; the next is 1.2 times slower
        self.rested = False

    def synchronize(self) -> None: ...

    def sampler(self, calls: Sequence[Callable[[], object]], *, untimed: int = 0) -> Sampler:
        return SimulatedSampler(self, calls)

    def sample(self, names: Sequence[str]) -> float:
        self.samples.append(names[0])
        self.rows.append(list(names))
        speed = self._slowdown(self.now_us) * math.exp(self._rng.gauss(0.0, self._noise))
        if self.rested:
            speed *= 1.2
        self.rested = bool(self.rests_after) and len(self.samples) % self.rests_after == 0
        time_us = sum(self._times_us[name] for name in names) * speed
        self.now_us += time_us
        return time_us / len(names)


class SimulatedSampler:
    def __init__(self, machine: SimulatedMachine, calls: Sequence[Callable[[], object]]) -> None:
        self._machine = machine
        self._names = [str(call()) for call in calls]

    def run(self) -> None:
        self._machine.rested = False

    def time_us(self) -> float:
        return self._machine.sample(self._names)
