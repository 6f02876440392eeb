"""Finds everything of a module that a class uses, from the class's source: `Gatherer`."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import math
import subprocess
import symtable
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from evotune.space.objects._source_lines import Piece, find_source, methods
from evotune.space.reading.yaml_source import Position
from evotune.space.suggest import describe

_IMPLICIT = {"__name__", "__file__", "__doc__", "__class__", "__module__", "__qualname__"}


class Unusable(Exception):
    """No module can be made of the class; the message names the reason."""


class Gatherer:
    """Collects the source that a class needs.

    - `pieces`: the definitions, each after the definitions that it uses. The class is the last.
    - `statements`: the imports and constants.
    """

    def __init__(self, kind: type) -> None:
        self.pieces: list[Piece] = []
        self._kind = kind
        self._known: dict[str, object] = {}
        self._imports: list[str] = []
        self._constants: list[str] = []
        self._define(kind, kind.__name__)

    @property
    def statements(self) -> list[str]:
        return [*dict.fromkeys(self._imports), *self._constants]

    def _take(self, name: str, value: object, user: str, dotted: set[str]) -> None:
        """Adds the import, constant or definition of `name`, a global that `user` uses."""
        if isinstance(value, ModuleType):
            self._import_submodules(name, value, dotted)
        if name in self._known:
            if self._known[name] is not value and not _same(self._known[name], value):
                raise Unusable(
                    f"{self._kind.__name__} uses two different globals of the name {name}, "
                    "from two modules: rename one"
                )
            return
        self._known[name] = value
        if isinstance(value, ModuleType):
            if not _is_installed(value.__name__):
                raise Unusable(
                    f"{user} uses the module {value.__name__}, which is not installed: only beside "
                    "the script is it found. Import its functions and classes by name instead"
                )
            self._imports.append(_import_of(name, value.__name__))
            return
        origin = _importable_from(value)
        if origin is not None:
            module, original = origin
            alias = "" if original == name else f" as {name}"
            self._imports.append(f"from {module} import {original}{alias}")
            return
        inner = inspect.unwrap(value) if callable(value) else value  # decorators are in its source
        if isinstance(inner, type | FunctionType):
            self._define(inner, name)
            return
        text = constant_text(value)
        if text is None:
            raise Unusable(
                f"{user} uses the global {name}, {describe(value)}: only modules, functions, "
                "classes and constants can be handed to evotune's processes"
            )
        self._constants.append(f"{name} = {text}")

    def _define(self, value: type | FunctionType, name: str) -> None:
        """Adds the source of a class or a function, after all that it uses."""
        piece = find_source(value)
        if piece is None:
            raise Unusable(
                f"the source of {value.__qualname__} cannot be read: it is in no file and in "
                'no cell of a notebook. Put it into a file, and say problem="problem.py:'
                f'{self._kind.__name__}"'
            )
        if name != value.__name__:
            raise Unusable(f"{value.__qualname__} is used by another name, {name}: use its own")
        self._known.setdefault(name, value)
        scope = _scope(value)
        plain = _without_annotations(piece.node)
        dotted = _dotted_names(plain)
        for used in sorted(_globals_of(plain)):
            if used in scope and used not in _IMPLICIT:
                self._take(used, scope[used], value.__qualname__, dotted)
        self.pieces.append(piece)

    def _import_submodules(self, name: str, module: ModuleType, dotted: set[str]) -> None:
        """Imports the submodules that the code uses. `import xml` does not load
        `xml.etree.ElementTree`, even if other code loaded it in this process."""
        for chain in sorted(dotted):
            if chain.startswith(f"{name}."):
                full = module.__name__ + chain.removeprefix(name)
                while full and full not in sys.modules:
                    full = full.rpartition(".")[0]
                if full != module.__name__ and "." in full:
                    self._imports.append(f"import {full}")


def constant_text(value: object) -> str | None:
    """Python text that gives an equal value; None when the value is no plain constant."""
    try:
        return _constant(value)
    except TypeError:
        return None


def _constant(value: Any) -> str:
    """`constant_text`, but TypeError when the value is no plain constant."""
    kind = type(value)
    if value is None or value is Ellipsis or kind in (bool, int, str, bytes):
        return repr(value)
    if kind is float:
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if kind is dict:
        pairs = (f"{_constant(key)}: {_constant(item)}" for key, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    if kind in (tuple, list, set, frozenset):
        texts = [_constant(item) for item in value]
        if kind in (set, frozenset):
            texts.sort()
        listed = f"[{', '.join(texts)}]"
        return listed if kind is list else f"{kind.__name__}({listed})"
    raise TypeError


def _same(first: object, second: object) -> bool:
    text = constant_text(first)
    return text is not None and text == constant_text(second)


def _import_of(name: str, module: str) -> str:
    return f"import {module}" if name == module else f"import {module} as {name}"


def _importable_from(value: object) -> tuple[str, str] | None:
    """(module, name) to import the value by, with the shortest module path; None when no installed
    module defines it."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    name = name or getattr(value, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str) or "." in name:
        return None
    if module == "__main__" or module not in sys.modules or not _is_installed(module):
        return None
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        place = ".".join(parts[:length])
        if getattr(sys.modules.get(place), name, None) is value:
            return place, name
    return None


