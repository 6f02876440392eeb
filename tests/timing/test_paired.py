"""The rules by which candidate and baseline are sampled, on a simulated clock."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Mapping
from typing import cast

import numpy as np
import pytest

from evotune.backends.base.session import Session
from evotune.timing import paired
from evotune.timing.paired import (
    TimingSettings,
    eager_times_us,
    measure_paired,
    warm_sampler,
)
from evotune.trial import Json, Measurement

from .simulated import BASELINE, CANDIDATE, SimulatedMachine


def measure(
    machine: SimulatedMachine,
    settings: TimingSettings,
    contender_speedup: float = 0.0,
    leader_speedup: float = 0.0,
) -> Measurement:
    session = cast(Session, machine)
    return measure_paired(
        warm_sampler(session, [CANDIDATE], settings),
        warm_sampler(session, [BASELINE], settings),
        case="c",
        baseline_name="b",
        settings=settings,
        contender_speedup=contender_speedup,
        leader_speedup=leader_speedup,
    )


def test_a_quiet_machine_needs_the_least_rounds() -> None:
    machine = SimulatedMachine({"candidate": 100.0, "baseline": 150.0})
    result = measure(machine, TimingSettings(min_rounds=5))
    assert result.samples == 5
    assert result.speedup == pytest.approx(1.5)
    assert (result.speedup_low, result.speedup_high) == pytest.approx((1.5, 1.5))
    assert (result.time_us, result.baseline_us) == pytest.approx((100.0, 150.0))


def test_neither_side_pays_for_the_pause_between_rounds() -> None:
    """The first sample after a pause is slower, yet of two equal sides neither looks faster."""
    machine = SimulatedMachine({"candidate": 100.0, "baseline": 100.0})
    machine.rests_after = 4
    session = cast(Session, machine)
    candidate, baseline = (session.sampler([call]) for call in (CANDIDATE, BASELINE))
    settings = TimingSettings(min_rounds=5)
    found = measure_paired(candidate, baseline, case="c", baseline_name="b", settings=settings)
    assert (found.speedup_low, found.speedup, found.speedup_high) == pytest.approx((1.0,) * 3)


def test_a_noisy_machine_is_sampled_until_the_interval_is_narrow_or_the_rounds_are_spent() -> None:
    settings = TimingSettings(min_rounds=5, max_rounds=200, half_width=0.01, max_seconds=100)
    times = {"candidate": 100.0, "baseline": 150.0}
    result = measure(SimulatedMachine(times, noise=0.03), settings)
    assert 5 < result.samples < 200
    assert (result.speedup_high - result.speedup_low) / 2 <= 0.01 * result.speedup
    few = TimingSettings(min_rounds=5, max_rounds=12, half_width=0.001, max_seconds=100)
    assert measure(SimulatedMachine(times, noise=0.03), few).samples == 12


def test_what_is_no_contender_gets_no_further_samples() -> None:
    settings = TimingSettings(min_rounds=5, max_rounds=40, half_width=0.0001, max_seconds=100)
    times = {"candidate": 300.0, "baseline": 150.0}
    assert measure(SimulatedMachine(times, noise=0.02), settings, 1.0).samples == 5
    assert measure(SimulatedMachine(times, noise=0.02), settings, 0.5).samples == 40
    assert measure(SimulatedMachine(times, noise=0.02), settings, 0.0).samples == 40


def test_sampling_ends_when_its_time_is_up_but_not_before_the_least_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = {"candidate": 1e6, "baseline": 1e6}
    machine = SimulatedMachine(times, noise=0.05)
    monkeypatch.setattr(paired.time, "monotonic", lambda: machine.now_us / 1e6)
    settings = TimingSettings(min_rounds=5, max_rounds=40, half_width=0.0001, max_seconds=1.0)
    assert measure(machine, settings).samples == 5  # four seconds a round
    settings = TimingSettings(min_rounds=5, max_rounds=40, half_width=0.0001, max_seconds=50.0)
    assert 10 < measure(machine, settings).samples < 16


def test_a_sample_of_a_short_kernel_is_many_calls() -> None:
    machine = SimulatedMachine({"candidate": 3.0, "baseline": 5000.0})
    before = machine.now_us
    measure(machine, TimingSettings(min_rounds=5, sample_us=1000.0))
    spent_us = machine.now_us - before
    # Five rounds of two samples each side: 1 ms for the candidate, one call for the baseline.
    assert spent_us == pytest.approx(10 * (1002 + 5000) + 2 * 3 + 2 * 5000, rel=0.01)


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
    machine = SimulatedMachine(times, slowdown=slowdown, noise=0.002)
    result = measure(machine, TimingSettings(min_rounds=20, max_rounds=20))
    assert result.speedup == pytest.approx(1.25, rel=0.01)
    assert result.speedup_low < result.speedup < result.speedup_high
    unpaired = machine.samples
    assert unpaired
    assert result.time_us > 1.05 * times["candidate"]  # the times themselves did drift


def test_interruptions_do_not_move_the_median() -> None:
    rng = random.Random(4)
    machine = SimulatedMachine(
        {"candidate": 1000.0, "baseline": 1250.0},
        slowdown=lambda now_us: 20.0 if rng.random() < 0.08 else 1.0,
        noise=0.002,
    )
    result = measure(machine, TimingSettings(min_rounds=25, max_rounds=25))
    assert result.speedup == pytest.approx(1.25, rel=0.01)
    assert result.time_min_us == pytest.approx(1000.0, rel=0.02)


def test_the_interval_covers_the_true_speedup_although_sampling_stops_when_it_is_narrow() -> None:
    covered = 0
    for seed in range(400):
        times = {"candidate": 1000.0, "baseline": 1250.0}
        machine = SimulatedMachine(times, noise=0.02, seed=seed)
        settings = TimingSettings(min_rounds=5, max_rounds=25, max_seconds=100)
        result = measure(machine, settings)
        covered += result.speedup_low <= 1.25 <= result.speedup_high
    # The 95% are for a fixed number of samples; stopping early costs some of them. A check after
    # every round would bring this down to 84%.
    assert covered / 400 >= 0.855


class States:
    """Gives readings of a device's state one after the other, then repeats the last one."""

    def __init__(self, *readings: Mapping[str, Json]) -> None:
        self._readings = list(readings)
        self.read = 0
        self.rests: list[float] = []

    def __call__(self) -> Mapping[str, Json]:
        self.read += 1
        return self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]


