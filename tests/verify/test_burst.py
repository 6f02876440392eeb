"""What a burst of launches asks of the session that captures it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from evotune.device.cpu import CpuSampler, CpuSession
from evotune.device.launch import LaunchPlan
from evotune.device.protocol import Session
from evotune.problems.base import Tensors, TensorSpec
from evotune.problems.user import UserProblem
from evotune.verify.buffers import BufferSets
from evotune.verify.burst import Burst, altered_outputs, reuse
from evotune.verify.pool import Alteration, InputPool


class CapturingSession(CpuSession):
    """Refuses, as a GPU may, to capture an operation whose code is not loaded yet."""

    def __init__(self, loaded: list[str]) -> None:
        super().__init__()
        self._loaded = loaded

    def sampler(self, calls: Sequence[Callable[[], object]]) -> CpuSampler:
        assert "mul" in self._loaded
        return super().sampler(calls)


def test_the_writes_of_a_burst_have_run_before_they_are_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[str] = []
    multiply = torch.mul

    def mul(value: torch.Tensor, factor: int, *, out: torch.Tensor) -> torch.Tensor:
        loaded.append("mul")
        return multiply(value, factor, out=out)

    monkeypatch.setattr(torch, "mul", mul)
    inputs = torch.ones(3)
    session = cast(Session, CapturingSession(loaded))
    burst = Burst(session, lambda: None, [[inputs[:1]], [inputs[2:]]])
    assert inputs.tolist() == [1.0, 1.0, 1.0]  # nothing is written before the burst
    burst.time_us(list(torch.tensor([5.0, 7.0])))
    assert inputs.tolist() == [5.0, 1.0, 7.0]


class EagerlyMadeSession(CpuSession):
    """Runs what it captures once when it is made, as a GPU's does."""

    def sampler(self, calls: Sequence[Callable[[], object]]) -> CpuSampler:
        sampler = super().sampler(calls)
        sampler.run()
        return sampler


@pytest.mark.parametrize("session", [CpuSession(), EagerlyMadeSession()])
def test_each_variant_begins_with_the_inputs_as_they_were(session: CpuSession) -> None:
    """What is launched sums up its input; the sums of variants do not add up."""
    specs = (TensorSpec("x", (3,), "float32"), TensorSpec("out", (1,), "float32", is_output=True))
    buffers = BufferSets(specs, LaunchPlan("f", (), (), ()), [{"x": torch.ones(3)}], "cpu")
    x = torch.frombuffer(
        (ctypes.c_float * 3).from_address(buffers.pointers()["x"]), dtype=torch.float
    )
    seen: list[list[float]] = []

    def launch() -> None:
        seen.append(x.tolist())
        buffers.outputs()["out"].fill_(float(x.sum()))

    def change(place: int, value: float) -> Alteration:
        return Alteration("x", place, torch.tensor([value]))

    variants = [[change(0, 5.0), change(1, 7.0)], [change(2, 9.0)], [change(2, 4.0)]]
    outputs = altered_outputs(cast(Session, session), launch, buffers, variants)
    assert [float(each["out"]) for each in outputs] == [13.0, 11.0, 6.0]
    assert seen[-4:] == [[5.0, 1.0, 1.0], [5.0, 7.0, 1.0], [1.0, 1.0, 9.0], [1.0, 1.0, 4.0]]
    assert x.tolist() == [1.0, 1.0, 4.0]


class BusySession(CpuSession):
    """Times as a machine tells them on which every burst is interrupted, ever anew."""

    def __init__(self, seed: int, cost_us: tuple[float, float]) -> None:
        super().__init__()
        self._noise = torch.Generator().manual_seed(seed)
        self._costs_us = iter(cost_us)

    def sampler(self, calls: Sequence[Callable[[], object]]) -> CpuSampler:
        cost_us = next(self._costs_us)  # of the burst on new inputs, then of the other one

        def time_us() -> float:
            return cost_us * float(torch.randn(1, generator=self._noise).exp())

        return cast(CpuSampler, SimpleNamespace(time_us=time_us))


@pytest.mark.parametrize(("fresh_us", "most", "least"), [(1.0, 1, 0), (8.0, 100, 90)])
def test_interrupted_bursts_neither_accuse_nor_clear_a_candidate(
    fresh_us: float, most: int, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evotune.verify.burst._REST_S", 0.0)
    monkeypatch.setattr("evotune.verify.burst._LEAST_ROUNDS", 200)  # no lucky burst decides
    buffers = cast(BufferSets, SimpleNamespace(elements=lambda name, place: torch.zeros(1)))
    change = Alteration("x", 0, torch.ones(1))
    accused = 0
    for seed in range(100):
        session = cast(Session, BusySession(seed, (fresh_us, 1.0)))
        order = torch.Generator().manual_seed(seed)
        accused += bool(reuse(session, lambda: None, buffers, [change], order))
    assert least <= accused <= most


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


def test_of_many_inputs_each_is_altered() -> None:
    """One that is none of the first or last: a kernel may keep what it made of the weights."""
    problem = Layers("float32")
    variants = InputPool(problem).altered(problem.case({"rows": 4, "width": 8}, {}), 1)
    changed = [[change.name for change in each.alterations] for each in variants]
    assert set().union(*changed) == {"x", "w1", "b1", "w2", "b2"}
    assert {len(names) % 2 for names in changed} == {0, 1}
