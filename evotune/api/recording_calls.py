"""`record` and `recording`: which calls of attention a model makes."""

from __future__ import annotations

import contextlib
import time as clock
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from evotune.recorder.calls import Calls
from evotune.recorder.described_calls import SeenCall
from evotune.recorder.recordings import heard_by, timed_by
from evotune.recorder.script import run_script
from evotune.runs.able_spaces import profile_of

__all__ = ["Calls", "record", "recording", "require_device", "run_script"]


@contextlib.contextmanager
def recording(device: str = "auto") -> Iterator[Calls]:
    """Records every call of attention that this process makes in the block, in any thread.

    It sees `F.scaled_dot_product_attention`, the fast paths of `nn.MultiheadAttention` and
    `nn.TransformerEncoder`, the attention functions of transformers, and those of exported
    packages, eager and in graphs of torch.compile. Results stay as they are. What is compiled
    already compiles once more, and has its own graph again afterwards. A captured CUDA graph tells
    its calls once, when it is captured; replays run no Python.

    `device`: the one for which the table names the spaces; a GPU's name needs no GPU. UsageError,
    when the table is made, for an unknown one.

    >>> import evotune
    >>> with evotune.recording() as calls:
    ...     pass
    >>> len(calls)
    0
    """
    calls = Calls(device)
    with heard_by(calls):
        yield calls


def record(
    model: Callable[..., Any],
    *inputs: Any,
    time: bool = False,
    device: str = "auto",
    **named: Any,
) -> Calls:
    """Calls `model(*inputs, **named)` once and records its calls of attention; see `recording`.

    The model runs as it would without: with gradients unless the caller has switched them off, and
    calls that need some are told as such. `time`: the model runs once more, and each call is timed,
    on a GPU by events, elsewhere by a clock; calls in graphs of torch.compile are not.
    """
    with recording(device) as calls:
        model(*inputs, **named)
    if time:
        calls.set_shares(_shares(lambda: model(*inputs, **named)))
    return calls


def require_device(device: str) -> None:
    """UsageError for an unknown device; EnvironmentProblem for one that cannot be used."""
    profile_of(device)


def _shares(run: Callable[[], Any]) -> dict[SeenCall, float]:
    """The share of the run's time that equal calls took together."""
    stopwatch = _Stopwatch()
    _wait_for_gpus()
    begin = clock.perf_counter()
    with timed_by(stopwatch):
        run()
        _wait_for_gpus()
    whole_us = (clock.perf_counter() - begin) * 1e6
    found: Counter[SeenCall] = Counter()
    for seen, time_us in stopwatch.kept:
        found[seen] += time_us() / whole_us  # type: ignore[assignment]
    return dict(found)


def _wait_for_gpus() -> None:
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


class _Stopwatch:
    """Times calls of the second run."""

    def __init__(self) -> None:
        self.kept: list[tuple[SeenCall, Callable[[], float]]] = []

    def timed(self, call: Callable[[], Any], *, on_gpu: bool) -> tuple[Any, Callable[[], float]]:
        if on_gpu:
            return _timed_by_events(call)
        begin = clock.perf_counter()
        out = call()
        time_us = (clock.perf_counter() - begin) * 1e6
        return out, lambda: time_us

    def keep(self, seen: SeenCall, time_us: Callable[[], float]) -> None:
        self.kept.append((seen, time_us))


def _timed_by_events(call: Callable[[], Any]) -> tuple[Any, Callable[[], float]]:
    import torch

    if torch.cuda.is_current_stream_capturing():
        return call(), lambda: 0.0
    event: Any = torch.cuda.Event
    begin, end = (event(enable_timing=True) for _ in range(2))
    begin.record()
    out = call()
    end.record()
    return out, lambda: begin.elapsed_time(end) * 1e3
