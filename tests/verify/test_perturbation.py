"""Disturbed launches: a kernel whose result depends on the disturbance is found, others pass."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager

import pytest

from evotune.backends.base.session import Disturb, LaunchFailure
from evotune.backends.cpu.cpu_session import CpuSession
from evotune.trial import OutcomeKind
from evotune.verify.champion_launches import PerturbedLaunches
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.pool import InputPool

from .kernels import PROBLEM, Memory, exact, kernel, make_case, plan

CASE = make_case(20, causal=True)


class DisturbedSession(CpuSession):
    """Has one perturbation that only counts, and one whose kernel is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.disturbed = 0
        self.inside = False

    def perturbations(self) -> Mapping[str, Callable[[], AbstractContextManager[Disturb]]]:
        return {"counted": self._counted, "not to be had": self._absent}

    @contextlib.contextmanager
    def _counted(self) -> Iterator[Disturb]:
        def disturb(seed: int) -> None:
            self.disturbed += 1

        self.inside = True
        yield disturb
        self.inside = False

    @contextlib.contextmanager
    def _absent(self) -> Iterator[Disturb]:
        raise LaunchFailure("no such kernel")
        yield


def checked(session: DisturbedSession, after: Callable[[Memory], None] | None = None) -> Verdict:
    pool = InputPool(PROBLEM)
    gate = Gate(session, PROBLEM, pool, deterministic=True)
    subject = Subject(CASE, plan(), kernel(CASE, exact, after))
    verdict = Verdict()
    PerturbedLaunches(session, gate, pool, 3).check([subject], verdict, limit_s=20.0)
    return verdict


def test_a_right_kernel_passes_and_what_cannot_be_tried_is_skipped() -> None:
    session = DisturbedSession()
    verdict = checked(session)
    assert verdict.passed
    assert [(check.inputs, check.status, check.detail) for check in verdict.checks] == [
        ("counted", "passed", "50 launches"),
        ("not to be had", "skipped", "no such kernel"),
    ]
    assert session.disturbed == 50
    assert not session.inside


def test_one_bit_in_one_launch_is_enough() -> None:
    session = DisturbedSession()

    def race(memory: Memory) -> None:
        if session.disturbed == 17:
            memory["out"][5] *= 1.0000002

    verdict = checked(session, race)
    assert verdict.kind is OutcomeKind.NONDETERMINISTIC
    assert "1 of 50 launches differ from an undisturbed one, in up to 1 elements" in verdict.reason


@pytest.mark.parametrize("wrong", [False, True])
def test_a_rebuilt_kernel_must_be_right(wrong: bool) -> None:
    session = CpuSession()
    pool = InputPool(PROBLEM)
    gate = Gate(session, PROBLEM, pool, deterministic=True)

    def spoil(memory: Memory) -> None:
        memory["out"][1] += 1.0

    subject = Subject(CASE, plan(), kernel(CASE, exact, spoil if wrong else None))
    verdict = Verdict()
    launches = PerturbedLaunches(session, gate, pool, 3)
    launches.check_rebuilt("rebuilt", [subject], verdict, limit_s=20.0)
    assert verdict.kind is (OutcomeKind.WRONG_RESULT if wrong else None)
    assert [check.status for check in verdict.checks] == ["failed" if wrong else "passed"]
