"""Which constraints remove what: for `evotune check`, and for a space that is empty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evotune.errors import SpaceError
from evotune.space.counting.expansion import Variable
from evotune.space.counting.members import QUICK, Members
from evotune.space.language.interning import Interner
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
        return Members(self.variables, [*self.rules, *nodes], self.interner, QUICK)

    def is_empty(self, constraints: Sequence[BoundConstraint]) -> bool:
        """Whether it is certain that no configuration satisfies these constraints."""
        members = self.count(constraints)
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
        return SpaceError("no configuration is valid, even without constraints")
    position = guilty[-1].spec.expression.position
    if len(guilty) == 1:
        return position.error(f"no configuration satisfies {guilty[0].spec}")
    listed = " and ".join(
        f"`{c.spec.expression.text}` (line {c.spec.expression.position.line})" for c in guilty[:6]
    )
    return position.error(f"no configuration satisfies all of {listed}")
