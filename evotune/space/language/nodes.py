"""The tree of an expression, and its value for one configuration.

Scalar, vectorised and interval evaluation share the tree. `compile_scalar` turns it into nested
closures.
"""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from evotune.space.reading.yaml_source import Position
from evotune.trial import Value
from evotune.util.words import did_you_mean

LIMIT = 2**63  # every number x of the language satisfies |x| < LIMIT
EXACT_FLOAT = 2**53  # below it, float64 holds every integer
MAX_EXPONENT = 64

ARITHMETIC = frozenset({"+", "-", "*", "/", "//", "%", "**"})
ORDERING = frozenset({"<", "<=", ">", ">="})
EQUALITY = frozenset({"==", "!="})
FUNCTIONS: dict[str, tuple[int, int]] = {  # name: fewest and most arguments
    "min": (1, 64),
    "max": (1, 64),
    "ceil_div": (2, 2),
    "abs": (1, 1),
    "log2": (1, 1),
    "is_pow2": (1, 1),
}


class EvaluationError(Exception):
    """Raised if an expression has no value: a division by zero, an overflow, text used as a
    number."""


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    value: Value


@dataclass(frozen=True, slots=True, eq=False)
class Name:
    """A parameter, let, problem symbol, `device.x`, or the bare name of a choice."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """An operation on operands. `operator`: a Python operator, `neg`, `if` (condition, then, else)
    or a function.

    `and`, `or`, `if` evaluate only the operands they need.
    """

    operator: str
    operands: tuple[Node, ...]
    offset: int = 0


Node: TypeAlias = Literal | Name | Operation


def operands_of(node: Node) -> tuple[Node, ...]:
    return node.operands if isinstance(node, Operation) else ()


def post_order(
    root: Node,
    done: Container[Node],
    needs: Callable[[Node], Iterable[Node]] = operands_of,
) -> Iterator[Node]:
    """Every node below `root` that is not in `done`, each after the nodes that it `needs`. The
    caller must add each node to `done` before it takes the next one. It does not recurse, because
    `let` makes trees of thousands of levels."""
    waiting = [root]
    while waiting:
        node = waiting[-1]
        missing = [] if node in done else [other for other in needs(node) if other not in done]
        if missing:
            waiting.extend(reversed(missing))
            continue
        waiting.pop()
        if node not in done:
            yield node


def used_often(roots: Iterable[Node], least_depth: int) -> frozenset[Node]:
    """Operations that are used more than once and have at least `least_depth` levels."""
    users: Counter[Node] = Counter()
    depths: dict[Node, int] = {}
    for root in dict.fromkeys(roots):
        for node in post_order(root, depths):
            operands = operands_of(node)
            depths[node] = 1 + max((depths[operand] for operand in operands), default=0)
            users.update(operands)
    return frozenset(
        node
        for node, count in users.items()
        if count > 1 and isinstance(node, Operation) and depths[node] >= least_depth
    )


def names_in(node: Node) -> list[Name]:
    """Every name in the tree, from left to right."""
    if isinstance(node, Name):
        return [node]
    if isinstance(node, Literal):
        return []
    return [name for operand in node.operands for name in names_in(operand)]


# Infers the types that an expression can have: a wrong one is an error before the search.

Kinds: TypeAlias = frozenset[type]
BOOL: Kinds = frozenset((bool,))
INT: Kinds = frozenset((int,))
FLOAT: Kinds = frozenset((float,))
TEXT: Kinds = frozenset((str,))


def kinds_of(values: Iterable[Value]) -> Kinds:
    return frozenset(type(value) for value in values)


def is_condition(node: Node) -> bool:
    """Whether the value is true or false, whatever its names stand for."""
    if not isinstance(node, Operation):
        return False
    return node.operator in ("and", "or", "not") or node.operator in EQUALITY | ORDERING


class KindChecker:
    """Infers types. Refuses arithmetic on text, and comparisons that can never hold.

    `name_kinds` has each name's types, `choices` the possible values of a name whose value is text.
    """

    def __init__(
        self,
        position: Position,
        name_kinds: Callable[[Name], Kinds],
        choices: Callable[[Name], tuple[Value, ...] | None],
    ) -> None:
        self.position = position
        self.name_kinds = name_kinds
        self.choices = choices

    def infer(self, node: Node) -> Kinds:
        if isinstance(node, Literal):
            return frozenset((type(node.value),))
        if isinstance(node, Name):
            return self.name_kinds(node)
        operands = [self.infer(operand) for operand in node.operands]
        operator = node.operator
        if operator == "if":
            self._require_number(node, 0, operands[0])
            return operands[1] | operands[2]
        if operator in EQUALITY:
            self._require_possible(node)
            return BOOL
        for i, kinds in enumerate(operands):
            self._require_number(node, i, kinds)
        if operator in ("and", "or", "not", "is_pow2") or operator in ORDERING:
            return BOOL
        return self._number(operator, operands)

    def _number(self, operator: str, operands: list[Kinds]) -> Kinds:
        if operator == "/":
            return FLOAT
        if operator == "log2":
            return INT
        floating = any(float in kinds for kinds in operands)
        if not floating:
            return INT
        return FLOAT if all(kinds == FLOAT for kinds in operands) else FLOAT | INT

    def _require_number(self, node: Operation, index: int, kinds: Kinds) -> None:
        if kinds != TEXT:
            return
        operand = node.operands[index]
        what = f"'{operand.name}'" if isinstance(operand, Name) else "this"
        word = "a condition" if node.operator in ("and", "or", "not", "if") else "a number"
        offset = node.offset if isinstance(operand, Literal) else operand.offset
        raise self.position.error(f"expected {word}, but {what} is an identifier", offset)

    def _require_possible(self, node: Operation) -> None:
        """Raises SpaceError for a comparison with a word that a name never has. `SWIZZLE == xro`,
        where xro is no value of SWIZZLE, is a misspelling."""
        for subject, other in (node.operands, node.operands[::-1]):
            if not isinstance(subject, Name) or not isinstance(other, Literal):
                continue
            values = self.choices(subject)
            if values is not None and other.value not in values:
                hint = did_you_mean(str(other.value), [str(value) for value in values])
                message = f"{subject.name} is never {other.value}{hint}"
                raise self.position.error(message, subject.offset)


Environment: TypeAlias = dict[Any, Value]  # by name; remembered ones by node
Evaluate: TypeAlias = Callable[[Environment], Value]
MIN_SHARED_DEPTH = 3  # below it, looking a value up costs as much as computing it
_STAGE_LEVELS = 100  # each takes up to three of Python's 1000 nested calls


def bounded(number: Any) -> Any:
    if -LIMIT < number < LIMIT:
        return number
    raise EvaluationError("the result is 2**63 or more")


def numeric(value: Value) -> Any:
    if isinstance(value, str):
        raise EvaluationError(f"'{value}' is not a number")
    return value


def truth(value: Value) -> bool:
    return value if isinstance(value, bool) else bool(numeric(value))


def _on_numbers(function: Callable[[Any, Any], Any]) -> Callable[[Value, Value], Any]:
    """The function with checks. Integers need no more calls, because nearly all operands are
    integers and a search evaluates millions of them."""

    def apply(a: Any, b: Any) -> Any:
        if type(a) is int and type(b) is int:
            result = function(a, b)
            if -LIMIT < result < LIMIT:
                return result
        return bounded(function(numeric(a), numeric(b)))

    return apply


def _quotient(function: Callable[[Any, Any], Any]) -> Callable[[Value, Value], Any]:
    def divide(a: Any, b: Any) -> Any:
        if type(a) is int and type(b) is int and -EXACT_FLOAT < a < EXACT_FLOAT and b > 0:
            return function(a, b)
        if numeric(b) == 0:
            raise EvaluationError("division by zero")
        try:
            return bounded(function(numeric(a), b))
        except OverflowError:
            raise EvaluationError("the result is 2**63 or more") from None

    return divide


def _power(a: Value, b: Value) -> Any:
    if isinstance(b, str | float) or not 0 <= b <= MAX_EXPONENT:
        raise EvaluationError(f"an exponent is an integer from 0 to {MAX_EXPONENT}")
    try:
        return bounded(numeric(a) ** b)
    except OverflowError:
        raise EvaluationError("the result is 2**63 or more") from None


def _ordering(compare: Callable[[Any, Any], bool]) -> Callable[[Value, Value], bool]:
    def holds(a: Value, b: Value) -> bool:
        if type(a) is int and type(b) is int:
            return compare(a, b)
        return compare(numeric(a), numeric(b))

    return holds


def _ceil_div(a: Value, b: Value) -> Any:
    return -_FLOOR_DIVIDE(-numeric(a), b)


def _is_pow2(a: Value) -> bool:
    if isinstance(a, str | float):
        raise EvaluationError("is_pow2 takes an integer")
    return a > 0 and int(a) & (int(a) - 1) == 0


def _log2(a: Value) -> int:
    if numeric(a) <= 0:
        raise EvaluationError("log2 takes a positive number")
    if isinstance(a, float):
        return math.frexp(a)[1] - 1
    return int(a).bit_length() - 1


def _extreme(choose: Callable[[Iterable[Any]], Any]) -> Callable[..., Value]:
    """min or max of numbers that first get one type, so that the winner's type is fixed."""

    def extreme(*arguments: Any) -> Any:
        if set(map(type, arguments)) == {int}:
            return choose(arguments)
        floating = any(isinstance(argument, float) for argument in arguments)
        kind: Callable[[Any], Any] = float if floating else int
        return choose([kind(numeric(argument)) for argument in arguments])

    return extreme


