"""Times calls captured into a CUDA graph, so that launch gaps do not count."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import math
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from evotune.backends.base.launch import CompileFailure, CompileJob, Launch
from evotune.backends.base.session import Intervention, Renewal, Write
from evotune.backends.cuda._kernel import CudaKernel
from evotune.backends.cuda.compiler import NvrtcCompiler
from evotune.errors import EnvironmentProblem
from evotune.util.files import scratch_folder

# --- Copies small pieces of memory on a stream of their own, many by one launch -------------------
# The copies are made by a kernel, pieces.cu. Asking the driver for as many copies takes ten times
# as long, and a candidate's launches do not wait.

_ENTRY = "copy_pieces"
_THREADS = 256
_PIECE = np.dtype(
    [
        *(("target", "<u8"), ("source", "<u8"), ("bytes", "<u4")),
        *(("step", "<u4"), ("span", "<u4"), ("unused", "<u4")),
    ]
)
_LONGEST_SPAN = 1 << 30


class Pieces:
    """Groups of copies; one launch makes all copies of a group."""

    def __init__(self, groups: Sequence[Sequence[tuple[int, int, int, int, int, int]]]) -> None:
        rows = [piece for group in groups for piece in group]
        table = np.array(rows or [(0,) * 6], dtype=_PIECE)
        self._table = torch.from_numpy(table.view(np.uint8)).cuda()
        ends = np.cumsum([0, *map(len, groups)]).tolist()
        self._parts = [(first, last - first) for first, last in itertools.pairwise(ends)]
        self._base = self._table.data_ptr()
        self._pointer = ctypes.c_void_p()
        self._turn = ctypes.c_uint32()
        self._values = (ctypes.c_void_p * 2)(
            ctypes.addressof(self._pointer), ctypes.addressof(self._turn)
        )

    def copy(self, group: int, stream: int, turn: int = 0) -> None:
        """Queues a group's copies in `stream`. A piece that has several values gets those of
        `turn`."""
        from cupy.cuda import driver

        first, count = self._parts[group]
        if not count:
            return
        self._pointer.value = self._base + first * _PIECE.itemsize
        self._turn.value = turn
        values = ctypes.addressof(self._values)
        driver.launchKernel(_kernel()[1], count, 1, 1, _THREADS, 1, 1, 0, stream, values, 0)


def pieces_of(writes: Sequence[Write]) -> list[tuple[int, int, int, int, int, int]]:
    """A piece for each row of each write."""
    return [
        (to.data_ptr(), from_.data_ptr(), to.nbytes, 0, 0, 0)
        for target, source in writes
        for to, from_ in zip(target, source, strict=True)
    ]


def renewing(renewals: Sequence[Renewal]) -> list[tuple[int, int, int, int, int, int]]:
    """A piece for each row of each target. Its values differ from turn to turn."""
    made = []
    for renewal in renewals:
        size, rows = renewal.values.element_size(), len(renewal.target)
        span = min(_LONGEST_SPAN, max(0, renewal.values.nbytes - rows * size))
        for number, row in enumerate(renewal.target):
            source = renewal.values.data_ptr() + (number * size if span else 0)
            made.append((row.data_ptr(), source, size, size, span, 0))
    return made


@functools.cache
def _kernel() -> tuple[CudaKernel, int]:
    """The kernel, loaded into this process's context, and its function's handle. The cache keeps
    the kernel, and so its module, alive."""
    major, minor = torch.cuda.get_device_capability(0)
    folder = Path(__file__).parent
    job = CompileJob("cuda", str(folder), "pieces.cu", (), (), f"sm_{major}{minor}", "")
    with scratch_folder() as scratch:
        output = scratch / "pieces.cubin"
        failure = NvrtcCompiler().compile(job, output, timeout_s=60.0)
        if isinstance(failure, CompileFailure):
            raise EnvironmentProblem(f"NVRTC does not compile pieces.cu: {failure.reason}")
        kernel = CudaKernel(output)
    return kernel, kernel.function(Launch(entry=_ENTRY))


_HEAD_START_CYCLES = 60_000
"""The GPU waits at least this long (some 30 us) before the first event. So the graph is queued
before it starts, and the processor's launch latency does not count."""
_LONGEST_HEAD_START_CYCLES = 16 * _HEAD_START_CYCLES
_HEAD_START_DECAY = 0.998
"""A late sample doubles the head start, and every sample multiplies it by this factor. So if a
sample needs more than the least one, one sample in 350 is late: 0.998^350 is 1/2."""
_MOST_LATE = 4
_COPY_LEAD_US = 8.0  # from the request of a copy until it begins, about
# The begin of a call is computed as if all calls took the same time. These margins allow for the
# error of that.
_MARGIN_US, _MARGIN_OF_CALL, _MARGIN_OF_GRAPH = 1.0, 0.1, 0.02


