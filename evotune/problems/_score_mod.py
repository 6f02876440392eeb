"""A change of attention's scores as an expression of the small language, compiled into kernels.

`score_mod: "score - 0.1 * abs(row - column) if head % 2 == 0 else score"`: an expression over score
(scaled, capped and with ALiBi), head, row and column, which are the numbers of a row's head, of the
row itself and of a key. It may have numbers, + - * /, // and % of integers by a positive number,
comparisons, and, or, not, if, min, max and abs. Only the text that `macro` makes of its tree
reaches a compiler. Importing this does not import torch; `_attention_scores` computes it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

from evotune.errors import SpaceError
from evotune.problems.problem import WrongSymbol
from evotune.space.language.expression import parse_expression
from evotune.space.language.nodes import Literal, Name, Node, Operation, names_in
from evotune.space.reading.yaml_source import Position
from evotune.trial import Value

NAMES = ("score", "head", "row", "column")
MACRO = f"SCORE_MOD({', '.join(NAMES)})"
_KEY = "score_mod"
_ARITHMETIC = ("+", "-", "*")
_COMPARE = ("<", "<=", ">", ">=", "==", "!=")
_LOGIC = {"and": " && ", "or": " || "}
_MOST = 1 << 31
_LENGTHS = 1 << 24  # a head, row or column is assumed to be below this
_SMALL = 0.125
"""Up to this factor a kernel may round the parts of factor * (row - column) apart, which adds an
error below 2^-19. It may not where a comparison, a quotient or a larger factor makes more of it."""
_LONGEST = 100_000  # characters of the text in C++, which repeats operands of min, max and abs


class Text(NamedTuple):
    """C++ text, and its type: int, float or bool. `most`: the largest magnitude of an int. Where
    that needs 64 bits, the text is a long long, since PyTorch's integers have 64 bits as well.
    `in_float`: the text of an int as a float, where that is less work than its conversion.

    A kernel may have an object in the place of an int that C++ converts to one. A unary + does so
    in the text, and a product with 1.0f asks for a float (kernels/attention/parts/key_place.cuh).
    """

    text: str
    kind: str
    most: int = 0
    in_float: str = ""


@functools.lru_cache(maxsize=256)
def parsed(text: str) -> Node:
    """The tree. WrongSymbol for text that is no such expression."""
    try:
        node = parse_expression(text, Position()).node
    except SpaceError as error:
        raise WrongSymbol(f"{_KEY} {text!r}: {error.message}", _KEY) from error
    _written(node, text)
    return node


def macro(text: str) -> str:
    """The replacement text of the macro `MACRO`: a float."""
    return _as_float(_written(parsed(text), text))


def _written(node: Node, whole: str, *, exact: bool = False) -> Text:
    """`exact`: whether a kernel must not round the parts of a product apart (see _SMALL)."""

    def wrong(why: str) -> WrongSymbol:
        return WrongSymbol(f"{_KEY} {whole!r}: {why}", _KEY)

    if isinstance(node, Literal):
        return _number(node.value, wrong)
    if isinstance(node, Name):
        if node.name not in NAMES:
            raise wrong(f"unknown name '{node.name}'; known: {', '.join(NAMES)}")
        if node.name == "score":
            return Text("(score)", "float")
        return Text(f"({node.name})", "int", _LENGTHS)
    if not exact and (sum_of := _as_a_sum(node, whole)) is not None:
        return sum_of
    scales = node.operator == "*" and any(map(_small, node.operands))
    exact = exact or node.operator in ("/", *_COMPARE) or (node.operator == "*" and not scales)
    parts = [_written(each, whole, exact=exact) for each in node.operands]
    if exact and node.operator == "*" and any(part.kind == "float" for part in parts):
        parts = [Text(f"static_cast<float>({_as_float(part)})", "float") for part in parts]
    found = _operation(node.operator, parts)
    if found is None:
        raise wrong(f"{node.operator} is not allowed in a {_KEY}")
    if why := _mixed(node.operator, parts) or _too_large(node.operator, found):
        raise wrong(why)
    if node.operator in ("//", "%") and not _divides_integers(node, parts):
        raise wrong(f"{node.operator} takes an integer and a positive number that is written out")
    return found


def _too_large(operator: str, found: Text) -> str:
    if found.most >= 1 << 63:
        return f"the integers of {operator} may need more than 64 bits"
    if len(found.text) + len(found.in_float) > _LONGEST:
        return "its text in C++ is too long, since min, max and abs repeat their operands"
    return ""


def _divides_integers(node: Operation, parts: list[Text]) -> bool:
    divisor = node.operands[1]
    integers = all(part.kind == "int" for part in parts)
    return integers and isinstance(divisor, Literal) and int(divisor.value) > 0


def _as_a_sum(node: Node, whole: str) -> Text | None:  # noqa: PLR0911
    """`score + change if condition else score` as score + (1 or 0) * change: a kernel chooses the
    factor once for a row, not for each score. Only where the condition knows neither score nor
    key, and the change is a small factor times integers, which is finite. None for other nodes."""
    if not (isinstance(node, Operation) and node.operator == "if"):
        return None
    condition, changed, unchanged = node.operands
    if not (isinstance(changed, Operation) and changed.operator in ("+", "-")):
        return None
    score, change = changed.operands
    if not (isinstance(change, Operation) and change.operator == "*"):
        return None
    factor, integers = change.operands
    if not (_is_score(score) and _is_score(unchanged) and _small(factor)):
        return None
    # This comes before either is written: else trees of such nodes are written twice at each level.
    if "score" in _names(change) or _names(condition) & {"score", "column"}:
        return None
    truth, product = _written(condition, whole), _written(change, whole)
    if truth.kind != "bool" or _written(integers, whole).kind != "int":
        return None
    chosen = f"(({truth.text} ? 1.0f : 0.0f) * {_as_float(product)})"
    return Text(f"((score) {changed.operator} {chosen})", "float")


def _is_score(node: Node) -> bool:
    return isinstance(node, Name) and node.name == "score"


def _names(node: Node) -> set[str]:
    return {name.name for name in names_in(node)}


def _mixed(operator: str, parts: list[Text]) -> str:
    """Why the operands are not of the kinds that the operator takes; "" where they are."""
    truths = [part.kind == "bool" for part in parts]
    if operator == "if" and truths[1] != truths[2]:
        return "the two sides of an if are a number and a condition"
    conditions = parts[:1] if operator == "if" else parts if operator in ("not", *_LOGIC) else []
    if not all(truths[: len(conditions)]):
        return f"{operator} takes a condition, found a number: compare it with something"
    if operator not in ("if", "not", *_LOGIC) and any(truths):
        return f"{operator} takes numbers, found a condition"
    return ""


def _number(value: Value, wrong: Callable[[str], WrongSymbol]) -> Text:
    if isinstance(value, bool):
        return Text("true" if value else "false", "bool")
    if isinstance(value, str) or not math.isfinite(value) or abs(value) >= _MOST:
        raise wrong(f"expected a number below 2**31, found {value!r}")
    if isinstance(value, int):
        return Text(f"{value}", "int", abs(value))
    return Text(f"{value!r}f", "float")


def _operation(operator: str, parts: list[Text]) -> Text | None:  # noqa: PLR0911
    floats = any(part.kind == "float" for part in parts)
    kind = "float" if floats else "int"
    a, *rest = [_as_float(each) if floats else each.text for each in parts]
    b = rest[0] if rest else ""
    most = max(part.most for part in parts)
    if operator == "neg":
        return Text(f"(-{a})", kind, most)
    if operator == "abs":
        number = f"static_cast<float>({_as_float(parts[0])})"
        in_float = f"({number} < 0 ? -{number} : {number})" if kind == "int" else ""
        return Text(f"(+{a} < 0 ? -+{a} : +{a})", kind, most, in_float)
    if operator == "not":
        return Text(f"(!{a})", "bool")
    if operator in _ARITHMETIC:
        most = (math.prod if operator == "*" else sum)(part.most for part in parts)
        wide = kind == "int" and most >= 1 << 31
        return Text(f"({f'static_cast<long long>({a})' if wide else a} {operator} {b})", kind, most)
    if operator in _COMPARE:
        return Text(f"({a} {operator} {b})", "bool")
    if operator in _LOGIC:
        return Text(f"({_LOGIC[operator].join(part.text for part in parts)})", "bool")
    if operator == "/":
        return Text(f"({_as_float(parts[0])} / {_as_float(parts[1])})", "float")
    if operator in ("//", "%"):
        return _division(operator, a, b, [part.most for part in parts])
    if operator in ("min", "max"):
        return Text(_extreme("<" if operator == "min" else ">", [a, *rest], floats), kind, most)
    if operator == "if":
        condition, *branches = parts
        floats = any(each.kind == "float" for each in branches)
        first, second = (_as_float(each) if floats else each.text for each in branches)
        of = "float" if floats else branches[0].kind
        return Text(f"({condition.text} ? {first} : {second})", of, most)
    return None


def _division(operator: str, a: str, b: str, most: list[int]) -> Text:
    """It rounds down, as the language's does."""
    if sum(most) >= 1 << 31:
        a = f"static_cast<long long>({a})"
    rest = f"(({a} % {b} + {b}) % {b})"
    if operator == "%":
        return Text(rest, "int", most[1])
    return Text(f"(({a} - {rest}) / {b})", "int", max(most))


def _extreme(sign: str, texts: list[str], floats: bool) -> str:
    """The one that compares so with all others. By pairs, since each level doubles the text."""
    while len(texts) > 1:
        pairs = [texts[i : i + 2] for i in range(0, len(texts), 2)]
        texts = [_one_of(pair[0], pair[1], sign, floats) if pair[1:] else pair[0] for pair in pairs]
    return texts[0]


def _one_of(a: str, b: str, sign: str, floats: bool) -> str:
    """NaN if either is NaN. One that may be NaN comes last, since comparisons with it are false."""
    if floats and _may_be_nan(a):
        a, b = b, a
    unless = f" || {a} != {a}" if floats and _may_be_nan(a) else ""
    return f"({a} {sign} {b}{unless} ? {a} : {b})"


def _may_be_nan(number: str) -> bool:
    return "(score)" in number or " / " in number


def _as_float(part: Text) -> str:
    return part.text if part.kind == "float" else part.in_float or f"(1.0f * {part.text})"


def _small(node: Node) -> bool:
    value = node.value if isinstance(node, Literal) else None
    return isinstance(value, int | float) and abs(value) <= _SMALL
