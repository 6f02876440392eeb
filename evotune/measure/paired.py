"""Paired timing of a candidate against its baseline, interleaved ABBA in one process.

One round is candidate, baseline, baseline, candidate, so that a drift of the machine within
the round cancels in its ratio. Before it the candidate runs once untimed, since the first sample
after a pause meets cooler caches and resting threads, so that each side has one sample after itself
and one after the other. Rounds go on until the ratio is known well enough, or it is clear that the
candidate is no contender; a champion's go on further where noise leaves open which one is the best.
What was taken while the device slowed down is taken again, a bounded number of times.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from evotune.device.protocol import Sampler
from evotune.measure.statistics import Interval, median_interval
from evotune.trial import Json, Measurement

_MOST_RETAKES = 2
_STEADY_CLOCKS = 0.03  # clocks that differ by more are no steady state
_SLOWDOWNS = frozenset({"hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal"})
_POWER_CAP = "sw_power_cap"
_EAGER_SAMPLES = 24
_REST_S = 1.0  # for a hot device, before each retake


@dataclass(frozen=True, slots=True)
class TimingSettings:
    """When to stop sampling: at `max_rounds`; after a multiple of `min_rounds` when the interval
    is within `half_width` of the median; or, past `min_rounds`, after `max_seconds`. While the
    interval is wider than `doubt` to either side, which is looked at after multiples of
    `max_rounds`, there are up to `extra_rounds` more. A sample lasts `sample_us` or longer and
    visits up to `places` copies of the buffers; where the place of a graph matters, it is the mean
    over `graphs`, or `baseline_graphs`; or these take turns, one a round."""

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
        """As many samples of each candidate as racing gives those in question."""
        return cls(min_rounds=25)

    @classmethod
    def thorough(cls) -> TimingSettings:
        """For what is reported of champions, and for comparing two configurations."""
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
    def repeated(cls) -> TimingSettings:
        """For the further processes of what is reported: processes differ more than samples."""
        return dataclasses.replace(cls.thorough(), max_rounds=40)

    @classmethod
    def deciding(cls, cases: int) -> TimingSettings:
        """For a case that decides which champion is the best: the mean over so many of them is to
        be known to 1%, which is the difference that matters, and each of them has its share."""
        return dataclasses.replace(cls.thorough(), extra_rounds=180, doubt=0.01 * math.sqrt(cases))


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
    state: Callable[[], Mapping[str, Json]] = dict,
    rest: Callable[[float], None] = time.sleep,
) -> Measurement:
    """`before_sample` runs outside the clock before each sample of either side; `state` is the
    device's, read before the first sample and right after the last one.

    Stops early once the speedup is surely below `contender_speedup`; past the usual rounds, once
    it is surely no more than `settings.doubt` above `leader_speedup`. Taken again, at most twice,
    when the device was slowed down by heat or hardware meanwhile, after a `rest` (in s) if it still
    is; the last take is kept, marked `throttled` if that one was slowed down too."""
    retakes = -1
    throttled = True
    after: Mapping[str, Json] = {}
    while throttled and retakes < _MOST_RETAKES:
        retakes += 1
        if _SLOWDOWNS.intersection(after.get("throttled_by", ())):
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


def slowed_down(before: Mapping[str, Json], after: Mapping[str, Json]) -> bool:
    """Whether heat or hardware slowed the device down, or its SM clocks changed, in between.

    A software power cap alone is none: a small GPU lives at its cap, and clocks that follow it
    hit candidate and baseline alike."""
    reasons = {*before.get("throttled_by", ()), *after.get("throttled_by", ())}
    if reasons & _SLOWDOWNS:
        return True
    first, last = before.get("sm_mhz"), after.get("sm_mhz")
    if not first or not last or _POWER_CAP in reasons:
        return False
    return bool(abs(first - last) > _STEADY_CLOCKS * max(first, last))


class _Rivals(NamedTuple):
    """The speedups that `measure_paired` is told."""

    contender_speedup: float
    leader_speedup: float


def _take(
    candidate: Sampler,
    baseline: Sampler,
    settings: TimingSettings,
    rivals: _Rivals,
    before_sample: Callable[[], None],
) -> Measurement:
    """One row of rounds; what it is of is left for the caller to say."""
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
        # Whoever looks after every round stops at the first interval that is narrow by chance.
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
    """Whether more rounds may change which champion is to be chosen."""
    matters = interval.high > rivals.leader_speedup * (1 + settings.doubt)
    return matters and interval.relative_half_width > settings.doubt


def eager_times_us(candidate: Sampler, baseline: Sampler) -> tuple[float, float]:
    """Median time per call of each side, interleaved ABBA; for samplers of eager calls."""
    candidate_us: list[float] = []
    baseline_us: list[float] = []
    for _ in range(_EAGER_SAMPLES // 2):
        candidate_us.append(candidate.time_us())
        baseline_us += (baseline.time_us(), baseline.time_us())
        candidate_us.append(candidate.time_us())
    return float(np.median(candidate_us)), float(np.median(baseline_us))
