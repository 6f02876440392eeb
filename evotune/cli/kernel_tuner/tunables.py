"""Turns tune_params, restrictions and the launch into expressions of a space."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Sequence

from evotune.cli.kernel_tuner import expression_text as expressions
from evotune.cli.kernel_tuner.expression_text import NamesOf, NotWritten
from evotune.cli.kernel_tuner.kernel_source import KernelSource
from evotune.cli.kernel_tuner.script import TuneCall
from evotune.cli.kernel_tuner.sizes import AXES, Sizes, dimension_node
from evotune.cli.kernel_tuner.values import (
    NAME,
    Function,
    Listed,
    Nothing,
    Number,
    Table,
    Text,
    Value,
)
from evotune.languages import language
from evotune.trial import Value as ParameterValue

_CPP_WORD = re.compile(
    r"alignas|alignof|asm|auto|bool|break|case|catch|char|class|const|constexpr|continue|"
    r"decltype|default|delete|do|double|else|enum|explicit|extern|false|float|for|friend|"
    r"goto|if|inline|int|long|mutable|namespace|new|noexcept|nullptr|operator|private|"
    r"protected|public|register|return|short|signed|sizeof|static|struct|switch|template|"
    r"this|throw|true|try|typedef|typename|union|unsigned|using|virtual|void|volatile|"
    r"wchar_t|while"
)
_TAKEN = language("cuda").taken_macros

Tunables = dict[str, list[ParameterValue]]


def read_tunables(call: TuneCall) -> Tunables:
    """Each tunable's values, by its name. ScriptError for a tunable that a space cannot have as a
    parameter."""
    found = call.get("tune_params")
    if not isinstance(found, Table):
        raise call.cannot_tell("tune_params", "tune_params", found, "make it a dict of lists")
    made: Tunables = {}
    for name, values in found.items.items():
        if not NAME.fullmatch(name) or keyword.iskeyword(name):
            raise call.error("tune_params", f"the tunable {name!r} cannot be a macro's name")
        if _CPP_WORD.fullmatch(name):
            message = (
                f"the tunable {name!r} is a word of C++: as a macro it would change the kernel"
            )
            raise call.error("tune_params", f"{message}; rename it")
        if not isinstance(values, Listed) or not values.items:
            hint = "make it a list of integers"
            raise call.cannot_tell("tune_params", f"the values of {name}", values, hint)
        made[name] = list(dict.fromkeys(_value(call, name, value) for value in values.items))
        if len({type(value) for value in made[name]}) > 1:
            raise call.error("tune_params", f"{name} has values of several types; make them one")
    if not made:
        raise call.error("tune_params", "tune_params is empty; a space has parameters")
    return made


def _value(call: TuneCall, name: str, value: Value) -> ParameterValue:
    match value:
        case Number() if isinstance(value.value, int):
            return bool(value.value) if value.dtype == "bool" else value.value
        case Text() if NAME.fullmatch(value.text):
            return value.text
        case Number() | Text():
            shown = value.value if isinstance(value, Number) else repr(value.text[:40])
            message = f"{name} has the value {shown}; a parameter has integers or plain words"
            raise call.error("tune_params", message)
    raise call.cannot_tell("tune_params", f"a value of {name}", value, "make it an integer")


def parameter_names(tunables: Tunables, source: KernelSource, sizes: Sizes) -> dict[str, str]:
    """The parameter's name for each tunable: the tunable's in capitals. It gets a _ more where the
    source uses that name for something else."""
    words = source.words
    made: dict[str, str] = {}
    for name in tunables:
        if name in sizes.tunables:
            continue
        upper = name.lstrip("_").upper()
        if not upper or not upper[0].isalpha():
            upper = f"P{upper}"
        while (upper in words and upper != name) or upper in {*made.values(), *_TAKEN}:
            upper += "_"
        made[name] = upper
    return made


def names_of(parameters: dict[str, str], sizes: Sizes) -> NamesOf:
    """A function that gives the name by which an expression of the space calls a tunable."""

    def node(name: str) -> ast.expr | None:
        found = parameters.get(name) or sizes.tunables.get(name)
        return None if found is None else ast.Name(found, ast.Load())

    return node


def read_constraints(call: TuneCall, names: NamesOf) -> list[str]:
    """The restrictions as constraints. ScriptError for a restriction that a space cannot express:
    without it the search would try configurations that the script excludes."""
    found = call.get("restrictions")
    if isinstance(found, Nothing):
        return []
    items: Sequence[Value] = found.items if isinstance(found, Listed) else [found]
    hint = "write it as text over the tunables"
    made = []
    for item in items:
        try:
            if isinstance(item, Text):
                node = expressions.from_text(item.text, names)
            elif isinstance(item, Function):
                node = expressions.from_function(item, names)
            else:
                raise call.cannot_tell("restrictions", "a restriction", item, hint)
            made.append(expressions.checked(expressions.as_condition(node)))
        except NotWritten as reason:
            what = f" `{item.text[:60]}`" if isinstance(item, Text) else ""
            line = item.node.lineno if isinstance(item, Function) else "restrictions"
            message = f"the restriction{what} cannot be written as a constraint: {reason}; {hint}"
            raise call.error(line, message) from reason
    return made


BLOCK_DEFAULTS = (256, 1, 1)
_BLOCK_NAMES = ("block_size_x", "block_size_y", "block_size_z")
_MOST_THREADS = 1024


class Launching:
    """The launch of a kernel.

    - block_names: the tunables with the block's sizes in x, y and z; Kernel Tuner's default names
      for the sizes that have no tunable
    - block: the block's sizes as expressions
    """

    def __init__(self, call: TuneCall, tunables: Tunables, sizes: Sizes, names: NamesOf) -> None:
        self._call = call
        self._tunables = tunables
        self._sizes = sizes
        self._names = names
        self.block_names = self._block_names()
        self.block = [
            names(name) or ast.Constant(default)
            for name, default in zip(self.block_names, BLOCK_DEFAULTS, strict=True)
        ]

    def _block_names(self) -> list[str]:
        found = self._call.get("block_size_names")
        if isinstance(found, Nothing):
            other_case = [n for n in self._tunables if n.lower() in _BLOCK_NAMES]
            names = sorted((n for n in other_case if n not in _BLOCK_NAMES), key=str.casefold)
        elif isinstance(found, Listed):
            names = [item.text for item in found.items if isinstance(item, Text)]
            if len(names) != len(found.items) or len(names) > 3:
                message = "block_size_names is not a list of up to three names; write them out"
                raise self._call.error("block_size_names", message)
        else:
            hint = "make it a list of names"
            raise self._call.cannot_tell("block_size_names", "block_size_names", found, hint)
        return [*names, *_BLOCK_NAMES[len(names) :]]

    def grid(self, dimensions: Sequence[Value]) -> list[ast.expr]:
        """The grid in x, y and z: ceil(problem size / product of the divisors)."""
        nodes: list[ast.expr] = []
        for axis, dimension, block_name in zip(AXES, dimensions, self.block_names, strict=False):
            key = f"grid_div_{axis}"
            divisor = self._divisor(key, self._call.get(key), block_name)
            extent = dimension_node(self._call, dimension, self._sizes, self._names)
            if not (_is_one(divisor) or _is_one(extent)):
                extent = ast.Call(ast.Name("ceil_div", ast.Load()), [extent, divisor], [])
            nodes.append(extent)
        return [*nodes, *(ast.Constant(1) for _ in AXES[len(nodes) :])]

    def _divisor(self, key: str, value: Value, block_name: str) -> ast.expr:
        if isinstance(value, Nothing):
            return self._names(block_name) or ast.Constant(1)
        made: ast.expr = ast.Constant(1)
        for item in value.items if isinstance(value, Listed) else [value]:
            try:
                factor = expressions.expression_of(item, self._sizes.node, self._names)
            except NotWritten as reason:
                hint = "make it a list of tunables"
                message = f"{key} cannot be written as an expression: {reason}; {hint}"
                raise self._call.error(key, message) from reason
            if factor is None:
                raise self._call.cannot_tell(key, key, item, "make it a list of tunables")
            made = factor if _is_one(made) else ast.BinOp(made, ast.Mult(), factor)
        return made

    def shared_bytes(self) -> str:
        found = self._call.get("smem_args")
        if isinstance(found, Nothing):
            return ""
        size = found.items.get("size", Nothing()) if isinstance(found, Table) else found
        hint = 'make it {"size": expression}'
        try:
            node = expressions.expression_of(size, self._sizes.node, self._names)
            if node is not None:
                return expressions.checked(node)
        except NotWritten as reason:
            message = f"the size in smem_args cannot be written as an expression: {reason}; {hint}"
            raise self._call.error("smem_args", message) from reason
        raise self._call.cannot_tell("smem_args", "the size in smem_args", size, hint)

    def thread_limit(self) -> list[str]:
        """A constraint on the block's threads where a block may have more than 1,024. Kernel Tuner
        needs no such restriction: it skips blocks that are too large for the device by itself."""
        most = 1
        tuned = []
        for name, default in zip(self.block_names, BLOCK_DEFAULTS, strict=True):
            numbers = [v for v in self._tunables.get(name, [default]) if isinstance(v, int)]
            most *= max(numbers, default=1)
            node = self._names(name)
            tuned += [] if node is None else [expressions.unparsed(node)]
        product = " * ".join(tuned)
        return [f"{product} <= device.threads_per_block"] if tuned and most > _MOST_THREADS else []


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1
