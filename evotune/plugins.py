"""Backends, problems and strategies by name: evotune's own, and those of installed packages.

A package names its plugins in the entry points of its metadata. evotune searches them only if none
of its own has the name, so that start-up stays fast. A broken package is an error for a command
that needs one of its plugins, and a line in a listing of all plugins.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evotune.errors import EnvironmentProblem

_MOST_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Plugin:
    """The plugin `name` of the package `package`; `target` is `module:attribute`."""

    name: str
    kind: str
    package: str
    target: str


class Group:
    """All plugins of one kind. `kind`: the word for one in messages. `needed`: the attributes that
    each must have."""

    def __init__(self, group: str, kind: str, needed: Sequence[str], rooms: str = "") -> None:
        """`rooms` is evotune's own package of this kind; each of its folders has one as `ROOM`."""
        self._group = group
        self._kind = kind
        self._needed = tuple(needed)
        self._rooms = rooms

    def own(self) -> dict[str, object]:
        """evotune's own objects, by the names of their folders."""
        return _own(self._rooms) if self._rooms else {}

    def names(self) -> tuple[str, ...]:
        """The names of the installed packages' plugins. Loads none of them."""
        return tuple(plugin.name for plugin in self.plugins())

    def plugins(self) -> tuple[Plugin, ...]:
        """The installed packages' plugins, sorted by name. If two packages have the same name, the
        first one on the path wins. Loads none of them."""
        entries = _entries(self._group, tuple(sys.path))
        return tuple(Plugin(name, self._kind, *entries[name]) for name in sorted(entries))

    def load(self, name: str) -> object | None:
        """Loads an installed package's plugin; None if no package has the name. Raises
        EnvironmentProblem if it cannot be loaded."""
        for plugin in self.plugins():
            if plugin.name == name:
                return self._load(plugin)
        return None

    def loadable(self) -> Iterator[tuple[str, object]]:
        """The installed packages' plugins, each with its name; broken ones are left out."""
        for name in self.names():
            try:
                found = self.load(name)
            except EnvironmentProblem:
                continue
            yield name, found

    def broken(self) -> list[str]:
        """Why some of the installed packages' plugins cannot be loaded, a line for each."""
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
            f"{why}; fix: repair or uninstall {plugin.package}"
        )


BACKENDS = Group(
    "evotune.backends", "backend", ("name", "languages", "open_device"), "evotune.backends"
)
PROBLEMS = Group("evotune.problems", "problem", ("dtypes", "case", "reference"))
STRATEGIES = Group("evotune.strategies", "strategy", ("ask", "tell"))
GROUPS = (BACKENDS, PROBLEMS, STRATEGIES)


def installed() -> list[Plugin]:
    """The plugins of all kinds in installed packages. Loads none of them."""
    return [plugin for group in GROUPS for plugin in group.plugins()]


def broken() -> list[str]:
    """Why installed plugins of any kind cannot be loaded, a line for each."""
    return [line for group in GROUPS for line in group.broken()]


@functools.cache
def _own(package: str) -> dict[str, object]:
    """A package's own plugins, one for each folder except `base`."""
    paths = importlib.import_module(package).__path__
    names = sorted(module.name for module in pkgutil.iter_modules(paths) if module.ispkg)
    folders = {name: importlib.import_module(f"{package}.{name}") for name in names}
    return {name: folder.ROOM for name, folder in folders.items() if hasattr(folder, "ROOM")}


@functools.cache
def _entries(group: str, path: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """(package, target) by name. `path`, where packages are looked for, is the cache's key."""
    import importlib.metadata  # here: a worker that compiles needs no plugin and starts faster

    found: dict[str, tuple[str, str]] = {}
    for entry in importlib.metadata.entry_points(group=group):
        package = entry.dist.name if entry.dist is not None else entry.module
        found.setdefault(entry.name, (package, entry.value))
    return found


@functools.cache
def _target(target: str) -> object:
    """The object that `module:attribute` names; the module itself without an attribute."""
    module, _, attributes = target.partition(":")
    found: object = importlib.import_module(module.strip())
    for attribute in attributes.split(".") if attributes else ():
        found = getattr(found, attribute.strip())
    return found
