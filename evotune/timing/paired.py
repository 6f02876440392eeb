"""Paired timing of a candidate against its baseline, interleaved ABBA in one process.

One round is candidate, baseline, baseline, candidate, so that a drift of the machine within the
round cancels in its ratio. Before each round the candidate runs once untimed, since the first
sample after a pause meets cold caches and resting threads. So each side has one sample after itself
and one after the other side. Rounds continue until the ratio is known well enough, or until the
candidate surely cannot win. A champion gets more rounds while noise leaves open which champion is
the best. Rounds during which the device slowed down are repeated, a bounded number of times.

Samplers time calls warm, cold or eagerly.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from evotune.backends.base.session import (
    RestoringSampler,
    Sampler,
    Session,
    WatchableSampler,
)
from evotune.trial import DeviceState, Measurement, number, throttled_by

_MOST_RETAKES = 2
_STEADY_CLOCKS = 0.03  # clocks that differ by more are no steady state
_SLOWDOWNS = frozenset({"hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal"})
_POWER_CAP = "sw_power_cap"
_EAGER_SAMPLES = 24
_REST_S = 1.0  # for a hot device, before each retake


@dataclass(frozen=True, slots=True)
class TimingSettings:
    """Settings that say when the sampling of a case stops, and how a sample is taken.

    - `min_rounds`: the fewest rounds.
    - `half_width`: after each multiple of `min_rounds`, sampling stops if half of the interval's
      width is at most this share of the median.
    - `max_seconds`: after `min_rounds`, sampling stops once this much time has passed.
    - `max_rounds`: sampling stops here, unless the interval is in doubt.
    - `doubt`: the interval is in doubt while it reaches further than this to either side. Then up
      to `extra_rounds` follow.
    - `sample_us`: a sample lasts at least this long.
    - `places`: a sample uses up to this many copies of the buffers.
    - `graphs`, `baseline_graphs`: the CUDA graphs of the candidate and of a baseline. A graph's
      place in memory changes its time.
    - `graphs_take_turns`: each round uses one of the graphs; else a sample is the mean over all.
    """

    min_rounds: int = 5
    max_rounds: int = 25
    half_width: float = 0.01
    sample_us: float = 1000.0
    max_seconds: float = 1.0
    extra_rounds: int = 0
    doubt: float = math.inf
    places: int = 4
    graphs: int = 1
    baseline_graphs: int = 3
    graphs_take_turns: bool = True

    @classmethod
    def fixed(cls) -> TimingSettings:
        """Settings with which every candidate gets as many samples as racing gives a contender."""
        return cls(min_rounds=25)

    @classmethod
    def thorough(cls) -> TimingSettings:
        """Settings for comparing two configurations in one process."""
        return cls(
            min_rounds=20,
            max_rounds=60,
            half_width=0.005,
            max_seconds=3.0,
            places=8,
            graphs=8,
            baseline_graphs=8,
            graphs_take_turns=False,
        )

    @classmethod
    def champion(cls) -> TimingSettings:
        """Settings for each process that times a champion. Processes differ by more than 1%, and a
        champion's interval is that of their mean."""
        return dataclasses.replace(cls.thorough(), max_rounds=40, half_width=0.01)

    def deciding(self, cases: int) -> TimingSettings:
        """Settings for each of `cases` cases whose mean decides which champion is the best.

        The mean must be known to 1%, the least difference that matters. So each case must be known
        to 1% times the square root of `cases`.
        """
        return dataclasses.replace(self, extra_rounds=180, doubt=0.01 * math.sqrt(cases))


