"""Turns a call's tunables, restrictions and launch into expressions of a space."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Mapping, Sequence

from evotune.extras.kernel_tuner.messages import TunableValue, TuneCall
from evotune.extras.kernel_tuner.texts import (
    NAME,
    NamesOf,
    ScriptError,
    as_condition,
    checked,
    from_text,
    unparsed,
    whole_number,
)
from evotune.extras.kernel_tuner.traced import NotWritten
from evotune.languages import language

_CPP_WORD = re.compile(
    r"alignas|alignof|asm|auto|bool|break|case|catch|char|class|const|constexpr|continue|"
    r"decltype|default|delete|do|double|else|enum|explicit|extern|false|float|for|friend|"
    r"goto|if|inline|int|long|mutable|namespace|new|noexcept|nullptr|operator|private|"
    r"protected|public|register|return|short|signed|sizeof|static|struct|switch|template|"
    r"this|throw|true|try|typedef|typename|union|unsigned|using|virtual|void|volatile|"
    r"wchar_t|while"
)
_TAKEN = language("cuda").taken_macros
_BLOCK_DEFAULTS = (256, 1, 1)
_BLOCK_NAMES = ("block_size_x", "block_size_y", "block_size_z")
_MOST_THREADS = 1024


def parameter_names(
    tunables: Mapping[str, object], words: frozenset[str], error: ScriptError
) -> dict[str, str]:
    """The parameter's name for each tunable: the tunable's in capitals. It gets a _ more where the
    source uses that name for something else, or a macro has it."""
    made: dict[str, str] = {}
    for name in tunables:
        if not NAME.fullmatch(name) or keyword.iskeyword(name):
            raise error.at(f"the tunable {name!r} cannot be a macro's name")
        if _CPP_WORD.fullmatch(name):
            message = (
                f"the tunable {name!r} is a word of C++: as a macro it would change the kernel"
            )
            raise error.at(f"{message}; rename it")
        upper = name.lstrip("_").upper()
        if not upper or not upper[0].isalpha():
            upper = f"P{upper}"
        while (upper in words and upper != name) or upper in {*made.values(), *_TAKEN}:
            upper += "_"
        made[name] = upper
    return made


def names_of(parameters: Mapping[str, str]) -> NamesOf:
    """A function that gives the name by which an expression of the space calls a tunable."""

    def node(name: str) -> ast.expr | None:
        found = parameters.get(name)
        return None if found is None else ast.Name(found, ast.Load())

    return node


def constraints_of(call: TuneCall, error: ScriptError, names: NamesOf) -> list[str]:
    """The restrictions as constraints. An EvotuneError for a restriction that a space cannot
    express: without it the search would try configurations that the script excludes."""
    made = []
    for text in call.restrictions:
        try:
            made.append(checked(as_condition(from_text(text, names))))
        except NotWritten as reason:
            what = f"the restriction `{text[:60]}` cannot be written as a constraint: {reason}"
            raise error.at(what) from reason
    return made


class Launching:
    """The launch of a kernel.

    - block_names: the tunables with the block's sizes in x, y and z; Kernel Tuner's default names
      for the sizes that have no tunable
    - block: the block's sizes as expressions
    """

    def __init__(self, call: TuneCall, error: ScriptError, names: NamesOf) -> None:
        self._call = call
        self._error = error
        self._names = names
        self.block_names = block_names_of(call)
        self.defaults = dict(zip(self.block_names, _BLOCK_DEFAULTS, strict=True))
        self.block = [
            names(name) or ast.Constant(default) for name, default in self.defaults.items()
        ]

    def grid(self, extents: Sequence[int | str]) -> list[ast.expr]:
        """The grid in x, y and z: ceil(problem size / product of the divisors). An extent is a
        number, a size's name, or an expression over tunables."""
        nodes: list[ast.expr] = []
        for axis, extent in enumerate(extents):
            what = f"grid_div_{'xyz'[axis]}"
            found = self._call.grid_div[axis]
            divisor = self._divisor(what, found, self.block_names[axis])
            node = self._whole("problem_size", extent)
            if not (_is_one(divisor) or _is_one(node)):
                node = ast.Call(ast.Name("ceil_div", ast.Load()), [node, divisor], [])
            nodes.append(node)
        return [*nodes, *(ast.Constant(1) for _ in range(3 - len(nodes)))]

    def _divisor(self, what: str, found: Sequence[int | str] | None, block_name: str) -> ast.expr:
        if found is None:
            return self._names(block_name) or ast.Constant(1)
        made: ast.expr = ast.Constant(1)
        for item in found:
            factor = self._whole(what, item)
            made = factor if _is_one(made) else ast.BinOp(made, ast.Mult(), factor)
        return made

    def _whole(self, what: str, found: int | str) -> ast.expr:
        if isinstance(found, int):
            return ast.Constant(found)
        try:
            return whole_number(from_text(found, self._names))
        except NotWritten as reason:
            message = f"{what} cannot be written as an expression: {reason}"
            raise self._error.at(message) from reason

    def shared_bytes(self) -> str:
        found = self._call.shared_bytes
        return "" if found == 0 else self.written("the size in smem_args", found)

    def written(self, what: str, found: int | str | ast.expr) -> str:
        """The text in the space of an expression over tunables."""
        node = found if isinstance(found, ast.expr) else self._whole(what, found)
        try:
            return checked(node)
        except NotWritten as reason:
            message = f"{what} cannot be written as an expression: {reason}"
            raise self._error.at(message) from reason

    def thread_limit(self, tunables: Mapping[str, Sequence[TunableValue]]) -> list[str]:
        """A constraint on the block's threads where a block may have more than 1,024. Kernel Tuner
        needs no such restriction: it skips blocks that are too large for the device by itself."""
        most = 1
        tuned = []
        for name, default in self.defaults.items():
            numbers = [v for v in tunables.get(name, [default]) if isinstance(v, int)]
            most *= max(numbers, default=1)
            node = self._names(name)
            tuned += [] if node is None else [unparsed(node)]
        product = " * ".join(tuned)
        return [f"{product} <= device.threads_per_block"] if tuned and most > _MOST_THREADS else []


def block_names_of(call: TuneCall) -> list[str]:
    names = list(call.block_size_names or ())
    if call.block_size_names is None:
        other_case = [n for n in call.tunables if n.lower() in _BLOCK_NAMES]
        names = sorted((n for n in other_case if n not in _BLOCK_NAMES), key=str.casefold)
    return [*names, *_BLOCK_NAMES[len(names) :]]


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1
