"""Tries kernels on cases drawn between the measured ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from evotune.engine.confirmed_champions import Champion
from evotune.engine.setup import KernelSetup
from evotune.portfolios._cell_plans import CellPlans, cell_of
from evotune.portfolios._drawn_cases import drawn_cases
from evotune.portfolios.matrix_store import Cell, Matrix
from evotune.portfolios.points import Point, Score, point_of
from evotune.portfolios.rule import RuleRegion
from evotune.problems.problem import Case
from evotune.space.specs import GivenCase

_ROUNDS = 6
"""So many times cases are drawn in a rule. Those of a round teach the model that chooses the next
ones."""
Measure = Callable[[Sequence[tuple[Champion, Case]]], None]


class DrawnTrials:
    """`cases`: those drawn so far, by label."""

    def __init__(
        self,
        matrix: Matrix,
        setup: KernelSetup,
        plans: CellPlans,
        given: Mapping[str, GivenCase],
        seed: int,
    ) -> None:
        self.cases: dict[str, Case] = {}
        self._matrix = matrix
        self._problem = setup.planner.problem
        self._plans = plans
        self._given = given
        self._seed = seed
        attributes = setup.profile.attributes
        self._parallel = int(attributes.get("multiprocessors") or attributes.get("threads") or 1)

    def try_rule(
        self,
        champions: Sequence[Champion],
        regions: Sequence[RuleRegion],
        measured: Sequence[Point],
        measure: Measure,
        out_of_time: Callable[[], bool],
    ) -> int:
        """Draws cases in the regions, and measures each with its region's kernel. The number of
        them that could not be measured. `measured`: the listed cases, with the champions'
        scores."""
        asked: set[Cell] = set()

        def can_run(kernel: int, case: Case) -> bool:
            champion = champions[kernel]
            is_new = cell_of(champion, case) not in asked
            return is_new and self._plans.job(champion, case) is not None

        for _ in range(_ROUNDS):
            known = [*measured, *self.points(champions)]
            drawn = drawn_cases(
                self._problem, regions, known, self._given, can_run, self._seed, self._parallel
            )
            if not drawn or out_of_time():
                break
            asked |= {cell_of(champions[kernel], case) for kernel, case in drawn}
            self.cases |= {case.label: case for _, case in drawn}
            measure([(champions[kernel], case) for kernel, case in drawn])
        return len(asked - self._matrix.cells.keys())

    def points(self, champions: Sequence[Champion]) -> list[Point]:
        """The drawn cases that were measured. A kernel that was not tried has no score there."""
        return list(self._points(champions))

    def _points(self, champions: Sequence[Champion]) -> Iterator[Point]:
        for case in self.cases.values():
            scores = [self._score(champion, case) for champion in champions]
            if any(scores):
                yield point_of(self._problem, case).with_scores(scores)

    def _score(self, champion: Champion, case: Case) -> Score | None:
        outcome = self._matrix.cells.get(cell_of(champion, case))
        return None if outcome is None else self._plans.score(champion, case, outcome)
