"""Works out the value of an expression in a script, without running any of the script."""

from __future__ import annotations

import ast
import operator
import posixpath
from collections.abc import Callable, Mapping, Sequence

from evotune.cli.kernel_tuner import numpy_functions
from evotune.cli.kernel_tuner.arithmetic import NoNumber, combine, negative, product
from evotune.cli.kernel_tuner.containers import (
    MOST_ITEMS,
    Names,
    bind,
    call_method,
    change,
    item_of,
    joined_texts,
    path_call,
    put,
    sort_key,
    spread,
    table_of,
    truth_of,
)
from evotune.cli.kernel_tuner.numpy_functions import NotRead
from evotune.cli.kernel_tuner.values import (
    Array,
    Dotted,
    File,
    Function,
    Listed,
    Nothing,
    Number,
    Table,
    Text,
    Unknown,
    Value,
    constant,
)

_MOST_STEPS = 300_000
_TOO_MANY = "the script takes too many steps to read"
_MOST_CHARACTERS = 4 << 20
_MOST_DEPTH = 60
_OPERATORS: dict[type[ast.operator], str] = {
    **{ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//"},
    **{ast.Mod: "%", ast.Pow: "**", ast.MatMult: "@"},
}
_FOLLOWED = (
    *("builtins", "numpy", "math", "os", "pathlib", "collections", "generator"),
    *("kernel_tuner", "logging", "json", "time", "copy", "pprint"),
)
"""Modules whose functions do not change their arguments."""
_ON_ARRAYS = ("+", "-", "*", "/", "**")
_COMPARISONS: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt},
    **{ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge},
}
BUILTINS = (
    *("max", "min", "sum", "len", "int", "float", "abs", "round", "range", "list", "tuple"),
    *("dict", "open", "sorted", "pow", "str", "bool"),
)


Follow = Callable[[Function, Sequence[Value], Mapping[str, Value]], Value | None]


