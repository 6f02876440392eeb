"""The gate knows tensors of integers and of 8 bits, tensors that may be left out, and lengths.

One C++ kernel takes all of them; `data/types` has it, its problem and its space.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from red_team.timed import judge_timed

from evotune.backends.base.launch import LaunchPlan
from evotune.backends.cpu.cpu_session import CpuSession
from evotune.problems import Tensor, UserProblem, create_problem
from evotune.problems.problem import rounding_of
from evotune.runs.planning import Planner
from evotune.runs.setup import load_setup
from evotune.trial import Configuration, OutcomeKind
from evotune.verify.accuracy import LIMITS, errors_against, expected, not_finite, worst_element
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.pool import InputPool
from evotune.verify.watch import Watch, WatchedSampler
from evotune.workers.executor import TIMED
from tests.cpu_kernels import loaded

FOLDER = Path(__file__).parents[1] / "data" / "types"
WRONG = OutcomeKind.WRONG_RESULT
BOUNDS = OutcomeKind.OUT_OF_BOUNDS
EXPECTED = {
    "ignores_picks": (WRONG, "out is off by"),
    "one_column_less": (WRONG, "out is off by"),
    "signed_weights": (WRONG, "out is off by"),
    "scale_of_the_row": (WRONG, "out is off by"),
    "ignores_bias": (WRONG, r"has_bias, normal inputs: out is off by"),
    "counts_from_zero": (WRONG, "longest is off by 1"),
    "one_byte_behind": (BOUNDS, "wrote outside codes_out"),
    "changes_a_weight": (BOUNDS, "changed its input weights"),
}


@pytest.fixture(scope="module")
def planner() -> Planner:
    planner = load_setup(FOLDER / "space.yaml", "cpu").planner
    assert isinstance(planner, Planner)
    return planner


def judged(planner: Planner, behaviour: str, folder: Path, *, timed: bool = False) -> Verdict:
    problem = create_problem("problem.py:PickedRows", "float32", FOLDER)
    session, pool = CpuSession(), InputPool(problem)
    gate, verdict = Gate(session, problem, pool, deterministic=True), Verdict()
    configuration = Configuration({**planner.bound.default(), "BEHAVIOUR": behaviour})
    for job in planner.proposal(0, configuration).cases:
        subject = loaded(session, job, folder)
        gate.examine(subject, problem.input_kinds, 0, verdict)
        if timed and job.role == TIMED:
            judge_timed(
                session, gate, pool, subject, seed=0, verdict=verdict, calls=6, watched_runs=4
            )
    return verdict


def test_a_right_kernel_passes_the_gate_and_the_checks_of_timed_launches(
    planner: Planner, tmp_path: Path
) -> None:
    verdict = judged(planner, "right", tmp_path, timed=True)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("behaviour", EXPECTED)
def test_a_wrong_kernel_is_found(planner: Planner, behaviour: str, tmp_path: Path) -> None:
    kind, reason = EXPECTED[behaviour]
    verdict = judged(planner, behaviour, tmp_path)
    assert verdict.kind is kind, verdict.reason
    assert re.search(reason, verdict.reason), verdict.reason


def test_lengths_change_only_as_a_whole(planner: Planner) -> None:
    """A kernel that runs while they change would read past the end of a row."""
    problem = create_problem("problem.py:PickedRows", "float32", FOLDER)
    pool = InputPool(problem)
    case = problem.case({"rows": 37, "columns": 70}, {"has_bias": True})
    plain = ("codes", "weights", "scales", "picks", "bias")
    assert pool.plain_inputs(case) == plain
    assert pool.steady_inputs(case) == {"lengths"}
    alterations = [each for one in pool.changed(case, 0) for each in one.alterations]
    assert {each.name for each in alterations} == {*plain, "lengths"}
    assert all(len(each.values) == 37 for each in alterations if each.name == "lengths")
    for one in pool.changed(case, 0):
        assert int(one.inputs["picks"].min()) >= 0
        assert int(one.inputs["picks"].max()) < 37


def test_an_absent_tensor_is_a_null_pointer(planner: Planner) -> None:
    without, having = planner.proposal(0, planner.bound.default()).cases[:2]
    assert without.plan.arguments[5].type == "null"
    assert having.plan.arguments[5].type == "tensor"
    assert without.compile.signature == having.compile.signature


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_an_infinity_is_right_where_the_reference_has_it(dtype: torch.dtype) -> None:
    reference = torch.tensor([1.0, -torch.inf, torch.inf, 2.0], dtype=torch.float64)
    tolerance = torch.full_like(reference, 0.1)
    wanted = expected(reference, tolerance, dtype, may_be_infinite=True)
    right = reference.to(dtype)
    assert errors_against(right, wanted).max == 0.0
    for place, value in ((1, -3e38), (1, torch.inf), (2, -torch.inf), (1, 0.0), (2, torch.nan)):
        wrong = right.clone()
        wrong[place] = value
        if dtype == torch.float16 and value == -3e38:
            continue
        assert errors_against(wrong, wanted).max == torch.inf, (place, value)
        assert not_finite(wrong, wanted) == math.isnan(value)
    off = right.clone()
    off[3] = 2.5
    assert worst_element(off, wanted).error == pytest.approx(0.5, rel=1e-3)
    off[0] = torch.inf
    assert not_finite(off, wanted) == 1


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_integers_are_exact(dtype: str) -> None:
    kind = getattr(torch, dtype)
    reference = torch.tensor([0.0, 3.0, 255.0], dtype=torch.float64)
    wanted = expected(reference, torch.full_like(reference, 0.5), kind)
    assert errors_against(reference.to(kind), wanted).max == 0.0
    assert errors_against(torch.tensor([0, 4, 255], dtype=kind), wanted).max == 2.0


def test_large_integers_are_exact_too() -> None:
    """float64 does not tell these from their neighbours."""

    class Mixed(UserProblem):
        sizes = ("rows",)

        def inputs(self, rows: int) -> dict[str, Tensor]:
            return {"x": Tensor((rows,), "int64", range(1 << 62, (1 << 63) - 1))}

        def outputs(self, rows: int) -> dict[str, Tensor]:
            return {"out": Tensor((rows,), "int64")}

        def operations(self, rows: int) -> int:
            return rows

        def compute(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"out": x ^ (x >> 7)}

    problem = Mixed("float32")
    made = InputPool(problem).get(problem.case({"rows": 50}, {}), "normal", 0)
    right = problem.compute(made.inputs["x"])["out"]
    assert errors_against(right, made.expected["out"]).max == 0.0
    for place in range(50):
        wrong = right.clone()
        wrong[place] ^= 1
        assert not LIMITS.hold(errors_against(wrong, made.expected["out"]))
        worst = worst_element(wrong, made.expected["out"])
        assert (worst.error, worst.tolerance, worst.place) == (1.0, 0.5, (place,))
        assert (worst.found, worst.wanted) == (int(wrong[place]), int(right[place]))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_the_smallest_floats_of_8_bits_are_no_zeros(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    small = info.tiny * torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    wanted = expected(small, rounding_of(small, dtype), dtype)
    right, zeros = small.to(dtype), torch.zeros_like(small).to(dtype)
    assert LIMITS.hold(errors_against(right, wanted))
    assert not LIMITS.hold(errors_against(zeros, wanted))


class Nothing(UserProblem):
    """Every result is -1, or 255: nothing was found."""

    sizes = ("rows",)
    result = "int32"

    def inputs(self, rows: int) -> dict[str, tuple[int, ...]]:
        return {"x": (rows,)}

    def outputs(self, rows: int) -> dict[str, Tensor]:
        return {"out": Tensor((rows,), self.result)}

    def operations(self, rows: int) -> int:
        return rows

    def compute(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        nothing = 255 if self.result == "uint8" else -1
        return {"out": torch.full_like(x, nothing).to(getattr(torch, self.result))}


def nothing(dtype: str) -> Nothing:
    problem = Nothing("float32")
    problem.result = dtype
    return problem


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_an_integer_that_nobody_writes_is_not_the_usual_mark_of_nothing(dtype: str) -> None:
    problem = nothing(dtype)
    gate, verdict = Gate(CpuSession(), problem, InputPool(problem), deterministic=True), Verdict()
    subject = Subject(problem.case({"rows": 5}, {}), LaunchPlan("f", (), (), ()), lambda: None)
    gate.examine(subject, ["normal"], 0, verdict)
    assert verdict.kind is WRONG


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_nor_is_a_spot_that_is_overwritten_while_launches_are_timed(dtype: str) -> None:
    """The kernel wrote the right result once, and rests since then."""
    problem, session = nothing(dtype), CpuSession()
    pool, case = InputPool(problem), problem.case({"rows": 1 << 14}, {})
    gate, verdict = Gate(session, problem, pool, deterministic=True), Verdict()
    subject = Subject(case, LaunchPlan("f", (), (), ()), lambda: None)
    buffers = gate.buffers(subject, [pool.get(case, "normal", 0)])
    buffers.outputs()["out"].fill_(255 if dtype == "uint8" else -1)
    sampler = session.sampler([lambda: None] * 8)
    watch = Watch(
        session, pool, case, 0, buffers=buffers, launches=[lambda: None], samplers=[sampler]
    )
    watched = WatchedSampler(sampler, watch, lambda found: gate.judge_watched(case, found, verdict))
    for _ in range(3):
        watched.run()
        watch.change()
        watched.time_us()
    gate.judge_watched(case, watch.take(), verdict)
    assert verdict.kind is WRONG


class Ranged(UserProblem):
    """Integers of ranges, with negative ones of 8 bytes, beside floats."""

    sizes = ("rows",)
    values: ClassVar = {"long": range(-3, 5), "short": range(7, 100, 3), "byte": range(250, 256)}

    def inputs(self, rows: int) -> dict[str, Tensor]:
        types = {"long": "int64", "short": "int32", "byte": "uint8"}
        made = {name: Tensor((rows,), types[name], self.values[name]) for name in types}
        return {**made, "x": Tensor((rows,))}

    def outputs(self, rows: int) -> dict[str, Tensor]:
        return {"out": Tensor((rows,))}

    def operations(self, rows: int) -> int:
        return rows

    def compute(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": sum(inputs.values(), torch.zeros(1))}


class Graphs(CpuSession):
    """Like a GPU's session: writes may come while a call works."""

    in_order = True
    step_bytes = 0


