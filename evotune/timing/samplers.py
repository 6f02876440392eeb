"""Samplers, which time calls warm, cold or eagerly, and a ranking of baselines."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence

from evotune.backends.base.session import Sampler, Session, WatchableSampler
from evotune.timing.paired import TimingSettings

_LONGER = 10
_TIE = 1.02


def places(session: Session, nbytes: int, most: int) -> int:
    """Number of places in memory at which to time a call with buffers of `nbytes` in all."""
    return max(1, min(most, session.warm_bytes // max(1, nbytes)))


def warm_sampler(
    session: Session,
    placed: Sequence[Callable[[], object]],
    settings: TimingSettings,
    *,
    graphs: int = 1,
) -> MeanSampler | TurnSampler:
    """A sampler of the call on the same buffers, repeated until a sample is long enough.

    `placed` is one call with its buffers at one or more places in memory: a sample has a row of
    calls for each place. With several `graphs`, a sample is the mean over as many graphs, or the
    graphs take turns. Places matter: on an H200 a kernel of 4.5 us got 3% slower or faster with
    the place of its buffers, and SDPA's cuDNN kernel 2% with the place of its graph
    (docs/lab/findings.md, "Found on the way").
    """
    for call in placed:
        call()  # the first call pays for page faults and lazy set-up
    session.synchronize()
    single = session.sampler([placed[0]])
    once_us = min(single.time_us() for _ in range(2))  # one may meet an interruption
    in_a_row = math.ceil(_calls_per_sample(once_us, settings) / len(placed))
    calls = [call for call in placed for _ in range(in_a_row)]
    untimed = min(session.untimed_calls, in_a_row)
    if graphs == 1 or once_us >= settings.sample_us:  # the place makes no difference to a slow call
        return MeanSampler([session.sampler([*[placed[0]] * untimed, *calls], untimed=untimed)])
    # Neighbouring graphs often behave alike, so every other one is dropped once all are made.
    samplers = [session.sampler(calls) for _ in range(2 * graphs)][::2]
    return TurnSampler(samplers) if settings.graphs_take_turns else MeanSampler(samplers)


class MeanSampler:
    """Several samplers as one: runs them all, and times them one after the other."""

    def __init__(self, samplers: Sequence[WatchableSampler]) -> None:
        self.parts = samplers

    def run(self) -> None:
        for sampler in self.parts:
            sampler.run()

    def time_us(self) -> float:
        """Mean over the samplers of their time per call."""
        return sum(sampler.time_us() for sampler in self.parts) / len(self.parts)


class TurnSampler:
    """Several samplers as one: each round uses the next of them, and times it twice, since a round
    has two samples of each side.

    So their differences show in the spread between rounds. A round takes no longer than with one
    sampler.
    """

    def __init__(self, samplers: Sequence[WatchableSampler]) -> None:
        self._turns = itertools.cycle([each for each in samplers for _ in range(2)])
        self.parts = samplers

    def run(self) -> None:
        for sampler in self.parts:
            sampler.run()

    def time_us(self) -> float:
        return next(self._turns).time_us()


def rotating_sampler(
    session: Session, calls: Sequence[Callable[[], object]], settings: TimingSettings
) -> Sampler:
    """A sampler of the calls in turn, each on its own buffers, which no cache holds any more."""
    for call in calls:
        call()
    session.synchronize()
    once_us = session.sampler(calls).time_us()
    rounds = math.ceil(_calls_per_sample(once_us, settings) / len(calls))
    return session.sampler(list(calls) * rounds)


def time_in_turn_us(samplers: Mapping[str, Sampler], rounds: int = 9) -> dict[str, float]:
    """Shortest time per call of each, all sampled in turn: ranks baselines, claims no speedup.

    It is the minimum, since other work on the machine can only add time. On a busy machine a slow
    baseline may have the shortest time because the fast one never met a quiet moment. So sampling
    goes on while another one beats it in most rounds, up to ten times as long.
    """
    times_us: dict[str, list[float]] = {name: [] for name in samplers}
    for number in range(1, _LONGER * rounds + 1):
        for name, sampler in samplers.items():
            times_us[name].append(sampler.time_us())
        if number % rounds == 0 and _rounds_agree(times_us):
            break
    return {name: min(each, default=math.inf) for name, each in times_us.items()}


def _rounds_agree(times_us: Mapping[str, Sequence[float]]) -> bool:
    """Whether no other beats the one with the shortest time in most rounds, ties left aside."""
    shortest = {name: min(each) for name, each in times_us.items()}
    first = min(shortest, key=shortest.__getitem__, default="")
    return all(
        shortest[name] <= _TIE * shortest[first]
        or 2 * sum(map(operator.lt, each, times_us[first])) <= len(each)
        for name, each in times_us.items()
    )


def eager_sampler(
    session: Session, call: Callable[[], object], settings: TimingSettings
) -> Sampler | None:
    """Like `warm_sampler`, but for calls as Python issues them; None where that is the same."""
    single = session.eager_sampler([call])
    if single is None:
        return None
    single.run()
    once_us = min(single.time_us() for _ in range(2))
    return session.eager_sampler([call] * _calls_per_sample(once_us, settings))


def _calls_per_sample(once_us: float, settings: TimingSettings) -> int:
    return max(1, min(1000, math.ceil(settings.sample_us / max(once_us, 0.1))))
