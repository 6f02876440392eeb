"""Which constraints remove what: for `evotune check`, and for a space that is empty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evotune.errors import SpaceError
from evotune.space.counting.expansion import Variable
from evotune.space.counting.members import QUICK, Members
from evotune.space.language.expression import Expression
from evotune.space.language.interning import Interner
from evotune.space.language.nodes import Node
from evotune.space.reading.yaml_source import Position
from evotune.space.scope import BoundConstraint, Gene


@dataclass(frozen=True, slots=True)
class ConstraintReport:
    """What one constraint removes.

    `removes_alone` counts points of the space without any constraint, `removes_last` points
    that all the other constraints leave. Estimates when not `exact`.
    """

    text: str
    reason: str
    position: Position
    removes_alone: int
    removes_last: int
    exact: bool


class _Counter:
    def __init__(
        self, variables: Sequence[Variable], genes: Sequence[Gene], interner: Interner
    ) -> None:
        self.variables = variables
        self.interner = interner
        self.rules = [gene.rule for gene in genes if gene.rule is not None]

    def count(self, constraints: Sequence[BoundConstraint]) -> Members:
        nodes = [node for constraint in constraints for node in constraint.nodes]
        return self._members([*self.rules, *nodes])

    def is_empty(self, constraints: Sequence[BoundConstraint]) -> bool:
        """Whether it is certain that no configuration satisfies these constraints."""
        return _is_empty(self.count(constraints))

    def is_empty_by_rules(self, genes: Sequence[Gene]) -> bool:
        """Whether the rules of these genes alone leave no configuration."""
        return _is_empty(self._members([gene.rule for gene in genes if gene.rule is not None]))

    def _members(self, nodes: Sequence[Node]) -> Members:
        return Members(self.variables, nodes, self.interner, QUICK)


def _is_empty(members: Members) -> bool:
    return members.count == 0 and members.exact


def report_constraints(
    variables: Sequence[Variable],
    genes: Sequence[Gene],
    constraints: Sequence[BoundConstraint],
    interner: Interner,
) -> list[ConstraintReport]:
    """One report a constraint, in the order of the file."""
    counter = _Counter(variables, genes, interner)
    free, valid = counter.count(()), counter.count(constraints)
    reports = []
    for constraint in constraints:
        alone = counter.count([constraint])
        others = counter.count([other for other in constraints if other is not constraint])
        reports.append(
            ConstraintReport(
                text=constraint.spec.expression.text,
                reason=constraint.spec.reason,
                position=constraint.spec.expression.position,
                removes_alone=max(0, free.count - alone.count),
                removes_last=max(0, others.count - valid.count),
                exact=free.exact and valid.exact and alone.exact and others.exact,
            )
        )
    return reports


def blame_empty(
    variables: Sequence[Variable],
    genes: Sequence[Gene],
    constraints: Sequence[BoundConstraint],
    interner: Interner,
) -> SpaceError:
    """The error for a space without members: a smallest set of constraints that empties it."""
    counter = _Counter(variables, genes, interner)
    guilty = list(constraints)
    for constraint in constraints:
        others = [other for other in guilty if other is not constraint]
        if counter.is_empty(others):
            guilty = others
    if not guilty:
        return _blame_conditions(counter, [gene for gene in genes if gene.rule is not None])
    position = guilty[-1].spec.expression.position
    if len(guilty) == 1:
        return position.error(f"no configuration satisfies {guilty[0].spec}")
    listed = _listed([constraint.spec.expression for constraint in guilty])
    return position.error(f"no configuration satisfies all of {listed}")


def _blame_conditions(counter: _Counter, genes: Sequence[Gene]) -> SpaceError:
    """A smallest set of `when` of which one has no value (a division by 0, say) wherever one is."""
    guilty = list(genes)
    for gene in genes:
        others = [other for other in guilty if other is not gene]
        if counter.is_empty_by_rules(others):
            guilty = others
    conditions = [gene.spec.when for gene in guilty if gene.spec.when is not None]
    return conditions[-1].position.error(
        f"no configuration gives 'when' a value: {_listed(conditions)}"
    )


def _listed(expressions: Sequence[Expression]) -> str:
    return " and ".join(f"`{e.text}` (line {e.position.line})" for e in expressions[:6])
