"""The Python text of problem.py. Its `compute` is made from the script's `answer` if that can be
written as an expression."""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from evotune.cli.kernel_tuner.expression_text import NotWritten
from evotune.cli.kernel_tuner.values import Array, Number
from evotune.trial import Value

# --- The YAML text of space.yaml ------------------------------------------------------------------

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./+*-]*( [+*/<>=%-]+ [A-Za-z0-9_.]+)*")
_WORDS = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")


@dataclass(frozen=True)
class SpaceText:
    """The content of space.yaml. Arguments, grid, block and constraints are given as YAML text."""

    name: str
    script: str
    dtype: str
    shape: Mapping[str, int]
    kernel: str
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
            f"    entry: {self.kernel}",
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
    """The text as a YAML scalar, in quotes where YAML might read another value than a text."""
    plain = _PLAIN.fullmatch(text) is not None and text.lower() not in _WORDS
    return text if plain or text.isdigit() else json.dumps(text)


def _row(items: Sequence[str]) -> str:
    return f"[{', '.join(map(quoted, items))}]"


def _mapping(items: Mapping[str, object]) -> str:
    return f"{{{', '.join(f'{name}: {value}' for name, value in items.items())}}}"


def _domain(values: Sequence[Value]) -> str:
    """The values as `pow2` or `range` where these give them in the same order; else as a list."""
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


Varies = Callable[[Number], bool]
UNWRITTEN = 'raise NotImplementedError("say here what the kernel computes")'
_OPERATORS: dict[str, type[ast.operator]] = {
    **{"+": ast.Add, "-": ast.Sub, "*": ast.Mult, "/": ast.Div, "**": ast.Pow},
    **{"@": ast.MatMult, "add": ast.Add, "subtract": ast.Sub, "multiply": ast.Mult},
    **{"divide": ast.Div, "power": ast.Pow},
}
_METHODS = {
    **{name: name for name in ("sqrt", "exp", "log", "sin", "cos", "tan", "tanh", "abs")},
    **{"absolute": "abs", "square": "square", "maximum": "maximum", "minimum": "minimum"},
    **{"sum": "sum", "mean": "mean"},
}


def torch_expression(array: Array, inputs: Sequence[Array], varies: Varies) -> str:
    """The array as a torch expression over the names of the inputs.

    NotWritten when the array is not made of the inputs and constants alone. A number that `varies`
    with a size is no constant.
    """
    return ast.unparse(ast.fix_missing_locations(_node(array, inputs, varies, 0)))


def _node(value: Array | Number, inputs: Sequence[Array], varies: Varies, depth: int) -> ast.expr:
    if depth > 50:
        raise NotWritten("it is nested too deep")
    if isinstance(value, Number):
        if varies(value):
            raise NotWritten("a size is in it")
        return ast.Constant(value.value)
    found: Array | None = value
    while found is not None:
        if found in inputs:
            return ast.Name(found.name, ast.Load())
        if found.formula is not None:
            break
        found = found.same
    if found is None or found.formula is None:
        raise NotWritten("an array in it is no argument of the kernel")
    function = found.formula.function
    operands = [_node(part, inputs, varies, depth + 1) for part in found.formula.operands]
    if function in _OPERATORS:
        return ast.BinOp(operands[0], _OPERATORS[function](), operands[1])
    if function == "T":
        return ast.Attribute(operands[0], "T", ast.Load())
    first = found.formula.operands[0]
    arrays = all(isinstance(part, Array) for part in found.formula.operands)
    if function not in _METHODS or not isinstance(first, Array) or not arrays:
        raise NotWritten(f"{function} is a function that evotune does not translate")
    return ast.Call(ast.Attribute(operands[0], _METHODS[function], ast.Load()), operands[1:], [])


@dataclass(frozen=True)
class ProblemText:
    """The content of problem.py. Shapes and answers are given as Python text."""

    script: str
    kernel: str
    sizes: Sequence[str]
    fixed: Sequence[str]
    inputs: Mapping[str, Sequence[str]]
    outputs: Mapping[str, Sequence[str]]
    answers: Mapping[str, str]

    def text(self) -> str:
        given = "".join(f", {name}" for name in self.sizes)
        count = " + ".join(_product(shape) for shape in self.outputs.values())
        lines = [
            f'"""The computation of {self.kernel}. Made from {self.script}; see',
            'docs/writing-a-problem.md."""',
            "",
            "from evotune.problems import UserProblem",
            "",
            "",
            "class Problem(UserProblem):",
            f"    sizes = {_tuple([json.dumps(name) for name in self.sizes])}",
        ]
        if self.fixed:
            fixed = _tuple([json.dumps(name) for name in self.fixed])
            lines += [
                "    # The kernel is not told these, so no others are tried.",
                f"    fixed = {fixed}",
            ]
        for method, tensors in (("inputs", self.inputs), ("outputs", self.outputs)):
            shapes = {name: _tuple(shape) for name, shape in tensors.items()}
            lines += ["", f"    def {method}(self{given}):", *_returned(shapes)]
        lines += [
            "",
            f"    def operations(self{given}):",
            "        # A lower bound, one for each element of the outputs: say how many there are.",
            f"        return {count}",
            "",
            f"    def compute(self{''.join(f', {name}' for name in self.inputs)}):",
        ]
        whole = set(self.answers) == set(self.outputs)
        lines += _returned(self.answers) if whole else [f"        {UNWRITTEN}"]
        return "\n".join(lines) + "\n"


def _returned(items: Mapping[str, str]) -> list[str]:
    inner = [f"            {json.dumps(name)}: {text}," for name, text in items.items()]
    return ["        return {", *inner, "        }"]


def unwritten_line(text: str) -> int:
    """The line of `compute` that the user must still write; 0 when `compute` is complete."""
    for number, line in enumerate(text.splitlines(), start=1):
        if UNWRITTEN in line:
            return number
    return 0


def _tuple(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _product(shape: Sequence[str]) -> str:
    if len(shape) == 1:
        return shape[0]
    return " * ".join(s if s.isidentifier() or s.isdigit() else f"({s})" for s in shape) or "1"
