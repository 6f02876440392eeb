"""Writes space.yaml and problem.py, chooses names in them, and makes error messages about a
script."""

from __future__ import annotations

import ast
import itertools
import json
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from evotune.errors import EnvironmentProblem, EvotuneError, SpaceError, UsageError
from evotune.extras.kernel_tuner.traced import NotWritten
from evotune.space.language import parse_expression
from evotune.space.reading.yaml_source import Position
from evotune.trial import Value

# Expressions of a script as expressions of a space, and of C.
_FUNCTIONS = ("min", "max", "abs", "ceil_div")
_SAME = ("int", "round")  # leave an integer as it is, and every tunable is one
NamesOf = Callable[[str], ast.expr | None]
"""Gives the expression that replaces a name of the script; None for an unknown name."""


def unparsed(node: ast.expr) -> str:
    return ast.unparse(ast.fix_missing_locations(node))


def c_text(node: ast.expr) -> str:
    """The expression as C. Raises NotWritten if C has no operator for a part of it."""
    match node:
        case ast.Constant() if type(node.value) is int:
            return str(node.value)
        case ast.Name():
            return node.id
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv() | ast.Mod()):
            sign = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "/", ast.Mod: "%"}
            first, second = c_text(node.left), c_text(node.right)
            return f"({first} {sign[type(node.op)]} {second})"
        case ast.Call(func=ast.Name("ceil_div")):
            first, second = map(c_text, node.args)
            return f"(({first} + {second} - 1) / {second})"
    raise NotWritten("C has no operator for it")


def from_text(text: str, names: NamesOf) -> ast.expr:
    """Parses an expression over tunables that the script has as text. It may contain what no space
    allows, which `checked` refuses."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
        return cast(ast.expr, _Translated(names).visit(tree.body))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotWritten("it is not an expression") from error


def whole_number(node: ast.expr) -> ast.expr:
    """The expression rounded down, as by the int() that Kernel Tuner puts around it."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return ast.BinOp(node.left, ast.FloorDiv(), node.right)
    return node


class _Translated(ast.NodeTransformer):
    """Translates the names and functions of a script to those of a space."""

    def __init__(self, names: NamesOf) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        found = self._names(node.id)
        if found is None:
            raise NotWritten(f"{node.id} is not a tunable")
        return found

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = ast.unparse(node.func)
        arguments: list[ast.expr] = [self.visit(part) for part in node.args]
        only = arguments[0] if len(arguments) == 1 and not node.keywords else None
        is_quotient = isinstance(only, ast.BinOp) and isinstance(only.op, ast.Div)
        if only is not None and name in _SAME:
            if is_quotient and name == "int":
                return whole_number(only)
            if not any(map(_makes_fractions, ast.walk(only))):
                return only
        if is_quotient and name.rpartition(".")[2] == "ceil":
            assert isinstance(only, ast.BinOp)
            return ast.Call(ast.Name("ceil_div", ast.Load()), [only.left, only.right], [])
        if not node.keywords and name in _FUNCTIONS:
            return ast.Call(ast.Name(name, ast.Load()), arguments, [])
        raise NotWritten(f"{name[:60]}() is not in the language of constraints")


def _makes_fractions(node: ast.AST) -> bool:
    return isinstance(node, ast.Div) or (
        isinstance(node, ast.Constant) and isinstance(node.value, float)
    )


def as_condition(node: ast.expr) -> ast.expr:
    """Adds `!= 0` to each number that is used as a condition, because Python allows that and a
    space does not."""
    match node:
        case ast.BoolOp():
            return ast.BoolOp(node.op, [as_condition(part) for part in node.values])
        case ast.UnaryOp(op=ast.Not()):
            return ast.UnaryOp(node.op, as_condition(node.operand))
        case ast.IfExp():
            return ast.IfExp(
                as_condition(node.test), as_condition(node.body), as_condition(node.orelse)
            )
        case ast.Compare() | ast.Constant(value=bool()):
            return node
    return ast.Compare(node, [ast.NotEq()], [ast.Constant(0)])


