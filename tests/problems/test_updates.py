"""Tensors that kernels update in place: each launch finds their values, in timed runs too."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from evotune.backends.base.launch import Argument, LaunchPlan
from evotune.backends.base.session import RestoringSampler
from evotune.backends.cpu.cpu_session import CpuSession
from evotune.errors import ProblemMistake
from evotune.problems import InOut, Tensor, UserProblem, create_problem
from evotune.problems.examination import examine
from evotune.timing.paired import TimingSettings
from evotune.trial import OutcomeKind
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.pool import InputPool
from evotune.workers.trial_timer import BaselineCalls, BaselineSamplers, BaselineTimer, CaseTimer

ROWS = 300


class Halving(UserProblem):
    """x is halved, and count grows by 1, of 99 to 0."""

    sizes = ("rows",)
    first_of: float = 0.5

    def inputs(self, rows: int) -> dict[str, Tensor]:
        return {"x": InOut((rows,)), "count": InOut((rows,), "int32", range(100))}

    def outputs(self, rows: int) -> dict[str, Tensor]:
        return {}

    def operations(self, rows: int) -> int:
        return rows

    def compute(self, x: torch.Tensor, count: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"x": x * self.first_of, "count": (count + 1) % 100}

    def baselines_of(self, **inputs: torch.Tensor) -> dict[str, Callable[[], dict]]:
        def in_place() -> dict[str, torch.Tensor]:
            return {"x": inputs["x"].mul_(0.5), "count": inputs["count"].add_(1).remainder_(100)}

        return {"torch:in_place": in_place}


def _at(pointer: ctypes.c_void_p, kind: type) -> np.ndarray:
    assert pointer.value is not None
    return np.ctypeslib.as_array((kind * ROWS).from_address(pointer.value))


class Kernel:
    """Halves and counts; `seen` has the values that each launch found."""

    def __init__(self, wrong: str = "") -> None:
        self.seen: list[tuple[np.ndarray, np.ndarray]] = []
        self._wrong = wrong

    def __call__(self, x: ctypes.c_void_p, count: ctypes.c_void_p) -> None:
        values, counts = _at(x, ctypes.c_float), _at(count, ctypes.c_int32)
        self.seen.append((values.copy(), counts.copy()))
        if self._wrong == "rests every tenth launch" and len(self.seen) % 10 == 9:
            return
        values *= 0.5
        counts[:] = (counts + 1) % 100


PLAN = LaunchPlan("f", (Argument("tensor", "x"), Argument("tensor", "count")), (), ())


@pytest.fixture
def problem() -> Halving:
    return Halving("float32")


def _timed(problem: Halving, kernel: Kernel) -> tuple[Gate, Subject, CaseTimer, InputPool]:
    session, pool = CpuSession(), InputPool(problem)
    gate = Gate(session, problem, pool, deterministic=True)
    subject = Subject(problem.case({"rows": ROWS}, {}), PLAN, kernel)
    samplers = BaselineSamplers(session, problem, pool)
    return gate, subject, CaseTimer(session, problem, pool, samplers, seed=0), pool


def test_an_updated_tensor_is_an_input_and_an_output(problem: Halving) -> None:
    case = problem.case({"rows": ROWS}, {})
    specs = problem.tensors(case)
    assert [(s.name, s.is_input, s.is_output, s.is_updated) for s in specs] == [
        ("x", True, True, True),
        ("count", True, True, True),
    ]
    assert problem.bytes_moved(case) == 2 * 8 * ROWS
    examine(problem, case)


def test_a_kernel_that_updates_passes(problem: Halving) -> None:
    kernel = Kernel()
    gate, subject, _, _ = _timed(problem, kernel)
    verdict = Verdict()
    gate.examine(subject, problem.input_kinds, 0, verdict)
    assert verdict.passed, verdict.reason
    assert {check.inputs for check in verdict.checks} == {*problem.input_kinds, "updated normal"}


def test_each_timed_call_finds_the_values_of_one_set(problem: Halving) -> None:
    kernel, verdict = Kernel(), Verdict()
    gate, subject, timer, pool = _timed(problem, kernel)
    placed = timer.place(gate, subject, TimingSettings(max_rounds=6))
    assert len(placed.buffers) == len(placed.launches) > 2
    case = subject.case
    known = [pool.get(case, "normal", 0), *pool.changed(case, 0)]
    sets = {(s.inputs["x"].numpy().tobytes(), s.inputs["count"].numpy().tobytes()) for s in known}
    kernel.seen.clear()
    measured = timer.measure(
        placed,
        "torch:in_place",
        contender_speedup=0.0,
        leader_speedup=0.0,
        held_out=False,
        watched=lambda found: gate.judge_watched(case, found, verdict),
    )
    assert verdict.passed, verdict.reason
    assert measured.time_us > 0
    found = {(x.tobytes(), count.tobytes()) for x, count in kernel.seen}
    assert found <= sets
    assert len(found) > 2
    kernel.seen.clear()
    gate.alter(subject, placed.buffers, 0, verdict)
    gate.replay(subject, placed.sampler, placed.buffers, 1, verdict)
    assert verdict.passed, verdict.reason


def test_a_call_that_rests_while_it_is_timed_is_found(problem: Halving) -> None:
    gate, subject, timer, _ = _timed(problem, Kernel("rests every tenth launch"))
    verdict = Verdict()
    placed = timer.place(gate, subject, TimingSettings(max_rounds=6))
    assert placed.watch is not None
    placed.watch.run()
    gate.judge_watched(subject.case, placed.watch.take(), verdict)
    assert verdict.kind is OutcomeKind.WRONG_RESULT
    assert "watched inputs: x is off by" in verdict.reason


def test_watched_places_have_several_sets(problem: Halving) -> None:
    """A kernel could copy the result of the place before."""
    kernel = Kernel()
    gate, subject, timer, _ = _timed(problem, kernel)
    placed = timer.place(gate, subject, TimingSettings())
    assert placed.watch is not None
    for _ in range(8):
        kernel.seen.clear()
        placed.watch.run()
        if len({x.tobytes() for x, _ in kernel.seen}) > 1:
            return
    pytest.fail("all places had the same inputs in each of 8 watched runs")


def test_restoring_comes_before_the_clock() -> None:
    log: list[str] = []

    class Sampler:
        count = 1

        def __getattr__(self, name: str) -> Callable[..., float]:
            return lambda *given: log.append(name) or 1.0

    sampler = RestoringSampler(Sampler(), lambda: log.append("restore"))  # type: ignore[arg-type]
    sampler.run()
    sampler.time_us()
    sampler.watch([], 1.0)
    sampler.time_while_renewing([], 0)
    names = ("run", "time_us", "watch", "time_while_renewing")
    assert log == [each for name in names for each in ("restore", name)]


def test_a_sample_that_is_repeated_is_restored_too() -> None:
    """On a GPU, when the processor was late."""

    class Late:
        count = 1

        def __init__(self) -> None:
            self.before_repeating: Callable[[], None] = lambda: None

        def time_us(self) -> float:
            self.before_repeating()
            return 1.0

    restored: list[int] = []
    RestoringSampler(Late(), lambda: restored.append(1)).time_us()  # type: ignore[arg-type]
    assert len(restored) == 2


def test_a_baseline_may_update_its_own_copies_alone(problem: Halving) -> None:
    session, pool = CpuSession(), InputPool(problem)
    case = problem.case({"rows": ROWS}, {})
    kept = pool.get(case, "normal", 0)
    (timing,) = BaselineTimer(session, problem, pool).of_case(case, ())
    assert (timing.name, timing.passed) == ("torch:in_place", True)
    assert kept.intact()
    found = BaselineCalls.of(problem, case, kept.inputs, "torch:in_place", 3)
    assert found.restore is not None
    for _ in range(2):
        found.restore()
        for call in found.calls:
            assert torch.equal(call()["x"], kept.inputs["x"] * 0.5)


WRITTEN = """
from evotune.problems import InOut, Tensor, UserProblem

