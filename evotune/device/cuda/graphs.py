"""Calls captured into a CUDA graph, so that launch gaps stay out of their time."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

_HEAD_START_CYCLES = 60_000
"""The GPU waits this long (some 30 us) or longer before the first event, so that the graph is
queued before it starts and the processor's launch latency stays out of the time."""
_LONGEST_HEAD_START_CYCLES = 16 * _HEAD_START_CYCLES
_HEAD_START_DECAY = 0.998  # a sample: a lasting need for more is met again once in some 350
_MOST_LATE = 4


class GraphSampler:
    """See `evotune.device.protocol.Sampler`. One replay of the graph is one run of all calls."""

    _head_start_cycles: ClassVar[float] = _HEAD_START_CYCLES  # one machine, all samplers

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
        self._stream = torch.cuda.current_stream()  # to look it up takes longer than a record
        self.run()

    def run(self) -> None:
        """Queued: what follows in the stream sees its results."""
        self._graph.replay()

    def time_us(self) -> float:
        """Taken again, a few times, with twice the head start, where the GPU was at the first event
        before the graph was queued: a graph of many kernels, on a busy machine, takes longer to
        launch, and one side of a ratio would pay for it."""
        for _ in range(_MOST_LATE):
            torch.cuda._sleep(int(GraphSampler._head_start_cycles))  # type: ignore[no-untyped-call]
            self._start.record(self._stream)
            self._graph.replay()
            self._end.record(self._stream)
            late = bool(self._start.query())  # type: ignore[no-untyped-call]
            self._end.synchronize()
            if not late:
                break
            self._give_head_start(2.0)
        self._give_head_start(_HEAD_START_DECAY)
        return float(self._start.elapsed_time(self._end)) * 1000 / self._count

    @staticmethod
    def _give_head_start(times: float) -> None:
        wanted = GraphSampler._head_start_cycles * times
        within = max(_HEAD_START_CYCLES, min(_LONGEST_HEAD_START_CYCLES, wanted))
        GraphSampler._head_start_cycles = within
