"""The sampling rules, on a simulated clock: a Session is a seam, and this one's time is made up."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from evotune.device.launch import LaunchPlan
from evotune.measure import paired
from evotune.measure.paired import TimingSettings, measure_paired, time_in_turn_us
from evotune.trial import Json, Measurement

CANDIDATE, BASELINE = (lambda: "candidate"), (lambda: "baseline")


class SimulatedSession:
    """Every call takes its time times the machine's speed at that moment, plus noise."""

    torch_device = "cpu"

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

    def load(self, path: Path, plan: LaunchPlan) -> Callable[..., object]:
        raise NotImplementedError

    def bind(
        self, kernel: Callable[..., object], plan: LaunchPlan, pointers: Mapping[str, int]
    ) -> Callable[[], object]:
        raise NotImplementedError

    def synchronize(self) -> None: ...

    def time_us(self, call: Callable[[], object], calls: int) -> float:
        name = str(call())
        self.samples.append(name)
        time_us = self._times_us[name] * self._slowdown(self.now_us)
        time_us *= math.exp(self._rng.gauss(0.0, self._noise))
        self.now_us += time_us * calls
        return time_us

    def state(self) -> Mapping[str, Json]:
        return {}


def measure(
    session: SimulatedSession, settings: TimingSettings, contender_speedup: float = 0.0
) -> Measurement:
    return measure_paired(
        session,
        CANDIDATE,
        BASELINE,
        case="c",
        baseline_name="b",
        settings=settings,
        contender_speedup=contender_speedup,
    )


def test_a_quiet_machine_needs_the_least_rounds() -> None:
    session = SimulatedSession({"candidate": 100.0, "baseline": 150.0})
    result = measure(session, TimingSettings(min_rounds=5))
    assert result.samples == 5
    assert result.speedup == pytest.approx(1.5)
    assert (result.speedup_low, result.speedup_high) == pytest.approx((1.5, 1.5))
    assert (result.time_us, result.baseline_us) == pytest.approx((100.0, 150.0))


def test_samples_are_taken_as_candidate_baseline_baseline_candidate() -> None:
    session = SimulatedSession({"candidate": 100.0, "baseline": 150.0})
    measure(session, TimingSettings(min_rounds=5))
    rounds = session.samples[-20:]
    assert rounds == ["candidate", "baseline", "baseline", "candidate"] * 5


def test_a_noisy_machine_is_sampled_until_the_interval_is_narrow_or_the_rounds_are_spent() -> None:
    settings = TimingSettings(min_rounds=5, max_rounds=200, half_width=0.01, max_seconds=100)
    times = {"candidate": 100.0, "baseline": 150.0}
    result = measure(SimulatedSession(times, noise=0.03), settings)
    assert 5 < result.samples < 200
    assert (result.speedup_high - result.speedup_low) / 2 <= 0.01 * result.speedup
    few = TimingSettings(min_rounds=5, max_rounds=12, half_width=0.001, max_seconds=100)
    assert measure(SimulatedSession(times, noise=0.03), few).samples == 12


def test_what_is_no_contender_gets_no_further_samples() -> None:
    settings = TimingSettings(min_rounds=5, max_rounds=40, half_width=0.0001, max_seconds=100)
    times = {"candidate": 300.0, "baseline": 150.0}
    assert measure(SimulatedSession(times, noise=0.02), settings, 1.0).samples == 5
    assert measure(SimulatedSession(times, noise=0.02), settings, 0.5).samples == 40
    assert measure(SimulatedSession(times, noise=0.02), settings, 0.0).samples == 40


