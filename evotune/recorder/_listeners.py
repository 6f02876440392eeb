"""Who is told of calls: the recordings that are open. A call is told to all of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeAlias

from evotune.recorder.described_calls import SeenCall

Make: TypeAlias = Callable[..., "SeenCall | None"]


class Listener(Protocol):
    def heard(self, key: Hashable, make: Make, *given: object) -> None:
        """Counts a call. Equal keys are equal calls; `make(*given)` gives the facts of a new one,
        and None for a call that is none of the program's."""

    def missed(self, words: str) -> None:
        """Keeps that a call could not be described."""


class Stopwatch(Protocol):
    def timed(self, call: Callable[[], Any], *, on_gpu: bool) -> tuple[Any, Callable[[], float]]:
        """The result of the call, and a function that gives its time in µs when all is over."""

    def keep(self, seen: SeenCall, time_us: Callable[[], float]) -> None:
        """Keeps the time of a call."""


class Listeners:
    """The open recordings of the process. `told` is read at every call, so it is a plain tuple.

    `inside` tells, for the thread that asks, how many recorded functions are running: a call that
    one of them makes is a part of it.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.told: tuple[Listener, ...] = ()
        self.stopwatch: Stopwatch | None = None
        self.inside = _Inside()

    def heard(self, seen: SeenCall) -> None:
        for listener in self.told:
            listener.heard(seen, _itself, seen)

    def missed(self, words: str) -> None:
        for listener in self.told:
            listener.missed(words)


def _itself(seen: SeenCall) -> SeenCall:
    return seen


class _Inside(threading.local):
    depth = 0


LISTENERS = Listeners()


def _leave_to_the_parent() -> None:
    """A child process records nothing: a thread of the parent may hold a lock at a fork."""
    LISTENERS.lock = threading.RLock()
    LISTENERS.told = ()


os.register_at_fork(after_in_child=_leave_to_the_parent)
