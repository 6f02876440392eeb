"""The problem's sizes: the numbers in problem_size, and the tunables that shapes depend on."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from evotune.cli.kernel_tuner.expression_text import (
    NamesOf,
    NotWritten,
    expression_of,
    tree_node,
)
from evotune.cli.kernel_tuner.script import TuneCall
from evotune.cli.kernel_tuner.values import (
    Function,
    Leaf,
    Listed,
    Number,
    Text,
    Value,
    constant,
    hidden_leaves,
    leaves,
)

if TYPE_CHECKING:
    from evotune.cli.kernel_tuner.arguments import Arguments

AXES = "xyz"
_RESERVED = ("dtype", "device", "self", "torch", "arch")


@dataclass
class Sizes:
    """The problem's sizes.

    - values: each size's value, by the size's name
    - names: the size's name for each leaf
    - tunables: the size's name for each of Kernel Tuner's tunables that is a size
    - free: the sizes that may vary, since the kernel gets them as arguments
    """

    values: dict[str, int] = field(default_factory=dict)
    names: dict[Leaf, str] = field(default_factory=dict)
    tunables: dict[str, str] = field(default_factory=dict)
    free: set[str] = field(default_factory=set)

    def name_of(self, leaf: Leaf) -> str | None:
        return self.tunables.get(leaf.tunable) if leaf.tunable else self.names.get(leaf)

    def node(self, number: Number) -> ast.expr:
        """The number as an expression over the sizes."""
        return tree_node(number.tree, self.name_of)

    def varies(self, number: Number) -> bool:
        return any(self.name_of(leaf) in self.free for leaf in leaves(number.tree))

    @property
    def fixed(self) -> list[str]:
        return [name for name in self.values if name not in self.free]


def extents(call: TuneCall) -> list[Value]:
    """The dimensions that problem_size gives: x, and perhaps y and z."""
    found = call.get("problem_size")
    items: list[Value] = found.items if isinstance(found, Listed) else [found]
    for item in items:
        if not isinstance(item, Number | Text | Function):
            raise call.cannot_tell("problem_size", "problem_size", item, "write it as numbers")
    if not 1 <= len(items) <= len(AXES):
        raise call.error("problem_size", f"problem_size has {len(items)} sizes; give 1 to 3")
    return items


def find_sizes(
    call: TuneCall, dimensions: Sequence[Value], arguments: Arguments, tunables: Sequence[str]
) -> tuple[Sizes, list[Value]]:
    """The sizes, and the dimensions: a plain number among the dimensions becomes a size."""
    naming = _Naming(call, tunables, [array.name for array in arguments.arrays])
    made = [
        naming.dimension(axis, dimension, alone=len(dimensions) == 1)
        for axis, dimension in zip(AXES, dimensions, strict=False)
    ]
    shapes = [size for array in arguments.arrays for size in array.shape]
    numbers = (*shapes, *arguments.scalars, *(d for d in dimensions if isinstance(d, Number)))
    for number in numbers:
        for leaf in leaves(number.tree):
            if leaf.tunable in tunables:
                naming.tunable(leaf)
    sizes = naming.sizes
    if not sizes.values:
        naming.leaf(Leaf("problem_size_x", 1), "x")
    told = {scalar.tree for scalar in arguments.scalars if isinstance(scalar.tree, Leaf)}
    hidden = {leaf for number in numbers for leaf in hidden_leaves(number.tree)}
    sizes.free = {name for leaf, name in sizes.names.items() if leaf in told - hidden}
    return sizes, made


class _Naming:
    """Gives each size a name that no tunable, array or other size has."""

    def __init__(self, call: TuneCall, tunables: Sequence[str], arrays: Sequence[str]) -> None:
        self.sizes = Sizes()
        self._call = call
        self._used = {name.upper() for name in (*tunables, *arrays, *_RESERVED)}

    def dimension(self, axis: str, dimension: Value, *, alone: bool) -> Value:
        """The dimension, with its sizes named. A 1 beside other dimensions is no size."""
        if not isinstance(dimension, Number):
            return dimension
        unnamed = dimension.is_constant or (
            isinstance(dimension.tree, Leaf) and not dimension.tree.name.isidentifier()
        )
        if unnamed and dimension.value == 1 and not alone:
            return constant(1)
        if dimension.is_constant:
            leaf = Leaf(f"problem_size_{axis}", dimension.value)
            self.leaf(leaf, axis)
            return Number(dimension.value, leaf)
        for leaf in leaves(dimension.tree):
            if not leaf.tunable and leaf not in self.sizes.names:
                self.leaf(leaf, axis)
        return dimension

    def leaf(self, leaf: Leaf, axis: str) -> None:
        wanted = leaf.name if leaf.name.isidentifier() else f"problem_size_{axis}"
        self.sizes.names[leaf] = self._added(wanted, leaf.value)

    def tunable(self, leaf: Leaf) -> None:
        """Makes a tunable a size under its own name."""
        known = self.sizes.tunables.get(leaf.tunable)
        if known is None:
            self._used.discard(leaf.tunable.upper())
            self.sizes.tunables[leaf.tunable] = self._added(leaf.tunable, leaf.value)
        elif self.sizes.values[known] != leaf.value:
            message = f"arrays depend on several values of {leaf.tunable}; let them depend on one"
            raise self._call.error("arguments", message)

    def _added(self, wanted: str, value: int | float) -> str:
        if value < 1 or value != int(value):
            message = f"the size {wanted} is {value}; expected a whole number of at least 1"
            raise self._call.error("problem_size", message)
        name = wanted
        while name.upper() in self._used:
            name += "_"
        self._used.add(name.upper())
        self.sizes.values[name] = int(value)
        return name


def dimension_node(call: TuneCall, dimension: Value, sizes: Sizes, names: NamesOf) -> ast.expr:
    """One dimension of problem_size as an expression of the space."""
    try:
        found = expression_of(dimension, sizes.node, names)
    except NotWritten as reason:
        message = f"problem_size cannot be written as an expression: {reason}; write it as numbers"
        raise call.error("problem_size", message) from reason
    if found is None:
        raise call.cannot_tell("problem_size", "problem_size", dimension, "write it as numbers")
    return found
