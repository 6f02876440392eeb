"""Calls captured into a CUDA graph, so that launch gaps stay out of their time."""

from __future__ import annotations

import contextlib
import itertools
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from evotune.backends.cuda.pieces import Pieces, pieces_of, renewing
from evotune.device.protocol import Intervention, Renewal

_HEAD_START_CYCLES = 60_000
"""The GPU waits this long (some 30 us) or longer before the first event, so that the graph is
queued before it starts and the processor's launch latency stays out of the time."""
_LONGEST_HEAD_START_CYCLES = 16 * _HEAD_START_CYCLES
_HEAD_START_DECAY = 0.998  # a sample: a lasting need for more is met again once in some 350
_MOST_LATE = 4
_COPY_LEAD_US = 8.0  # from the request of a copy to its begin, about
# Calls begin and end, as far as the time of the whole graph tells, when they would if all took the
# same time; it is not relied on more exactly than this.
_MARGIN_US, _MARGIN_OF_CALL, _MARGIN_OF_GRAPH = 1.0, 0.1, 0.02
_STRETCHED, _STRETCHED_US = 1.5, 20.0  # a run that takes longer than that was interrupted


class GraphSampler:
    """See `evotune.device.protocol.Sampler`. One replay of the graph is one run of all calls."""

    _head_start_cycles: ClassVar[float] = _HEAD_START_CYCLES  # one machine, all samplers
    _one_side_stream: ClassVar[torch.cuda.Stream | None] = None

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
        self._side = GraphSampler._side_stream()
        self.run()

    @classmethod
    def _side_stream(cls) -> torch.cuda.Stream:
        """One for all: what copies into memory while a graph runs."""
        if cls._one_side_stream is None:
            # Before the candidate's: its blocks need not wait until no more of these do.
            cls._one_side_stream = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]
        return cls._one_side_stream

    @property
    def count(self) -> int:
        return self._count

    def run(self) -> None:
        """Queued: what follows in the stream sees its results."""
        self._graph.replay()

    def time_us(self) -> float:
        """Taken again, a few times, with twice the head start, where the GPU was at the first event
        before the graph was queued: a graph of many kernels, on a busy machine, takes longer to
        launch, and one side of a ratio would pay for it."""
        for _ in range(_MOST_LATE):
            self._begin()
            late = bool(self._start.query())  # type: ignore[no-untyped-call]
            run_us = self._finish()
            if not late:
                break
            self._give_head_start(2.0)
        self._give_head_start(_HEAD_START_DECAY)
        return run_us / self._count

    def watch(self, interventions: Sequence[Intervention], call_us: float) -> Sequence[bool]:
        """Another stream makes the writes, so that nothing comes between the launches of the graph.
        When they were made, events tell afterwards."""
        pieces = Pieces([pieces_of(each.writes) for each in interventions])
        written = [_Writing(each, call_us) for each in interventions]
        self._begin()
        if interventions:
            while not self._start.query():  # type: ignore[no-untyped-call]
                pass
        origin_ns = time.perf_counter_ns()
        for group, each in enumerate(written):
            each.wait(origin_ns)
            pieces.copy(group, self._side.cuda_stream)
            each.made.record(self._side)
        self._side.synchronize()
        run_us = self._finish()
        # On a GPU that others use too, a run may be interrupted: then nobody knows which call met
        # the writes.
        steady = run_us <= _STRETCHED_US + _STRETCHED * call_us * self._count
        settled = [each.is_settled(self._start, run_us, self._count) for each in written]
        return [steady and each for each in settled]

    def time_while_renewing(self, renewals: Sequence[Sequence[Renewal]], turn: int) -> float:
        """One launch every few microseconds, which is what the processor takes to ask for it."""
        pieces = Pieces([renewing(each) for each in renewals])
        groups = itertools.cycle(range(len(renewals)))
        self._begin()
        while not self._end.query():  # type: ignore[no-untyped-call]
            pieces.copy(next(groups), self._side.cuda_stream, turn)
            turn += 1
        self._side.synchronize()
        return self._finish() / self._count

    def _begin(self) -> None:
        torch.cuda._sleep(int(GraphSampler._head_start_cycles))  # type: ignore[no-untyped-call]
        self._start.record(self._stream)
        self._graph.replay()
        self._end.record(self._stream)

    def _finish(self) -> float:
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1000

    @staticmethod
    def _give_head_start(times: float) -> None:
        wanted = GraphSampler._head_start_cycles * times
        within = max(_HEAD_START_CYCLES, min(_LONGEST_HEAD_START_CYCLES, wanted))
        GraphSampler._head_start_cycles = within


class _Writing:
    """The writes of one intervention: when they are to be made, and when they were."""

    _events: ClassVar[list[torch.cuda.Event]] = []
    """Of earlier ones: to make an event takes longer than to record it."""

    def __init__(self, intervention: Intervention, call_us: float) -> None:
        self.made = (
            _Writing._events.pop() if _Writing._events else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        )
        self._last = intervention.last
        calls = intervention.first + intervention.begin * (intervention.last - intervention.first)
        self._begin_us = calls * call_us - _COPY_LEAD_US

    def wait(self, origin_ns: int) -> None:
        """For the time to make them, `origin_ns` being the begin of the first call."""
        until_ns = origin_ns + 1000 * self._begin_us
        while time.perf_counter_ns() < until_ns:
            pass

    def is_settled(self, start: torch.cuda.Event, run_us: float, count: int) -> bool:
        """`run_us` is how long the graph of `count` calls took from `start` on."""
        made_us = 1000 * float(start.elapsed_time(self.made))
        _Writing._events.append(self.made)
        call_us = run_us / count
        margin_us = _MARGIN_US + _MARGIN_OF_CALL * call_us + _MARGIN_OF_GRAPH * run_us
        return made_us + margin_us <= (self._last - 1) * call_us