class Evaluator:
    """Evaluates the expressions of one script. It bounds the steps and the items of all of them
    together."""

    def __init__(self, script: str, follow: Follow = lambda *given: None) -> None:
        """`follow`: gives what a function of the script returns, or None."""
        self.script = script
        self._follow = follow
        self._steps = 0
        self._items = 0

    def evaluate(self, node: ast.expr, names: Names, depth: int = 0) -> Value:
        """The expression's value; Unknown, with the reason, when it cannot be told."""
        self.step()
        if depth > _MOST_DEPTH:
            return Unknown(node.lineno, "the expression is nested too deep")
        if self.exhausted:
            return Unknown(node.lineno, _TOO_MANY)
        try:
            found = self._node(node, names, depth + 1)
        except (NotRead, NoNumber) as reason:
            return Unknown(node.lineno, str(reason))
        if isinstance(found, Array) and not found.line:
            found.line = node.lineno
        return found

    def step(self) -> None:
        self._steps += 1

    @property
    def exhausted(self) -> bool:
        return self._steps > _MOST_STEPS or self._items > MOST_ITEMS

    def _node(self, node: ast.expr, names: Names, depth: int) -> Value:
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            return Unknown(node.lineno, f"evotune does not read the expression `{_words(node)}`")
        found: Value = method(node, names, depth)
        return found

    def _constant(self, node: ast.Constant, names: Names, depth: int) -> Value:
        value = node.value
        if value is None:
            return Nothing()
        if isinstance(value, str):
            return Text(value)
        if isinstance(value, int | float) and abs(value) < 2**63:
            return Number(value, value, "bool" if isinstance(value, bool) else "")
        return Unknown(node.lineno, f"`{_words(node)}` is not a number that evotune reads")

    def _name(self, node: ast.Name, names: Names, depth: int) -> Value:
        if node.id in names:
            return names[node.id]
        if node.id == "__file__":
            return Text(self.script)
        if node.id in BUILTINS:
            return Dotted(f"builtins.{node.id}")
        return Unknown(node.lineno, f"{node.id} has no value that evotune knows")

    def _tuple(self, node: ast.Tuple | ast.List, names: Names, depth: int) -> Value:
        return Listed(self._many(node.elts, names, depth))

    _list = _tuple

    def _many(self, nodes: list[ast.expr], names: Names, depth: int) -> list[Value]:
        """The values of the expressions. `*list` gives the items of the list."""
        found: list[Value] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                value = self.evaluate(node.value, names, depth)
                found += spread(value)
            else:
                found.append(self.evaluate(node, names, depth))
        self._count(len(found))
        return found

    def _count(self, items: int) -> None:
        self._items += items
        if self._items > MOST_ITEMS:
            raise NotRead(f"the script makes more than {MOST_ITEMS} values")

    def _dict(self, node: ast.Dict, names: Names, depth: int) -> Value:
        made = Table({})
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                other = self.evaluate(value, names, depth)
                if not isinstance(other, Table):
                    raise NotRead("a dictionary in the dictionary is not known")
                made.items.update(other.items)
                continue
            put(made, self.evaluate(key, names, depth), self.evaluate(value, names, depth))
        return made

    def _lambda(self, node: ast.Lambda, names: Names, depth: int) -> Value:
        return Function(node, names)

    def _ifexp(self, node: ast.IfExp, names: Names, depth: int) -> Value:
        chosen = node.body if self._truth(node.test, names, depth) else node.orelse
        return self.evaluate(chosen, names, depth)

    def _truth(self, node: ast.expr, names: Names, depth: int) -> bool:
        return truth_of(self.evaluate(node, names, depth))

    def _compare(self, node: ast.Compare, names: Names, depth: int) -> Value:
        values = self._many([node.left, *node.comparators], names, depth)
        numbers = [value.value for value in values if isinstance(value, Number)]
        operators = [_COMPARISONS.get(type(each)) for each in node.ops]
        if len(numbers) < len(values) or None in operators:
            raise NotRead("a comparison is not between numbers that evotune knows")
        holds = all(compare(*numbers[i : i + 2]) for i, compare in enumerate(operators) if compare)
        return constant(int(holds), "bool")

    def _boolop(self, node: ast.BoolOp, names: Names, depth: int) -> Value:
        stops = isinstance(node.op, ast.Or)
        for part in node.values[:-1]:
            value = self.evaluate(part, names, depth)
            if truth_of(value) == stops:
                return value
        return self.evaluate(node.values[-1], names, depth)

    def _unaryop(self, node: ast.UnaryOp, names: Names, depth: int) -> Value:
        if isinstance(node.op, ast.Not):
            return constant(int(not self._truth(node.operand, names, depth)), "bool")
        value = self.evaluate(node.operand, names, depth)
        if isinstance(value, Unknown) or isinstance(node.op, ast.UAdd):
            return value
        if isinstance(value, Number) and isinstance(node.op, ast.USub):
            return negative(value)
        if isinstance(value, Array) and isinstance(node.op, ast.USub):
            return numpy_functions.elementwise("-", constant(0), value)
        raise NotRead(f"`{_words(node)}` is not a number that evotune knows")

    def _binop(self, node: ast.BinOp, names: Names, depth: int) -> Value:
        first, second = (self.evaluate(side, names, depth) for side in (node.left, node.right))
        for value in (first, second):
            if isinstance(value, Unknown):
                return value
        found = self._operation(_OPERATORS.get(type(node.op), ""), first, second)
        if found is None:
            raise NotRead(f"`{_words(node)}` is an operation that evotune does not know")
        return found

    def _operation(self, operator: str, first: Value, second: Value) -> Value | None:
        found: Value | None = None
        match first, second:
            case Number(), Number() if operator not in ("", "@"):
                found = combine(operator, first, second)
            case Array(), Array() if operator == "@":
                found = numpy_functions.matrix_product(first, second)
            case (Array() | Number(), Array() | Number()) if operator in _ON_ARRAYS:
                found = numpy_functions.elementwise(operator, first, second)
            case Text(), Text():
                found = joined_texts(operator, first, second)
            case Listed(), Listed() if operator == "+":
                self._count(len(first.items) + len(second.items))
                found = Listed([*first.items, *second.items])
            case Listed(), Number() if operator == "*":
                found = self._repeated(first, second)
        return found

    def _repeated(self, first: Listed, times: Number) -> Value:
        count = max(0, int(times.value))
        if count * len(first.items) > MOST_ITEMS:
            raise NotRead(f"a list of more than {MOST_ITEMS} values")
        self._count(count * len(first.items))
        return Listed(first.items * count)

    def _joinedstr(self, node: ast.JoinedStr, names: Names, depth: int) -> Value:
        parts = []
        for part in node.values:
            inner = part.value if isinstance(part, ast.FormattedValue) else part
            if isinstance(part, ast.FormattedValue) and part.format_spec is not None:
                raise NotRead("the text is formatted in a way that evotune does not know")
            value = self.evaluate(inner, names, depth)
            if isinstance(value, Number):
                parts.append(str(value.value))
            elif isinstance(value, Text) and not value.file:
                parts.append(value.text)
            else:
                raise NotRead("a part of the text is not known")
        text = "".join(parts)
        return Text(text[:_MOST_CHARACTERS])

    def _attribute(self, node: ast.Attribute, names: Names, depth: int) -> Value:
        value = self.evaluate(node.value, names, depth)
        found: Value | None = None
        match value, node.attr:
            case Array(), "shape":
                found = Listed(list(value.shape))
            case Array(), "size":
                found = product(value.shape)
            case Array(), "T":
                found = numpy_functions.transposed(value)
            case Array(), "dtype":
                found = Text(value.dtype)
            case Text(), "parent":
                found = Text(posixpath.dirname(value.text))
            case Dotted(), _:
                found = _known_constant(f"{value.path}.{node.attr}")
            case Unknown(), _:
                found = value
        if found is None:
            raise NotRead(f"`{_words(node)}` is not known")
        return found

    def _subscript(self, node: ast.Subscript, names: Names, depth: int) -> Value:
        value = self.evaluate(node.value, names, depth)
        if isinstance(value, Unknown):
            return value
        if isinstance(value, Listed) and isinstance(node.slice, ast.Slice):
            bounds = [
                self._index(part, names, depth)
                for part in (node.slice.lower, node.slice.upper, node.slice.step)
            ]
            if bounds[2] == 0:
                raise NotRead("a step of 0")
            items = value.items[slice(*bounds)]
            self._count(len(items))
            return Listed(items, value.tunable if len(items) == len(value.items) else "")
        return item_of(value, self.evaluate(node.slice, names, depth))

    def _index(self, node: ast.expr | None, names: Names, depth: int) -> int | None:
        if node is None:
            return None
        value = self.evaluate(node, names, depth)
        if isinstance(value, Number) and isinstance(value.value, int):
            return value.value
        raise NotRead("the place in the list is not known")

    def _listcomp(self, node: ast.ListComp | ast.GeneratorExp, names: Names, depth: int) -> Value:
        made: list[Value] = []
        if any(other.is_async for other in node.generators):
            raise NotRead("it is asynchronous")

        def fill(number: int, inner: Names) -> None:
            if number == len(node.generators):
                made.append(self.evaluate(node.elt, inner, depth))
                self._count(1)
                return
            generator = node.generators[number]
            for item in spread(self.evaluate(generator.iter, inner, depth)):
                local = dict(inner)
                bind(generator.target, item, local)
                self.step()
                if self.exhausted:
                    raise NotRead(_TOO_MANY)
                if all(self._truth(test, local, depth) for test in generator.ifs):
                    fill(number + 1, local)

        fill(0, dict(names))
        return Listed(made)

    _generatorexp = _listcomp

    def _call(self, node: ast.Call, names: Names, depth: int) -> Value:
        if isinstance(node.func, ast.Attribute):
            owner = self.evaluate(node.func.value, names, depth)
            if isinstance(owner, Unknown):
                return owner
            if not isinstance(owner, Dotted):
                arguments, keywords = self._arguments(node, names, depth)
                return call_method(owner, node.func.attr, arguments, keywords)
        function = self.evaluate(node.func, names, depth)
        if isinstance(function, Unknown):
            return function
        arguments, keywords = self._arguments(node, names, depth)
        found: Value | None = None
        if isinstance(function, Function):
            found = self._follow(function, arguments, keywords)
        if found is None and not _is_followed(function):
            for value in (*arguments, *keywords.values()):
                change(value, f"it is given to {_words(node.func)}(), which may change it")
            raise NotRead(f"the result of {_words(node.func)}() is not followed")
        if isinstance(function, Dotted):
            found = self._known_call(function.path, arguments, keywords)
        if found is not None:
            return found
        for value in (*arguments, *keywords.values()):
            if isinstance(value, Unknown):
                return value
        assert isinstance(function, Dotted)
        return numpy_functions.call(function.path, arguments, keywords)

    def _arguments(
        self, node: ast.Call, names: Names, depth: int
    ) -> tuple[list[Value], dict[str, Value]]:
        keywords = {
            word.arg: self.evaluate(word.value, names, depth) for word in node.keywords if word.arg
        }
        return self._many(node.args, names, depth), keywords

    def _known_call(
        self, path: str, arguments: list[Value], keywords: dict[str, Value]
    ) -> Value | None:
        """The result of a function that makes texts, paths, lists or dictionaries; None for any
        other function."""
        module, _, name = path.rpartition(".")
        first = arguments[0] if arguments else None
        found: Value | None = None
        if module == "os.path":
            found = path_call(name, arguments)
        elif name in ("OrderedDict", "dict"):
            found = table_of(first, keywords)
        elif path == "builtins.range":
            found = self._range(arguments)
        elif path in ("builtins.list", "builtins.tuple", "builtins.sorted"):
            if keywords:
                raise NotRead(f"{name}() with the keyword {min(keywords)} is not followed")
            items = spread(first) if first is not None else []
            items = sorted(items, key=sort_key) if name == "sorted" else list(items)
            self._count(len(items))
            found = Listed(items, first.tunable if isinstance(first, Listed) else "")
        elif isinstance(first, Text) and path == "builtins.open":
            found = File(first.text)
        elif isinstance(first, Text) and path == "pathlib.Path":
            found = first
        return found

    def _range(self, arguments: list[Value]) -> Value:
        ends = [value.value for value in arguments if isinstance(value, Number)]
        whole = [int(end) for end in ends if isinstance(end, int)]
        if len(whole) != len(arguments) or not 1 <= len(whole) <= 3 or whole[2:] == [0]:
            raise NotRead("the ends of the range are not known")
        values = range(*whole)
        if len(values) > MOST_ITEMS:
            raise NotRead(f"a range of more than {MOST_ITEMS} values")
        self._count(len(values))
        return Listed([constant(value) for value in values])


def _is_followed(function: Value) -> bool:
    return isinstance(function, Dotted) and function.path.split(".")[0] in _FOLLOWED


def _known_constant(path: str) -> Value:
    values = {"numpy.pi": 3.141592653589793, "math.pi": 3.141592653589793}
    return constant(values[path]) if path in values else Dotted(path)


def _words(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 60 else f"{text[:59]}…"
