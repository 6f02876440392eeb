"""Turns tune_params and restrictions into a space's parameters and constraints."""

from __future__ import annotations

import ast
import keyword
from collections.abc import Sequence

from evotune.cli.kernel_tuner import expression_text as expressions
from evotune.cli.kernel_tuner.expression_text import NamesOf, NotWritten
from evotune.cli.kernel_tuner.kernel_source import KernelSource
from evotune.cli.kernel_tuner.script import TuneCall
from evotune.cli.kernel_tuner.sizes import Sizes
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
from evotune.trial import Value as ParameterValue

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
            raise call.error("tune_params", f"the tunable {name!r} is no name of a macro")
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
        while (upper in words and upper != name) or upper in made.values():
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
            message = f"the restriction{what} is no condition of a space: {reason}; {hint}"
            raise call.error(line, message) from reason
    return made
