"""Kinds of inputs that the gate examines together, where launches are in order."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import pytest
import torch

from evotune.backends.base.launch import LaunchPlan, Workspace
from evotune.backends.cpu.cpu_session import CpuSession
from evotune.trial import OutcomeKind
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.pool import InputPool

from .kernels import PROBLEM, Memory, exact, kernel, make_case, plan

SHORT = make_case(33, causal=True)


@pytest.fixture(scope="module")
def pool() -> InputPool:
    return InputPool(PROBLEM)


class OrderedSession(CpuSession):
    """Launches in order, as a GPU does: each begins when all before it have ended."""

    in_order = True


def _together(
    pool: InputPool,
    launch: Callable[..., object],
    launch_plan: LaunchPlan | None = None,
    kinds: Sequence[str] = PROBLEM.input_kinds,
    *,
    deterministic: bool = True,
) -> Verdict:
    gate = Gate(OrderedSession(), PROBLEM, pool, deterministic=deterministic)
    verdict = Verdict()
    gate.examine(Subject(SHORT, launch_plan or plan(), launch), kinds, 0, verdict)
    return verdict


@pytest.mark.parametrize("at_once", [1, 3, 1 << 30])
def test_kinds_that_are_examined_together_have_a_check_each(
    pool: InputPool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evotune.verify.gate._TOGETHER_BYTES", at_once * pool.set_bytes(SHORT))
    launched: list[Memory] = []
    verdict = _together(pool, kernel(SHORT, exact, launched.append))
    assert verdict.passed, verdict.reason
    assert [check.inputs for check in verdict.checks] == list(PROBLEM.input_kinds)
    for check in verdict.checks:
        (alone,) = _together(pool, kernel(SHORT, exact), kinds=[check.inputs]).checks
        assert check.max_error == alone.max_error
        assert check.rms_error == pytest.approx(alone.rms_error)
    addresses = [memory["out"].ctypes.data for memory in launched]
    assert addresses[::2] == addresses[1::2]  # each launch and its repetition
    for start in range(0, len(PROBLEM.input_kinds), at_once):
        kinds = PROBLEM.input_kinds[start : start + at_once]
        assert len(set(addresses[2 * start : 2 * (start + len(kinds))])) == len(kinds)
    assert len(addresses) == 2 * len(PROBLEM.input_kinds)


@pytest.mark.parametrize("number", range(len(PROBLEM.input_kinds)))
def test_of_kinds_together_the_one_that_is_wrong_is_named(pool: InputPool, number: int) -> None:
    calls: list[int] = []

    def wrong(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        calls.append(1)
        return exact(q, k, v, causal) + (len(calls) == 2 * number + 1)

    verdict = _together(pool, kernel(SHORT, wrong))
    assert verdict.kind is OutcomeKind.WRONG_RESULT
    kind = PROBLEM.input_kinds[number]
    assert f"{kind} inputs: out is off by" in verdict.reason
    assert [check.status for check in verdict.checks] == ["passed"] * number + ["failed"]


@pytest.mark.parametrize("number", range(len(PROBLEM.input_kinds)))
def test_of_kinds_together_the_one_that_differs_the_second_time_is_named(
    pool: InputPool, number: int
) -> None:
    calls: list[int] = []

    def differing(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        calls.append(1)
        out = exact(q, k, v, causal)
        if len(calls) == 2 * number + 2:
            out[..., 0, 0] = -out[..., 0, 0]
        return out

    verdict = _together(pool, kernel(SHORT, differing))
    assert verdict.kind is OutcomeKind.NONDETERMINISTIC
    assert f"{PROBLEM.input_kinds[number]} inputs: " in verdict.reason


def test_of_kinds_together_a_wrong_one_counts_before_one_that_differs(pool: InputPool) -> None:
    answers: list[torch.Tensor] = []

    def previous(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        answers.append(exact(q, k, v, causal))
        return answers[-2] if len(answers) > 1 else answers[-1]

    verdict = _together(pool, kernel(SHORT, previous))
    assert verdict.kind is OutcomeKind.WRONG_RESULT
    assert f"{PROBLEM.input_kinds[1]} inputs: out is off by" in verdict.reason


@pytest.mark.parametrize("period", [2, 3, 4, 8])
def test_of_kinds_together_one_that_works_by_turns_is_found(pool: InputPool, period: int) -> None:
    """Even if the period divides the number of kinds: a kind's two launches are neighbours."""
    calls: list[int] = []

    def turning(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        calls.append(1)
        out = exact(q, k, v, causal)
        if len(calls) % period == 0:
            out.view(-1)[-1] = torch.nextafter(out.view(-1)[-1], torch.tensor(torch.inf))
        return out

    assert _together(pool, kernel(SHORT, turning)).kind is OutcomeKind.NONDETERMINISTIC


def test_of_kinds_together_one_that_works_when_launched_again_is_found(pool: InputPool) -> None:
    """The kernel does the work of two launches in every second one."""
    honest = kernel(SHORT, exact)
    waiting: list[tuple[ctypes.c_void_p, ...]] = []

    def deferring(*pointers: ctypes.c_void_p) -> None:
        waiting.append(pointers)
        if len(waiting) == 2:
            for each in waiting:
                honest(*each)
            waiting.clear()

    verdict = _together(pool, deferring)
    assert verdict.kind is OutcomeKind.NAN
    assert "never written" in verdict.reason


@pytest.mark.parametrize("deterministic", [True, False])
def test_of_kinds_together_one_that_writes_into_another_is_found(
    pool: InputPool, deterministic: bool
) -> None:
    honest = kernel(SHORT, exact)
    last: list[int] = []

    def straying(*pointers: ctypes.c_void_p) -> None:
        honest(*pointers)
        first_input = pointers[0].value or 0
        if last and last[-1] != first_input:
            ctypes.memset(last[-1], 0, 4)  # the input of the launch before
        last.append(first_input)

    verdict = _together(pool, straying, deterministic=deterministic)
    assert verdict.kind is OutcomeKind.OUT_OF_BOUNDS
    assert f"{PROBLEM.input_kinds[0]} inputs" in verdict.reason
    assert "changed its input q" in verdict.reason


def test_of_kinds_together_one_that_changes_an_input_and_back_is_found(pool: InputPool) -> None:
    honest = kernel(SHORT, exact)

    def turning(*pointers: ctypes.c_void_p) -> None:
        honest(*pointers)
        sign = ctypes.cast(pointers[0], ctypes.POINTER(ctypes.c_uint8))  # type: ignore[arg-type]
        sign[3] ^= 0x80

    verdict = _together(pool, turning)
    assert verdict.kind is OutcomeKind.OUT_OF_BOUNDS
    assert "changed its input q" in verdict.reason


def test_of_kinds_together_each_must_leave_its_workspace_zero(pool: InputPool) -> None:
    honest = kernel(SHORT, exact)
    calls: list[int] = []

    def littering(*pointers: ctypes.c_void_p) -> None:
        honest(*pointers[:4])
        calls.append(1)
        ctypes.memset(pointers[4], int(len(calls) >= 3), 1)

    scratch = Workspace("scratch", 64, "zero_once")
    verdict = _together(pool, littering, plan(scratch))
    assert verdict.kind is OutcomeKind.WRONG_RESULT
    assert f"{PROBLEM.input_kinds[1]} inputs" in verdict.reason
    assert "workspace scratch" in verdict.reason
