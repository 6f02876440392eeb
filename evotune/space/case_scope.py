"""Folds a configuration and the device into expressions; the symbols of a case stay names.

`Names` resolves the names in a space file. It needs the problem's symbols and the device.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from evotune.errors import SpaceError
from evotune.space.language import Expression
from evotune.space.language.nodes import (
    Environment,
    EvaluationError,
    Interner,
    KindChecker,
    Kinds,
    Literal,
    Name,
    Node,
    Operation,
    compile_scalar,
    kinds_of,
    names_in,
)
from evotune.space.search_space import Parameter
from evotune.space.specs import ConstraintSpec, ParameterSpec
from evotune.trial import Value
from evotune.util.words import did_you_mean

if TYPE_CHECKING:
    from evotune.space.document import SpaceDocument


class CaseScope:
    """The expressions of one configuration as functions of a case's symbols alone.

    A `let` that depends on the case stays a name too, so that trees share subtrees and do not get
    deep. `lets` has its tree, which may name other `let`s.
    """

    def __init__(
        self,
        names: Names,
        configuration: Mapping[str, Value],
        known: Mapping[str, Value],
    ) -> None:
        """`known`: symbols that have the same value in every case, such as `dtype`."""
        self._names = names
        self._configuration = configuration
        self._known = known
        self._interner = Interner()
        self._let: dict[str, Node] = {}
        self.lets: dict[str, Node] = {}
        """The trees of the `let`s that depend on the case, each after those that it names."""

    def bind(self, expression: Expression) -> Node:
        """The expression's tree over symbols and `lets`."""
        for name in self._names.lets_in(expression):
            if name not in self._let:
                found = self._bind(self._names.let[name].node)
                if isinstance(found, Operation):
                    self.lets[name] = found
                    found = self._interner.name(name)
                self._let[name] = found
        return self._bind(expression.node)

    def literal(self, value: Value) -> Node:
        return self._interner.literal(value)

    def symbol(self, name: str) -> Node:
        """The node of a symbol, or of its value if that is known."""
        return self._symbol(name)

    def is_symbol(self, name: str) -> bool:
        return name in self._names.symbols

    def operation(self, operator: str, *operands: Node) -> Node:
        """The node of an operation, with its known operands evaluated."""
        return self._interner.operation(operator, operands)

    def holds(self, node: Node) -> bool | None:
        """True if a condition holds in every case, False if it holds in none, None if it depends on
        the case."""
        return bool(node.value) if isinstance(node, Literal) else None

    def needed(self, nodes: list[Node]) -> dict[str, Node]:
        """The `lets` that the trees use, directly or through each other, in the order of `lets`."""
        wanted: set[str] = set()
        waiting = list(nodes)
        while waiting:
            for name in names_in(waiting.pop()):
                if name.name in self.lets and name.name not in wanted:
                    wanted.add(name.name)
                    waiting.append(self.lets[name.name])
        return {name: node for name, node in self.lets.items() if name in wanted}

    def environment(self, symbols: Mapping[str, Value]) -> Environment:
        """The symbols, and the values of the `lets` for these symbols. A `let` without a value is
        left out."""
        found: Environment = dict(symbols)
        for name, node in self.lets.items():
            try:
                found[name] = compile_scalar(node)(found)
            except (EvaluationError, KeyError):
                continue
        return found

    def _bind(self, node: Node) -> Node:
        if isinstance(node, Literal):
            return self._interner.literal(node.value)
        if isinstance(node, Name):
            return self._bind_name(node.name)
        return self._interner.operation(node.operator, map(self._bind, node.operands))

    def _bind_name(self, name: str) -> Node:
        names = self._names
        if name in self._configuration:
            return self._interner.literal(self._configuration[name])
        if name in names.let:
            return self._let[name]
        if name in names.device:
            return self._interner.literal(names.device[name])
        if name in names.symbols:
            return self._symbol(name)
        return self._interner.literal(name)  # a choice

    def _symbol(self, name: str) -> Node:
        if name in self._known:
            return self._interner.literal(self._known[name])
        return self._interner.name(name)