def measure_with(states: States) -> tuple[Measurement, SimulatedMachine]:
    machine = SimulatedMachine({"candidate": 100.0, "baseline": 150.0})
    settings = TimingSettings(min_rounds=5)
    session = cast(Session, machine)
    samplers = [warm_sampler(session, [call], settings) for call in (CANDIDATE, BASELINE)]
    machine.samples.clear()
    found = measure_paired(
        *samplers,
        case="c",
        baseline_name="b",
        settings=settings,
        cache="cold",
        state=states,
        rest=states.rests.append,
    )
    return found, machine


STEADY = {"sm_mhz": 1980, "throttled_by": []}


def test_a_steady_device_is_measured_once() -> None:
    found, machine = measure_with(States(STEADY, {"sm_mhz": 1950, "throttled_by": []}))
    assert (found.retakes, found.throttled, found.samples) == (0, False, 5)
    assert len(machine.samples) == 20
    assert found.state == {"sm_mhz": 1950, "throttled_by": []}
    assert (found.case, found.baseline, found.cache) == ("c", "b", "cold")


@pytest.mark.parametrize("reason", ["hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal"])
@pytest.mark.parametrize("late", [False, True])
def test_what_heat_or_hardware_slowed_down_is_taken_again(reason: str, late: bool) -> None:
    hot = {"sm_mhz": 1980, "throttled_by": [reason]}
    pair = (STEADY, hot) if late else (hot, STEADY)
    states = States(*pair, *pair, STEADY)
    found, machine = measure_with(states)
    assert len(states.rests) == (2 if late else 0)  # a device that has cooled needs no rest
    assert (found.retakes, found.throttled) == (2, False)
    assert (found.samples, len(machine.samples)) == (5, 3 * 20)  # only the last take is kept


