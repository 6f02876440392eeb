"""Finds how much each constraint removes (for `evotune check`), and which constraints empty a
space."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from evotune.errors import SpaceError
from evotune.space.case_scope import BoundConstraint, Gene
from evotune.space.counting import Members
from evotune.space.counting.expansion import (
    QUICK,
    SHOWN_S,
    Deadline,
    OutOfTime,
    Variable,
    conjuncts,
    unknown_bounds,
)
from evotune.space.language import Expression
from evotune.space.language.columns import may_fail
from evotune.space.language.nodes import (
    EvaluationError,
    Interner,
    Name,
    Node,
    Operation,
    compile_scalar,
)
from evotune.space.reading.yaml_source import Position

_Suspect = TypeVar("_Suspect")
_LISTED = 6


@dataclass(frozen=True, slots=True)
class ConstraintReport:
    """How much one constraint removes. A count is None if there was no time for it.

    - `removes_alone`: the points that it removes from the space that has no other constraint.
    - `removes_last`: the points that only this constraint removes.
    - `without_value`: those of the points of `removes_alone` at which the constraint has no value.
    - `exact`: False if the counts are estimates.
    """

    text: str
    reason: str
    position: Position
    removes_alone: int | None
    removes_last: int | None
    without_value: int | None
    exact: bool


class _Counter:
    def __init__(
        self, variables: Sequence[Variable], genes: Sequence[Gene], interner: Interner
    ) -> None:
        self.variables = variables
        self.interner = interner
        self.rules = [gene.rule for gene in genes if gene.rule is not None]

    def count(self, nodes: Iterable[Node], deadline: Deadline) -> Members | None:
        """The combinations for which these nodes and the genes' rules hold; None if out of time."""
        try:
            return self.all_of([*self.rules, *nodes], deadline)
        except OutOfTime:
            return None

    def all_of(self, nodes: Sequence[Node], deadline: Deadline) -> Members:
        return Members(self.variables, nodes, self.interner, QUICK, deadline)

    def has_value(self, nodes: Iterable[Node]) -> list[Node]:
        """Conditions that hold exactly if these nodes have a value."""
        return [self.interner.operation("==", (node, node)) for node in nodes]

    def why_no_value(self, nodes: Sequence[Node]) -> str:
        """The reason why these nodes have no value, for nodes that have none at any point."""
        point = {variable.name: variable.values[0] for variable in self.variables}
        for node in nodes:
            try:
                compile_scalar(node)(dict(point))
            except EvaluationError as error:
                return str(error)
        return ""


def report_constraints(
    variables: Sequence[Variable],
    genes: Sequence[Gene],
    constraints: Sequence[BoundConstraint],
    interner: Interner,
    deadline: Deadline,
) -> list[ConstraintReport]:
    """A report for each constraint, in the file's order. Each constraint gets the same share of the
    time."""
    counter = _Counter(variables, genes, interner)
    shares = len(constraints) + 1
    bounds = unknown_bounds(variables)
    own = deadline.share(shares)
    free, valid = counter.count((), own), counter.count(_nodes(constraints), own)
    reports = []
    for number, constraint in enumerate(constraints, start=1):
        own = deadline.share(shares - number)
        alone = counter.count(constraint.nodes, own)
        others = counter.count(_nodes(_without(constraints, constraint)), own)
        valued = free
        if any(may_fail(node, bounds) for node in constraint.nodes):
            valued = counter.count(counter.has_value(constraint.nodes), own)
        reports.append(
            ConstraintReport(
                text=constraint.spec.expression.text,
                reason=constraint.spec.reason,
                position=constraint.spec.expression.position,
                removes_alone=_difference(free, alone),
                removes_last=_difference(others, valid),
                without_value=_difference(free, valued),
                exact=all(m is not None and m.exact for m in (free, valid, alone, others, valued)),
            )
        )
    return reports


def _difference(more: Members | None, fewer: Members | None) -> int | None:
    return None if more is None or fewer is None else max(0, more.count - fewer.count)


def blame_crowd(constraints: Sequence[BoundConstraint], crowd: Crowd) -> SpaceError:
    """The error for parameters that must all differ, with too few values for that."""
    guilty = [c for c in constraints if any(map(crowd.is_made_by, c.nodes))]
    names = _and_more(list(crowd.names))
    return guilty[-1].spec.expression.position.error(
        f"no configuration satisfies all of {_listed(c.spec.expression for c in guilty)}: "
        f"{len(crowd.names)} parameters that must all differ ({names}) have {crowd.values} values"
    )


