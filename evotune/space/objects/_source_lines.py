"""Finds the source of a class or a function, also in a notebook's cell: `find_source`."""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FunctionType


@dataclass(frozen=True, slots=True)
class Piece:
    """The whole lines of a class or a function in `file`, from `line` to `end`."""

    file: str
    line: int
    end: int
    text: str
    is_indented: bool
    node: ast.stmt


def find_source(value: type | FunctionType) -> Piece | None:
    """The source of a class or a function; None without one: it was typed at a prompt or generated.

    `inspect.getsource` looks for a class in its module's file, and a notebook has none. But a
    method's code object names its file and line, in a cell as well.
    """
    for file, line in _places(value):
        lines = linecache.getlines(file)
        if not lines:
            continue
        try:
            tree = ast.parse("".join(lines))
        except (SyntaxError, ValueError):  # a cell with a magic command, or changed since
            continue
        node = _defining(tree, value, line)
        if node is not None:
            begin = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            end = node.end_lineno or node.lineno
            text = "".join(lines[begin - 1 : end]).rstrip("\n")
            return Piece(file, begin, end, text, node.col_offset > 0, node)
    return None


def _places(value: type | FunctionType) -> Iterator[tuple[str, int]]:
    """(file, a line inside the definition); 0 for an unknown line.

    A script's code names its file as the command line did. That path may mean another file by now,
    so the module's own file comes next.
    """
    functions = [value] if isinstance(value, FunctionType) else list(methods(value))
    lines = [function.__code__.co_firstlineno for function in functions]
    for function, line in zip(functions, lines, strict=True):
        file = function.__code__.co_filename
        yield (os.path.abspath(file) if os.path.exists(file) else file), line
    whole = getattr(sys.modules.get(value.__module__), "__file__", None)
    if whole:
        yield from ((whole, line) for line in lines or [0])


def methods(kind: type) -> Iterator[FunctionType]:
    """The functions that the class itself defines."""
    for value in vars(kind).values():
        inner = inspect.unwrap(getattr(value, "__func__", getattr(value, "fget", value)))
        if isinstance(inner, FunctionType) and inner.__qualname__.startswith(kind.__qualname__):
            yield inner


def _defining(
    tree: ast.Module, value: type | FunctionType, line: int
) -> ast.ClassDef | ast.FunctionDef | None:
    """The innermost definition of that name around the line; the last one of several."""
    wanted = ast.ClassDef if isinstance(value, type) else ast.FunctionDef
    found = None
    for node in ast.walk(tree):
        if isinstance(node, wanted) and node.name == value.__name__:
            begin = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if not line or begin <= line <= (node.end_lineno or begin):
                found = node
    return found