_FLOOR_DIVIDE: Any = _quotient(operator.floordiv)
STRICT: Mapping[str, Callable[..., Value]] = {
    "+": _on_numbers(operator.add),
    "-": _on_numbers(operator.sub),
    "*": _on_numbers(operator.mul),
    "/": _quotient(operator.truediv),
    "//": _FLOOR_DIVIDE,
    "%": _quotient(operator.mod),
    "**": _power,
    "neg": lambda a: -numeric(a),
    "not": lambda a: not truth(a),
    "==": operator.eq,
    "!=": operator.ne,
    "<": _ordering(operator.lt),
    "<=": _ordering(operator.le),
    ">": _ordering(operator.gt),
    ">=": _ordering(operator.ge),
    "min": _extreme(min),
    "max": _extreme(max),
    "abs": lambda a: abs(numeric(a)),
    "log2": _log2,
    "is_pow2": _is_pow2,
    "ceil_div": _ceil_div,
}


def compile_scalar(node: Node, shared: frozenset[Node] = frozenset()) -> Evaluate:
    """Compiles an expression to a function from the values of names to the expression's value. The
    function raises EvaluationError if there is none.

    A node in `shared` stores its value in the environment, with itself as the key, so that a
    subtree that many expressions use is evaluated once.
    """
    return _Compiler(node, shared).whole if shared else _compiled(node)


