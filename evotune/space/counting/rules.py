"""Checks the validity of one configuration: domains, conditions and constraints, as fast
closures."""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from evotune.space.case_scope import BoundConstraint, Gene
from evotune.space.language.nodes import (
    MIN_SHARED_DEPTH,
    Environment,
    Evaluate,
    EvaluationError,
    Interner,
    Node,
    compile_scalar,
    truth,
    used_often,
)
from evotune.trial import Value

_KINDS = frozenset({bool, int, str})  # of values in a domain; all can be hashed
MAX_REMEMBERED = 4096  # answers kept for one condition


class Rules:
    """Decides whether a configuration is a member of the space."""

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
        shared = used_often([*self.conditions, *whens], MIN_SHARED_DEPTH)
        closures = {node: compile_scalar(node, shared) for node in conditions}
        self._holding = [[closures[node] for node in c.nodes] for c in constraints]
        # Without shared nodes, which would store their values in the caller's mapping.
        self._when = {gene.name: compile_scalar(gene.when) for gene in genes if gene.when}
        requirements = [
            *((n, _Requirement(closures[n], _holds, interner.names(n))) for n in closures),
            *(
                (n, _Requirement(compile_scalar(n), _has_value, interner.names(n)))
                for n in dict.fromkeys(whens)
            ),
        ]
        self._required = [requirement for _, requirement in requirements]
        self._required_of = {
            name: [requirement for n, requirement in requirements if name in interner.names(n)]
            for name in self.names
        }
        self._switching = {name for node in whens for name in interner.names(node)}
        self._conditional = _dependency_order(genes, interner)
        self._indices = {gene.name: _index(gene.values) for gene in genes}
        self._domain_sizes = {gene.name: gene.spec.parameter.cardinality for gene in genes}

    def index(self, name: str, value: object) -> int:
        """The value's index among the gene's values; -1 if it is none of them."""
        return self._indices[name](value)

    def in_domain(self, name: str, value: object) -> bool:
        return 0 <= self._indices[name](value) < self._domain_sizes[name]

    def is_active(self, name: str, values: Mapping[str, Value]) -> bool:
        """Whether the parameter's `when` holds. A condition that cannot be evaluated does not
        hold."""
        when = self._when.get(name)
        return when is None or _holds(when, values)

    def active(self, values: Mapping[str, Value]) -> frozenset[str]:
        """The names of the active parameters."""
        inactive = {name for name, when in self._when.items() if not _holds(when, values)}
        return frozenset(name for name in self.names if name not in inactive)

    def canonical(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """The values in canonical form. An inactive parameter gets its inactive value. A missing
        parameter, or an active one with a value outside its domain, gets its default."""
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
        """Whether every parameter has a value that it may have, given the others."""
        if values.keys() != self._indices.keys():
            return False
        for gene in self.genes:
            index = self._indices[gene.name](values[gene.name])
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
        """Whether all constraints hold and every `when` has a value. The values must be
        canonical."""
        return _all_met(self._required, values)

    def switches(self, name: str) -> bool:
        """Whether changing the parameter can activate or deactivate others."""
        return name in self._switching

    def still_satisfied(self, values: Mapping[str, Value], changed: str) -> bool:
        """`satisfied` for values that differ from valid values only in `changed`."""
        return _all_met(self._required_of[changed], values)

    def involved_in_violations(self, values: Mapping[str, Value]) -> frozenset[str]:
        """The parameters of the constraints that do not hold."""
        nodes = [node for constraint, _ in self.violated(values) for node in constraint.nodes]
        return frozenset[str]().union(*(self._interner.names(node) for node in nodes))

    def violated(self, values: Mapping[str, Value]) -> list[tuple[BoundConstraint, str]]:
        """The constraints that do not hold. Each has the reason if it has no value, else ""."""
        environment: dict[Any, Value] = dict(values)
        found = []
        for constraint, conditions in zip(self.constraints, self._holding, strict=True):
            try:
                if not all(truth(condition(environment)) for condition in conditions):
                    found.append((constraint, ""))
            except EvaluationError as error:
                found.append((constraint, str(error)))
        return found


class _Requirement:
    """A condition and its answers so far, by the values of the parameters that it names. A search
    stays near good configurations, and asks for the same values again and again."""

    __slots__ = ("_evaluate", "_test", "key", "known")

    def __init__(
        self,
        evaluate: Evaluate,
        test: Callable[[Evaluate, Environment], bool],
        names: Iterable[str],
    ) -> None:
        self._evaluate = evaluate
        self._test = test
        # 1 and True are the same key: they mean the same to an expression. A domain has no 1.0.
        self.key: Callable[[Any], object] = operator.itemgetter(*names) if names else _nothing
        self.known: dict[object, bool] = {}

    def met(self, key: object, environment: Environment) -> bool:
        if len(self.known) >= MAX_REMEMBERED:
            self.known.clear()
        found = self.known[key] = self._test(self._evaluate, environment)
        return found


def _nothing(values: object) -> tuple[()]:
    return ()


def _all_met(requirements: Iterable[_Requirement], values: Mapping[str, Value]) -> bool:
    environment: Environment = {}
    for requirement in requirements:
        key = requirement.key(values)
        met = requirement.known.get(key)
        if met is None:
            environment = environment or dict(values)
            met = requirement.met(key, environment)
        if not met:
            return False
    return True


def initial(gene: Gene) -> Value:
    """The value of a parameter in a default configuration that does not name it."""
    default = gene.spec.default
    return gene.spec.parameter.values[0] if default is None else default


def _holds(condition: Evaluate, environment: Any) -> bool:
    try:
        return truth(condition(environment))
    except EvaluationError:
        return False


def _has_value(when: Evaluate, environment: Any) -> bool:
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
    table: dict[tuple[type, object], int] = {(type(v), v): i for i, v in enumerate(values)}

    def in_table(value: object) -> int:
        kind = type(value)
        return table.get((kind, value), -1) if kind in _KINDS else -1

    return in_table


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


# The valid configurations next to one configuration.
DENSE_VALUES = 64  # of longer ordered domains, only distances 1, 2, 4, 8, … are tried
MAX_COMPLETIONS = 64
MAX_FIXES = 512


def neighbours(rules: Rules, values: Mapping[str, Value]) -> Iterator[dict[str, Value]]:
    """Valid canonical values that differ in one active parameter. Other parameters change only if
    their condition starts or stops holding. The nearest come first, then the order is that of the
    parameters."""
    values = dict(values)
    active = rules.active(values)
    moves = sorted(
        (
            (distance, place, index)
            for place, gene in enumerate(rules.genes)
            if gene.name in active
            for distance, index in _moves(gene, rules.index(gene.name, values[gene.name]))
        )
    )
    for _, place, index in moves:
        gene = rules.genes[place]
        moved = {**values, gene.name: gene.spec.parameter.values[index]}
        completed = _completed(rules, moved, gene.name)
        if completed is not None:
            yield completed


def fixed_by_one_change(
    rules: Rules, values: Mapping[str, Value], rng: random.Random
) -> dict[str, Value] | None:
    """Makes canonical values valid by changing one parameter of a violated constraint, and tries
    changes in an order that `rng` chooses. None if no single change is enough."""
    involved = rules.involved_in_violations(values)
    moves = [
        (gene, index)
        for gene in rules.genes
        if gene.name in involved and rules.is_active(gene.name, values)
        for _, index in _moves(gene, rules.index(gene.name, values[gene.name]))
    ]
    rng.shuffle(moves)
    for gene, index in moves[:MAX_FIXES]:
        moved = {**values, gene.name: gene.spec.parameter.values[index]}
        canonical = rules.canonical(moved) if rules.switches(gene.name) else moved
        if rules.satisfied(canonical):
            return canonical
    return None


def _moves(gene: Gene, current: int) -> Iterator[tuple[int, int]]:
    """Distance and index of the other values of the domain."""
    parameter = gene.spec.parameter
    size = parameter.cardinality
    if not parameter.ordered:
        yield from ((1, index) for index in range(size) if index != current)
    elif size <= DENSE_VALUES:
        yield from ((abs(index - current), index) for index in range(size) if index != current)
    else:
        for exponent in range(size.bit_length()):
            for index in (current - (1 << exponent), current + (1 << exponent)):
                if 0 <= index < size:
                    yield 1 << exponent, index


def _completed(rules: Rules, moved: dict[str, Value], changed: str) -> dict[str, Value] | None:
    """`moved` in canonical form and valid, or None."""
    if not rules.switches(changed):
        return moved if rules.still_satisfied(moved, changed) else None
    canonical = rules.canonical(moved)
    differing = [name for name in canonical if canonical[name] != moved[name]]
    if rules.satisfied(canonical):
        return canonical
    woken = [
        gene
        for gene in rules.genes
        if gene.name in differing and rules.is_active(gene.name, canonical)
    ]
    for values in itertools.islice(_alternatives(woken), MAX_COMPLETIONS):
        candidate = rules.canonical({**canonical, **values})
        if rules.satisfied(candidate):
            return candidate
    return None


def _alternatives(woken: Sequence[Gene]) -> Iterator[dict[str, Value]]:
    """Values for parameters that a move has made active, their defaults first."""
    if not woken:
        return
    ordered = [
        [initial(gene), *(v for v in gene.spec.parameter.values if v != initial(gene))]
        for gene in woken
    ]
    names = [gene.name for gene in woken]
    for values in itertools.product(*ordered):
        yield dict(zip(names, values, strict=True))
