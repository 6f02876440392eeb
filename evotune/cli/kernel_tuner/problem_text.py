"""The Python text of problem.py; `compute` from the script's `answer` where it is an expression."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from evotune.cli.kernel_tuner.expression_text import NotWritten
from evotune.cli.kernel_tuner.values import Array, Number

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
    """Over the inputs' names; NotWritten where the answer is not made of them alone. A number
    that `varies` with a size is none."""
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
        raise NotWritten(f"{function} is not one of the functions that it translates")
    return ast.Call(ast.Attribute(operands[0], _METHODS[function], ast.Load()), operands[1:], [])


@dataclass(frozen=True)
class ProblemText:
    """The content of problem.py; shapes and answers are Python texts already."""

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
    """The line of `compute` where it is still to be written; 0 where it is not."""
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
