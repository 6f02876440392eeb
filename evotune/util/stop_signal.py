"""Ctrl-C and SIGTERM: the first asks a run to end tidily, the second ends it at once.

`interruptible` is for work that must clean up after itself when it is stopped.
A signal that the process ignores stays ignored: a shell has the commands behind `&` ignore SIGINT.
Python lets only the main thread handle signals. Work in another thread leaves them to the program.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType


class StopSignal:
    """A context manager that owns SIGINT and SIGTERM while a run works.

    While `tidy` is False nothing is in flight, and the first signal raises KeyboardInterrupt too.
    """

    def __init__(self) -> None:
        self.requested = False
        self.tidy = False
        self._handling = _handling(self._handle, signal.SIGINT, signal.SIGTERM)

    def __enter__(self) -> StopSignal:
        self._handling.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._handling.__exit__(kind, error, traceback)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.requested or not self.tidy:
            raise KeyboardInterrupt
        self.requested = True


def interruptible() -> contextlib.AbstractContextManager[None]:
    """Within it Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt, so that the work is cleaned
    up."""
    return _handling(_interrupt, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def _handling(
    handler: Callable[[int, FrameType | None], None], *numbers: signal.Signals
) -> Iterator[None]:
    main = threading.current_thread() is threading.main_thread()
    previous = {number: signal.getsignal(number) for number in numbers if main}
    # Python could not give a handler of another language back: None stands for one.
    ours = {n: old for n, old in previous.items() if old not in (signal.SIG_IGN, None)}
    try:
        for number in ours:
            signal.signal(number, handler)
        yield
    finally:
        for number, old in ours.items():
            signal.signal(number, old)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
