"""`record` and `recording`: which calls of attention a model, or a script, makes."""

from __future__ import annotations

import contextlib
import functools
import os
import runpy
import signal
import sys
import time as clock
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from evotune.recorder.calls import Calls
from evotune.recorder.described_calls import SeenCall
from evotune.recorder.recordings import heard_by, timed_by
from evotune.runs.given_cases import profile_of

__all__ = ["Calls", "record", "recording", "require_device", "run_script"]


@contextlib.contextmanager
def recording(device: str = "auto") -> Iterator[Calls]:
    """Records every call of attention that this process makes in the block, in any thread.

    It sees `F.scaled_dot_product_attention`, the fast paths of `nn.MultiheadAttention` and
    `nn.TransformerEncoder`, the attention functions of transformers, and those of exported
    packages, eager and in graphs of torch.compile. Results do not change. What is compiled already
    is compiled once more, and uses its own graph again afterwards. The calls of a CUDA graph are
    recorded once, when it is captured, because replays run no Python.

    `device`: the device for which the table names the spaces; a GPU's name needs no GPU. Making the
    table raises UsageError for an unknown one.

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
    calls that need gradients are marked. `time`: the model runs once more, and each call is timed,
    on a GPU by events, elsewhere by a clock; calls in graphs of torch.compile are not.
    """
    with recording(device) as calls:
        model(*inputs, **named)
    if time:
        calls.set_shares(_shares(lambda: model(*inputs, **named)))
    return calls


def require_device(device: str) -> None:
    """Raises UsageError for an unknown device, and EnvironmentProblem for one that cannot be
    used."""
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

    def made(
        self, call: functools.partial[Any], seen: Callable[[Any], SeenCall | None], *, on_gpu: bool
    ) -> Any:
        out, time_us = timed_once(call, on_gpu=on_gpu)
        if (found := seen(out)) is not None:
            self.kept.append((found, time_us))
        return out


def timed_once(call: Callable[[], Any], *, on_gpu: bool) -> tuple[Any, Callable[[], float]]:
    """The result of the call, and a function that gives its time in µs when all is over."""
    import torch

    if not on_gpu:
        begin_s = clock.perf_counter()
        out = call()
        time_us = (clock.perf_counter() - begin_s) * 1e6
        return out, lambda: time_us
    if torch.cuda.is_current_stream_capturing():
        return call(), lambda: 0.0
    event: Any = torch.cuda.Event
    begin, end = (event(enable_timing=True) for _ in range(2))
    begin.record()
    out = call()
    end.record()

    def elapsed_us() -> float:
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3

    return out, elapsed_us


def run_script(script: str, arguments: Sequence[str], *, as_program: bool = False) -> int:
    """Runs the script as `__main__`, with its `sys.argv` and its folder first in `sys.path`, and
    returns the exit code that Python would have had. An exception that the script leaves uncaught
    is printed as Python prints it. KeyboardInterrupt for Ctrl-C.

    `as_program`: this process was started for the script, with `-P`, which the user did not ask
    for.
    """
    before = sys.argv, sys.path[:], signal.getsignal(signal.SIGINT)
    folder = os.path.dirname(os.path.realpath(script))
    if as_program:
        sys.path.insert(0, folder)
    elif not sys.flags.safe_path:
        # A console script's own folder stands there, which Python would not have put there.
        own = os.path.dirname(os.path.realpath(sys.argv[0]))
        sys.path[:] = [folder, *(sys.path[1:] if sys.path[:1] == [own] else sys.path)]
    sys.argv = [script, *arguments]
    if before[2] is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ending:
        return _code(ending)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the script's own end, whatever it is
        error.__traceback__ = _of_script(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    finally:
        sys.argv, sys.path[:] = before[0], before[1]
        if before[2] is not None:
            signal.signal(signal.SIGINT, before[2])
        sys.stdout.flush()
    return 0


def _code(ending: SystemExit) -> int:
    """The exit code of sys.exit(…); any other object is printed, and means 1."""
    if ending.code is None or isinstance(ending.code, int):
        return int(ending.code or 0) & 0xFF
    print(ending.code, file=sys.stderr)
    return 1


def _of_script(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of this module and of runpy."""
    own = (__file__, runpy.__file__, "<frozen runpy>")
    while traceback is not None and traceback.tb_frame.f_code.co_filename in own:
        traceback = traceback.tb_next
    return traceback