def blame_empty(
    variables: Sequence[Variable],
    genes: Sequence[Gene],
    constraints: Sequence[BoundConstraint],
    interner: Interner,
    deadline: Deadline,
) -> SpaceError:
    """The error for an empty space. It names a minimal set of constraints that empties the space,
    if there is time to find one."""
    counter = _Counter(variables, genes, interner)

    def empties(suspects: Sequence[BoundConstraint], own: Deadline) -> bool | None:
        members = counter.count(_nodes(suspects), own)
        return None if members is None else members.is_empty

    guilty, in_time = _smallest(constraints, empties, deadline)
    if not guilty:
        return _blame_conditions(counter, genes, deadline)
    position = guilty[-1].spec.expression.position
    unfinished = "" if in_time else f"; not narrowed down further within {SHOWN_S:g} s"
    if len(guilty) == 1:
        nodes = guilty[0].nodes
        valued = counter.count(counter.has_value(nodes), deadline)
        never = valued is not None and valued.is_empty
        why = f": it has no value, {counter.why_no_value(nodes)}" if never else unfinished
        return position.error(f"no configuration satisfies {guilty[0].spec}{why}")
    listed = _listed(constraint.spec.expression for constraint in guilty)
    return position.error(f"no configuration satisfies all of {listed}{unfinished}")


def not_found(constraints: Sequence[BoundConstraint], file: str, steps: int) -> SpaceError:
    """The error for a space in which no configuration was found, though it may not be empty."""
    message = f"found no configuration in {steps:,} steps"
    if not constraints:
        return SpaceError(message, file=file)
    listed = _listed(constraint.spec.expression for constraint in constraints)
    position = constraints[-1].spec.expression.position
    return position.error(f"{message}; constraints: {listed}")


def _blame_conditions(counter: _Counter, genes: Sequence[Gene], deadline: Deadline) -> SpaceError:
    """The error for a space without a configuration because its `when` conditions have no value.

    It names a smallest set of conditions such that at every point one of them has no value: a
    division by 0, for example.
    """

    def empties(suspects: Sequence[Gene], own: Deadline) -> bool | None:
        rules = [gene.rule for gene in suspects if gene.rule is not None]
        try:
            return counter.all_of(rules, own).is_empty
        except OutOfTime:
            return None

    conditional = [gene for gene in genes if gene.rule is not None]
    guilty, _ = _smallest(conditional, empties, deadline)
    conditions = [gene.spec.when for gene in guilty if gene.spec.when is not None]
    whens = [gene.when for gene in guilty if gene.when is not None]
    why = counter.why_no_value(whens) if len(whens) == 1 else ""
    return conditions[-1].position.error(
        f"no configuration gives 'when' a value: {_listed(conditions)}"
        + (f"; {why}" if why else "")
    )


def _smallest(
    suspects: Sequence[_Suspect],
    empties: Callable[[Sequence[_Suspect], Deadline], bool | None],
    deadline: Deadline,
) -> tuple[list[_Suspect], bool]:
    """The suspects without those that can be left out, and whether there was time to try each."""
    guilty, in_time = list(suspects), True
    for number, suspect in enumerate(suspects):
        others = _without(guilty, suspect)
        found = empties(others, deadline.share(len(suspects) - number))
        if found:
            guilty = others
        in_time &= found is not None
    return guilty, in_time


def _without(items: Sequence[_Suspect], left_out: _Suspect) -> list[_Suspect]:
    return [item for item in items if item is not left_out]


def _nodes(constraints: Iterable[BoundConstraint]) -> list[Node]:
    return [node for constraint in constraints for node in constraint.nodes]


def _listed(expressions: Iterable[Expression]) -> str:
    return _and_more([f"`{e.text}` ({e.position})" for e in expressions])


def _and_more(words: Sequence[str]) -> str:
    more = [f"{len(words) - _LISTED} more"] if len(words) > _LISTED else []
    return " and ".join([*words[:_LISTED], *more])


# Parameters that must all differ but have too few values for that.


@dataclass(frozen=True, slots=True)
class Crowd:
    """Parameters that must all differ from each other but have only `values` values in all."""

    names: tuple[str, ...]
    values: int

    def is_made_by(self, node: Node) -> bool:
        """Whether the condition demands that two of the parameters differ."""
        return any(pair <= set(self.names) for pair in _kept_apart([node]))


def find_crowd(variables: Sequence[Variable], conditions: Iterable[Node]) -> Crowd | None:
    """A crowd, by a simple search that may miss one; None if it finds none."""
    others: dict[str, set[str]] = {}
    for pair in _kept_apart(conditions):
        for name in pair:
            others.setdefault(name, set()).update(pair - {name})
    few_first = sorted(variables, key=lambda variable: len(variable.values))
    for start in few_first:
        crowd: list[str] = []
        values: set[object] = set()
        for variable in (start, *few_first):
            if others.get(variable.name, set()).issuperset(crowd) and variable.name not in crowd:
                crowd.append(variable.name)
                values.update(variable.values)
                if len(crowd) > len(values):
                    return Crowd(tuple(crowd), len(values))
    return None


def _kept_apart(conditions: Iterable[Node]) -> Iterable[frozenset[str]]:
    for condition in conditions:
        for node in conjuncts(condition):
            if isinstance(node, Operation) and node.operator == "!=":
                first, second = node.operands
                if isinstance(first, Name) and isinstance(second, Name):
                    yield frozenset((first.name, second.name))