class CaseEvaluator:
    """Evaluates the expressions of one configuration in one case after another, as
    `evotune.space.bound.Evaluator` does for one configuration after another in one case."""

    def __init__(self, scope: CaseScope) -> None:
        self._scope = scope
        self._nodes: dict[str, Node] = {}
        self._symbols: Mapping[str, Value] = {}
        self._environment: Environment = {}
        self._lets = 0  # so many had been found when the environment was made

    def at(self, symbols: Mapping[str, Value]) -> CaseEvaluator:
        """The evaluator for the case of these symbols."""
        self._symbols, self._lets = symbols, -1
        return self

    @staticmethod
    def is_constant(expression: Expression) -> bool:
        """Always False, because a value may differ in the next case."""
        return False

    def evaluate(self, expression: Expression, known: Environment) -> Value:
        """The value in the present case. Raises SpaceError if it has none. `known` is not used."""
        node = self._nodes.get(expression.text)
        if node is None:
            node = self._nodes[expression.text] = self._scope.bind(expression)
        if self._lets != len(self._scope.lets):
            self._environment = self._scope.environment(self._symbols)
            self._lets = len(self._scope.lets)
        try:
            return evaluate(node, self._environment)
        except EvaluationError as error:
            raise expression.error(f"{error} in `{expression.text}`") from error


def evaluate(node: Node, environment: Environment) -> Value:
    """The tree's value with `CaseScope.environment`. Raises EvaluationError if it has none."""
    try:
        return compile_scalar(node)(environment)
    except KeyError as error:  # of a `let` without a value
        raise EvaluationError(f"{error.args[0]} has no value") from error


@dataclass(frozen=True, slots=True)
class Gene:
    """A parameter in the form in which the search uses it.

    - `values`: the domain, then the inactive value if it is not in the domain.
    - `when`: the parameter's condition; None for an unconditional parameter.
    - `rule`: a condition that is true if the value is in the domain and `when` holds, or if it is
      the inactive value and `when` does not hold. None for an unconditional parameter.
    """

    spec: ParameterSpec
    values: Sequence[Value]
    when: Node | None
    rule: Node | None
    name: str = field(init=False)  # the parameter's; stored, as it is read the most

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.spec.name)


@dataclass(frozen=True, slots=True)
class BoundConstraint:
    """A constraint over parameters only. It holds if all of `nodes` hold, one for each distinct
    environment."""

    spec: ConstraintSpec
    nodes: tuple[Node, ...]


class Scope:
    """Replaces symbols, device limits and `let`s in expressions by their values in one environment.

    Parameters, and figures known only after compiling, stay names.
    """

    def __init__(self, names: Names, interner: Interner, environment: Mapping[str, Value]) -> None:
        self._names = names
        self._interner = interner
        self._environment = environment
        self._let: dict[str, Node] = {}

    @property
    def lets(self) -> Iterable[Node]:
        """The trees of the `let`s that were bound so far."""
        return self._let.values()

    def bind(self, expression: Expression) -> Node:
        """The interned tree of an expression over parameters; equal expressions give the same node.
        Raises SpaceError for an expression that has no value in this environment, whatever the
        parameters are."""
        for name in self._names.lets_in(expression):
            if name not in self._let:
                self._let[name] = self._bind(self._names.let[name].node)
        node = self._bind(expression.node)
        failure = self._interner.failure(node)
        if failure:
            raise expression.error(f"{failure} in `{expression.text}`")
        return node

    def _bind(self, node: Node) -> Node:
        if isinstance(node, Literal):
            return self._interner.literal(node.value)
        if isinstance(node, Name):
            return self._bind_name(node.name)
        operands = [self._bind(operand) for operand in node.operands]
        return self._interner.operation(node.operator, operands)

    def _bind_name(self, name: str) -> Node:
        names = self._names
        if name in names.parameters or name in names.figures:
            return self._interner.name(name)
        if name in names.let:
            return self._let[name]
        if name in names.device:
            return self._interner.literal(names.device[name])
        if name in names.symbols and name not in self._environment:
            raise SpaceError(f"this shape has no '{name}'")
        return self._interner.literal(self._environment.get(name, name))