def checked(node: ast.expr) -> str:
    """The expression's text. Raises NotWritten if the parser of spaces refuses it."""
    text = unparsed(node)
    try:
        parse_expression(text, Position())
    except SpaceError as error:
        raise NotWritten(error.message) from error
    return text


NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
"""The name of a parameter, a macro or a symbol."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./+*-]*( [+*/<>=%-]+ [A-Za-z0-9_.]+)*")
_WORDS = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")


@dataclass(frozen=True)
class ScriptError:
    """Makes errors about a call at `line` of `file`: `FILE.py:LINE: message`."""

    file: str
    line: int

    def at(self, message: str, *, environment: bool = False) -> EvotuneError:
        kind = EnvironmentProblem if environment else UsageError
        return kind(f"{self.file}{f':{self.line}' if self.line else ''}: {message}")


def harmless(name: str) -> str:
    """The name, changed if it is a word of Python, so that it can be a variable's name."""
    return f"{name}_" if keyword.iskeyword(name) else name


def in_a_comment(name: str) -> str:
    """The file's name with a _ for each unusual character: the name is written into comments, and
    quotes or line ends in it would end them."""
    return re.sub(r"[^A-Za-z0-9_. +-]", "_", name)


@dataclass(frozen=True)
class SpaceText:
    """The content of space.yaml. Arguments, grid, block and constraints are YAML text."""

    name: str
    script: str
    dtype: str
    shape: Mapping[str, int]
    kernel: str
    entry: str
    source: str
    define: Sequence[str]
    options: Sequence[str]
    arguments: Sequence[str]
    constant_memory: Mapping[str, str]
    grid: Sequence[str]
    block: Sequence[str]
    shared_bytes: str
    parameters: Mapping[str, Sequence[Value]]
    constraints: Sequence[str]

    def text(self) -> str:
        launch = f"grid: {_row(self.grid)}, block: {_row(self.block)}"
        if self.shared_bytes:
            launch += f", shared_bytes: {quoted(self.shared_bytes)}"
        lines = [
            "# yaml-language-server: $schema=space.schema.json",
            f"# From {self.script}.",
            f"name: {quoted(self.name)}",
            "root: .",
            "problem:",
            "  name: problem.py:Problem",
            f"  dtype: {self.dtype}",
            f"  shapes: [{_mapping(self.shape)}]",
            "kernels:",
            f"  {self.kernel}:",
            f"    source: {quoted(self.source)}",
            f"    entry: {self.entry}",
        ]
        if self.define:
            lines.append(f"    define: {_row(self.define)}  # compiled in: each value is a binary")
        if self.options:
            lines.append(f"    options: {_row(self.options)}")
        if self.constant_memory:
            lines.append(f"    constant_memory: {_mapping(self.constant_memory)}")
        lines += [
            f"    arguments: [{', '.join(self.arguments)}]",
            "    launches:",
            f"      - {{{launch}}}",
            "parameters:",
            *(f"  {name}: {_domain(values)}" for name, values in self.parameters.items()),
        ]
        if self.constraints:
            lines += ["constraints:", *(f"  - {quoted(text)}" for text in self.constraints)]
        lines += ["baseline: torch:best", "budget: {trials: 200}"]
        return "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    """The text as a YAML scalar, quoted if YAML might otherwise not read it as text."""
    plain = _PLAIN.fullmatch(text) is not None and text.lower() not in _WORDS
    return text if plain or text.isdigit() else json.dumps(text)


def _row(items: Sequence[str]) -> str:
    return f"[{', '.join(map(quoted, items))}]"


def _mapping(items: Mapping[str, object]) -> str:
    return f"{{{', '.join(f'{name}: {value}' for name, value in items.items())}}}"


def _domain(values: Sequence[Value]) -> str:
    """The values as `pow2` or `range` if these give them in the same order; else as a list."""
    numbers = [value for value in values if type(value) is int]
    if len(numbers) == len(values) >= 3:
        first, second, last = numbers[0], numbers[1], numbers[-1]
        doubled = all(b == 2 * a for a, b in itertools.pairwise(numbers))
        if first >= 1 and first & (first - 1) == 0 and doubled:
            return f"{{pow2: [{first}, {last}]}}"
        step = second - first
        if step >= 1 and numbers == list(range(first, last + 1, step)):
            return f"{{range: [{first}, {last}{'' if step == 1 else f', {step}'}]}}"
    return f"[{', '.join(map(_value, values))}]"


def _value(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, str) and value.lower() in _WORDS else str(value)


UNWRITTEN = 'raise NotImplementedError("write here what the kernel computes")'


@dataclass(frozen=True)
class ProblemText:
    """The content of problem.py. Tensors and answers are given as Python text.

    - sorted_inputs: the inputs with ascending integers: (shape, type, first, last) as Python text
    """

    script: str
    kernel: str
    sizes: Sequence[str]
    fixed: Sequence[str]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    elements: str
    answers: Mapping[str, str]
    sorted_inputs: Mapping[str, Sequence[str]]

    def text(self) -> str:
        given = "".join(f", {name}" for name in self.sizes)
        tensors = "".join((*self.inputs.values(), *self.outputs.values()))
        imported = "Tensor, UserProblem" if "Tensor(" in tensors else "UserProblem"
        lines = [
            f'"""The computation of {self.kernel}. Made from {self.script}; see',
            'docs/writing-a-problem.md."""',
            "",
            f"from evotune.problems import {imported}",
            "",
            "",
            "class Problem(UserProblem):",
            f"    sizes = {shape_text([json.dumps(name) for name in self.sizes])}",
        ]
        if self.fixed:
            fixed = shape_text([json.dumps(name) for name in self.fixed])
            lines += [
                "    # The kernel does not get these as arguments, so no others are tried.",
                f"    fixed = {fixed}",
            ]
        for method, described in (("inputs", self.inputs), ("outputs", self.outputs)):
            lines += ["", f"    def {method}(self{given}):", *_returned(described)]
        if self.sorted_inputs:
            lines += [
                "",
                f"    def make_indices(self, kind, generator{given}):",
                "        # They rise between the script's first and last one.",
                "        import torch",
                "",
                *_returned({n: _rising(*each) for n, each in self.sorted_inputs.items()}),
            ]
        lines += [
            "",
            f"    def operations(self{given}):",
            "        # A lower bound, one for each element of the outputs: say how many there are.",
            f"        return {self.elements}",
            "",
            f"    def compute(self{''.join(f', {name}' for name in self.inputs)}):",
        ]
        whole = set(self.answers) == set(self.outputs)
        lines += _returned(self.answers) if whole else [f"        {UNWRITTEN}"]
        if self.sorted_inputs:
            lines += _WITH_ENDS
        return "\n".join(lines) + "\n"


_WITH_ENDS = (
    *("", "", "def _with_ends(drawn, first, last):", "    flat = drawn.flatten().sort().values"),
    *("    flat[0], flat[-1] = first, last", "    return flat.reshape(drawn.shape)"),
)


def _returned(items: Mapping[str, str]) -> list[str]:
    inner = [f"            {json.dumps(name)}: {text}," for name, text in items.items()]
    return ["        return {", *inner, "        }"]


def unwritten_line(text: str) -> int:
    """The line of `compute` that the user must still write; 0 if `compute` is complete."""
    for number, line in enumerate(text.splitlines(), start=1):
        if UNWRITTEN in line:
            return number
    return 0


def _rising(shape: str, kind: str, first: str, last: str) -> str:
    drawn = f"torch.randint({first}, {last} + 1, {shape}, generator=generator, "
    drawn += f"dtype=torch.{kind}, device=generator.device)"
    return f"_with_ends({drawn}, {first}, {last})"


def shape_text(sizes: Sequence[str]) -> str:
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def product_text(sizes: Sequence[str]) -> str:
    if len(sizes) == 1:
        return sizes[0]
    return " * ".join(s if s.isidentifier() or s.isdigit() else f"({s})" for s in sizes)