class Own(UserProblem):
    sizes = ("rows",)

    def inputs(self, rows):
        return {"x": (rows,), "y": InOut((rows,))}

    def outputs(self, rows):
        return {}

    def operations(self, rows):
        return rows

    def compute(self, x, y):
        return {"y": y + x}
"""


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("return {}", 'return {"z": InOut((rows,))}', "10: z of outputs is an InOut: name it in"),
        ("return {}", 'return {"y": (rows,)}', "10: outputs names y, which is also an input"),
        ("InOut((rows,))", "(rows,)", "10: outputs names no tensor, a kernel needs at least one"),
        ("InOut((rows,))", 'InOut((rows,), "int32", "indices")', "7: y of inputs is an InOut, who"),
        ('{"y": y + x}', '{"y": y.add_(x)}', "16: compute changed its input y in place"),
        ('{"y": y + x}', '{"z": y + x}', "16: compute gave z; the outputs are y"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, before: str, after: str, why: str) -> None:
    assert before in WRITTEN
    (tmp_path / "own.py").write_text(WRITTEN.replace(before, after))
    problem = create_problem("own.py:Own", "float32", tmp_path)
    assert isinstance(problem, UserProblem)
    with pytest.raises(ProblemMistake, match=rf"own\.py:{why}"):
        examine(problem, problem.case({"rows": 3}, {}))
