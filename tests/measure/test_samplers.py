"""What is put into a sample, on a simulated clock."""

from __future__ import annotations

import random
from typing import cast

import pytest

from evotune.device.protocol import Session
from evotune.measure.paired import TimingSettings
from evotune.measure.samplers import places, rotating_sampler, time_in_turn_us, warm_sampler

from .simulated import BASELINE, CANDIDATE, SimulatedMachine


def test_baselines_are_ranked_by_their_shortest_time() -> None:
    rng = random.Random(5)
    machine = SimulatedMachine(
        {"candidate": 100.0, "baseline": 104.0},
        slowdown=lambda now_us: 1.0 + (rng.random() < 0.3) * rng.random(),
    )
    times_us = time_in_turn_us(cast(Session, machine), {"a": CANDIDATE, "b": BASELINE})
    assert times_us == pytest.approx({"a": 100.0, "b": 104.0})


def test_a_rotation_visits_all_buffers_in_turn_and_fills_a_sample() -> None:
    seen: list[str] = []
    names = [f"set {i}" for i in range(3)]
    calls = [lambda name=name: seen.append(name) or name for name in names]
    machine = SimulatedMachine(dict.fromkeys(names, 100.0))
    rotating_sampler(cast(Session, machine), calls, TimingSettings(sample_us=1000.0))
    assert seen[-12:] == names * 4  # the first multiple of the sets that lasts 1 ms


def test_a_warm_sample_is_the_mean_over_the_places() -> None:
    machine = SimulatedMachine({"here": 100.0, "there": 140.0})
    calls = [lambda name=name: name for name in ("here", "there")]
    settings = TimingSettings(sample_us=1000.0, place_us=250.0)
    sampler = warm_sampler(cast(Session, machine), calls, settings)
    assert sampler.time_us() == pytest.approx(120.0)
    assert machine.rows[-2:] == [["here"] * 5, ["there"] * 5]


def test_no_place_s_part_is_too_short() -> None:
    machine = SimulatedMachine({"candidate": 100.0})
    settings = TimingSettings(sample_us=1000.0, place_us=400.0)
    warm_sampler(cast(Session, machine), [CANDIDATE] * 5, settings).time_us()
    assert machine.rows[-5:] == [["candidate"] * 4] * 5


@pytest.mark.parametrize(
    ("nbytes", "warm_bytes", "count"),
    [(1000, 0, 1), (1000, 8000, 4), (1000, 2500, 2), (1000, 900, 1), (0, 10, 4)],
)
def test_places_stay_warm_together(nbytes: int, warm_bytes: int, count: int) -> None:
    machine = SimulatedMachine({})
    machine.warm_bytes = warm_bytes
    assert places(cast(Session, machine), nbytes, 4) == count
