"""Paired timing of a candidate against its baseline, interleaved ABBA in one process.

One round is candidate, baseline, baseline, candidate, so that a drift of the machine within
the round cancels in its ratio; every second round is the other way round, since the first sample
after the pause between rounds meets cooler caches and resting threads. Rounds go on until the
ratio is known well enough, or it is clear that the candidate is no contender. What was taken while
the device slowed down is taken again, a bounded number of times.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evotune.device.protocol import Sampler, Session
from evotune.measure.statistics import Interval, median_interval
from evotune.trial import Json, Measurement

_MOST_RETAKES = 2
_STEADY_CLOCKS = 0.03  # clocks that differ by more are no steady state
_SLOWDOWNS = frozenset({"hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal"})
_POWER_CAP = "sw_power_cap"
_EAGER_SAMPLES = 24


@dataclass(frozen=True, slots=True)
class TimingSettings:
    """When to stop sampling: at `max_rounds`; after a multiple of `min_rounds` when the interval
    is within `half_width` of the median; or, past `min_rounds`, after `max_seconds`. A sample
    lasts `sample_us` or longer."""

    min_rounds: int = 5
    max_rounds: int = 25
    half_width: float = 0.01
    sample_us: float = 1000.0
    max_seconds: float = 1.0

    @classmethod
    def thorough(cls) -> TimingSettings:
        """For finalists and champions."""
        return cls(min_rounds=20, max_rounds=60, half_width=0.005, max_seconds=10.0)


def measure_paired(
    candidate: Sampler,
    baseline: Sampler,
    *,
    case: str,
    baseline_name: str,
    settings: TimingSettings,
    contender_speedup: float = 0.0,
    cache: str = "warm",
    held_out: bool = False,
    before_sample: Callable[[], None] = lambda: None,
    before_baseline: Callable[[], None] = lambda: None,
    state: Callable[[], Mapping[str, Json]] = dict,
) -> Measurement:
    """`before_sample` and `before_baseline` run outside the clock before each sample of the
    candidate and of the baseline; `state` is the device's, read before the first sample and right
    after the last one.

    Stops early once the speedup is surely below `contender_speedup`. Taken again, at most twice,
    when the device was slowed down by heat or hardware meanwhile; the last take is kept, marked
    `throttled` if that one was slowed down too."""
    retakes = -1
    throttled = True
    while throttled and retakes < _MOST_RETAKES:
        retakes += 1
        before = state()
        taken = _take(
            candidate,
            baseline,
            settings,
            contender_speedup,
            before_sample=before_sample,
            before_baseline=before_baseline,
        )
        after = state()
        throttled = slowed_down(before, after)
    return dataclasses.replace(
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


def _take(
    candidate: Sampler,
    baseline: Sampler,
    settings: TimingSettings,
    contender_speedup: float,
    *,
    before_sample: Callable[[], None],
    before_baseline: Callable[[], None],
) -> Measurement:
    """One row of rounds; what it is of is left for the caller to say."""
    candidate_us: list[float] = []
    baseline_us: list[float] = []
    ratios: list[float] = []
    interval = Interval(1.0, 0.0, math.inf)
    sides = {"A": (before_sample, candidate), "B": (before_baseline, baseline)}
    started = time.monotonic()
    while len(ratios) < settings.max_rounds:
        order = "ABBA" if len(ratios) % 2 == 0 else "BAAB"
        taken: dict[str, list[float]] = {"A": [], "B": []}
        for side in order:
            sides[side][0]()
            taken[side].append(sides[side][1].time_us())
        (first, second), (reference_1, reference_2) = taken["A"], taken["B"]
        candidate_us += (first, second)
        baseline_us += (reference_1, reference_2)
        ratios.append((reference_1 + reference_2) / (first + second))
        if len(ratios) < settings.min_rounds:
            continue
        interval = median_interval(ratios)
        # Whoever looks after every round stops at the first interval that is narrow by chance.
        settled = (
            len(ratios) % settings.min_rounds == 0
            and interval.relative_half_width <= settings.half_width
        )
        spent = time.monotonic() - started > settings.max_seconds
        if settled or spent or interval.high < contender_speedup:
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


def eager_times_us(candidate: Sampler, baseline: Sampler) -> tuple[float, float]:
    """Median time per call of each side, interleaved ABBA; for samplers of eager calls."""
    candidate_us: list[float] = []
    baseline_us: list[float] = []
    for _ in range(_EAGER_SAMPLES // 2):
        candidate_us.append(candidate.time_us())
        baseline_us += (baseline.time_us(), baseline.time_us())
        candidate_us.append(candidate.time_us())
    return float(np.median(candidate_us)), float(np.median(baseline_us))


def warm_sampler(session: Session, call: Callable[[], object], settings: TimingSettings) -> Sampler:
    """The call on the same buffers, as often in a row as fills a sample."""
    call()  # the first call pays for page faults and lazy set-up
    session.synchronize()
    single = session.sampler([call])
    once_us = min(single.time_us() for _ in range(2))  # one may meet an interruption
    return session.sampler([call] * _calls_per_sample(once_us, settings))


def rotating_sampler(
    session: Session, calls: Sequence[Callable[[], object]], settings: TimingSettings
) -> Sampler:
    """The calls in turn, each on its own buffers: none finds its own in a cache."""
    for call in calls:
        call()
    session.synchronize()
    once_us = session.sampler(calls).time_us()
    rounds = math.ceil(_calls_per_sample(once_us, settings) / len(calls))
    return session.sampler(list(calls) * rounds)


def time_in_turn_us(
    session: Session, calls: Mapping[str, Callable[[], object]], rounds: int = 9
) -> dict[str, float]:
    """Shortest time of each call, all sampled in turn: ranks baselines, claims no speedup.

    The minimum, since whatever else the machine does can only add time.
    """
    settings = TimingSettings()
    samplers = {name: warm_sampler(session, call, settings) for name, call in calls.items()}
    times_us = dict.fromkeys(calls, math.inf)
    for _ in range(rounds):
        for name, sampler in samplers.items():
            times_us[name] = min(times_us[name], sampler.time_us())
    return times_us


def eager_sampler(
    session: Session, call: Callable[[], object], settings: TimingSettings
) -> Sampler | None:
    """As `warm_sampler`, but of calls as Python issues them; None where that is the same."""
    single = session.eager_sampler([call])
    if single is None:
        return None
    single.run()
    once_us = min(single.time_us() for _ in range(2))
    return session.eager_sampler([call] * _calls_per_sample(once_us, settings))


def _calls_per_sample(once_us: float, settings: TimingSettings) -> int:
    return max(1, min(1000, math.ceil(settings.sample_us / max(once_us, 0.1))))
