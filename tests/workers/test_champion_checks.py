"""The work of other processes on a champion: when it begins, and how its findings count."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import pytest
from verify.kernels import Memory, exact, kernel

from evotune.backends import registry
from evotune.backends.base.launch import CompileJob
from evotune.backends.base.session import Disturb
from evotune.backends.cuda.cuda_session import classify
from evotune.trial import CUT_SHORT, Check, Outcome, OutcomeKind
from evotune.workers import champion_checks, trial_runner
from evotune.workers.champion_checks import NO_TIME
from evotune.workers.messages import TrialRequest
from evotune.workers.trial_runner import TrialRunner

from .test_graph_sessions import CASES, PROBLEM, PROFILE, GraphSession, job

JOB = CompileJob("cpp", ".", "k.cpp", (), (), "native", "")


@pytest.fixture(autouse=True)
def _short_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_runner, "_START_S", 0.1)  # kernels in Python would take it all


class DisturbedSession(GraphSession):
    def perturbations(self) -> Mapping[str, Callable[[], AbstractContextManager[Disturb]]]:
        return {"nothing": lambda: contextlib.nullcontext(lambda seed: None)}


def champion() -> TrialRequest:
    """The audit of a champion of one timed case, whose code can be compiled again."""
    request = job("held-out", confirm=True, audit=True)
    timed = msgspec.structs.replace(request.cases[0], compile=JOB)
    return msgspec.structs.replace(request, cases=(timed,))


def checked(monkeypatch: pytest.MonkeyPatch, found: Path | str, rebuilt: object) -> Outcome:
    """The audit of a right champion whose rebuilt code is `found`, and behaves as `rebuilt`."""
    kernels = {case.label: kernel(case, exact) for case in CASES} | {"again": rebuilt}
    session = DisturbedSession(kernels)  # type: ignore[arg-type]
    backend = type(registry.named(PROFILE.backend))
    monkeypatch.setattr(backend, "rebuilt", lambda *_: {"slowly": found})
    request = champion()
    runner = TrialRunner(session, PROFILE, PROBLEM, deterministic=True)
    with runner.beside(request) as beside:
        return runner.run(request, beside)


def wrong(memory: Memory) -> None:
    memory["out"][3] = 7.0


@pytest.mark.parametrize("right", [True, False])
def test_a_build_that_disturbs_itself_must_be_right(
    monkeypatch: pytest.MonkeyPatch, right: bool
) -> None:
    after = None if right else wrong
    outcome = checked(monkeypatch, Path("again"), kernel(CASES[0], exact, after))
    assert outcome.kind is (OutcomeKind.OK if right else OutcomeKind.WRONG_RESULT)
    status = [check.status for check in outcome.checks if check.inputs == "slowly"]
    assert status == ["passed" if right else "failed"]


def test_a_build_that_cannot_be_had_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = checked(monkeypatch, "no compiler", None)
    assert outcome.kind is OutcomeKind.OK
    skipped = [check for check in outcome.checks if check.inputs == "slowly"]
    assert [(check.status, check.detail) for check in skipped] == [("skipped", "no compiler")]


def test_checks_that_have_no_time_are_skipped_and_the_confirmation_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tools do not end; nothing is disturbed; the held-out case is checked and not timed. What
    was executed is the domain."""
    stopped = threading.Event()

    @contextlib.contextmanager
    def sanitizing(_: object, cases: object) -> Iterator[Callable[[], list[Check]]]:
        def tools() -> list[Check]:
            stopped.wait()
            return []

        yield tools
        stopped.set()

    backend = type(registry.named(PROFILE.backend))
    monkeypatch.setattr(backend, "sanitizing", sanitizing)
    monkeypatch.setattr(champion_checks, "_LEAST_S", 0.1)
    session = DisturbedSession({case.label: kernel(case, exact) for case in CASES})
    request = msgspec.structs.replace(job("held_out", confirm=True, audit=True), until_s=0.0)
    runner = TrialRunner(session, PROFILE, PROBLEM, deterministic=True)
    with runner.beside(request) as beside:
        outcome = runner.run(request, beside)
    assert outcome.ok, outcome.reason
    assert CUT_SHORT in outcome.flags
    skipped = {check.inputs: check.detail for check in outcome.checks if check.status == "skipped"}
    assert set(skipped.values()) == {NO_TIME}
    assert {"all", "compute-sanitizer memcheck"} <= skipped.keys()
    assert {m.case for m in outcome.measurements} == {CASES[0].label}
    assert outcome.domain is not None
    assert outcome.domain.regions


def test_with_time_enough_no_confirmation_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = checked(monkeypatch, "no compiler", None)
    assert CUT_SHORT not in outcome.flags
    assert {m.case for m in outcome.measurements} == {CASES[0].label}


def test_it_begins_before_the_first_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The build takes seconds on another core; the checks must not wait for it twice."""
    begun: list[str] = []

    def first(memory: Memory) -> None:
        begun.append("launched")

    kernels = {case.label: kernel(case, exact, first) for case in CASES}
    session = DisturbedSession(kernels)
    backend = type(registry.named(PROFILE.backend))

    def rebuilt(*_: object) -> dict[str, str]:
        begun.append("rebuilding")
        return {"slowly": "no compiler"}

    monkeypatch.setattr(backend, "rebuilt", rebuilt)
    request = champion()
    runner = TrialRunner(session, PROFILE, PROBLEM, deterministic=True)
    with runner.beside(request) as beside:
        runner.prepare(request)
        assert beside is not None
        assert beside.rebuilt[JOB]() == {"slowly": "no compiler"}
        assert begun == ["rebuilding"]
        assert runner.run(request, beside).kind is OutcomeKind.OK
    assert begun[1] == "launched"


@pytest.mark.parametrize("fails", ["by a fault", "by its result"])
def test_a_champion_must_be_right_at_the_least_alignment_that_a_package_serves(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    right = kernel(CASES[0], exact)

    def launch(*pointers: ctypes.c_void_p) -> None:
        right(*pointers)
        if any((pointer.value or 0) % 32 for pointer in pointers[:3]):
            if fails == "by a fault":
                raise RuntimeError("CUDA error: misaligned address")
            ctypes.memset(pointers[3].value, 0, 64)

    monkeypatch.setattr(
        DisturbedSession, "fault", lambda _, error: classify(error, lambda: False), raising=False
    )
    backend = type(registry.named(PROFILE.backend))
    monkeypatch.setattr(backend, "rebuilt", lambda *_: {"slowly": "no compiler"})
    runner = TrialRunner(
        DisturbedSession({CASES[0].label: launch}), PROFILE, PROBLEM, deterministic=True
    )
    request = champion()
    with runner.beside(request) as beside:
        outcome = runner.run(request, beside)
    expected = OutcomeKind.ILLEGAL_ACCESS if fails == "by a fault" else OutcomeKind.WRONG_RESULT
    assert outcome.kind is expected, outcome
    assert "alignment of 16 bytes" in outcome.reason
