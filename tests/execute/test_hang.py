"""A worker that hangs is killed when its time is over, and another one takes its place."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from evotune.device.launch import LaunchPlan
from evotune.device.profile import DeviceProfile
from evotune.execute.device_slot import DeviceSlot, ProblemSource
from evotune.execute.executor import RANDOM, TIMED
from evotune.execute.messages import BaselinesRequest, Request, TrialCase, TrialRequest
from evotune.problems.problem import Case
from evotune.trial import OutcomeKind

from .faulty import FaultyKernels

REPEATS = 20
TRIAL = TrialRequest(number=0, cases=())
PROBLEM = ProblemSource("attention", "float32", Path())


@pytest.mark.parametrize(
    ("slowest_s", "answers", "limit_s"),
    [
        (0.0, 0, 120.0),  # no trial has been measured yet
        (3.0, 4, 120.0),
        (0.0, 5, 120.0),  # no trial has passed
        (0.5, 5, 20.0),  # ten times as long as the slowest, but never below 20 s
        (3.0, 5, 30.0),
        (60.0, 5, 120.0),  # nor above the limit of the space
    ],
)
def test_time_outs_follow_what_trials_of_this_run_take(
    tmp_path: Path, slowest_s: float, answers: int, limit_s: float
) -> None:
    profile = DeviceProfile("cpu", "cpu", "", {"threads": 1})
    slot = DeviceSlot(tmp_path, profile, PROBLEM, deterministic=True, longest_trial_s=120.0)
    slot._request = TrialRequest(number=0, cases=())
    slot._slowest_s, slot._answers = slowest_s, answers
    assert slot._trial_limit_s() == limit_s


def test_what_is_timed_thoroughly_has_time_for_every_case(tmp_path: Path) -> None:
    profile = DeviceProfile("cpu", "cpu", "", {"threads": 1})
    slot = DeviceSlot(tmp_path, profile, PROBLEM, deterministic=True, longest_trial_s=120.0)
    plan = LaunchPlan("f", (), (), ())
    cases = tuple(
        TrialCase(Case("case", {}), role, plan, 1, "f.bin") for role in (TIMED, TIMED, RANDOM)
    )
    slot._slowest_s, slot._answers = 3.0, 5
    for request in (
        TrialRequest(number=0, cases=cases, confirm=True),
        TrialRequest(number=0, cases=cases, rival=cases[:2]),
    ):
        slot._request = request
        assert slot._trial_limit_s() == 180.0


@pytest.mark.parametrize(
    ("asked", "slowest_s", "answers", "limit_s"),
    [
        (TRIAL, 0.0, 4, 900.0),
        (TRIAL, 0.1, 5, 60.0),
        (TRIAL, 10.0, 5, 200.0),
        (TRIAL, 100.0, 5, 900.0),
        (BaselinesRequest(cases=()), 0.1, 5, 900.0),
    ],
)
def test_a_worker_that_stops_before_its_trial_is_not_waited_for_without_end(
    tmp_path: Path, asked: Request, slowest_s: float, answers: int, limit_s: float
) -> None:
    profile = DeviceProfile("cpu", "cpu", "", {"threads": 1})
    slot = DeviceSlot(tmp_path, profile, PROBLEM, deterministic=True)
    slot._request = asked
    slot._slowest_preparation_s, slot._answers = slowest_s, answers
    assert slot._harness_limit_s() == limit_s


@pytest.mark.soak
def test_a_hung_worker_is_replaced_in_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_result: Callable[..., None]
) -> None:
    replaced_s = []
    renew = DeviceSlot.renew

    def timed_renew(slot: DeviceSlot) -> None:
        """Kills the worker as usual, then opens the next one, which otherwise waits for a
        request."""
        started = time.monotonic()
        renew(slot)
        slot.open()
        while slot._opening:
            time.sleep(0.01)
            slot.handle()
        replaced_s.append(time.monotonic() - started)

    kernels = FaultyKernels(tmp_path, trial_timeout_s=8.0)
    try:
        assert kernels.run("none").ok
        for _ in range(REPEATS):
            with monkeypatch.context() as patch:
                patch.setattr(DeviceSlot, "renew", timed_renew)
                assert kernels.run("infinite_loop").kind is OutcomeKind.TIMEOUT
            assert kernels.run("none").ok
    finally:
        kernels.executor.close()
    assert len(replaced_s) == REPEATS
    keep_result(
        device="cpu",
        hangs=REPEATS,
        replaced_s_median=round(statistics.median(replaced_s), 2),
        replaced_s_longest=round(max(replaced_s), 2),
    )
