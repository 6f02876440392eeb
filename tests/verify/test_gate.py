"""The gate lets right results pass and finds wrong ones of every kind."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from evotune.backends.base.launch import LaunchPlan, Workspace
from evotune.backends.cpu.cpu_session import CpuSession
from evotune.problems.attention import Attention
from evotune.problems.problem import Case
from evotune.trial import OutcomeKind
from evotune.verify.accuracy import LIMITS, Evidence, errors_against
from evotune.verify.buffers import BufferSets, repeats
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.pool import InputPool

from . import emulations, kernels
from .kernels import PROBLEM, Compute, Memory, exact, kernel, make_case, plan

LONG = make_case(512, causal=False)
CAUSAL = make_case(512, causal=True)
SHORT = make_case(33, causal=True)


@pytest.fixture(scope="module")
def pool() -> InputPool:
    return InputPool(PROBLEM)


def examine(
    pool: InputPool,
    case: Case,
    launch: Callable[..., object],
    kind: str = "normal",
    *,
    deterministic: bool = True,
    launch_plan: LaunchPlan | None = None,
) -> Verdict:
    gate = Gate(CpuSession(), PROBLEM, pool, deterministic=deterministic)
    verdict = Verdict()
    gate.examine(Subject(case, launch_plan or plan(), launch), [kind], 0, verdict)
    return verdict


@pytest.mark.parametrize("kind", PROBLEM.input_kinds)
@pytest.mark.parametrize("case", [LONG, CAUSAL, SHORT], ids=lambda case: case.label)
def test_a_right_result_passes(pool: InputPool, case: Case, kind: str) -> None:
    verdict = examine(pool, case, kernel(case, exact), kind)
    assert verdict.passed, verdict.reason
    (check,) = verdict.checks
    assert (check.case, check.inputs, check.status) == (case.label, kind, "passed")
    assert check.max_error is not None
    assert check.max_limit is not None
    assert 0 < check.max_error < check.max_limit


WRONG: list[tuple[Case, Compute, str]] = [
    (LONG, kernels.without_last_key, "needle"),
    (LONG, kernels.without_last_key, "ramp"),
    (LONG, kernels.without_last_key, "normal"),
    (CAUSAL, kernels.without_last_key, "needle"),
    (CAUSAL, kernels.edge_too_early, "needle"),
    (CAUSAL, kernels.edge_too_late, "needle"),
    (CAUSAL, kernels.edge_too_early, "ramp"),
    (CAUSAL, kernels.edge_too_late, "ramp"),
    (LONG, kernels.wrong_scale, "normal"),
    (LONG, kernels.no_maximum, "large_logits"),
    (LONG, kernels.rounded_weights(torch.bfloat16), "normal"),
    (LONG, kernels.rounded_weights(torch.float16), "normal"),
    (LONG, kernels.rounded_weights(torch.float8_e4m3fn), "normal"),
    (LONG, kernels.rounded_weights(torch.bfloat16), "ramp"),
    (CAUSAL, kernels.rounded_weights(torch.float8_e4m3fn), "needle"),
]


@pytest.mark.parametrize(("case", "compute", "kind"), WRONG)
def test_a_wrong_result_is_found(pool: InputPool, case: Case, compute: Compute, kind: str) -> None:
    verdict = examine(pool, case, kernel(case, compute), kind)
    assert verdict.kind is OutcomeKind.WRONG_RESULT, verdict
    assert verdict.reason.startswith(f"{case.label}, {kind} inputs: out is off by ")
    assert verdict.checks[-1].status == "failed"


def _set(name: str, index: int, value: float) -> Callable[[Memory], None]:
    def after(memory: Memory) -> None:
        memory[name][index] = value

    return after


# The arrays begin one element before the buffer: 0 and -1 are outside, 1 is its first element.
DAMAGE = {
    "beyond the end": (_set("out", -1, 1.0), OutcomeKind.OUT_OF_BOUNDS, "wrote outside out"),
    "before the start": (_set("out", 0, 1.0), OutcomeKind.OUT_OF_BOUNDS, "wrote outside out"),
    "beside an input": (_set("k", -1, 0.0), OutcomeKind.OUT_OF_BOUNDS, "wrote outside k"),
    "into an input": (_set("v", 7, 0.0), OutcomeKind.OUT_OF_BOUNDS, "changed its input v"),
    "NaN": (_set("out", 5, float("nan")), OutcomeKind.NAN, "1 of 2112 elements of out are NaN"),
    "infinity": (_set("out", 5, float("inf")), OutcomeKind.NAN, "elements of out are NaN or inf"),
    "one wrong element": (_set("out", -2, 9.0), OutcomeKind.WRONG_RESULT, "out is off by"),
}


def test_a_read_past_the_end_shows_even_with_no_weight(pool: InputPool) -> None:
    """A tile reaches beyond the last key and has weight 0 there: 0 times NaN is NaN."""

    def after(memory: Memory) -> None:
        memory["out"][-2] += 0.0 * memory["v"][-1]

    verdict = examine(pool, SHORT, kernel(SHORT, exact, after))
    assert verdict.kind is OutcomeKind.NAN
    assert " elements of out are NaN or infinite" in verdict.reason


@pytest.mark.parametrize(("reach", "kinds"), [(np.fmax, {"ramp"}), (np.fmin, {"needle"})])
def test_a_read_past_the_end_shows_where_nan_loses(
    pool: InputPool, reach: Callable[..., object], kinds: set[str]
) -> None:
    """A maximum passes over NaN: it is the same beside NaN, another one beside large numbers."""

    def after(memory: Memory) -> None:
        out, beyond = memory["out"], memory["v"][-1]
        out[5] += np.float32(reach(out[5], beyond) != out[5])

    found = {k: examine(pool, SHORT, kernel(SHORT, exact, after), k) for k in ("needle", "ramp")}
    for kind, verdict in found.items():
        if kind in kinds:
            assert verdict.kind is OutcomeKind.OUT_OF_BOUNDS, verdict
            assert "1 elements of out change with what lies outside all tensors" in verdict.reason
        else:
            assert verdict.passed, verdict


def test_a_launch_that_was_late_read_nothing_outside() -> None:
    """Its output differed when it was compared, and is complete by the time it is asked again."""
    output = torch.arange(9.0)
    assert not repeats(output, output.clone(), lambda: None, lambda: None)


def test_damage_beside_other_guards_is_found(pool: InputPool) -> None:
    """Writing to a guard band in the second launch only, where another word lies."""
    launches: list[int] = []

    def after(memory: Memory) -> None:
        launches.append(1)
        if len(launches) == 2:
            memory["v"][-1] = memory["v"][-1] * 0.5

    verdict = examine(pool, SHORT, kernel(SHORT, exact, after))
    assert verdict.kind is OutcomeKind.OUT_OF_BOUNDS
    assert "wrote outside v in its second launch" in verdict.reason


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found(pool: InputPool, name: str) -> None:
    after, kind, words = DAMAGE[name]
    verdict = examine(pool, SHORT, kernel(SHORT, exact, after))
    assert verdict.kind is kind
    assert words in verdict.reason


def test_what_is_never_written_is_found(pool: InputPool) -> None:
    verdict = examine(pool, SHORT, lambda *pointers: None)
    assert verdict.kind is OutcomeKind.NAN
    assert "2112 of them never written" in verdict.reason


def test_another_result_in_the_second_launch_is_found(pool: InputPool) -> None:
    calls = []

    def slightly(memory: Memory) -> None:
        calls.append(1)
        memory["out"][9] *= 1.0 + 2e-7 * (len(calls) % 2)

    launch = kernel(SHORT, exact, slightly)
    verdict = examine(pool, SHORT, launch)
    assert verdict.kind is OutcomeKind.NONDETERMINISTIC
    assert "elements of out differ between two equal launches" in verdict.reason
    assert examine(pool, SHORT, launch, deterministic=False).passed


def test_damage_in_the_second_launch_only_is_found(pool: InputPool) -> None:
    calls = []

    def after(memory: Memory) -> None:
        calls.append(1)
        if len(calls) == 2:
            memory["q"][-1] = 0.0

    verdict = examine(pool, SHORT, kernel(SHORT, exact, after))
    assert verdict.kind is OutcomeKind.OUT_OF_BOUNDS
    assert "wrote outside q in its second launch" in verdict.reason


def test_a_counter_that_is_not_zero_again_is_found(pool: InputPool) -> None:
    scratch = plan(Workspace("scratch", 16, "zero_once"))
    dirty = kernel(SHORT, exact, _set("scratch", 1, 1.0))
    verdict = examine(pool, SHORT, dirty, launch_plan=scratch)
    assert verdict.kind is OutcomeKind.WRONG_RESULT
    assert "left workspace scratch (zero_once) other than zero" in verdict.reason
    assert examine(pool, SHORT, kernel(SHORT, exact), launch_plan=scratch).passed
    beyond = kernel(SHORT, exact, _set("scratch", -1, 1.0))
    verdict = examine(pool, SHORT, beyond, launch_plan=plan(Workspace("scratch", 16)))
    assert "wrote outside scratch" in verdict.reason


def test_after_timing_the_launch_must_compute_from_what_is_there_then(pool: InputPool) -> None:
    gate = Gate(CpuSession(), PROBLEM, pool, deterministic=True)
    answers: list[torch.Tensor] = []

    def remembering(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
    ) -> torch.Tensor:
        answers.append(exact(q, k, v, causal))
        return answers[0]

    for compute, passes in ((exact, True), (remembering, False)):
        subject = Subject(SHORT, plan(), kernel(SHORT, compute))
        buffers = gate.buffers(subject, [pool.get(SHORT, "normal", 0)])
        launch = CpuSession().bind(subject.kernel, subject.plan, buffers.pointers())
        launch()
        verdict = Verdict()
        gate.replay(subject, CpuSession().sampler([launch]), buffers, 1, verdict)
        assert verdict.passed == passes
        if not passes:
            assert "replayed normal inputs: out is off by" in verdict.reason


def test_after_timing_each_place_is_checked(pool: InputPool) -> None:
    """A kernel that works only at the first place is found."""
    gate = Gate(CpuSession(), PROBLEM, pool, deterministic=True)
    honest = kernel(SHORT, exact)
    inputs = pool.get(SHORT, "normal", 0)
    places = gate.buffers(Subject(SHORT, plan(), honest), [inputs] * 3)
    first = places.pointers(0)["out"]

    def launch(*pointers: ctypes.c_void_p) -> None:
        if pointers[3].value == first:
            honest(*pointers)

    subject = Subject(SHORT, plan(), launch)
    calls = [CpuSession().bind(launch, subject.plan, each.pointers()) for each in places.each()]
    verdict = Verdict()
    gate.replay(subject, CpuSession().sampler(calls), places, 1, verdict)
    assert verdict.kind is OutcomeKind.NAN
    assert "replayed normal inputs" in verdict.reason


def test_each_check_runs_on_memory_of_its_own(pool: InputPool) -> None:
    gate = Gate(CpuSession(), PROBLEM, pool, deterministic=True)
    subject = Subject(SHORT, plan(), kernel(SHORT, exact))
    inputs = pool.get(SHORT, "normal", 0)
    first = gate.buffers(subject, [inputs]).pointers()
    second = gate.buffers(subject, [inputs]).pointers()
    assert not set(first.values()) & set(second.values())


def test_after_a_failure_nothing_more_is_launched(pool: InputPool) -> None:
    gate = Gate(CpuSession(), PROBLEM, pool, deterministic=True)
    verdict = Verdict(kind=OutcomeKind.NAN, reason="before")

    def explode(*pointers: object) -> None:
        raise AssertionError("launched")

    gate.examine(Subject(SHORT, plan(), explode), ["normal"], 0, verdict)
    assert verdict.reason == "before"


@pytest.mark.parametrize(("period", "phase"), [(2, 0), (2, 1), (3, 0), (5, 1), (11, 2)])
def test_a_kernel_that_rests_at_times_is_found(pool: InputPool, period: int, phase: int) -> None:
    honest = kernel(SHORT, exact)
    calls: list[int] = []

    def lazy(*pointers: object) -> None:
        calls.append(1)
        if len(calls) % period != phase:
            honest(*pointers)

    verdict = Verdict()
    gate = Gate(CpuSession(), PROBLEM, pool, deterministic=True)
    subject = Subject(SHORT, plan(), lazy)
    buffers = gate.buffers(subject, [pool.get(SHORT, "normal", 0)])
    gate.alter(subject, buffers, 0, verdict)
    assert verdict.kind in (OutcomeKind.WRONG_RESULT, OutcomeKind.NAN)
    assert "altered in place inputs" in verdict.reason


@pytest.mark.sweep(2)
@pytest.mark.parametrize("first", [0, 100, 400])
def test_a_kernel_that_rests_in_some_of_its_first_launches_is_found(
    pool: InputPool, first: int
) -> None:
    """The kernel works whenever its outputs were poisoned before."""
    honest = kernel(SHORT, exact)
    calls: list[int] = []

    def lazy(*pointers: ctypes.c_void_p) -> None:
        calls.append(1)
        assert pointers[3].value is not None
        poisoned = math.isnan(ctypes.c_float.from_address(pointers[3].value).value)
        if poisoned or not first <= len(calls) < first + 100:
            honest(*pointers)

    gate = Gate(CpuSession(), PROBLEM, pool, deterministic=True)
    late, verdict = Verdict(), Verdict()
    gate.start(Subject(SHORT, plan(), lazy), 0, verdict, limit_s=60.0)
    assert "altered from the start inputs: out is off" in verdict.reason
    assert len(calls) < first + 100
    calls += [1] * 1000
    gate.start(Subject(SHORT, plan(), lazy), 0, late, limit_s=60.0)
    assert late.passed
    assert len(calls) - 1000 - first > 500


def test_an_altered_place_can_be_replayed_again(pool: InputPool) -> None:
    gate = Gate(CpuSession(), PROBLEM, pool, deterministic=True)
    subject = Subject(SHORT, plan(), kernel(SHORT, exact))
    buffers = gate.buffers(subject, [pool.get(SHORT, "normal", 0)])
    bound = CpuSession().bind(subject.kernel, subject.plan, buffers.pointers())
    sampler, verdict = CpuSession().sampler([bound]), Verdict()
    gate.alter(subject, buffers, 0, verdict)
    gate.replay(subject, sampler, buffers, 1, verdict)
    gate.replay(subject, sampler, buffers, 2, verdict, how="replayed eagerly,")
    assert verdict.passed, verdict.reason


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_in_half_precision_an_input_that_is_not_looked_at_again_is_found(name: str) -> None:
    """One changed element among 1,024 keys changes the result by less than the limit."""
    problem = Attention("bfloat16")
    shape = {"batch": 1, "heads": 1, "head_dim": 64, "seq_len": 1024}
    case = problem.case(shape, {"causal": True})
    pool = InputPool(problem)
    for seed in (0, 1):
        known = pool.get(case, "normal", seed).inputs[name]
        found = []
        for altered in pool.changed(case, seed):
            inputs = {**altered.inputs, name: known}
            output = emulations.compute(emulations.library, case, inputs)["out"]
            errors = errors_against(output, altered.expected["out"])
            found.append(not LIMITS.scaled(5.0).hold(errors))
        assert any(found)


def test_of_one_large_case_inputs_and_scratch_are_not_copied(
    pool: InputPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def room(buffers: BufferSets) -> BufferSets:
        raise AssertionError(f"a copy of {buffers}")

    monkeypatch.setattr(BufferSets, "room", room)
    for in_order in (False, True):
        monkeypatch.setattr(CpuSession, "in_order", in_order)
        verdict = examine(pool, SHORT, kernel(SHORT, exact))
        assert verdict.passed, verdict.reason


def test_what_is_written_after_the_launch_is_found(pool: InputPool) -> None:
    gate = Gate(CpuSession(), PROBLEM, pool, deterministic=False)
    late: list[Memory] = []
    launch = kernel(SHORT, exact, late.append)
    verdict = Verdict()
    original = gate.look

    def look(*arguments: object) -> Evidence:
        late[-1]["out"][5] = 1.0
        return original(*arguments)  # type: ignore[arg-type]

    gate.look = look  # type: ignore[method-assign]
    gate.examine(Subject(SHORT, plan(), launch), ["normal"], 0, verdict)
    assert verdict.kind is OutcomeKind.LAUNCH_ERROR
    assert "wrote out after its launch had returned" in verdict.reason
