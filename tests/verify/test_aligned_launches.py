"""Launches on inputs that begin at multiples of 16 bytes and of no more."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch

from evotune.backends.base.launch import Workspace
from evotune.backends.cpu.cpu_session import CpuSession
from evotune.problems.attention import Attention
from evotune.trial import OutcomeKind
from evotune.verify.buffers import BufferSets
from evotune.verify.champion_launches import WORDS, launch_aligned
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.pool import InputPool

from .kernels import PROBLEM, exact, kernel, make_case, plan

CASES = [make_case(seq_len, causal=True) for seq_len in (16, 33)]


def test_inputs_are_aligned_to_16_bytes_and_no_more_outputs_as_before() -> None:
    for problem, layout in ((PROBLEM, "bhld"), (Attention("float16"), "packed_qkv")):
        shape = {"batch": 2, "heads": 2, "head_dim": 32, "seq_len": 33, "layout": layout}
        case = problem.case(shape, {"causal": False})
        inputs = problem.make_inputs(case, "normal", 0)
        scratch = plan(Workspace("scratch", 100, "zero_once"))
        sets = BufferSets(
            problem.tensors(case), scratch, [inputs, inputs], "cpu", is_least_aligned=True
        )
        for number in range(2):
            pointers = sets.pointers(number)
            assert {pointers[name] % 32 for name in "qkv"} == {16}
            assert {pointers[name] % 256 for name in ("out", "scratch")} == {0}
        assert not sets.inspect().damage(0)
        for name, values in sets.inputs().items():
            assert all(torch.equal(value, inputs[name]) for value in values)
        ctypes.memset(sets.pointers(1)["k"] - 2, 0, 2)
        assert sets.inspect().damage(1) == "wrote outside k"
        assert not sets.inspect().damage(0)


def verdict_on(alignment: int, harm: Callable[[int], None]) -> Verdict:
    """Of kernels that need that alignment of their inputs."""
    subjects = []
    for case in CASES:
        right = kernel(case, exact)

        def launch(*pointers: ctypes.c_void_p, right: Callable[..., None] = right) -> None:
            right(*pointers)
            if any((pointer.value or 0) % alignment for pointer in pointers[:3]):
                harm(pointers[3].value or 0)

        subjects.append(Subject(case, plan(), launch))
    gate = Gate(CpuSession(), PROBLEM, InputPool(PROBLEM), deterministic=True)
    verdict = Verdict()
    launch_aligned(gate, subjects, "normal", 1, verdict)
    return verdict


def zero_some(output: int) -> None:
    ctypes.memset(output, 0, 64)


@pytest.mark.parametrize("alignment", [4, 16])
def test_kernels_that_need_no_more_pass(alignment: int) -> None:
    verdict = verdict_on(alignment, zero_some)
    assert verdict.passed
    (check,) = verdict.checks
    assert (check.case, check.inputs, check.status) == (f"2 cases, {WORDS}", "all", "passed")


@pytest.mark.parametrize("alignment", [32, 64, 256])
def test_a_kernel_that_needs_more_is_refused_with_the_reason(alignment: int) -> None:
    verdict = verdict_on(alignment, zero_some)
    assert verdict.kind is OutcomeKind.WRONG_RESULT
    assert "alignment of 16 bytes" in verdict.reason
