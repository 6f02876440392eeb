"""Capturing calls, with CUDA's part played by this file: no GPU is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from evotune.device.cuda import session as module
from evotune.device.cuda.session import CudaSession


class Memory:
    """Of a GPU on which calls that ran before hold all there is until the cache is emptied."""

    def __init__(self, patch: pytest.MonkeyPatch, *, enough: bool) -> None:
        self.enough = enough
        self.emptied = 0
        patch.setattr(torch.cuda, "empty_cache", self._empty)
        patch.setattr(module, "GraphSampler", self._capture)

    def _empty(self) -> None:
        self.emptied += 1

    def _capture(self, calls: Sequence[Callable[[], object]], stream: Any, pool: Any) -> str:
        if not (self.enough and self.emptied):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB.")
        return "captured"


def opened() -> CudaSession:
    session = CudaSession.__new__(CudaSession)
    session._stream = session._graph_pool = None  # type: ignore[assignment]
    return session


def test_a_capture_may_take_what_eager_calls_left_in_the_allocator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = Memory(monkeypatch, enough=True)
    assert opened().sampler([lambda: None]) == "captured"
    assert memory.emptied == 1


def test_a_capture_that_needs_more_than_there_is_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    Memory(monkeypatch, enough=False)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        opened().sampler([lambda: None])
