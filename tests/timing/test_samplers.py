"""The calls that make up a sample, on a simulated clock."""

from __future__ import annotations

import random
import time
from typing import cast

import pytest

from evotune.backends.base.session import Sampler, Session
from evotune.backends.cpu.cpu_session import CpuSession
from evotune.timing.paired import (
    TimingSettings,
    places,
    rotating_sampler,
    time_in_turn_us,
    warm_sampler,
)

from .simulated import BASELINE, CANDIDATE, SimulatedMachine


def test_baselines_are_ranked_by_their_shortest_time() -> None:
    rng = random.Random(5)
    machine = SimulatedMachine(
        {"candidate": 100.0, "baseline": 104.0},
        slowdown=lambda now_us: 1.0 + (rng.random() < 0.3) * rng.random(),
    )
    session = cast(Session, machine)
    samplers = {
        name: warm_sampler(session, [call], TimingSettings())
        for name, call in {"a": CANDIDATE, "b": BASELINE}.items()
    }
    times_us = time_in_turn_us(samplers)
    assert times_us == pytest.approx({"a": 100.0, "b": 104.0})


class Scripted:
    """A sampler that gives the times of a list, the last one again and again."""

    def __init__(self, *times_us: float) -> None:
        self._times_us = list(times_us)

    def time_us(self) -> float:
        return self._times_us.pop(0) if len(self._times_us) > 1 else self._times_us[0]


def test_a_slow_baseline_does_not_rank_first_for_one_lucky_sample() -> None:
    fast = Scripted(*[300.0] * 9, 100.0, 300.0)
    slow = Scripted(*[600.0] * 4, 200.0, *[600.0] * 30)
    times_us = time_in_turn_us(cast(dict[str, Sampler], {"fast": fast, "slow": slow}))
    assert times_us == {"fast": 100.0, "slow": 200.0}


def test_ranking_ends_where_no_quiet_moment_comes_or_where_times_are_alike() -> None:
    unlucky, slow = Scripted(300.0), Scripted(*[600.0] * 4, 200.0, 600.0)
    times_us = time_in_turn_us(cast(dict[str, Sampler], {"unlucky": unlucky, "slow": slow}))
    assert times_us == {"unlucky": 300.0, "slow": 200.0}
    alike = Scripted(101.0, *[100.5] * 8, 50.0), Scripted(100.0, *[101.0] * 9)
    times_us = time_in_turn_us(cast(dict[str, Sampler], dict(zip("ab", alike, strict=True))))
    assert times_us == {"a": 100.5, "b": 100.0}


def test_a_rotation_visits_all_buffers_in_turn_and_fills_a_sample() -> None:
    seen: list[str] = []
    names = [f"set {i}" for i in range(3)]
    calls = [lambda name=name: seen.append(name) or name for name in names]
    machine = SimulatedMachine(dict.fromkeys(names, 100.0))
    rotating_sampler(cast(Session, machine), calls, TimingSettings(sample_us=1000.0))
    assert seen[-12:] == names * 4  # the first multiple of the sets that lasts 1 ms


def test_a_warm_sample_has_a_row_of_calls_for_each_place() -> None:
    machine = SimulatedMachine({"here": 100.0, "there": 140.0})
    calls = [lambda name=name: name for name in ("here", "there")]
    sampler = warm_sampler(cast(Session, machine), calls, TimingSettings(sample_us=1000.0))
    assert sampler.time_us() == pytest.approx(120.0)
    assert machine.rows[-1] == ["here"] * 5 + ["there"] * 5


def test_a_slow_call_is_made_once_at_each_place() -> None:
    machine = SimulatedMachine({"candidate": 5000.0})
    warm_sampler(cast(Session, machine), [CANDIDATE] * 3, TimingSettings()).time_us()
    assert machine.rows[-1] == ["candidate"] * 3


def test_several_graphs_are_one_sample_their_mean() -> None:
    speeds = iter([1.0, 1.0, *([1.0, 1.5] * 2)])
    machine = SimulatedMachine({"candidate": 100.0}, slowdown=lambda now_us: next(speeds))
    session = cast(Session, machine)
    settings = TimingSettings(graphs_take_turns=False)
    sampler = warm_sampler(session, [CANDIDATE], settings, graphs=2)
    before = len(machine.samples)
    assert sampler.time_us() == pytest.approx(125.0)
    assert len(machine.samples) == before + 2


def test_graphs_that_take_turns_are_timed_twice_each() -> None:
    """A round takes two samples of a side; both are of the same graph."""
    speeds = iter([1.0, 1.0, *([1.0, 1.0, 1.5, 1.5] * 2)])
    machine = SimulatedMachine({"candidate": 100.0}, slowdown=lambda now_us: next(speeds))
    sampler = warm_sampler(cast(Session, machine), [CANDIDATE], TimingSettings(), graphs=2)
    times_us = [sampler.time_us() for _ in range(8)]
    assert times_us == pytest.approx([100.0, 100.0, 150.0, 150.0] * 2)


@pytest.mark.parametrize(
    ("nbytes", "warm_bytes", "count"),
    [(1000, 0, 1), (1000, 8000, 4), (1000, 2500, 2), (1000, 900, 1), (0, 10, 4)],
)
def test_places_stay_warm_together(nbytes: int, warm_bytes: int, count: int) -> None:
    machine = SimulatedMachine({})
    machine.warm_bytes = warm_bytes
    assert places(cast(Session, machine), nbytes, 4) == count


def test_the_first_calls_on_a_cpu_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """They find in the caches the data of the code that ran before them."""
    slow_calls = 2
    made = now_ns = 0

    def call() -> None:
        nonlocal made, now_ns
        made += 1
        now_ns += 20_000_000 if made <= slow_calls else 5_000

    monkeypatch.setattr(time, "perf_counter_ns", lambda: now_ns)
    sampler = CpuSession().sampler([call] * 5, untimed=slow_calls)
    assert sampler.time_us() == 5.0
    assert made == sampler.count == 5


def test_a_warm_sample_begins_with_untimed_calls_and_no_more_than_timed_ones() -> None:
    for once_us, row in ((300.0, 2 + 4), (2000.0, 1 + 1)):
        machine = SimulatedMachine({"candidate": once_us})
        machine.untimed_calls = 2
        warm_sampler(cast(Session, machine), [CANDIDATE], TimingSettings()).time_us()
        assert machine.rows[-1] == ["candidate"] * row
