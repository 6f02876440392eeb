"""The files that a Python module imports from its own folder: part of the kernel's source.

A module's own folder is the one that holds it, or that holds its outermost package. Only `import`
statements are read, in functions too. A name that has no file there is an installed package, as it
is for Python when it runs a script. A module that is imported in another way is not found, and the
host, which has no other files, reports it as missing.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

_PACKAGE = "__init__.py"

Exists = Callable[[str], bool]
"""Whether there is a file with this path under the root."""


@dataclass(frozen=True, slots=True)
class ModulePlace:
    """Where a module's file lies under the root: its own folder ("" for the root), and the parts of
    its name from there."""

    folder: str
    parts: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name by which Python imports it, if its own folder is on the path."""
        return ".".join(self.parts)

    @classmethod
    def of(cls, file: str, exists: Exists) -> ModulePlace:
        path = PurePosixPath(file)
        parts = [] if path.name == _PACKAGE else [path.stem]
        folder = path.parent
        while folder.name and exists((folder / _PACKAGE).as_posix()):
            parts.insert(0, folder.name)
            folder = folder.parent
        return cls("" if folder == PurePosixPath(".") else folder.as_posix(), tuple(parts))


def imported_files(file: str, content: bytes, exists: Exists) -> tuple[str, ...]:
    """The files under the root that this one imports, with the packages that they lie in. None if
    its syntax is wrong: the compiler says so."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape, say: Python warns when it runs it
            tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    place = ModulePlace.of(file, exists)
    is_package = PurePosixPath(file).name == _PACKAGE
    found: dict[str, None] = {}
    for package in _packages(place.parts):
        found |= dict.fromkeys(_files(place.folder, package, exists))
    for node in ast.walk(tree):
        for parts in _modules(node, place.parts, is_package=is_package):
            for within in (*_packages(parts), parts):
                found |= dict.fromkeys(_files(place.folder, within, exists))
    found.pop(file, None)
    return tuple(found)


def _modules(node: ast.AST, own: tuple[str, ...], *, is_package: bool) -> Iterator[tuple[str, ...]]:
    """The modules that a statement may import, by the parts of their names. `from a import b` may
    mean the module a.b."""
    if isinstance(node, ast.Import):
        yield from (tuple(alias.name.split(".")) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base: tuple[str, ...] = ()
        if node.level:
            up = node.level - is_package
            if up > len(own):
                return
            base = own[: len(own) - up]
        base += tuple(node.module.split(".")) if node.module else ()
        if base:
            yield base
        yield from ((*base, alias.name) for alias in node.names if alias.name != "*")


def _packages(parts: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The packages that a module lies in, the outermost first."""
    return (parts[:count] for count in range(1, len(parts)))


def _files(folder: str, parts: tuple[str, ...], exists: Exists) -> Iterator[str]:
    """The file of the module, if there is one."""
    base = "/".join((folder, *parts) if folder else parts)
    for name in (f"{base}/{_PACKAGE}", f"{base}.py"):
        if parts and exists(name):
            yield name
            return