@functools.lru_cache(maxsize=4096)
def _compiled(node: Node) -> Evaluate:
    """A plan for one case after another evaluates the same nodes, and compiling one takes longer
    than evaluating it."""
    return _Compiler(node, frozenset()).whole


class _Compiler:
    """Makes closures that call each other, as deep as the tree is. For a tree with more than
    `_STAGE_LEVELS` levels, the lower levels are evaluated first, in stages. The stages' values, and
    those of subtrees that only this tree uses often, go into a copy of the environment."""

    def __init__(self, root: Node, shared: frozenset[Node]) -> None:
        own = frozenset() if shared else used_often([root], MIN_SHARED_DEPTH)
        self.done: dict[Node, Evaluate] = {}
        stages: list[Evaluate] = []
        levels: dict[Node, int] = {}  # number of levels above the stage below
        for node in post_order(root, self.done):
            evaluate = self._closure(node)
            if node in shared or node in own:
                evaluate = _remembered(node, evaluate)
            levels[node] = 1 + max((levels[part] for part in operands_of(node)), default=0)
            if levels[node] >= _STAGE_LEVELS:
                stages.append(evaluate)
                evaluate, levels[node] = _found_before(evaluate), 0
            self.done[node] = evaluate
        whole = self.done[root]
        self.whole = _in_stages(stages, whole) if stages or own else whole

    def _closure(self, node: Node) -> Evaluate:
        if isinstance(node, Literal):
            value = node.value
            return lambda _: value
        if isinstance(node, Name):
            return operator.itemgetter(node.name)
        operands = [self.done[operand] for operand in node.operands]
        if node.operator in ("and", "or"):
            return _connective(operands, node.operator == "or")
        if node.operator == "if":
            condition, then, otherwise = operands
            return lambda v: then(v) if truth(condition(v)) else otherwise(v)
        return _with_literal(node, operands) or _strict(STRICT[node.operator], operands)


def _with_literal(node: Operation, operands: list[Evaluate]) -> Evaluate | None:
    """A closure for two operands, one of them a literal and the other often a name. It holds the
    literal and reads the name itself, which saves calls. None for other operands."""
    if len(operands) != 2:
        return None
    function = STRICT[node.operator]
    left, right = node.operands
    first, second = operands
    if isinstance(right, Literal):
        constant = right.value
        if isinstance(left, Name):
            name = left.name
            return lambda v: function(v[name], constant)
        return lambda v: function(first(v), constant)
    if isinstance(left, Literal):
        start = left.value
        return lambda v: function(start, second(v))
    return None


