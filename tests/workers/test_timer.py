"""Timing with cold inputs, which no cache holds; here the size of the CPU's caches is made up."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
from verify.kernels import PROBLEM, exact, kernel, make_case, plan

from evotune.backends.base.launch import Workspace
from evotune.backends.cpu.cpu_session import CpuSession
from evotune.timing.paired import TimingSettings
from evotune.trial import Measurement, OutcomeKind
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.pool import InputPool
from evotune.workers.trial_timer import BaselineSamplers, CaseTimer

CASE = make_case(33, causal=True)


class CachingSession(CpuSession):
    cold_bytes = 1 << 19


def time_cold(launch: Callable[..., object], pool: InputPool) -> tuple[Measurement, Verdict]:
    session = CachingSession()
    timer = CaseTimer(session, PROBLEM, pool, BaselineSamplers(session, PROBLEM, pool), 0)
    warm = Measurement("", 1.0, 1.0, "sdpa:math", 1.0, 1.0, 1.0, 1.0, 1)
    found = timer.measure_cold(Subject(CASE, plan(), launch), warm)
    assert found is not None
    measurement, timed = found
    assert len(timed.buffers) * 3 * 33 * 2 * 32 * 4 > CachingSession.cold_bytes
    verdict = Verdict()
    gate = Gate(session, PROBLEM, pool, deterministic=True)
    gate.replay(timed.subject, timed.sampler, timed.buffers, 1, verdict, how="replayed cold,")
    return measurement, verdict


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TimingSettings(min_rounds=1, max_rounds=2, sample_us=1.0)
    monkeypatch.setattr(TimingSettings, "thorough", lambda: settings)


class RoomySession(CpuSession):
    warm_bytes = 1 << 20


@pytest.mark.parametrize(("scratch_bytes", "count"), [(16, 3), (1 << 19, 1)])
def test_scratch_memory_counts_among_what_is_to_stay_in_the_cache(
    scratch_bytes: int, count: int
) -> None:
    session, pool = RoomySession(), InputPool(PROBLEM)
    timer = CaseTimer(session, PROBLEM, pool, BaselineSamplers(session, PROBLEM, pool), 0)
    subject = Subject(CASE, plan(Workspace("scratch", scratch_bytes)), kernel(CASE, exact))
    settings = TimingSettings(sample_us=1.0, places=3)
    gate = Gate(session, PROBLEM, pool, deterministic=True)
    assert len(timer.place(gate, subject, settings).buffers) == count


def test_cold_launches_are_checked_like_warm_ones() -> None:
    pool = InputPool(PROBLEM)
    honest = kernel(CASE, exact)
    measurement, verdict = time_cold(honest, pool)
    assert (measurement.cache, measurement.baseline) == ("cold", "sdpa:math")
    assert verdict.passed, verdict.reason
    recent: list[int | None] = []

    def idle_when_rotated(*pointers: ctypes.c_void_p) -> None:
        recent.append(pointers[3].value)
        if len(set(recent[-5:])) < 5 or len(recent) < 30:
            honest(*pointers)

    _, verdict = time_cold(idle_when_rotated, pool)
    assert verdict.kind is OutcomeKind.NAN
    assert "replayed cold, normal inputs" in verdict.reason
