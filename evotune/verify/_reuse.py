"""Whether calls take longer when their inputs change: then they keep results of earlier calls."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

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
_ASKED_ROWS, _ASKED_RATIO = 13, 1.5
"""So many rows one after the other, all slower than most timed ones by this factor, are no
chance."""
_BESIDE = 24
"""Timed rows before and after: the processor's clock and other programs change with time."""
_SHIFTS = 1024
_SORTED = 1 << 16  # numbers: sorting them makes a million branches


class Replaced:
    """Times single calls of a sampler, each after all elements of some inputs were written.

    An input is a view, its present values, and others. New values are the present and the others
    one after the other, from another place on each time; they are not known beforehand. Both times
    are of the same values, since a right call may take longer on some than on others.
    """

    def __init__(
        self,
        sampler: Sampler,
        inputs: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
        *,
        most: int,
        limit_s: float,
        rng: random.Random,
        forgetting: bool,
    ) -> None:
        """Values become familiar by `most` calls, or as many as there are within `limit_s`. With
        `forgetting` the processor forgets before each timed call what it has learnt of branches."""
        self._sampler = sampler
        self._most = most
        self._limit_s = limit_s
        self._rng = rng
        self._forgetting = forgetting
        self._inputs = [
            (view, torch.cat([bits(now).flatten(), bits(others).flatten()[:_SHIFTS]]))
            for view, now, others in inputs
        ]
        self._places = [0] * len(self._inputs)

    def fresh_us(self) -> float:
        """The time of a call on new values."""
        self._places = [
            1 + self._rng.randrange(len(values) - view.numel()) for view, values in self._inputs
        ]
        return self._time_us()

    def familiar_us(self) -> float:
        """The time of a call on the last values, which many calls before it had."""
        deadline = time.monotonic() + self._limit_s
        for _ in range(self._most):
            self._write()
            self._sampler.run()
            if time.monotonic() > deadline:
                break
        return self._time_us()

    def restore(self) -> None:
        """Write the present values again."""
        self._places = [0] * len(self._inputs)
        self._write()

    def _time_us(self) -> float:
        self._write()
        if self._forgetting:
            _forget_branches()
        return self._sampler.time_us()

    def _write(self) -> None:
        for (view, values), first in zip(self._inputs, self._places, strict=True):
            view.copy_(values[first : first + view.numel()].view(view.shape))


def _forget_branches() -> None:
    """Make branches that nobody can foresee on each core. A processor remembers some ten thousand:
    right calls with branches on the data are up to four times as fast on data of the call before.
    """
    torch.randn(torch.get_num_threads(), _SORTED).sort(stable=True)  # others sort without branches


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


class Asked(NamedTuple):
    """A row on changing inputs, and how many timed rows came before it."""

    place: int
    time_us: float


def slower_than_timed(asked: Sequence[Asked], timed_us: Sequence[float]) -> str:
    """The same phrase for rows on changing inputs that were timed among the others, `timed_us`."""
    if not timed_us:
        return ""
    beside = [timed_us[max(0, each.place - _BESIDE) : each.place + _BESIDE] for each in asked]
    usual_us = [statistics.median(times or timed_us) for times in beside]
    slow = [each.time_us > _ASKED_RATIO * us for each, us in zip(asked, usual_us, strict=True)]
    for first in range(len(asked) - _ASKED_ROWS + 1):
        row = slice(first, first + _ASKED_ROWS)
        if all(slow[row]):
            new_us, old_us = min(each.time_us for each in asked[row]), min(usual_us[row])
            return f"takes {new_us:.1f} us on new inputs but {old_us:.1f} us while it is timed"
    return ""


def _slower_share(fresh_us: Sequence[float], familiar_us: Sequence[float]) -> float:
    """The share of rounds in which the calls on fresh inputs were slower."""
    slower = [a > _RATIO * b for a, b in zip(fresh_us, familiar_us, strict=True)]
    return sum(slower) / len(slower)
