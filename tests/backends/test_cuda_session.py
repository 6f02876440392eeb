"""Capturing calls, with CUDA's part played by this file: no GPU is needed."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from evotune.backends.base.launch import LaunchPlan
from evotune.backends.cuda import cuda_session as module
from evotune.backends.cuda import gpu_profiles
from evotune.backends.cuda.cuda_session import CudaSession, GraphSampler
from evotune.problems.attention import Attention
from evotune.verify.pool import InputPool


class Memory:
    """A GPU's memory: earlier calls hold all of it until the allocator's cache is emptied."""

    def __init__(self, patch: pytest.MonkeyPatch, *, enough: bool) -> None:
        self.enough = enough
        self.emptied = 0
        patch.setattr(torch.cuda, "empty_cache", self._empty)
        patch.setattr(module, "GraphSampler", self._capture)
        patch.setattr(module, "CudaKernel", self._load)

    def _empty(self) -> None:
        self.emptied += 1

    def _capture(self, calls: Sequence[Callable[[], object]], stream: Any, pool: Any) -> str:
        if not (self.enough and self.emptied):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB.")
        return "captured"

    def _load(self, path: Path) -> str:
        if not (self.enough and self.emptied):
            raise RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: out of memory")
        return "loaded"


def opened() -> CudaSession:
    session = CudaSession.__new__(CudaSession)
    session._stream = session._graph_pool = None  # type: ignore[assignment]
    return session


def test_the_inputs_of_a_trial_on_a_large_shape_fit_an_l4(monkeypatch: pytest.MonkeyPatch) -> None:
    total_bytes = 23_034 << 20  # of an L4's 24 GiB
    monkeypatch.setattr(torch, "zeros", lambda count, device: torch.ones(count))
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: SimpleNamespace(total_memory=total_bytes)
    )
    monkeypatch.setattr(module, "_kernel", lambda: None)
    Memory(monkeypatch, enough=True).emptied = 1
    problem = Attention("float16")
    pool_bytes = CudaSession(gpu_profiles.named("l4")).pool_bytes
    shape = {"batch": 2, "heads": 16, "seq_len": 8192, "head_dim": 128}
    both = [problem.case(shape, {"causal": causal}) for causal in (False, True)]
    sets = len(problem.input_kinds) + 4  # four for timing
    pool = InputPool(problem)
    assert sets * sum(pool.set_bytes(case) for case in both) <= pool_bytes < total_bytes / 2


def test_captures_and_code_may_take_what_eager_calls_left_in_the_allocator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = Memory(monkeypatch, enough=True)
    assert opened().sampler([lambda: None]) == "captured"
    assert memory.emptied == 1
    memory.emptied = 0
    assert opened().load(Path("a.cubin"), LaunchPlan("a", (), (), ())) == "loaded"
    assert memory.emptied == 1


def test_a_capture_that_needs_more_than_there_is_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    Memory(monkeypatch, enough=False)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        opened().sampler([lambda: None])


class BrokenGraph:
    """A capture that an error has invalidated: its end raises, or warns that it is empty."""

    ended = 0
    warns = False

    def capture_begin(self, **options: Any) -> None: ...

    def capture_end(self) -> None:
        BrokenGraph.ended += 1
        if self.warns:
            warnings.warn("The CUDA Graph is empty.", UserWarning, stacklevel=1)
            return
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


@pytest.mark.parametrize("warns", [False, True])
def test_what_broke_a_capture_is_what_is_told(warns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BrokenGraph, "ended", 0)
    monkeypatch.setattr(BrokenGraph, "warns", warns)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", BrokenGraph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())

    def fails() -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB.")

    with pytest.raises(torch.cuda.OutOfMemoryError, match="out of memory"):
        GraphSampler([fails], cast(torch.cuda.Stream, None))
    assert BrokenGraph.ended == 1