@functools.cache
def _is_installed(module: str) -> bool:
    """Whether evotune's processes find the module: they import nothing from the script's folder or
    from the working folder."""
    top = module.partition(".")[0]
    if top == "evotune" or top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(top), "__file__", None)
    paths = sysconfig.get_paths()
    if file and any(Path(file).is_relative_to(paths[key]) for key in ("purelib", "platlib")):
        return True
    # It may still be installed, as a link to a folder: a process started like evotune's finds out.
    find = "import sys, importlib.util as u; sys.exit(u.find_spec(sys.argv[1]) is None)"
    return subprocess.run([sys.executable, "-P", "-c", find, top], check=False).returncode == 0


def _scope(value: type | FunctionType) -> Mapping[str, Any]:
    """The names that the code can use: enclosing functions' variables and the module's globals."""
    functions = [value] if isinstance(value, FunctionType) else list(methods(value))
    names: dict[str, Any] = {}
    if isinstance(value, type):
        names.update(getattr(sys.modules.get(value.__module__), "__dict__", {}))
    for function in functions:
        names.update(function.__globals__)
    for function in functions:
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            with contextlib.suppress(ValueError):  # the cell is still empty
                names[name] = cell.cell_contents
    return names


def _without_annotations(node: ast.stmt) -> ast.Module:
    """A copy without annotations. They are never evaluated: the module that is made begins with
    `from __future__ import annotations`."""
    copy = ast.parse(ast.unparse(node))
    for each in ast.walk(copy):
        if isinstance(each, ast.arg):
            each.annotation = None
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            each.returns = None
        elif isinstance(each, ast.AnnAssign):
            each.annotation = ast.Constant(None)
    return ast.fix_missing_locations(copy)


def _globals_of(tree: ast.Module) -> set[str]:
    """The global names that the code uses. Builtins are among them; `_define` skips a builtin
    unless the module hides it."""
    found: set[str] = set()
    tables = [symtable.symtable(ast.unparse(tree), "<class>", "exec")]
    top = tables[0]
    while tables:
        table = tables.pop()
        for symbol in table.get_symbols():
            if symbol.is_global() or (table is top and symbol.is_referenced()):
                found.add(symbol.get_name())
        tables += table.get_children()
    defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    return found - defined


def _dotted_names(tree: ast.Module) -> set[str]:
    """The dotted names in the code, such as `xml.etree.ElementTree`."""
    return {ast.unparse(node) for node in ast.walk(tree) if _is_dotted(node)}


def _is_dotted(node: ast.AST) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
        if isinstance(node, ast.Name):
            return True
    return False


# --- Makes a module of the source of one class and of all that it uses: `module_of_class` ---------
# evotune's processes are separate from the caller's. They read a problem from a file, as a space
# file
# names one, and never run the caller's script or notebook again. So the class is taken out of its
# module: its source, the source of functions and classes that it uses, imports of modules, and
# constants by their values.
#
# If all of it comes from one file, each line keeps its number there, so that a message about
# `script.py:17` means the caller's line 17.

_FIRST = "from __future__ import annotations"
_ANY_NAME = "problem.py"


def module_of_class(kind: type, position: Position) -> tuple[str, str]:
    """(file name, text) of a module that defines the class.

    SpaceError at `position` for a class whose source cannot be read, and for a global that is
    neither a module, a function, a class nor a constant.
    """
    try:
        gatherer = Gatherer(kind)
    except Unusable as error:
        raise position.error(str(error)) from error
    first, pieces = [_FIRST, *gatherer.statements], gatherer.pieces
    if len({piece.file for piece in pieces}) == 1:
        pieces = sorted(pieces, key=lambda piece: piece.line)
        if pieces[0].line - pieces[0].is_indented > 1:
            return _file_name(pieces[0].file), _in_place(first, pieces)
    blocks = [f"# {piece.file}:{piece.line}\n{_at_the_margin(piece)}" for piece in pieces]
    return _ANY_NAME, "\n\n\n".join(["\n".join(first), *blocks]) + "\n"


def _file_name(file: str) -> str:
    """The name of the caller's file; `problem.py` for a notebook's cell, which has no such name."""
    path = Path(file)
    usable = path.suffix == ".py" and path.is_file() and path.stem.isidentifier()
    return path.name if usable else _ANY_NAME


def _at_the_margin(piece: Piece) -> str:
    """The piece as a top-level statement. An indented one goes under `if True:`, since moving it to
    the left would change the text inside its strings."""
    return f"if True:\n{piece.text}" if piece.is_indented else piece.text


def _in_place(first: list[str], pieces: list[Piece]) -> str:
    """The module's text: every piece at its own line of the file, the rest in the first line."""
    lines = ["; ".join(first)]
    before = None
    for piece in pieces:
        continues = piece.is_indented and before is not None and before.end == piece.line - 1
        if piece.is_indented and not continues:
            lines += [""] * (piece.line - 2 - len(lines))
            lines.append("if True:")
        lines += [""] * (piece.line - 1 - len(lines))
        lines += piece.text.split("\n")
        before = piece
    return "\n".join(lines) + "\n"