def _strict(function: Callable[..., Value], operands: list[Evaluate]) -> Evaluate:
    if len(operands) == 1:
        only = operands[0]
        return lambda v: function(only(v))
    if len(operands) == 2:
        first, second = operands
        return lambda v: function(first(v), second(v))
    return lambda v: function(*[operand(v) for operand in operands])


def _connective(operands: list[Evaluate], stop: bool) -> Evaluate:
    def evaluate(environment: Environment) -> Value:
        for operand in operands:
            if truth(operand(environment)) is stop:
                return stop
        return not stop

    return evaluate


def _remembered(node: Node, evaluate: Evaluate) -> Evaluate:
    def lookup(environment: Environment) -> Value:
        if node in environment:
            return environment[node]
        value = environment[node] = evaluate(environment)
        return value

    return lookup


def _in_stages(stages: Sequence[Evaluate], whole: Evaluate) -> Evaluate:
    def evaluate(environment: Environment) -> Value:
        known: dict[Any, Any] = type(environment)(environment)
        for stage in stages:
            try:
                known[stage] = stage(known)
            except EvaluationError as error:  # raised only if the value is needed
                known[stage] = error
        return whole(known)

    return evaluate


def _found_before(stage: Evaluate) -> Evaluate:
    def lookup(environment: Environment) -> Value:
        found: Any = environment[stage]
        if isinstance(found, EvaluationError):
            raise EvaluationError(str(found))
        return cast(Value, found)

    return lookup


def apply(node: Operation, values: Sequence[Any]) -> Value:
    """The result of an operation on known values. Raises EvaluationError if there is none."""
    if node.operator in STRICT:
        return STRICT[node.operator](*values)
    literals = tuple(Literal(value) for value in values)
    return _Compiler(Operation(node.operator, literals), frozenset()).whole({})


# Makes expression trees unique: equal subtrees become one node, and constants are folded.
#
# So a subtree that many constraints, lets or shapes share is stored, compared and evaluated
# once, and equality of expressions is identity of nodes.
class Interner:
    """Makes nodes, the same one for equal arguments."""

    def __init__(self) -> None:
        self._nodes: dict[object, Node] = {}
        self._names: dict[Node, frozenset[str]] = {}
        self._failures: dict[Node, str] = {}

    def names(self, node: Node) -> frozenset[str]:
        """The names on which the node depends."""
        return self._names[node]

    def failure(self, node: Node) -> str:
        """Why the node has no value, whatever its names stand for; "" if it may have one."""
        waiting, seen = [node], set[Node]()
        while waiting:
            part = waiting.pop()
            if part in self._failures:
                return self._failures[part]
            if part in seen or not isinstance(part, Operation):
                continue
            seen.add(part)
            first_decides = part.operator in ("and", "or", "if")
            waiting.extend(part.operands[:1] if first_decides else part.operands)
        return ""

    def literal(self, value: Value) -> Node:
        return self._intern((type(value), value), Literal(value), frozenset())

    def name(self, name: str) -> Node:
        return self._intern(("name", name), Name(name), frozenset((name,)))

    def operation(self, operator: str, operands: Iterable[Node]) -> Node:
        """The node of an operation on interned operands, with operations on literals evaluated."""
        nodes = tuple(operands)
        if operator in ("and", "or"):
            nodes = _needed(nodes, stop=operator == "or")
            if not nodes:
                return self.literal(operator == "and")
        if operator == "if" and isinstance(nodes[0], Literal) and not _is_text(nodes[0]):
            return nodes[1] if truth(nodes[0].value) else nodes[2]
        node = Operation(operator, nodes)
        failure = ""
        values = [operand.value for operand in nodes if isinstance(operand, Literal)]
        if len(values) == len(nodes):
            try:
                return self.literal(apply(node, values))
            except EvaluationError as error:  # evaluating the node raises it again
                failure = str(error)
        names = frozenset[str]().union(*(self._names[operand] for operand in nodes))
        interned = self._intern((operator, *map(id, nodes)), node, names)
        if failure:
            self._failures[interned] = failure
        return interned

    def _intern(self, key: object, node: Node, names: frozenset[str]) -> Node:
        known = self._nodes.setdefault(key, node)
        if known is node:
            self._names[node] = names
        return known


def _is_text(node: Literal) -> bool:
    return isinstance(node.value, str)


def _needed(nodes: tuple[Node, ...], stop: bool) -> tuple[Node, ...]:
    """The operands of a connective that can matter."""
    kept: list[Node] = []
    for node in nodes:
        if isinstance(node, Literal) and not _is_text(node):
            if truth(node.value) is stop:
                kept.append(node)
                break
            continue
        kept.append(node)
    return tuple(kept)
