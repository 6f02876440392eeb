"""A hundred small tests make one check; the first test that fails is reported in detail."""

from __future__ import annotations

import math
from itertools import count, islice

import pytest
import torch

from evotune.backends.cpu.cpu_session import CpuSession
from evotune.trial import Check, OutcomeKind
from evotune.verify.champion_launches import in_order, run_random_tests
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.kept_checks import nearest_limit, worth_keeping
from evotune.verify.pool import InputPool

from .kernels import PROBLEM, Compute, exact, kernel, make_case, plan

COUNT = 24


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    group = q.shape[1] // k.shape[1]
    return exact(q, k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1), causal)


def wrong_for_odd_lengths_above(length: int) -> Compute:
    def compute(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        keys = k.shape[2]
        wrong = keys > length and keys % 2 == 1
        return grouped(q * 1.01 if wrong else q, k, v, causal)

    return compute


def verdict_on(compute: Compute, *, limit_s: float, longest_s: float = math.inf) -> Verdict:
    bases = [make_case(64, causal=causal) for causal in (False, True)]
    cases = list(islice(PROBLEM.random_cases(bases, 1, ("softmax_scale", "layout")), COUNT))
    subjects = [Subject(case, plan(), kernel(case, compute)) for case in cases]
    gate = Gate(CpuSession(), PROBLEM, InputPool(PROBLEM), deterministic=True)
    verdict = Verdict()
    made = run_random_tests(
        gate,
        list(enumerate(subjects)),
        PROBLEM.random_kinds,
        7,
        verdict,
        limit_s=limit_s,
        longest_s=longest_s,
    )
    assert 0 <= len(made) <= COUNT
    assert (len(made) == COUNT) is (verdict.passed and not verdict.checks[-1].detail)
    return verdict


def test_all_that_pass_make_one_check_with_the_error_nearest_its_limit() -> None:
    verdict = verdict_on(grouped, limit_s=100.0)
    assert verdict.passed, verdict.reason
    (check,) = verdict.checks
    assert (check.case, check.inputs, check.status) == ("24 random tests", "all", "passed")
    assert check.max_error is not None
    assert check.max_limit is not None
    assert check.max_error <= check.max_limit
    assert check.detail == ""


def test_none_starts_when_their_time_by_the_clock_is_over() -> None:
    verdict = verdict_on(grouped, limit_s=100.0, longest_s=0.0)
    (check,) = verdict.checks
    assert (check.status, check.detail) == ("skipped", "none began within 0 s")


def test_the_first_that_fails_is_told_and_ends_them() -> None:
    verdict = verdict_on(wrong_for_odd_lengths_above(260), limit_s=100.0)
    assert verdict.kind is OutcomeKind.WRONG_RESULT
    (check,) = verdict.checks
    assert check.status == "failed"
    assert check.case.startswith("(")
    assert check.inputs in PROBLEM.input_kinds
    assert check.detail.endswith("of 24)")
    assert "out is off by" in verdict.reason


class Clocks:
    """The `time` of random tests. At each look `passing_s` pass, of which the thread works
    `working_s`."""

    def __init__(self, passing_s: float, working_s: float) -> None:
        self._passing, self._working = count(0.0, passing_s), count(0.0, working_s)

    def monotonic(self) -> float:
        return next(self._passing)

    def thread_time(self) -> float:
        return next(self._working)


@pytest.mark.parametrize(("passing_s", "made"), [(1.0, 4), (3.0, 4), (8.0, 2)])
def test_other_work_on_the_machine_takes_no_test_away(
    monkeypatch: pytest.MonkeyPatch, passing_s: float, made: int
) -> None:
    """Unless it takes more than three quarters of the time."""
    monkeypatch.setattr("evotune.verify.champion_launches.time", Clocks(passing_s, 1.0))
    (check,) = verdict_on(grouped, limit_s=5.0).checks
    assert check.detail == f"{made} were made within 5 s"


def test_what_does_not_fit_the_time_is_said_and_none_at_all_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("evotune.verify.champion_launches.time", Clocks(1.0, 1.0))
    (check,) = verdict_on(grouped, limit_s=6.0).checks
    assert (check.status, check.detail) == ("passed", "5 were made within 6 s")
    (check,) = verdict_on(grouped, limit_s=0.0).checks
    assert (check.status, check.detail) == ("skipped", "none began within 0 s")
    assert check.max_error is None


def test_after_a_failure_none_is_made() -> None:
    verdict = Verdict(kind=OutcomeKind.NAN, reason="before")
    gate = Gate(CpuSession(), PROBLEM, InputPool(PROBLEM), deterministic=True)
    case = make_case(8, causal=False)

    def explode(*pointers: object) -> None:
        raise AssertionError("launched")

    subjects = [Subject(case, plan(), explode)]
    kinds = PROBLEM.random_kinds
    assert run_random_tests(gate, list(enumerate(subjects)), kinds, 0, verdict, limit_s=9.0) == []
    assert (verdict.checks, verdict.reason) == ([], "before")


def passed(case: str, inputs: str, error: float) -> Check:
    return Check(case, inputs, "passed", error, 1.0, 0.1, 1.0)


def test_a_record_keeps_the_nearest_of_each_measured_case_and_all_that_stands_alone() -> None:
    summary = passed("100 random tests", "all", 0.2)
    skipped = Check("edge shapes", "compute-sanitizer memcheck", "skipped", detail="why")
    race = Check("edge shapes", "compute-sanitizer racecheck", "failed", detail="hazards")
    checks = [
        skipped,
        passed("timed", "normal", 0.1),
        passed("timed", "needle", 0.9),
        passed("edge 1", "normal", 0.5),
        passed("edge 2", "normal", 0.4),
        summary,
        race,
    ]
    kept = worth_keeping(checks, {"timed"})
    assert kept == (checks[2], checks[3], skipped, summary, race)
    assert nearest_limit(checks[1:5]) == checks[2]


def test_one_test_of_an_input_beyond_2_24_comes_first_and_other_large_ones_last() -> None:
    """There may be no time for all."""
    small, large_output = (1 << 19, 1 << 20), (1 << 19, 1 << 25)
    first, second = (1 << 25, 1 << 26), (1 << 26, 1 << 27)
    assert in_order([small, large_output, first, small, second]) == [2, 0, 3, 1, 4]
    assert in_order([large_output, small]) == [1, 0]
    assert in_order([]) == []
