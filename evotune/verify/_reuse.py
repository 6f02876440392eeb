"""Whether calls take longer when their inputs change: then they keep results of earlier calls.

The answer rests on time, and other work on the machine changes times. So each comparison is of two
rows that differ in nothing but the values: without kept results either may be the slower one. It is
made again at other moments before a candidate is refused, and it may end undecided.
"""

from __future__ import annotations

import enum
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from evotune.backends.base.session import Sampler
from evotune.verify.buffers import bits

_RATIO = 1.15
"""Allowed ratio of the times of calls on changing inputs to calls on constant inputs."""
_LEAST_ROUNDS = 3
_LOOKS = ((10, 0.9), (30, 0.8), (100, 0.6))
"""After how many rounds of a bout which share of slow ones is more than chance: nearly all of a few
rounds, more than half of many. On a machine so busy that every run is interrupted, one of two equal
runs takes 1.3 times as long as the other in two rounds of five."""
_REST_S = 0.002
_PAUSES_S = (0.0, 0.1, 0.5, 1.0, 2.0)
"""The waits before the bouts of rounds: a burst of other work must not last through all of them."""
_SURE = 3
"""A candidate is refused after so many bouts in which new inputs were slower."""
_LONGEST_S = 60.0
"""No further bout begins after this time."""
_ASKED_ROWS, _ASKED_RATIO = 13, 1.5
"""So many rows one after the other, all slower than most timed ones by this factor, are no
chance."""
_LEAST_EQUAL = 3
_BESIDE = 24
"""Timed rows before and after: the processor's clock and other programs change with time."""
_SHIFTS = 1024
_SORTED = 1 << 16  # numbers: sorting them makes a million branches
_WALL = 10  # a burst of calls takes at most so many times its limit by the wall clock


class Answer(NamedTuple):
    """Whether calls keep results: not if `words`, which follow "a launch", are "". If they are not
    `sure`, the machine is too noisy to tell."""

    words: str = ""
    sure: bool = True