def test_sampling_ends_when_its_time_is_up_but_not_before_the_least_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = {"candidate": 1e6, "baseline": 1e6}
    session = SimulatedSession(times, noise=0.05)
    monkeypatch.setattr(paired.time, "monotonic", lambda: session.now_us / 1e6)
    settings = TimingSettings(min_rounds=5, max_rounds=40, half_width=0.0001, max_seconds=1.0)
    assert measure(session, settings).samples == 5  # four seconds a round
    settings = TimingSettings(min_rounds=5, max_rounds=40, half_width=0.0001, max_seconds=50.0)
    assert 10 < measure(session, settings).samples < 16


def test_a_sample_of_a_short_kernel_is_many_calls() -> None:
    session = SimulatedSession({"candidate": 3.0, "baseline": 5000.0})
    before = session.now_us
    measure(session, TimingSettings(min_rounds=5, sample_us=1000.0))
    spent_us = session.now_us - before
    # Five rounds of two samples each side: 1 ms for the candidate, one call for the baseline.
    assert spent_us == pytest.approx(10 * (1002 + 5000) + 3 * 3 + 3 * 5000, rel=0.01)


@pytest.mark.parametrize(
    "slowdown",
    [
        lambda now_us: 1.0 + now_us / 200_000,  # heats up: twice as slow after 0.2 s
        lambda now_us: 2.0 - min(1.0, now_us / 100_000),
        lambda now_us: 1.0 + 0.3 * math.sin(now_us / 30_000),
        lambda now_us: 1.0 if now_us < 30_000 else 1.6,  # another process moves in
    ],
    ids=["slower", "faster", "wave", "step"],
)
def test_the_paired_ratio_survives_a_machine_whose_speed_drifts(
    slowdown: Callable[[float], float],
) -> None:
    times = {"candidate": 1000.0, "baseline": 1250.0}
    session = SimulatedSession(times, slowdown=slowdown, noise=0.002)
    result = measure(session, TimingSettings(min_rounds=20, max_rounds=20))
    assert result.speedup == pytest.approx(1.25, rel=0.01)
    assert result.speedup_low < result.speedup < result.speedup_high
    unpaired = session.samples  # the times themselves did drift
    assert unpaired
    assert result.time_us > 1.05 * times["candidate"]


def test_interruptions_do_not_move_the_median() -> None:
    rng = random.Random(4)
    session = SimulatedSession(
        {"candidate": 1000.0, "baseline": 1250.0},
        slowdown=lambda now_us: 20.0 if rng.random() < 0.08 else 1.0,
        noise=0.002,
    )
    result = measure(session, TimingSettings(min_rounds=25, max_rounds=25))
    assert result.speedup == pytest.approx(1.25, rel=0.01)
    assert result.time_min_us == pytest.approx(1000.0, rel=0.02)


def test_the_interval_covers_the_true_speedup_although_sampling_stops_when_it_is_narrow() -> None:
    covered = 0
    for seed in range(100):
        times = {"candidate": 1000.0, "baseline": 1250.0}
        session = SimulatedSession(times, noise=0.02, seed=seed)
        settings = TimingSettings(min_rounds=5, max_rounds=25, max_seconds=100)
        result = measure(session, settings)
        covered += result.speedup_low <= 1.25 <= result.speedup_high
    # 95% is for a fixed number of samples; stopping early costs some. A look after every round
    # would bring this down to 84%.
    assert covered / 100 >= 0.87


def test_baselines_are_ranked_by_their_shortest_time() -> None:
    rng = random.Random(5)
    session = SimulatedSession(
        {"candidate": 100.0, "baseline": 104.0},
        slowdown=lambda now_us: 1.0 + (rng.random() < 0.3) * rng.random(),
    )
    times_us = time_in_turn_us(session, {"a": CANDIDATE, "b": BASELINE})
    assert times_us == pytest.approx({"a": 100.0, "b": 104.0})


def test_champions_are_sampled_more_thoroughly() -> None:
    usual, thorough = TimingSettings(), TimingSettings.thorough()
    assert thorough.min_rounds > usual.min_rounds
    assert thorough.half_width < usual.half_width
    assert np.isfinite(thorough.max_seconds)
