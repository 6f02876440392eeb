"""What a burst of launches asks of the session that captures it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import pytest
import torch

from evotune.device.cpu import CpuSampler, CpuSession
from evotune.device.protocol import Session
from evotune.verify.burst import Burst


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
    burst.run(list(torch.tensor([5.0, 7.0])))
    assert inputs.tolist() == [5.0, 1.0, 7.0]
