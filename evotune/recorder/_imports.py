"""Tells when a module has been imported, so that a recording sees modules that come later.

A finder before all others asks these, and has the loader of Python files tell when the module's
code has run. The module itself sees its own loader.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader, SourcelessFileLoader
from types import ModuleType
from typing import TypeAlias

_PYTHON_FILES = (SourceFileLoader, SourcelessFileLoader)
Imported: TypeAlias = Callable[[ModuleType], None]


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