@pytest.mark.parametrize("session", [CpuSession(), Graphs()], ids=["cpu", "graphs"])
def test_integers_stay_in_their_range_at_each_call(
    session: CpuSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel may read memory where they point."""
    monkeypatch.setattr("evotune.verify.watch._REST_S", 0.0)
    monkeypatch.setattr("evotune.verify.watch._LOOKS", ((4, 0.0),))
    monkeypatch.setattr("evotune.verify.watch._PAUSES_S", (0.0,) * 3)
    problem = Ranged("float32")
    pool, case = InputPool(problem), problem.case({"rows": 1 << 14}, {})
    gate = Gate(session, problem, pool, deterministic=True)
    subject = Subject(case, LaunchPlan("f", (), (), ()), lambda: None)
    buffers = gate.buffers(subject, [pool.get(case, "normal", 0)])
    base = {name: view.clone() for name, view in buffers.inputs().items()}
    changed: set[str] = set()

    def look() -> None:
        for name, view in buffers.inputs().items():
            if not view.equal(base[name]):
                changed.add(name)
            if name in problem.values:
                assert set(view.unique().tolist()) <= set(problem.values[name]), name

    sampler = session.sampler([look] * 40)
    watch = Watch(session, pool, case, 0, buffers=buffers, launches=[look], samplers=[sampler])
    for _ in range(8):
        watch.run()
    assert changed == {*problem.values, "x"}
    changed.clear()
    watch.reuse()
    assert changed == ({"x"} if session.in_order else {*problem.values, "x"}), (
        "a GPU's calls may work while elements change all the time: only what they may not count"
    )
    look()
    assert all(view.equal(base[name]) for name, view in buffers.inputs().items())
