"""A worker that hangs is killed when its time is over, and another one takes its place."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from evotune.backends.base.launch import DeviceProfile, LaunchPlan
from evotune.problems.problem import Case
from evotune.trial import Outcome, OutcomeKind
from evotune.workers.device_slot import DeviceSlot, ProblemSource, TimeLimits, Worker
from evotune.workers.executor import RANDOM, TIMED
from evotune.workers.messages import (
    BaselinesRequest,
    Request,
    ToDeviceWorker,
    TrialCase,
    TrialDone,
    TrialRequest,
)
from tests.patience import assert_cut_short, limited_trials, passing_time

from .faulty import FaultyKernels
from .test_doubtful import FakeWorker

REPEATS = 20
TRIAL = TrialRequest(number=0, cases=())
PROBLEM = ProblemSource("attention", "float32", Path())


def after(
    answers: int, *, slowest_s: float = 0.0, slowest_preparation_s: float = 0.0
) -> TimeLimits:
    """The limits after so many trials; without `slowest_s` none of them has passed."""
    limits = TimeLimits(120.0, sanitizer_s=0.0)
    kind = OutcomeKind.OK if slowest_s else OutcomeKind.NAN
    outcome = Outcome(kind, fitness=0.5 if slowest_s else None)
    for _ in range(answers):
        limits.prepared(TRIAL, slowest_preparation_s)
        limits.answered(TRIAL, outcome, slowest_s)
    return limits


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
    slowest_s: float, answers: int, limit_s: float
) -> None:
    assert after(answers, slowest_s=slowest_s).trial_s(TRIAL) == limit_s


def test_what_is_timed_thoroughly_has_time_for_every_case() -> None:
    plan = LaunchPlan("f", (), (), ())
    cases = tuple(
        TrialCase(Case("case", {}), role, plan, 1, "f.bin") for role in (TIMED, TIMED, RANDOM)
    )
    limits = after(5, slowest_s=3.0)
    for request in (
        TrialRequest(number=0, cases=cases, confirm=True),
        TrialRequest(number=0, cases=cases, rival=cases[:2]),
    ):
        assert limits.trial_s(request) == 180.0


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
    asked: Request, slowest_s: float, answers: int, limit_s: float
) -> None:
    assert after(answers, slowest_preparation_s=slowest_s).harness_s(asked) == limit_s


def test_an_answer_that_lies_in_the_pipe_is_no_time_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process may have waited for another device's worker to die, for up to a minute."""
    outcome = Outcome(OutcomeKind.OK, fitness=0.5)
    worker = FakeWorker([TrialDone(outcome=outcome)])
    monkeypatch.setattr(DeviceSlot, "_spawn", lambda _: cast(Worker, worker))
    profile = DeviceProfile("cpu", "cpu", "", {"threads": 1})
    slot = DeviceSlot(tmp_path, profile, PROBLEM, deterministic=True)
    slot.start(TRIAL)
    assert slot.handle() is None, "its worker is open"
    let_pass, answer = passing_time(monkeypatch), None
    while answer is None:
        let_pass(1.0)
        answer = slot.expire()
    assert isinstance(answer, TrialDone)
    assert answer.outcome == outcome
    slot.close()


class HangingWorker(FakeWorker):
    """A worker that opens and answers no trial."""

    def send(self, message: ToDeviceWorker) -> None:
        if not isinstance(message, TrialRequest):
            super().send(message)


def test_a_worker_that_was_stopped_with_this_process_is_not_too_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither while it starts nor in a trial, as when the container of all processes is paused."""
    worker = HangingWorker([])
    monkeypatch.setattr(DeviceSlot, "_spawn", lambda _: cast(Worker, worker))
    profile = DeviceProfile("cpu", "cpu", "", {"threads": 1})
    slot = DeviceSlot(tmp_path, profile, PROBLEM, deterministic=True)
    let_pass = passing_time(monkeypatch)
    slot.open()
    let_pass(10_000.0)
    assert slot.expire() is None
    assert slot.child is worker, "it still starts"
    slot.start(TRIAL)
    assert slot.handle() is None, "its worker is open"
    let_pass(10_000.0)
    assert slot.expire() is None
    lost, seconds = None, 0
    while lost is None:
        let_pass(1.0)
        seconds += 1
        lost = slot.expire()
    assert isinstance(lost, Outcome)
    assert lost.kind is OutcomeKind.TIMEOUT
    assert 800 < seconds <= 900
    slot.close()


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

    kernels = FaultyKernels(tmp_path)
    try:
        assert kernels.run("none").ok
        for _ in range(REPEATS):
            with monkeypatch.context() as patch:
                patch.setattr(DeviceSlot, "renew", timed_renew)
                with limited_trials(kernels.executor, 8.0):
                    outcome = kernels.run("infinite_loop")
                    assert_cut_short(outcome, OutcomeKind.TIMEOUT, "killed")
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
