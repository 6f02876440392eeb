"""Ctrl-C and SIGTERM: the first asks a run to end tidily, the second ends it at once.

`interruptible` is for work that must clean up after itself when it is stopped.
Python lets only the main thread handle signals. Work in another thread leaves them to the program.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType


class StopSignal:
    """A context manager that owns SIGINT and SIGTERM while a run works.

    While `tidy` is False nothing is in flight, and the first signal raises KeyboardInterrupt too.
    """

    def __init__(self) -> None:
        self.requested = False
        self.tidy = False
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> StopSignal:
        for number in (signal.SIGINT, signal.SIGTERM) if _may_handle() else ():
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.requested or not self.tidy:
            raise KeyboardInterrupt
        self.requested = True


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within it Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt, so that the work is cleaned up.

    A signal that the process ignored before stays ignored.
    """
    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if _may_handle() else ()
    previous = {number: signal.getsignal(number) for number in wanted}
    for number, handler in previous.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in previous.items():
            if handler is not None:  # a handler that was not set from Python
                signal.signal(number, handler)


def _may_handle() -> bool:
    return threading.current_thread() is threading.main_thread()


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
