"""Binds the names of a space file to their values in one environment; genes, bound constraints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from evotune.errors import SpaceError
from evotune.space._naming import Names
from evotune.space.language.expression import Expression
from evotune.space.language.interning import Interner
from evotune.space.language.nodes import Literal, Name, Node
from evotune.space.specs import ConstraintSpec, ParameterSpec
from evotune.trial import Value


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