# Figures of a candidate that are known only after compiling; `after_compile` may use them.

COMPILED_FIGURES: Mapping[str, type] = {
    "registers": int,  # of a thread
    "spill_bytes": int,  # stores and loads
    "spill_store_bytes": int,
    "spill_load_bytes": int,
    "stack_bytes": int,  # of a thread
    "serialized": int,  # 1 if ptxas makes each wgmma wait for the one before it
    "static_shared_bytes": int,
    "shared_bytes_total": int,  # of a block, static and dynamic
    "occupancy": float,  # resident warps / the most a multiprocessor takes, 0 to 1
    "blocks_resident": int,  # on a multiprocessor
}
"""The type of each compiled figure, by name. A figure is the worst over the launches of a case."""


class Names:
    """Resolves a name as a parameter, let, problem symbol, device value or choice, in this order.

    Clashes and ambiguities are refused, so the order never decides a meaning.
    """

    def __init__(
        self,
        document: SpaceDocument,
        environments: Sequence[Mapping[str, Value]],
        device: Mapping[str, Value],
    ) -> None:
        self.parameters: dict[str, Parameter] = {
            spec.name: spec.parameter for spec in document.parameters
        }
        self.let = document.let
        self.environments = environments
        self.device = {f"device.{name}": value for name, value in device.items()}
        self.symbols = set(environments[0]).intersection(*environments[1:])
        self.varying = {
            name
            for name in self.symbols
            if len({(type(env[name]), env[name]) for env in environments}) > 1
        }
        self.values: dict[str, tuple[Value, ...] | range] = {
            spec.name: _all_values(spec.parameter, spec.otherwise) for spec in document.parameters
        }
        self.choices = {
            value for values in self.values.values() for value in values if isinstance(value, str)
        }
        self.figures: Mapping[str, type] = {}
        self._kinds: dict[str, Kinds] = {
            name: kinds_of(values) if not isinstance(values, range) else frozenset((int,))
            for name, values in self.values.items()
        }
        self._check_clashes(document)
        self._let_parts: dict[str, tuple[str, ...]] = {}
        for name in self._ordered_lets():
            self._kinds[name] = self.check(self.let[name])
            self._let_parts[name] = (*self.lets_in(self.let[name]), name)

    def after_compile(self, document: SpaceDocument) -> Names:
        """These names plus the compiled figures. Raises SpaceError if a figure's name is taken."""
        for name in COMPILED_FIGURES:
            if name in self.let:
                message = f"let '{name}': 'after_compile' has a compiled figure of that name"
                raise self.let[name].error(message)
            if name in self.symbols or name in self.choices:
                what = "problem symbol" if name in self.symbols else "choice"
                message = f"the {what} '{name}' has the name of a compiled figure; rename it"
                raise document.after_compile[0].expression.error(message)
        names = copy.copy(self)
        names.figures = COMPILED_FIGURES
        return names

    def _check_clashes(self, document: SpaceDocument) -> None:
        for spec in document.parameters:
            if spec.name in self.symbols:
                raise spec.position.error(
                    f"'{spec.name}' is also a symbol of the problem; rename the parameter"
                )
        for name, expression in self.let.items():
            for known, what in ((self.parameters, "parameter"), (self.symbols, "problem symbol")):
                if name in known:
                    raise expression.error(f"let '{name}': a {what} has this name already")

    def _ordered_lets(self) -> list[str]:
        order: list[str] = []
        trail: list[str] = []

        def visit(name: str) -> None:
            if name in order:
                return
            if name in trail:
                cycle = " -> ".join([*trail[trail.index(name) :], name])
                raise self.let[name].error(f"a let depends on itself: {cycle}")
            trail.append(name)
            for used in self.let[name].names:
                if used.name in self.let:
                    visit(used.name)
            trail.pop()
            order.append(name)

        for name in self.let:
            visit(name)
        return order

    def known(self) -> set[str]:
        known = {*self.parameters, *self.let, *self.symbols, *self.device, *self.choices}
        return known | set(self.figures)

    def is_named(self, name: str) -> bool:
        """Whether the name has a value; the bare name of a choice has none."""
        return (
            name in self.parameters
            or name in self.let
            or name in self.symbols
            or name in self.device
            or name in self.figures
        )

    def check(self, expression: Expression, beside: Collection[str] = ()) -> Kinds:
        """The types that the expression can have. Raises SpaceError if a name or type is wrong. The
        error may also propose the names in `beside`."""
        for name in expression.names:
            self._check_name(expression, name, beside)
        node = self.with_choices(expression.node)
        checker = KindChecker(expression.position, self._name_kinds, self._name_values)
        return checker.infer(node)

    def _check_name(self, expression: Expression, name: Name, beside: Collection[str]) -> None:
        named = self.is_named(name.name)
        if named and name.name in self.choices:
            message = f"'{name.name}' is a choice and a name; quote it if the choice is meant"
            raise expression.error(message, name.offset)
        if named or name.name in self.choices:
            return
        if name.name in COMPILED_FIGURES:
            message = f"'{name.name}' is known only after compiling; use it in 'after_compile'"
            raise expression.error(message, name.offset)
        if name.name.startswith("device."):
            known: Iterable[str] = self.device
        else:
            known = self.known().union(beside) - set(self.device)
            texts = {value for env in self.environments for value in env.values()}
            if name.name in texts:
                message = f"unknown name '{name.name}'; quote it: '{name.name}' is a value"
                raise expression.error(message, name.offset)
        hint = did_you_mean(name.name, known)
        if not hint and self.figures:
            hint = f"; known besides those of constraints: {', '.join(sorted(self.figures))}"
        raise expression.error(f"unknown name '{name.name}'{hint}", name.offset)

    def with_choices(self, node: Node) -> Node:
        """The tree with bare names of choices replaced by literals."""
        if isinstance(node, Name) and not self.is_named(node.name):
            return Literal(node.name)
        if isinstance(node, Operation):
            operands = tuple(self.with_choices(operand) for operand in node.operands)
            return Operation(node.operator, operands, node.offset)
        return node

    def _name_kinds(self, name: Name) -> Kinds:
        if name.name in self._kinds:
            return self._kinds[name.name]
        if name.name in self.device:
            return frozenset((type(self.device[name.name]),))
        if name.name in self.figures:
            return frozenset((self.figures[name.name],))
        return kinds_of(env[name.name] for env in self.environments)

    def _name_values(self, name: Name) -> tuple[Value, ...] | None:
        values = self.values.get(name.name)
        return values if isinstance(values, tuple) and kinds_of(values) == {str} else None

    def lets_in(self, expression: Expression) -> list[str]:
        """The `let`s that the expression uses, directly or indirectly; each comes after the `let`s
        that it uses."""
        direct = [name.name for name in expression.names if name.name in self.let]
        return list(dict.fromkeys(let for name in direct for let in self._let_parts[name]))

    def all_names_in(self, expression: Expression) -> dict[str, Name]:
        """Every name on which the expression depends, directly or through `let`s. Each is mapped to
        the first name in the expression's own text that leads to it."""
        found: dict[str, Name] = {}
        for name in expression.names:
            found.setdefault(name.name, name)
            for let in self._let_parts.get(name.name, ()):
                for inner in self.let[let].names:
                    found.setdefault(inner.name, name)
        return found

    def varying_in(self, expression: Expression) -> Name | None:
        """The first name in the expression whose value differs between the environments."""
        names = self.all_names_in(expression)
        return next((use for name, use in names.items() if name in self.varying), None)


def _all_values(parameter: Parameter, otherwise: Value) -> tuple[Value, ...] | range:
    values = parameter.values
    if isinstance(values, range):
        return values
    return tuple(values) if otherwise in values else (*values, otherwise)
