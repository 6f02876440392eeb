"""Validity of one configuration: domains, conditions and constraints, as fast closures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from evotune.space.language.interning import Interner
from evotune.space.language.nodes import EvaluationError, Node, Operation
from evotune.space.language.scalar import Evaluate, compile_scalar, truth
from evotune.space.scope import BoundConstraint, Gene
from evotune.trial import Value

MIN_SHARED_DEPTH = 3  # below it, looking a value up costs as much as computing it


class Rules:
    """What makes a configuration a member of the space."""

    def __init__(
        self,
        genes: Sequence[Gene],
        constraints: Sequence[BoundConstraint],
        interner: Interner,
    ) -> None:
        self.genes = genes
        self._interner = interner
        self.names = tuple(gene.name for gene in genes)
        self.constraints = constraints
        conditions = [node for constraint in constraints for node in constraint.nodes]
        rules = [gene.rule for gene in genes if gene.rule is not None]
        self.conditions: tuple[Node, ...] = tuple(dict.fromkeys([*rules, *conditions]))
        whens = [gene.when for gene in genes if gene.when is not None]
        shared = _shared_nodes([*self.conditions, *whens], interner)
        closures = {node: compile_scalar(node, shared) for node in (*self.conditions, *whens)}
        self._holds = [closures[node] for node in dict.fromkeys(conditions)]
        self._holding = [[closures[node] for node in c.nodes] for c in constraints]
        self._when = {gene.name: closures[gene.when] for gene in genes if gene.when is not None}
        self._when_touching: dict[str, list[Evaluate]] = {
            name: [
                closures[gene.when]
                for gene in genes
                if gene.when is not None and name in interner.names(gene.when)
            ]
            for name in self.names
        }
        self._conditional = _dependency_order(genes, interner)
        self._touching: dict[str, list[Evaluate]] = {
            name: [closures[n] for n in dict.fromkeys(conditions) if name in interner.names(n)]
            for name in self.names
        }
        self._indices = {gene.name: _index(gene.values) for gene in genes}
        self._domain_sizes = {gene.name: gene.spec.parameter.cardinality for gene in genes}

    def index(self, name: str, value: object) -> int:
        """Where the value stands among the gene's values, -1 if it is none of them."""
        return self._indices[name](value)

    def in_domain(self, name: str, value: object) -> bool:
        return 0 <= self._indices[name](value) < self._domain_sizes[name]

    def is_active(self, name: str, values: Mapping[str, Value]) -> bool:
        """Whether the parameter's `when` holds; one that cannot be evaluated does not."""
        when = self._when.get(name)
        return when is None or _holds(when, dict(values))

    def active(self, values: Mapping[str, Value]) -> frozenset[str]:
        """The parameters that are."""
        environment: dict[Any, Value] = dict(values)
        inactive = {name for name, when in self._when.items() if not _holds(when, environment)}
        return frozenset(name for name in self.names if name not in inactive)

    def canonical(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Inactive parameters get their inactive value; active ones outside their domain, and
        missing ones, their default."""
        result: dict[str, Value] = {}
        for gene in self.genes:
            given = values.get(gene.name)
            known = gene.when is not None or self.in_domain(gene.name, given)
            result[gene.name] = given if known and given is not None else initial(gene)
        for gene in self._conditional:
            if not self.is_active(gene.name, result):
                result[gene.name] = gene.spec.otherwise
            elif not self.in_domain(gene.name, result[gene.name]):
                result[gene.name] = initial(gene)
        return result

    def is_canonical(self, values: Mapping[str, Value]) -> bool:
        """Whether every parameter has a value it may have, given the others."""
        if values.keys() != self._indices.keys():
            return False
        for gene in self.genes:
            index = self.index(gene.name, values[gene.name])
            if index < 0:
                return False
            if gene.when is None:
                continue
            if self.is_active(gene.name, values):
                if index >= self._domain_sizes[gene.name]:
                    return False
            elif index != self.index(gene.name, gene.spec.otherwise):
                return False
        return True

    def satisfied(self, values: Mapping[str, Value]) -> bool:
        """Whether all constraints hold and every `when` has a value."""
        environment: dict[Any, Value] = dict(values)
        return all(_holds(condition, environment) for condition in self._holds) and all(
            _has_value(when, environment) for when in self._when.values()
        )

    def switches(self, name: str) -> bool:
        """Whether changing the parameter can activate or deactivate others."""
        return bool(self._when_touching[name])

    def still_satisfied(self, values: Mapping[str, Value], changed: str) -> bool:
        """`satisfied`, for values that differ from satisfying ones in `changed` only."""
        environment: dict[Any, Value] = dict(values)
        return all(_holds(condition, environment) for condition in self._touching[changed]) and all(
            _has_value(when, environment) for when in self._when_touching[changed]
        )

    def involved_in_violations(self, values: Mapping[str, Value]) -> frozenset[str]:
        """The parameters of the constraints that do not hold."""
        nodes = [node for constraint in self.violated(values) for node in constraint.nodes]
        return frozenset[str]().union(*(self._interner.names(node) for node in nodes))

    def violated(self, values: Mapping[str, Value]) -> list[BoundConstraint]:
        environment: dict[Any, Value] = dict(values)
        return [
            constraint
            for constraint, conditions in zip(self.constraints, self._holding, strict=True)
            if not all(_holds(condition, environment) for condition in conditions)
        ]


def initial(gene: Gene) -> Value:
    """The value a parameter starts from when nothing else is known."""
    default = gene.spec.default
    return gene.spec.parameter.values[0] if default is None else default


def _holds(condition: Evaluate, environment: dict[Any, Value]) -> bool:
    try:
        return truth(condition(environment))
    except EvaluationError:
        return False


def _has_value(when: Evaluate, environment: dict[Any, Value]) -> bool:
    try:
        when(environment)
    except EvaluationError:
        return False
    return True


def _index(values: Sequence[Value]) -> Callable[[object], int]:
    if isinstance(values, range):
        low, step = values.start, values.step

        def in_range(value: object) -> int:
            if type(value) is not int or value not in values:
                return -1
            return (value - low) // step

        return in_range
    table = {(type(value), value): i for i, value in enumerate(values)}

    def in_table(value: object) -> int:
        return table.get((type(value), value), -1) if isinstance(value, bool | int | str) else -1

    return in_table


def _shared_nodes(roots: Iterable[Node], interner: Interner) -> frozenset[Node]:
    """Operations with more than one user that are worth remembering."""
    users: Counter[Node] = Counter()
    pending = list(dict.fromkeys(roots))
    seen = set(pending)
    while pending:
        node = pending.pop()
        if isinstance(node, Operation):
            for operand in node.operands:
                users[operand] += 1
                if operand not in seen:
                    seen.add(operand)
                    pending.append(operand)
    return frozenset(
        node
        for node, count in users.items()
        if count > 1 and isinstance(node, Operation) and interner.depth(node) >= MIN_SHARED_DEPTH
    )


def _dependency_order(genes: Sequence[Gene], interner: Interner) -> list[Gene]:
    """Conditional genes, each after those its `when` depends on."""
    waiting = {gene.name: gene for gene in genes if gene.when is not None}
    order: list[Gene] = []
    while waiting:
        ready = [
            gene
            for gene in waiting.values()
            if gene.when is not None and not interner.names(gene.when) & waiting.keys()
        ]
        for gene in ready:
            order.append(gene)
            del waiting[gene.name]
    return order
