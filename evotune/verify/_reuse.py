"""Whether calls take longer when their inputs change: then they keep results of earlier calls."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

import torch

from evotune.device.session import Sampler
from evotune.verify.buffers import bits

_RATIO = 1.15
"""Allowed ratio of the times of calls on changing inputs to calls on constant inputs."""
_LEAST_ROUNDS = 3
# On a machine so busy that every run is interrupted, one of two equal runs takes 1.3 times as long
# as the other in two rounds of five. So the share of slow rounds must exceed chance: nearly all of
# a few rounds, more than half of many.
_SOON = (30, 0.8)
_AT_LAST = (100, 0.6)
_REST_S = 0.002
_SHIFTS = 1024


class Replaced:
    """Times single calls of a sampler, after all elements of some inputs were written.

    An input is a view, its present values, and others. The new values are the present and the
    others one after the other, from another place on each time; they are not known beforehand.
    """

    def __init__(
        self,
        sampler: Sampler,
        inputs: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
        *,
        most: int,
        limit_s: float,
        rng: random.Random,
    ) -> None:
        """A time is the mean of up to `most` calls, as many as there are within `limit_s`."""
        self._sampler = sampler
        self._most = most
        self._limit_s = limit_s
        self._rng = rng
        self._inputs = [
            (view, torch.cat([bits(now).flatten(), bits(others).flatten()[:_SHIFTS]]))
            for view, now, others in inputs
        ]

    def fresh_us(self) -> float:
        """The time on new values. Then the inputs are as they were."""
        time_us = self._time_us(is_fresh=True)
        self._write(is_fresh=False)
        return time_us

    def familiar_us(self) -> float:
        """The time on the present values."""
        return self._time_us(is_fresh=False)

    def _time_us(self, *, is_fresh: bool) -> float:
        deadline = time.monotonic() + self._limit_s
        times_us: list[float] = []
        while len(times_us) < self._most and (not times_us or time.monotonic() < deadline):
            self._write(is_fresh=is_fresh)
            times_us.append(self._sampler.time_us())
        return sum(times_us) / len(times_us)

    def _write(self, *, is_fresh: bool) -> None:
        for view, values in self._inputs:
            count = view.numel()
            first = 1 + self._rng.randrange(len(values) - count) if is_fresh else 0
            view.copy_(values[first : first + count].view(view.shape))


def slower_on_new_inputs(
    rng: random.Random, fresh: Callable[[], float], familiar: Callable[[], float]
) -> str:
    """A phrase that follows "a launch" if `fresh` gives longer times than `familiar`, else "".
    Honest kernels nearly always pass after three rounds."""
    fresh_us: list[float] = []
    familiar_us: list[float] = []
    rounds = [(fresh, fresh_us), (familiar, familiar_us)]
    while len(familiar_us) < _AT_LAST[0]:
        rng.shuffle(rounds)
        for take, times_us in rounds:
            if len(times_us) >= _LEAST_ROUNDS:
                # Two runs in a fixed order can fall into step with the time slices of a busy
                # machine, so that one is always interrupted. A run after a sleep is not.
                time.sleep(_REST_S)
            times_us.append(take())
        enough = len(familiar_us) >= _LEAST_ROUNDS
        if enough and min(fresh_us) <= _RATIO * min(familiar_us):
            break
        if len(fresh_us) == _SOON[0] and _slower_share(fresh_us, familiar_us) >= _SOON[1]:
            break
    # The shortest times alone may come from one lucky run.
    if (
        min(fresh_us) <= _RATIO * min(familiar_us)
        or _slower_share(fresh_us, familiar_us) < _AT_LAST[1]
    ):
        return ""
    return (
        f"takes {min(fresh_us):.1f} us on new inputs but "
        f"{min(familiar_us):.1f} us on those of the launch before"
    )


def _slower_share(fresh_us: Sequence[float], familiar_us: Sequence[float]) -> float:
    """The share of rounds in which the calls on fresh inputs were slower."""
    slower = [a > _RATIO * b for a, b in zip(fresh_us, familiar_us, strict=True)]
    return sum(slower) / len(slower)
