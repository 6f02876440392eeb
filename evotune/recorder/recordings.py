"""Opens and closes recordings: what is replaced while one is open, and restored after the last."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from types import ModuleType

from evotune.recorder import _compiled_graphs
from evotune.recorder._compiled_graphs import COMPILED
from evotune.recorder._imports import ImportWatch
from evotune.recorder._listeners import LISTENERS, Listener, Make, Stopwatch
from evotune.recorder._replaced_functions import REPLACEMENTS


def _imported(module: ModuleType) -> None:
    """A module was imported while a recording is open. PyTorch is whole when `torch` is."""
    with LISTENERS.lock:
        if not LISTENERS.told:
            return
        if module.__name__ == "torch":
            REPLACEMENTS.everywhere()
        elif module.__name__ == _compiled_graphs.MODULE:
            COMPILED.watch()
        else:
            REPLACEMENTS.in_module(module)


_WATCH = ImportWatch(_imported)


@contextlib.contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """While it is open the listener hears each call of attention in this process, of any thread.
    Afterwards all functions are as they were."""
    with LISTENERS.lock:
        LISTENERS.told = (*LISTENERS.told, listener)
        _WATCH.on()
        REPLACEMENTS.everywhere()
        COMPILED.watch()
    try:
        yield
    finally:
        with LISTENERS.lock:
            LISTENERS.told = tuple(each for each in LISTENERS.told if each is not listener)
            if not LISTENERS.told:
                _WATCH.off()
                COMPILED.restore()
                REPLACEMENTS.restore()


@contextlib.contextmanager
def timed_by(stopwatch: Stopwatch) -> Iterator[None]:
    """While it is open calls are timed, and told to nobody."""
    with heard_by(_NOBODY):
        before, LISTENERS.stopwatch = LISTENERS.stopwatch, stopwatch
        try:
            yield
        finally:
            LISTENERS.stopwatch = before


class _Nobody(Listener):
    def heard(self, key: Hashable, make: Make, *given: object) -> None:
        pass

    def missed(self, words: str) -> None:
        pass


_NOBODY = _Nobody()