def measure_paired(
    candidate: Sampler,
    baseline: Sampler,
    *,
    case: str,
    baseline_name: str,
    settings: TimingSettings,
    contender_speedup: float = 0.0,
    leader_speedup: float = 0.0,
    cache: str = "warm",
    held_out: bool = False,
    before_sample: Callable[[], None] = lambda: None,
    state: Callable[[], DeviceState] = dict,
    rest: Callable[[float], None] = time.sleep,
) -> Measurement:
    """Times the candidate against the baseline. `before_sample` runs outside the clock before each
    sample of either side. `state` reads the device's state before the first sample and right after
    the last one.

    Stops early once the speedup is surely below `contender_speedup`. After the usual rounds, stops
    once it is surely at most `settings.doubt` above `leader_speedup`.

    The measurement is repeated, at most twice, when heat or hardware slowed the device down
    meanwhile, after a `rest` (in s) if the device is still slow. The last measurement is kept,
    marked `throttled` if the device was slow during that one too."""
    retakes = -1
    throttled = True
    after: DeviceState = {}
    while throttled and retakes < _MOST_RETAKES:
        retakes += 1
        if _SLOWDOWNS.intersection(throttled_by(after)):
            rest(_REST_S)
        before = state()
        rivals = _Rivals(contender_speedup, leader_speedup)
        taken = _take(candidate, baseline, settings, rivals, before_sample)
        after = state()
        throttled = slowed_down(before, after)
    return msgspec.structs.replace(
        taken,
        case=case,
        baseline=baseline_name,
        cache=cache,
        held_out=held_out,
        state=dict(after),
        retakes=retakes,
        throttled=throttled,
    )


def slowed_down(before: DeviceState, after: DeviceState) -> bool:
    """True if heat or hardware slowed the device down, or its SM clocks changed, in between.

    A software power cap alone does not count: a small GPU always runs at its cap, and the resulting
    clocks affect candidate and baseline equally."""
    reasons = {*throttled_by(before), *throttled_by(after)}
    if reasons & _SLOWDOWNS:
        return True
    first, last = number(before, "sm_mhz"), number(after, "sm_mhz")
    if not first or not last or _POWER_CAP in reasons:
        return False
    return abs(first - last) > _STEADY_CLOCKS * max(first, last)


class _Rivals(NamedTuple):
    """The two speedups that `measure_paired` takes."""

    contender_speedup: float
    leader_speedup: float


def _take(
    candidate: Sampler,
    baseline: Sampler,
    settings: TimingSettings,
    rivals: _Rivals,
    before_sample: Callable[[], None],
) -> Measurement:
    """Run one row of rounds; the caller fills in the case and the baseline's name."""
    candidate_us: list[float] = []
    baseline_us: list[float] = []
    ratios: list[float] = []
    interval = Interval(1.0, 0.0, math.inf)
    started = time.monotonic()
    while len(ratios) < settings.max_rounds + settings.extra_rounds:
        candidate.run()
        times_us = []
        for side in (candidate, baseline, baseline, candidate):
            before_sample()
            times_us.append(side.time_us())
        first, reference_1, reference_2, second = times_us
        candidate_us += (first, second)
        baseline_us += (reference_1, reference_2)
        ratios.append((reference_1 + reference_2) / (first + second))
        rounds = len(ratios)
        usual = rounds <= settings.max_rounds
        # Checking after every round would stop at the first interval that is narrow by chance.
        looking = rounds % (settings.min_rounds if usual else settings.max_rounds) == 0
        spent = time.monotonic() - started > settings.max_seconds
        # Past the usual rounds an interval takes milliseconds.
        if rounds < settings.min_rounds or not (usual or looking or spent):
            continue
        interval = median_interval(ratios)
        settled = looking and interval.relative_half_width <= settings.half_width
        if settled or spent or interval.high < rivals.contender_speedup:
            break
        if rounds >= settings.max_rounds and not _is_in_doubt(interval, settings, rivals):
            break
    return Measurement(
        case="",
        time_us=float(np.median(candidate_us)),
        time_min_us=min(candidate_us),
        baseline="",
        baseline_us=float(np.median(baseline_us)),
        speedup=interval.median,
        speedup_low=interval.low,
        speedup_high=interval.high,
        samples=len(ratios),
    )


def _is_in_doubt(interval: Interval, settings: TimingSettings, rivals: _Rivals) -> bool:
    """True if more rounds may change the choice of the champion."""
    matters = interval.high > rivals.leader_speedup * (1 + settings.doubt)
    return matters and interval.relative_half_width > settings.doubt


