"""Backends, problems and strategies by name: evotune's own, and those of installed packages.

A package names its own in the entry points of its metadata. Nobody looks for them while evotune's
own have the name: start-up stays as fast. A package that is broken is an error for whoever needs
something of it, and a line for whoever asks for all there is.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evotune.errors import EnvironmentProblem

_MOST_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Plugin:
    """`name`, as the package `package` offers it; `target` is `module:attribute`."""

    name: str
    kind: str
    package: str
    target: str


class Group:
    """All of one kind. `kind` names one in messages; each has the attributes `needed`."""

    def __init__(self, group: str, kind: str, needed: Sequence[str], rooms: str = "") -> None:
        """`rooms`: a package of evotune's own, each of whose folders has one as `ROOM`."""
        self._group = group
        self._kind = kind
        self._needed = tuple(needed)
        self._rooms = rooms

    def own(self) -> dict[str, object]:
        """Evotune's own, by the names of their folders."""
        return _own(self._rooms) if self._rooms else {}

    def names(self) -> tuple[str, ...]:
        """Of the installed packages' ones. None is loaded."""
        return tuple(plugin.name for plugin in self.plugins())

    def plugins(self) -> tuple[Plugin, ...]:
        """The installed packages' ones by name; of two of one name the package that is first on
        the path has it. None is loaded."""
        entries = _entries(self._group, tuple(sys.path))
        return tuple(Plugin(name, self._kind, *entries[name]) for name in sorted(entries))

    def load(self, name: str) -> object | None:
        """An installed package's; None where there is none of that name. EnvironmentProblem where
        it cannot be loaded."""
        for plugin in self.plugins():
            if plugin.name == name:
                return self._load(plugin)
        return None

    def loadable(self) -> Iterator[tuple[str, object]]:
        """(name, it) of the installed packages' ones; those that are broken are left out."""
        for name in self.names():
            try:
                found = self.load(name)
            except EnvironmentProblem:
                continue
            yield name, found

    def broken(self) -> list[str]:
        """Why some of the installed packages' ones cannot be loaded, a line each."""
        lines = []
        for name in self.names():
            try:
                self.load(name)
            except EnvironmentProblem as error:
                lines.append(str(error))
        return lines

    def _load(self, plugin: Plugin) -> object:
        try:
            found = _target(plugin.target)
        except (Exception, SystemExit) as error:  # code of another package
            words = " ".join(str(error).split())[:_MOST_CHARACTERS]
            raise self._refusal(plugin, f"{type(error).__name__}: {words}") from error
        missing = [name for name in self._needed if not hasattr(found, name)]
        if missing:
            raise self._refusal(plugin, f"{plugin.target} has no {', no '.join(missing)}")
        return found

    def _refusal(self, plugin: Plugin, why: str) -> EnvironmentProblem:
        return EnvironmentProblem(
            f"the {self._kind} {plugin.name!r} of the package {plugin.package} cannot be loaded: "
            f"{why}; fix: mend or uninstall {plugin.package}"
        )


BACKENDS = Group(
    "evotune.backends", "backend", ("name", "languages", "open_device"), "evotune.backends"
)
PROBLEMS = Group("evotune.problems", "problem", ("dtypes", "case", "reference"))
STRATEGIES = Group("evotune.strategies", "strategy", ("ask", "tell"))
GROUPS = (BACKENDS, PROBLEMS, STRATEGIES)


def installed() -> list[Plugin]:
    """Plugins of all kinds. None is loaded."""
    return [plugin for group in GROUPS for plugin in group.plugins()]


def broken() -> list[str]:
    """Why installed plugins of any kind cannot be loaded, a line each."""
    return [line for group in GROUPS for line in group.broken()]


@functools.cache
def _own(package: str) -> dict[str, object]:
    paths = importlib.import_module(package).__path__
    rooms = sorted(module.name for module in pkgutil.iter_modules(paths) if module.ispkg)
    return {name: importlib.import_module(f"{package}.{name}").ROOM for name in rooms}


@functools.cache
def _entries(group: str, path: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Name -> (package, target). `path` is where packages were looked for."""
    found: dict[str, tuple[str, str]] = {}
    for entry in importlib.metadata.entry_points(group=group):
        package = entry.dist.name if entry.dist is not None else entry.module
        found.setdefault(entry.name, (package, entry.value))
    return found


@functools.cache
def _target(target: str) -> object:
    """What `module:attribute` names; of a module alone, the module."""
    module, _, attributes = target.partition(":")
    found: object = importlib.import_module(module.strip())
    for attribute in attributes.split(".") if attributes else ():
        found = getattr(found, attribute.strip())
    return found
