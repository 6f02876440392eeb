"""The values in a script: numbers that know how they were computed, arrays with a shape and no
data, and unknown values."""

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
    """The one line that a user reads about a script: `FILE.py:LINE: message`."""

    def __init__(self, file: str, line: int, message: str) -> None:
        super().__init__(f"{file}:{line}: {message}")


@dataclass(frozen=True, eq=False)
class Leaf:
    """A number that the script names: a variable, or a value of a `tunable`, say the largest."""

    name: str
    value: int | float
    tunable: str = ""


@dataclass(frozen=True, eq=False)
class Operation:
    """An operation: `+ - * / // % ** ceil_div min max`, or `?` for a computation that cannot be
    written as an expression."""

    operator: str
    operands: tuple[Tree, ...]
    value: int | float

    @functools.cached_property
    def size(self) -> int:
        """The number of steps that a walk through the tree takes. A part that is shared counts
        each time."""
        return 1 + sum(size_of(operand) for operand in self.operands)


Tree: TypeAlias = Leaf | Operation | int | float


@dataclass(frozen=True, eq=False)
class Number:
    """A number. `tree` says how it is computed from leaves; `dtype` is NumPy's name of a scalar's
    type, "" for a plain Python number."""

    value: int | float
    tree: Tree
    dtype: str = ""

    @property
    def is_constant(self) -> bool:
        return isinstance(self.tree, int | float)


@dataclass(frozen=True, eq=False)
class Text:
    """A text. When `file` is set, the text is that file's content."""

    text: str = ""
    file: str = ""


@dataclass(eq=False)
class Listed:
    """A list or a tuple. `tunable` is its key in a dictionary, which may be a tunable's name."""

    items: list[Value]
    tunable: str = ""


@dataclass(eq=False)
class Table:
    items: dict[str, Value]


@dataclass(eq=False)
class Array:
    """An array without its data.

    - maker: the NumPy function that made it, or `computed`, `random`
    - formula: the operation that computed it, if any
    - same: the array that this one is a copy or a cast of, if any
    """

    shape: tuple[Number, ...]
    dtype: str
    maker: str
    formula: Formula | None = None
    same: Array | None = None
    name: str = ""
    line: int = 0


@dataclass(frozen=True, eq=False)
class Formula:
    """An operation on arrays; `function` is an operator or the name of a NumPy function."""

    function: str
    operands: tuple[Array | Number, ...]


@dataclass(frozen=True, eq=False)
class Function:
    """A function of the script, which is not run. `names` are the names that it can use."""

    node: ast.Lambda | ast.FunctionDef
    names: Mapping[str, Value]


@dataclass(frozen=True, eq=False)
class Dotted:
    """A module, or a name in one: `numpy.random.randn`, `builtins.max`."""

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
    """The leaves under a `?`: no expression can say how the value depends on them."""
    if isinstance(tree, Operation):
        for operand in tree.operands:
            yield from (leaves if tree.operator == "?" else hidden_leaves)(operand)
