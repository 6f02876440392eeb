"""Values of a script: numbers that know where they come from, arrays that have a
shape and no data, and unknown ones."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from evotune.errors import UsageError

LIMIT = 2**63
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
"""The name of a parameter, a macro or a symbol."""


class ScriptError(UsageError):
    """`FILE.py:LINE: what cannot be told`, the one line a user reads."""

    def __init__(self, file: str, line: int, message: str) -> None:
        super().__init__(f"{file}:{line}: {message}")


@dataclass(frozen=True, eq=False)
class Leaf:
    """A number that the script names: a variable, or the largest (say) value of a `tunable`."""

    name: str
    value: int | float
    tunable: str = ""


@dataclass(frozen=True, eq=False)
class Operation:
    """`+ - * / // % ** ceil_div min max`, or `?`: a way to the value that cannot be written."""

    operator: str
    operands: tuple[Tree, ...]
    value: int | float

    @functools.cached_property
    def size(self) -> int:
        """Parts, shared ones counted each time: whoever walks the tree takes so many steps."""
        return 1 + sum(size_of(operand) for operand in self.operands)


Tree: TypeAlias = Leaf | Operation | int | float


@dataclass(frozen=True, eq=False)
class Number:
    """`tree` says how it is made of leaves. `dtype` is NumPy's name of a scalar's type."""

    value: int | float
    tree: Tree
    dtype: str = ""

    @property
    def is_constant(self) -> bool:
        return isinstance(self.tree, int | float)


@dataclass(frozen=True, eq=False)
class Text:
    """`file`: the text is that file's content."""

    text: str = ""
    file: str = ""


@dataclass(eq=False)
class Listed:
    """A list or tuple; `tunable` is the key of a dictionary under which it stands."""

    items: list[Value]
    tunable: str = ""


@dataclass(eq=False)
class Table:
    items: dict[str, Value]


@dataclass(eq=False)
class Array:
    """`maker` is the NumPy function; of a computed one, `formula` says from what. `same` is the
    array that it is a copy of, or a cast."""

    shape: tuple[Number, ...]
    dtype: str
    maker: str
    formula: Formula | None = None
    same: Array | None = None
    name: str = ""
    line: int = 0


@dataclass(frozen=True, eq=False)
class Formula:
    """An operator or the name of a NumPy function."""

    function: str
    operands: tuple[Array | Number, ...]


@dataclass(frozen=True, eq=False)
class Function:
    """Code of the script that is not run; `names` is what it sees."""

    node: ast.Lambda | ast.FunctionDef
    names: Mapping[str, Value]


@dataclass(frozen=True, eq=False)
class Dotted:
    """A module, or something in one: `numpy.random.randn`, `builtins.max`."""

    path: str


@dataclass(frozen=True, eq=False)
class File:
    """An opened file."""

    path: str


@dataclass(frozen=True, eq=False)
class Nothing:
    """None."""


@dataclass(frozen=True, eq=False)
class Unknown:
    line: int
    why: str = field(default="")


Value: TypeAlias = (
    Number | Text | Listed | Table | Array | Function | Dotted | File | Nothing | Unknown
)


def constant(value: int | float, dtype: str = "") -> Number:
    return Number(value, value, dtype)


def size_of(tree: Tree) -> int:
    return tree.size if isinstance(tree, Operation) else 1


def leaves(tree: Tree) -> Iterator[Leaf]:
    if isinstance(tree, Leaf):
        yield tree
    elif isinstance(tree, Operation):
        for operand in tree.operands:
            yield from leaves(operand)


def hidden_leaves(tree: Tree) -> Iterator[Leaf]:
    """Leaves whose part in the value cannot be written as an expression."""
    if isinstance(tree, Operation):
        for operand in tree.operands:
            yield from (leaves if tree.operator == "?" else hidden_leaves)(operand)