class Replaced:
    """Times single calls of a sampler, each after all elements of some inputs were written.

    An input is a view, its present values, and others. New values are the present and the others
    one after the other, from another place on each time; they are not known beforehand. Both times
    are of the same values, since a right call may take longer on some than on others. And both come
    after as many calls: on a busy machine other programs empty the caches in each pause.
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
        """Values become familiar by `most` calls, or as many as there are within `limit_s` of this
        thread's work. With `forgetting` the processor forgets before each timed call what it has
        learnt of branches."""
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
        """The time of a call on new values, after many calls on the last ones."""
        self._call_often()
        self._places = [
            1 + self._rng.randrange(len(values) - view.numel()) for view, values in self._inputs
        ]
        return self._time_us()

    def familiar_us(self) -> float:
        """The time of a call on the last values, which many calls before it had."""
        self._call_often()
        return self._time_us()

    def restore(self) -> None:
        """Write the present values again."""
        self._places = [0] * len(self._inputs)
        self._write()

    def _call_often(self) -> None:
        worked_s, began_s = time.thread_time(), time.monotonic()
        for _ in range(self._most):
            self._write()
            self._sampler.run()
            is_over = time.thread_time() - worked_s > self._limit_s
            if is_over or time.monotonic() - began_s > _WALL * self._limit_s:
                break

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


class _Found(enum.Enum):
    """What one bout of rounds shows."""

    EQUAL = enum.auto()
    SLOWER = enum.auto()
    UNCLEAR = enum.auto()


def slower_on_new_inputs(
    rng: random.Random,
    fresh: Callable[[], float],
    familiar: Callable[[], float],
    *,
    rest: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> Answer:
    """Whether `fresh` gives longer times than `familiar`. Honest kernels nearly always pass after
    three rounds.

    A bout of rounds that shows no difference clears a candidate. Bouts at other moments, after
    growing pauses, must agree that it is slower before it is refused.
    """
    began_s, words = now(), ""
    slower = 0
    for pause_s in _PAUSES_S:
        if words and now() - began_s > _LONGEST_S:
            break
        if pause_s:
            rest(pause_s)
        found, fastest_us, usual_us = _bout(rng, fresh, familiar, rest)
        if found is _Found.EQUAL:
            return Answer()
        slower += found is _Found.SLOWER
        words = (
            f"takes {fastest_us:.1f} us on new inputs but "
            f"{usual_us:.1f} us on those of the launch before"
        )
        if slower == _SURE:
            return Answer(words)
    return Answer(words, sure=False)


def _bout(
    rng: random.Random,
    fresh: Callable[[], float],
    familiar: Callable[[], float],
    rest: Callable[[float], None],
) -> tuple[_Found, float, float]:
    """What the rounds of one moment show, and the shortest time of either side."""
    fresh_us: list[float] = []
    familiar_us: list[float] = []
    rounds = [(fresh, fresh_us), (familiar, familiar_us)]
    found = _Found.UNCLEAR
    while found is _Found.UNCLEAR and len(familiar_us) < _LOOKS[-1][0]:
        rng.shuffle(rounds)
        for take, times_us in rounds:
            if len(times_us) >= _LEAST_ROUNDS:
                # Two runs in a fixed order can fall into step with the time slices of a busy
                # machine, so that one is always interrupted. A run after a sleep is not.
                rest(_REST_S)
            times_us.append(take())
        found = _shown(fresh_us, familiar_us)
    return found, min(fresh_us), min(familiar_us)


def _shown(fresh_us: Sequence[float], familiar_us: Sequence[float]) -> _Found:
    share = _slower_share(fresh_us, familiar_us)
    # The shortest times alone may come from one lucky run.
    longer = min(fresh_us) > _RATIO * min(familiar_us)
    if not longer and share <= 0.5 and len(fresh_us) >= _LEAST_ROUNDS:
        return _Found.EQUAL
    enough = [least for rounds, least in _LOOKS if len(fresh_us) == rounds]
    return _Found.SLOWER if longer and enough and share >= enough[0] else _Found.UNCLEAR


class Asked(NamedTuple):
    """A row on changing inputs, and how many timed rows came before it. `equal_us` is the time of a
    row just before or after it that differs only in that no input changes; None if it came after.
    """

    place: int
    time_us: float
    equal_us: float | None = None


def slower_than_timed(asked: Sequence[Asked], timed_us: Sequence[float]) -> Answer:
    """The same question for rows on changing inputs that were timed among the others, `timed_us`.

    A window of `asked` rows that are all slow accuses a candidate, unless rows on constant inputs
    were slow there too: then other work was. Only those that came before a row on changing inputs
    count, as a candidate may compute for a while after it saw a change.
    """
    if not timed_us:
        return Answer()
    beside = [timed_us[max(0, each.place - _BESIDE) : each.place + _BESIDE] for each in asked]
    usual_us = [statistics.median(times or timed_us) for times in beside]
    slow = [each.time_us > _ASKED_RATIO * us for each, us in zip(asked, usual_us, strict=True)]
    words = ""
    for first in range(len(asked) - _ASKED_ROWS + 1):
        row = slice(first, first + _ASKED_ROWS)
        if not all(slow[row]):
            continue
        new_us, old_us = min(each.time_us for each in asked[row]), min(usual_us[row])
        words = f"takes {new_us:.1f} us on new inputs but {old_us:.1f} us while it is timed"
        equal = [
            each.equal_us > _ASKED_RATIO * us
            for each, us in zip(asked[row], usual_us[row], strict=True)
            if each.equal_us is not None
        ]
        if len(equal) >= _LEAST_EQUAL and sum(equal) <= len(equal) / 2:
            return Answer(words)
    return Answer(words, sure=not words)


def _slower_share(fresh_us: Sequence[float], familiar_us: Sequence[float]) -> float:
    """The share of rounds in which the calls on fresh inputs were slower."""
    slower = [a > _RATIO * b for a, b in zip(fresh_us, familiar_us, strict=True)]
    return sum(slower) / len(slower)
