"""Opens and closes recordings: what is replaced while one is open, and restored after the last.

While one is open, `ImportWatch` tells when a module has been imported, so that the recording sees
modules that come later. Its finder, before all others, asks these, and has the loader of Python
files tell when the module's code has run. The module itself sees its own loader.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader, SourcelessFileLoader
from types import ModuleType
from typing import TypeAlias

from evotune.recorder import _compiled_graphs
from evotune.recorder._compiled_graphs import COMPILED
from evotune.recorder._replaced_functions import REPLACEMENTS
from evotune.recorder._seen_calls import LISTENERS, Listener, Make, Stopwatch

_PYTHON_FILES = (SourceFileLoader, SourcelessFileLoader)
Imported: TypeAlias = Callable[[ModuleType], None]


@contextlib.contextmanager
def heard_by(listener: Listener, *, as_served: bool = False) -> Iterator[None]:
    """While it is open the listener hears each call of attention in this process, of any thread.
    Afterwards all functions are as they were.

    `as_served`: calls of SDPA by an attention function of transformers are heard in place of that
    function's own calls, in all open recordings.
    """
    with LISTENERS.lock:
        before, LISTENERS.as_served = LISTENERS.as_served, as_served
        LISTENERS.told = (*LISTENERS.told, listener)
        _WATCH.on()
        REPLACEMENTS.everywhere()
        COMPILED.watch()
    try:
        yield
    finally:
        with LISTENERS.lock:
            LISTENERS.as_served = before
            LISTENERS.told = tuple(each for each in LISTENERS.told if each is not listener)
            if not LISTENERS.told:
                _WATCH.off()
                COMPILED.restore()
                REPLACEMENTS.restore()


@contextlib.contextmanager
def timed_by(stopwatch: Stopwatch, *, as_served: bool = False) -> Iterator[None]:
    """Times calls while the block is open, and adds them to no recording. `as_served`: see
    `heard_by`."""
    with heard_by(_NOBODY, as_served=as_served):
        before, LISTENERS.stopwatch = LISTENERS.stopwatch, stopwatch
        try:
            yield
        finally:
            LISTENERS.stopwatch = before


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


class _Nobody(Listener):
    def heard(self, key: Hashable, make: Make, *given: object) -> None:
        pass

    def missed(self, words: str) -> None:
        pass


_NOBODY = _Nobody()


class ImportWatch(MetaPathFinder):
    """While it is on, `imported` is called with each module of Python that has been imported."""

    def __init__(self, imported: Imported) -> None:
        self._imported = imported

    def on(self) -> None:
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def off(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
            if spec is not None:
                loader = spec.loader
                if loader is not None and type(loader) in _PYTHON_FILES:
                    spec.loader = _TellingLoader(loader, self._imported)
                return spec
        return None


class _TellingLoader(Loader):
    """Loads a module by another loader, which it leaves to the module, and tells."""

    def __init__(self, loader: Loader, imported: Imported) -> None:
        self._loader = loader
        self._imported = imported

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._imported(module)


_WATCH = ImportWatch(_imported)
