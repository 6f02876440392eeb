"""Kernels that do not read all inputs in each launch are found where one element cannot show it.

In bfloat16 a mean over thousands of elements stays the same when one of them changes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import pytest
import torch

from evotune.backends.base.launch import Argument, LaunchPlan
from evotune.backends.cpu.cpu_session import CpuSampler, CpuSession
from evotune.problems.problem import Tensors
from evotune.problems.user import UserProblem
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.pool import InputPool

ROWS, COLUMNS = 4, 1 << 15


class Means(UserProblem):
    sizes = ("rows", "columns")

    def inputs(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {"x": (rows, columns), "y": (rows, columns)}

    def outputs(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {"out": (rows,)}

    def operations(self, rows: int, columns: int) -> int:
        return 2 * rows * columns

    def compute(self, **inputs: torch.Tensor) -> Tensors:
        return {"out": 1 + 16 * sum(each.mean(dim=1) for each in inputs.values())}


class RunsWhenMade(CpuSession):
    """Its samplers run the calls that they capture once when they are made, as a GPU's do."""

    def sampler(self, calls: Sequence[Callable[[], object]], *, untimed: int = 0) -> CpuSampler:
        sampler = super().sampler(calls, untimed=untimed)
        sampler.run()
        return sampler


PROBLEM = Means("bfloat16")
CASE = PROBLEM.case({"rows": ROWS, "columns": COLUMNS}, {})
PLAN = LaunchPlan("python", tuple(Argument("tensor", name) for name in ("x", "y", "out")), (), ())


@pytest.fixture(scope="module")
def pool() -> InputPool:
    return InputPool(PROBLEM)


def tensor(pointer: ctypes.c_void_p, count: int) -> torch.Tensor:
    assert pointer.value is not None
    memory = (ctypes.c_int16 * count).from_address(pointer.value)
    return torch.frombuffer(memory, dtype=torch.bfloat16)


def means(*pointers: ctypes.c_void_p) -> None:
    x, y = (tensor(each, ROWS * COLUMNS).view(ROWS, COLUMNS) for each in pointers[:2])
    tensor(pointers[2], ROWS).copy_(PROBLEM.compute(x=x, y=y)["out"])


def altered(pool: InputPool, session: CpuSession, launch: Callable[..., object]) -> Verdict:
    verdict = Verdict()
    gate = Gate(session, PROBLEM, pool, deterministic=True)
    subject = Subject(CASE, PLAN, launch)
    buffers = gate.buffers(subject, [pool.get(CASE, "normal", 0)])
    means(*map(ctypes.c_void_p, buffers.pointers().values()))
    gate.alter(subject, buffers, 0, verdict)
    return verdict


@pytest.mark.parametrize("session", [CpuSession(), RunsWhenMade()])
def test_a_right_kernel_passes(pool: InputPool, session: CpuSession) -> None:
    verdict = altered(pool, session, means)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("session", [CpuSession(), RunsWhenMade()])
@pytest.mark.parametrize(("period", "phase"), [(2, 0), (2, 1), (3, 2), (7, 0), (11, 10)])
def test_one_that_rests_at_times_is_found(
    pool: InputPool, session: CpuSession, period: int, phase: int
) -> None:
    calls: list[int] = []

    def lazy(*pointers: ctypes.c_void_p) -> None:
        calls.append(1)
        if len(calls) % period != phase:
            means(*pointers)

    assert "altered in place inputs: out is off" in altered(pool, session, lazy).reason


@pytest.mark.parametrize("session", [CpuSession(), RunsWhenMade()])
@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("refreshed", [True, False])
def test_one_that_keeps_an_input_is_found(
    pool: InputPool, session: CpuSession, kept: int, refreshed: bool
) -> None:
    """The kernel reads the kept input again only if `refreshed`, when the other one has changed."""
    copy: list[torch.Tensor] = []
    known = b""

    def keeping(*pointers: ctypes.c_void_p) -> None:
        nonlocal known
        both = [tensor(each, ROWS * COLUMNS).view(ROWS, COLUMNS) for each in pointers[:2]]
        other = both[1 - kept].view(torch.int16).numpy().tobytes()
        if not copy or (refreshed and other != known):
            copy[:] = [both[kept].clone()]
        known = other
        both[kept] = copy[0]
        tensor(pointers[2], ROWS).copy_(PROBLEM.compute(x=both[0], y=both[1])["out"])

    assert "altered in place inputs: out is off" in altered(pool, session, keeping).reason


def test_a_changed_set_is_the_normal_one_after_its_alterations(pool: InputPool) -> None:
    for each in pool.changed(CASE, 1):
        inputs = {name: v.clone() for name, v in pool.get(CASE, "normal", 1).inputs.items()}
        for change in each.alterations:
            flat = inputs[change.name].view(-1)
            flat[change.place : change.place + len(change.values)] = change.values
        assert all(torch.equal(inputs[name], value) for name, value in each.inputs.items())


class Layers(UserProblem):
    """Two layers: five inputs."""

    sizes = ("rows", "width")

    def inputs(self, rows: int, width: int) -> dict[str, tuple[int, ...]]:
        matrix = (width, width)
        return {"x": (rows, width), "w1": matrix, "b1": (width,), "w2": matrix, "b2": (width,)}

    def outputs(self, rows: int, width: int) -> dict[str, tuple[int, ...]]:
        return {"out": (rows, width)}

    def operations(self, rows: int, width: int) -> int:
        return 4 * rows * width * width

    def compute(self, **inputs: torch.Tensor) -> Tensors:
        x, w1, b1, w2, b2 = inputs.values()
        return {"out": torch.relu(x @ w1 + b1) @ w2 + b2}


def test_of_many_inputs_each_is_changed_without_most_others() -> None:
    """A kernel may keep results that it computed from the weights alone."""
    problem = Layers("float32")
    changed = InputPool(problem).changed(problem.case({"rows": 4, "width": 8}, {}), 1)
    names = [{change.name for change in each.alterations} for each in changed]
    assert [len(each) for each in names] == [2, 1, 1, 1, 5, 5]
    assert set().union(*names[:4]) == {"x", "w1", "b1", "w2", "b2"}


def test_what_changes_follows_from_a_secret() -> None:
    pools = [InputPool(PROBLEM, secret=secret) for secret in ("", "a", "a", "b")]
    places = [
        [[change.place for change in each.alterations] for each in pool.changed(CASE, 1)]
        for pool in pools
    ]
    assert places[1] == places[2]
    assert places[0] != places[1] != places[3]
    first = [pool.get(CASE, "normal", 1).inputs["x"] for pool in pools]
    assert torch.equal(first[1], first[2])
    assert not torch.equal(first[1], first[3])


def test_a_stray_write_into_new_values_is_known(pool: InputPool) -> None:
    fresh = InputPool(PROBLEM)
    (first, *_) = fresh.changed(CASE, 1)
    assert fresh.intact()
    first.alterations[0].values[0] += 1
    assert not fresh.intact()


def test_a_pool_holds_all_that_a_trial_takes() -> None:
    fresh = InputPool(PROBLEM, limit_bytes=InputPool(PROBLEM).trial_bytes(CASE))

    def take() -> list[object]:
        kinds = [fresh.get(CASE, kind, 0) for kind in PROBLEM.input_kinds]
        return [*kinds, fresh.get(CASE, "normal", 1), *fresh.changed(CASE, 0)]

    assert all(a is b for a, b in zip(take(), take(), strict=True))