def test_a_device_that_stays_slow_is_taken_thrice_and_marked() -> None:
    states = States({"sm_mhz": 900, "throttled_by": ["sw_thermal", "sw_power_cap"]})
    found, machine = measure_with(states)
    assert (found.retakes, found.throttled, states.read) == (2, True, 6)
    assert len(machine.samples) == 3 * 20


def test_clocks_that_change_in_between_are_a_retake_but_not_under_a_power_cap() -> None:
    slower = {"sm_mhz": 1900, "throttled_by": []}
    found, _ = measure_with(States(STEADY, slower, slower))
    assert (found.retakes, found.throttled) == (1, False)
    capped = {"sm_mhz": 1500, "throttled_by": ["sw_power_cap"]}
    found, _ = measure_with(States(STEADY, capped))
    assert (found.retakes, found.throttled) == (0, False)


def test_a_device_that_tells_nothing_of_its_clocks_is_measured_once() -> None:
    found, _ = measure_with(States({"clock_mhz": 3000.0}, {"clock_mhz": 2000.0}))
    assert (found.retakes, found.throttled) == (0, False)


def test_eager_times_are_medians_of_interleaved_samples() -> None:
    rng = random.Random(3)
    machine = SimulatedMachine(
        {"candidate": 8.0, "baseline": 20.0},
        slowdown=lambda now_us: 30.0 if rng.random() < 0.1 else 1.0,
    )
    session = cast(Session, machine)
    samplers = [session.sampler([call] * 4) for call in (CANDIDATE, BASELINE)]
    assert eager_times_us(*samplers) == pytest.approx((8.0, 20.0))
    assert machine.samples[:4] == ["candidate", "baseline", "baseline", "candidate"]


def test_champions_are_sampled_more_thoroughly() -> None:
    usual, champion = TimingSettings(), TimingSettings.champion()
    assert champion.min_rounds > usual.min_rounds
    assert champion.half_width <= usual.half_width
    assert np.isfinite(champion.max_seconds)


def test_a_champion_is_timed_on_while_it_is_in_doubt_whether_it_leads() -> None:
    times = {"candidate": 1000.0, "baseline": 1250.0}
    champion = TimingSettings.champion()
    usual = champion.max_rounds

    def samples(noise: float, leader_speedup: float = 0.0, cases: int = 1) -> int:
        machine = SimulatedMachine(times, noise=noise, seed=1)
        settings = dataclasses.replace(champion.deciding(cases), max_seconds=100)
        result = measure(machine, settings, leader_speedup=leader_speedup)
        width = (result.speedup_high - result.speedup_low) / (2 * result.speedup)
        assert result.samples <= usual or width <= settings.doubt or result.samples == most
        return result.samples

    most = usual + champion.deciding(1).extra_rounds
    assert samples(noise=0.001) < usual  # its interval is narrow soon
    assert usual < samples(noise=0.06) < most
    assert samples(noise=0.3) == most  # the extra rounds are limited
    # No extra rounds if the candidate surely does not beat the leader by more than `doubt`.
    assert samples(noise=0.06, leader_speedup=1.6) == usual
    assert samples(noise=0.06, leader_speedup=1.2) == samples(noise=0.06)
    # Over nine cases the mean is known well enough without extra rounds.
    assert samples(noise=0.06, cases=9) == usual
    ordinary = dataclasses.replace(champion, max_seconds=100)
    assert measure(SimulatedMachine(times, noise=0.06, seed=1), ordinary).samples == usual


def test_the_time_of_a_champion_in_doubt_is_limited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SimulatedMachine({"candidate": 25_000.0, "baseline": 25_000.0}, noise=0.3)
    monkeypatch.setattr(paired.time, "monotonic", lambda: machine.now_us / 1e6)
    settings = TimingSettings.champion().deciding(1)
    assert 25 < measure(machine, settings).samples < 35  # 0.1 s a round
