"""Folds a configuration and the device into expressions; the symbols of a case stay names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from evotune.errors import SpaceError
from evotune.space._naming import Names
from evotune.space.language.expression import Expression
from evotune.space.language.nodes import (
    EvaluationError,
    Literal,
    Name,
    Node,
    Operation,
    names_in,
)
from evotune.space.language.scalar import Environment, Interner, compile_scalar
from evotune.space.specs import ConstraintSpec, ParameterSpec
from evotune.trial import Value


class CaseScope:
    """The expressions of one configuration as functions of a case's symbols alone.

    A `let` that depends on the case stays a name too, so that trees do not repeat what they share
    and do not get deep: `lets` has its tree, which may name other `let`s.
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
        """The symbol, or its value where that is known."""
        return self._symbol(name)

    def is_symbol(self, name: str) -> bool:
        return name in self._names.symbols

    def operation(self, operator: str, *operands: Node) -> Node:
        """The operation, folded as far as it is known."""
        return self._interner.operation(operator, operands)

    def holds(self, node: Node) -> bool | None:
        """Whether a condition holds in every case (True) or in none (False); None: it depends."""
        return bool(node.value) if isinstance(node, Literal) else None

    def needed(self, nodes: list[Node]) -> dict[str, Node]:
        """The `lets` that the trees name, also through each other, in the order of `lets`."""
        wanted: set[str] = set()
        waiting = list(nodes)
        while waiting:
            for name in names_in(waiting.pop()):
                if name.name in self.lets and name.name not in wanted:
                    wanted.add(name.name)
                    waiting.append(self.lets[name.name])
        return {name: node for name, node in self.lets.items() if name in wanted}

    def environment(self, symbols: Mapping[str, Value]) -> Environment:
        """The symbols and the values that the `lets` have with them. A `let` without a value is
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
        """No value is kept for the next case."""
        return False

    def evaluate(self, expression: Expression, known: Environment) -> Value:
        """The value in the present case. SpaceError where there is none; `known` is not used."""
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
    """The tree's value with `CaseScope.environment`. EvaluationError when it has none."""
    try:
        return compile_scalar(node)(environment)
    except KeyError as error:  # of a `let` without a value
        raise EvaluationError(f"{error.args[0]} has no value") from error


@dataclass(frozen=True, slots=True)
class Gene:
    """A parameter as the search walks it.

    - `values`: the domain, then the inactive value if it is not in the domain.
    - `when`: the parameter's condition; None for an unconditional parameter.
    - `rule`: true exactly where the value fits `when`: a value of the domain while `when` holds,
      the inactive value otherwise. None for an unconditional parameter.
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
    """A constraint over parameters alone. It holds where all of `nodes` do, one for each distinct
    environment."""

    spec: ConstraintSpec
    nodes: tuple[Node, ...]


class Scope:
    """Replaces symbols, device limits and lets by their meaning in one environment.

    Parameters, and figures known only after compiling, stay names.
    """

    def __init__(self, names: Names, interner: Interner, environment: Mapping[str, Value]) -> None:
        self._names = names
        self._interner = interner
        self._environment = environment
        self._let: dict[str, Node] = {}

    @property
    def lets(self) -> Iterable[Node]:
        """The bound trees of the `let`s that were needed so far."""
        return self._let.values()

    def bind(self, expression: Expression) -> Node:
        """The interned tree over parameters; equal expressions give the same node. SpaceError for
        an expression that has no value here, whatever the parameters are."""
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