class GraphSampler:
    """See `Sampler` of `backends/base/session.py`. One replay of the graph is one run of all
    calls."""

    _head_start_cycles: ClassVar[float] = _HEAD_START_CYCLES  # the machine's, for all samplers
    _one_side_stream: ClassVar[torch.cuda.Stream | None] = None

    def __init__(
        self,
        calls: Sequence[Callable[[], object]],
        stream: torch.cuda.Stream,
        pool: Any = None,
    ) -> None:
        self._count = len(calls)
        self._graph = torch.cuda.CUDAGraph()
        self._calls = calls  # they keep the memory alive of which the graph has bare addresses
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                for call in calls:
                    call()
            except BaseException:
                # The first error says more than the error of the capture that it broke.
                with contextlib.suppress(RuntimeError), warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # PyTorch warns of an empty graph
                    self._graph.capture_end()
                raise
            self._graph.capture_end()
        self._start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._stream = torch.cuda.current_stream()  # looking it up takes longer than a record
        self._side = GraphSampler._side_stream()
        self.run()

    @classmethod
    def _side_stream(cls) -> torch.cuda.Stream:
        """The one stream, for all samplers, that copies into memory while a graph runs."""
        if cls._one_side_stream is None:
            # High priority: its blocks need not wait until all of the candidate's are placed.
            cls._one_side_stream = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]
        return cls._one_side_stream

    @property
    def count(self) -> int:
        return self._count

    def run(self) -> None:
        """Queues one replay; work queued later in the stream sees its results."""
        self._graph.replay()

    def time_us(self) -> float:
        """The mean time of a call. Where the GPU reached the first event before the graph was
        queued, the sample is taken again with twice the head start, a few times: on a busy machine
        a graph of many kernels takes longer to launch, and one side of a ratio would pay for it."""
        for _ in range(_MOST_LATE):
            self._begin()
            late = bool(self._start.query())  # type: ignore[no-untyped-call]
            run_us = self._finish()
            if not late:
                break
            self._give_head_start(2.0)
        self._give_head_start(_HEAD_START_DECAY)
        return run_us / self._count

    def watch(self, interventions: Sequence[Intervention], call_us: float) -> Sequence[float]:
        """Makes the writes in another stream, so that nothing comes between the graph's launches.
        Events tell afterwards when the writes were made."""
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
        return [each.needed_us(self._start, run_us, self._count) for each in written]

    def time_while_renewing(self, renewals: Sequence[Sequence[Renewal]], turn: int) -> float:
        """Makes a group of renewals every few microseconds, the time the processor takes to launch
        one."""
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
    """Plans when the writes of one intervention are to be made, and records when they were."""

    _events: ClassVar[list[torch.cuda.Event]] = []
    """Events of earlier interventions, used again: making one takes longer than recording it."""

    def __init__(self, intervention: Intervention, call_us: float) -> None:
        self.made = (
            _Writing._events.pop() if _Writing._events else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        )
        self._last = intervention.last
        calls = intervention.first + intervention.begin * (intervention.last - intervention.first)
        self._begin_us = calls * call_us - _COPY_LEAD_US

    def wait(self, origin_ns: int) -> None:
        """Waits until the writes are to be made; the first call begins at `origin_ns`."""
        until_ns = origin_ns + 1000 * self._begin_us
        while time.perf_counter_ns() < until_ns:
            pass

    def needed_us(self, start: torch.cuda.Event, run_us: float, count: int) -> float:
        """The time of a call from which on the intervention's last call surely began after the
        writes; infinity if it did not. The graph of `count` calls took `run_us` from `start` on.

        A GPU that other processes use too may hold a run up, after its last call as well. So a long
        run does not mean that its last call began late: that call began no earlier than calls of
        the shortest known time put it, and no later than those of this run's mean. Copies slow all
        calls down a little; the margin of the graph allows for so much."""
        made_us = 1000 * float(start.elapsed_time(self.made))
        _Writing._events.append(self.made)
        calls = self._last - 1 - _MARGIN_OF_CALL - _MARGIN_OF_GRAPH * count
        least_us = (made_us + _MARGIN_US) / calls if calls > 0 else math.inf
        return least_us / (1 + _MARGIN_OF_GRAPH) if least_us <= run_us / count else math.inf
