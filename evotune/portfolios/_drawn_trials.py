"""Tries kernels on cases drawn between the measured ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from evotune.portfolios._cell_plans import CellPlans, cell_of
from evotune.portfolios._drawn_cases import DrawnCases
from evotune.portfolios._held_out_judge import Doubted
from evotune.portfolios.matrix_store import Cell, Matrix
from evotune.portfolios.points import Point, Score, point_of
from evotune.portfolios.rule import RuleRegion
from evotune.problems.problem import Case
from evotune.runs.confirmed_champions import Champion
from evotune.runs.setup import KernelSetup
from evotune.space.specs import GivenCase
from evotune.trial import Value

_ROUNDS = 6
"""So many times cases are drawn in a rule. Those of a round teach the model that chooses the next
ones."""
_DRAWN = "drawn"
"""A fact: the symbols of all drawn cases, by label."""
Measure = Callable[[Sequence[tuple[Champion, Case]]], None]


class DrawnTrials:
    """Draws cases and has them measured. A process that resumes a portfolio makes the same draws
    again, whose cells the matrix has: the model learns from the cells alone that this process asked
    for. `cases`: those drawn by this process, by label."""

    def __init__(
        self,
        matrix: Matrix,
        setup: KernelSetup,
        plans: CellPlans,
        given: Mapping[str, GivenCase],
        seed: int,
    ) -> None:
        self.cases: dict[str, Case] = {}
        self._asked: set[Cell] = set()
        self._matrix = matrix
        self._problem = setup.planner.problem
        self._plans = plans
        attributes = setup.profile.attributes
        parallel = int(attributes.get("multiprocessors") or attributes.get("threads") or 1)
        self._draws = DrawnCases(self._problem, given, seed, parallel)
        self._earlier: Mapping[str, Mapping[str, Value]] = matrix.store.meta(_DRAWN, {})

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
            drawn = self._draws.drawn(regions, known, can_run)
            if not drawn:
                break
            wanted = [(champions[kernel], case) for kernel, case in drawn]
            asked |= {cell_of(*each) for each in wanted}
            self._keep(case for _, case in drawn)
            self.ask(wanted, measure)
            if out_of_time() and asked - self._matrix.cells.keys():
                break
        return len(asked - self._matrix.cells.keys())

    def doubts(self, champions: Sequence[Champion], tried: Sequence[Point]) -> Doubted:
        """Where the champions are expected to lose. `tried`: all measured cases."""

        def can_run(kernel: int, case: Case) -> bool:
            return self._plans.job(champions[kernel], case) is not None

        return lambda region: self._draws.doubted(region, tried, can_run)

    def ask(self, wanted: Sequence[tuple[Champion, Case]], measure: Measure) -> None:
        """Measures drawn cases that are not measured yet."""
        self._asked |= {cell_of(*each) for each in wanted}
        measure(wanted)

    def points(self, champions: Sequence[Champion]) -> list[Point]:
        """The drawn cases that were asked for. A kernel that was not tried has no score there."""
        return self._points(champions, self.cases.values(), self._asked.__contains__)

    def all_points(self, champions: Sequence[Champion]) -> list[Point]:
        """The drawn cases that this process or an earlier one measured, for any rule."""
        earlier = {label: Case(label, dict(symbols)) for label, symbols in self._earlier.items()}
        cases = {**earlier, **self.cases}
        return self._points(champions, (cases[label] for label in sorted(cases)), lambda cell: True)

    def _keep(self, cases: Iterable[Case]) -> None:
        self.cases |= {case.label: case for case in cases}
        symbols = {label: dict(case.symbols) for label, case in self.cases.items()}
        self._matrix.store.set_meta(_DRAWN, {**self._earlier, **symbols})

    def _points(
        self,
        champions: Sequence[Champion],
        cases: Iterable[Case],
        counts: Callable[[Cell], bool],
    ) -> list[Point]:
        def score(champion: Champion, case: Case) -> Score | None:
            cell = cell_of(champion, case)
            outcome = self._matrix.cells.get(cell) if counts(cell) else None
            return None if outcome is None else self._plans.score(champion, case, outcome)

        found = []
        for case in cases:
            scores = [score(champion, case) for champion in champions]
            if any(scores):
                found.append(point_of(self._problem, case).with_scores(scores))
        return found