def eager_times_us(candidate: Sampler, baseline: Sampler) -> tuple[float, float]:
    """The median time of an eager call of the candidate and of the baseline, in µs, interleaved
    ABBA."""
    candidate_us: list[float] = []
    baseline_us: list[float] = []
    for _ in range(_EAGER_SAMPLES // 2):
        candidate_us.append(candidate.time_us())
        baseline_us += (baseline.time_us(), baseline.time_us())
        candidate_us.append(candidate.time_us())
    return float(np.median(candidate_us)), float(np.median(baseline_us))


# Medians with bootstrap confidence intervals (Efron 1979, percentile method).

_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Interval:
    """A median and its 95% confidence bounds, in the samples' unit."""

    median: float
    low: float
    high: float

    @property
    def relative_half_width(self) -> float:
        return (self.high - self.low) / (2 * self.median)


def median_interval(samples: Sequence[float]) -> Interval:
    """Median of `samples` with its bootstrap interval; the same samples, in any order, give the
    same bounds."""
    values = np.sort(np.asarray(samples, dtype=np.float64))
    if values.size == 0:
        raise ValueError("no samples")
    lower, upper = _middle_ranks(values.size)
    medians = (values[lower] + values[upper]) / 2
    low, high = np.percentile(medians, (2.5, 97.5))
    return Interval(float(np.median(values)), float(low), float(high))


@functools.lru_cache(maxsize=256)
def _middle_ranks(size: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Ranks, from 0, of the two middle samples of each resample of `size` (for an odd size, the
    same rank twice). The ranks do not depend on the samples, so they are drawn once: racing needs
    them after every round."""
    draws = np.random.default_rng(0).integers(0, size, (_RESAMPLES, size))
    draws.sort(axis=1)
    return draws[:, (size - 1) // 2].copy(), draws[:, size // 2].copy()


_LONGER = 10
_TIE = 1.02


def places(session: Session, nbytes: int, most: int) -> int:
    """The number of addresses, at most `most`, at which to time a call whose buffers have `nbytes`
    in total."""
    return max(1, min(most, session.warm_bytes // max(1, nbytes)))


def warm_sampler(
    session: Session,
    placed: Sequence[Callable[[], object]],
    settings: TimingSettings,
    *,
    graphs: int = 1,
    restore: Callable[[], None] | None = None,
) -> MeanSampler | TurnSampler:
    """A sampler of the call on the same buffers, repeated until a sample is long enough.

    `placed` is one call with its buffers at one or more places in memory: a sample has a row of
    calls for each place. With several `graphs`, a sample is the mean over as many graphs, or the
    graphs take turns. Places matter: on an H200 a kernel of 4.5 us got 3% slower or faster with
    the place of its buffers, and SDPA's cuDNN kernel 2% with the place of its graph
    (docs/lab/findings.md, "Found on the way").

    With `restore`, the calls update tensors in place. So each place has one call in a sample, on
    values of its own, which `restore` gives to all of them again, before each run and outside the
    clock.
    """
    for call in placed:
        call()  # the first call pays for page faults and lazy set-up
    session.synchronize()
    if restore is not None:
        untimed = min(session.untimed_calls, len(placed) - 1)
        made = [
            RestoringSampler(session.sampler(placed, untimed=untimed), restore)
            for _ in range(2 * graphs if graphs > 1 else 1)
        ][:: 2 if graphs > 1 else 1]
        return TurnSampler(made) if settings.graphs_take_turns else MeanSampler(made)
    single = session.sampler([placed[0]])
    once_us = min(single.time_us() for _ in range(2))  # one may meet an interruption
    in_a_row = math.ceil(_calls_per_sample(once_us, settings) / len(placed))
    calls = [call for call in placed for _ in range(in_a_row)]
    untimed = min(session.untimed_calls, in_a_row)
    if graphs == 1 or once_us >= settings.sample_us:  # the place makes no difference to a slow call
        return MeanSampler([session.sampler([*[placed[0]] * untimed, *calls], untimed=untimed)])
    # Neighbouring graphs often behave similarly, so every other one is dropped once all are made.
    samplers = [session.sampler(calls) for _ in range(2 * graphs)][::2]
    return TurnSampler(samplers) if settings.graphs_take_turns else MeanSampler(samplers)


_MOST_RESTORED = 64
_RESTORED_SHARE = 4  # a quarter of the memory for inputs
_LEAST_OF_A_ROW, _LONG_US = 4, 2000.0  # for a slope over calls that are not long


def restored_places(
    session: Session, single: Sampler, nbytes: int, settings: TimingSettings
) -> int:
    """The number of places at which to time a call that updates tensors in place, once at each. A
    sample is as long as any other, if there is memory for so many places of `nbytes`. `single` is a
    sampler of one call. It is a power of two, and a few for untimed calls, so that the baseline can
    be timed at as many places without a sampler of its own for each candidate."""
    once_us = min(single.time_us() for _ in range(2))
    wanted = min(_calls_per_sample(once_us, settings), _MOST_RESTORED)
    if session.calls_once and once_us < _LONG_US:
        wanted = max(wanted, _LEAST_OF_A_ROW)
    room = max(1, session.pool_bytes // _RESTORED_SHARE // max(1, nbytes))
    return min(1 << (wanted - 1).bit_length(), room) + session.untimed_calls


class MeanSampler:
    """Several samplers as one: runs them all, and times them one after the other."""

    def __init__(self, samplers: Sequence[WatchableSampler]) -> None:
        self.parts = samplers

    def run(self) -> None:
        for sampler in self.parts:
            sampler.run()

    def time_us(self) -> float:
        """The mean over the samplers of the time per call, in µs."""
        return sum(sampler.time_us() for sampler in self.parts) / len(self.parts)


class TurnSampler:
    """Several samplers as one: each round uses the next of them, and times it twice, since a round
    has two samples of each side.

    So the differences between samplers show in the spread between rounds, and a round takes no
    longer than with one sampler.
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
    session: Session,
    calls: Sequence[Callable[[], object]],
    settings: TimingSettings,
    restore: Callable[[], None] | None = None,
) -> Sampler:
    """A sampler of cold calls: it rotates through `calls`, each on its own buffers, which no longer
    lie in a cache when their turn comes. With `restore`, which gives the buffers their values
    again, it makes each call once."""
    for call in calls:
        call()
    session.synchronize()
    if restore is not None:
        return RestoringSampler(session.sampler(calls), restore)
    once_us = session.sampler(calls).time_us()
    rounds = math.ceil(_calls_per_sample(once_us, settings) / len(calls))
    return session.sampler(list(calls) * rounds)


def time_in_turn_us(samplers: Mapping[str, Sampler], rounds: int = 9) -> dict[str, float]:
    """The shortest time per call of each sampler, in µs, all sampled in turn. It serves to rank
    baselines, not to claim a speedup.

    It takes the minimum, because other work on the machine can only add time. On a busy machine a
    slow baseline may have the shortest time because the fast one never ran in a quiet moment. So
    sampling continues while another baseline beats it in most rounds, up to ten times as long.
    """
    times_us: dict[str, list[float]] = {name: [] for name in samplers}
    for turn in range(1, _LONGER * rounds + 1):
        for name, sampler in samplers.items():
            times_us[name].append(sampler.time_us())
        if turn % rounds == 0 and _rounds_agree(times_us):
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
    session: Session,
    placed: Sequence[Callable[[], object]],
    settings: TimingSettings,
    restore: Callable[[], None] | None = None,
) -> Sampler | None:
    """Like `warm_sampler`, but the calls are not captured into a graph. All calls are at the first
    place unless they are to `restore` tensors. None on a device that captures none."""
    single = session.eager_sampler(placed if restore is not None else placed[:1])
    if single is None:
        return None
    if restore is not None:
        return RestoringSampler(cast("WatchableSampler", single), restore)  # it is not watched
    single.run()
    once_us = min(single.time_us() for _ in range(2))
    return session.eager_sampler(list(placed[:1]) * _calls_per_sample(once_us, settings))


def _calls_per_sample(once_us: float, settings: TimingSettings) -> int:
    return max(1, min(1000, math.ceil(settings.sample_us / max(once_us, 0.1))))
