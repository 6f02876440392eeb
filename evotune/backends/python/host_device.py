"""How a host calls a callable on a GPU: one call at a time, or rows of calls in CUDA graphs.

This code shares its process with the candidate, so nothing of it is trusted. The worker times rows
until its own copy of an output has arrived, and judges what is in memory (`device_session.py`).
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from evotune.backends.python.device_memory import DEVICE, Capture, Driver, DriverError
from evotune.backends.python.function_calls import Wanted, returned_tensors
from evotune.backends.python.host_messages import Answer, Place, segments

if TYPE_CHECKING:
    import torch

_WARM_UPS = 2
_UNLIKELY = 37


@dataclass(slots=True)
class DeviceCall:
    """A callable on given tensors. `results`: what it returned at last, if it takes no outputs."""

    function: Callable[..., object]
    inputs: Mapping[str, torch.Tensor]
    outputs: Mapping[str, torch.Tensor]
    wanted: Sequence[Wanted]
    given: bool
    results: Sequence[torch.Tensor] = ()

    def launch(self) -> None:
        """Calls it, and does not wait."""
        if self.given:
            self.function(**self.inputs, **self.outputs)
            return
        self.results = ()  # their memory serves the next ones, as in a program
        self.results = returned_tensors(self.function(**self.inputs), self.wanted)

    def launch_and_copy(self) -> None:
        """Also copies what was returned into the outputs."""
        self.launch()
        for each, value in zip(self.wanted, self.results, strict=bool(self.results)):
            self.outputs[each.name].copy_(value)


class DeviceHost:
    """The GPU of a host's process."""

    def __init__(self, driver: Driver, capture: Capture, device: str = DEVICE) -> None:
        self.device = device
        self._driver = driver
        self._capture = capture
        self.join = driver.synchronize
        """Waits for all streams."""

    def attach(self, handle: bytes, nbytes: int) -> torch.Tensor:
        """Maps a buffer of the worker's."""
        return self._driver.tensor(self._driver.open(handle), nbytes)

    def single(self, call: DeviceCall) -> Callable[[], bytes]:
        """One call, and its end; what it returns is copied into the outputs."""

        def made() -> bytes:
            call.launch_and_copy()
            self.join()
            return b""

        return made

    def can_capture(self, call: DeviceCall) -> bool:
        """Whether the call can be captured: a replay must write the outputs. If not, this process
        may not capture again."""
        try:
            replay = self._capture([call.launch])
            written = [*call.outputs.values(), *call.results]
            for value in written:
                value.fill_(_filling(value))
            replay()
            self.join()
            return not any(map(_is_filling, written))
        except Exception:  # noqa: BLE001 (the candidate raises what it likes)
            return False
        finally:
            call.results = ()

    def row(
        self, calls: Sequence[DeviceCall], *, graphs: bool, copies: bool
    ) -> tuple[list[Callable[[], object]], Answer]:
        """What makes the calls of each segment, and the answer for the worker: whether they are
        graphs, and where results will be, unless calls copy them. Without graphs they do."""
        copies = copies or not graphs
        calls = [replace(call) for call in calls]  # single calls of the slot leave its results
        launches: list[Callable[[], object]] = [
            call.launch_and_copy if copies else call.launch for call in calls
        ]
        parts = [[launches[n] for n in part] for part in segments(len(calls))]
        if not graphs:
            return [_one_after_the_other(part) for part in parts], Answer()
        replays = [self._capture(part) for part in parts]
        self.join()
        if copies or calls[0].given:
            return replays, Answer(graph=True)
        handles: dict[int, bytes] = {}
        with contextlib.suppress(DriverError):
            found = tuple(self._place(value, handles) for call in calls for value in call.results)
            return replays, Answer(graph=True, handles=tuple(handles.values()), results=found)
        return replays, Answer(graph=True)

    def _place(self, value: torch.Tensor, handles: dict[int, bytes]) -> Place:
        """Where a result will be; exports its memory. `handles`: by the first byte."""
        first, _ = self._driver.allocation(value.data_ptr())
        if first not in handles:
            handles[first] = self._driver.export(first)
        return Place(list(handles).index(first), value.data_ptr() - first)


def _filling(value: torch.Tensor) -> float:
    return math.nan if value.is_floating_point() or value.is_complex() else _UNLIKELY


def _is_filling(value: torch.Tensor) -> bool:
    """Whether nothing was written to a tensor that was filled. Unknown for booleans."""
    import torch

    if value.dtype == torch.bool or not value.numel():
        return False
    if math.isnan(_filling(value)):
        value = value if value.is_complex() else value.float()
        return bool(value.isnan().all())
    return bool((value == _UNLIKELY).all())


def _one_after_the_other(calls: Sequence[Callable[[], object]]) -> Callable[[], None]:
    def made() -> None:
        for call in calls:
            call()

    return made


class GraphCapture:
    """See `Capture`. All graphs have one memory pool, as no two of them run at the same time."""

    def __init__(self) -> None:
        import torch

        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, calls: list[Callable[[], object]]) -> Callable[[], object]:
        """The calls must have run before, but not in this stream."""
        import torch

        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        kept: list[object] = []  # results stay where they are
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UPS):
                calls[0]()
            torch.cuda.synchronize()
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                kept += [call() for call in calls]
            except BaseException:
                # The first error says more than the error of the capture that it broke.
                with contextlib.suppress(RuntimeError), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    graph.capture_end()
                raise
            graph.capture_end()

        def replay() -> None:
            assert len(kept) == len(calls)
            graph.replay()

        return replay


def open_gpu(share: float) -> DeviceHost:
    """Makes this process's context. It may take a `share` of the memory."""
    import torch

    from evotune.backends.python.device_memory import cuda_driver

    torch.cuda.set_per_process_memory_fraction(share, 0)
    torch.zeros(1, device=DEVICE)
    return DeviceHost(cuda_driver(), GraphCapture())
