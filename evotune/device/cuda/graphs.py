"""Calls captured into a CUDA graph, so that launch gaps stay out of their time."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

_HEAD_START_CYCLES = 60_000
"""The GPU waits this long (some 30 us) before the first event, so that the graph is queued
before it starts and the processor's launch latency stays out of the time."""


class GraphSampler:
    """See `evotune.device.protocol.Sampler`. One replay of the graph is one run of all calls."""

    def __init__(
        self,
        calls: Sequence[Callable[[], object]],
        stream: torch.cuda.Stream,
        pool: Any = None,
    ) -> None:
        self._count = len(calls)
        self._graph = torch.cuda.CUDAGraph()
        self._calls = calls  # the graph holds bare addresses of what they keep alive
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                for call in calls:
                    call()
            except BaseException:
                # What went wrong first says more than that the capture was broken by it.
                with contextlib.suppress(RuntimeError), warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # PyTorch warns of an empty graph
                    self._graph.capture_end()
                raise
            self._graph.capture_end()
        self._start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.run()

    def run(self) -> None:
        self._graph.replay()
        torch.cuda.synchronize()

    def time_us(self) -> float:
        torch.cuda._sleep(_HEAD_START_CYCLES)  # type: ignore[no-untyped-call]
        self._start.record()
        self._graph.replay()
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1000 / self._count
