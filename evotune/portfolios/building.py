"""Builds a portfolio: searches, measures the matrix, chooses kernels, learns and judges the rule.

Each step keeps what it finds, so the same command goes on after it was killed:

- a search is a run in the portfolio's folder,
- a cell of the matrix is kept as soon as it is measured,
- the choice and the rule follow from the matrix alone.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from evotune.counted import counted
from evotune.engine.confirmed_champions import Champion
from evotune.engine.given_cases import kept_cases, skipped_in_words
from evotune.engine.setup import KernelSetup, load_kernel_setup
from evotune.engine.spaces import find_space
from evotune.errors import EvotuneError, SpaceError, UsageError
from evotune.portfolios._case_searches import CaseSearches, Observing
from evotune.portfolios._cell_measuring import OpenExecutor, measure_cells, opened_executor
from evotune.portfolios._cell_plans import CellPlans, cell_of
from evotune.portfolios._held_out_judge import held_out_labels
from evotune.portfolios._representatives import representatives
from evotune.portfolios._search_plan import SearchPlan, nearest_searched, worst_served
from evotune.portfolios._served_rule import finished_portfolio
from evotune.portfolios.matrix_store import Matrix, locked_matrix
from evotune.portfolios.points import Point, Score, point_of
from evotune.portfolios.portfolio_file import Portfolio, write_portfolio
from evotune.portfolios.portfolio_text import markdown
from evotune.problems.problem import Case
from evotune.space.reading.case_file import CaseEntry
from evotune.space.specs import GivenCase
from evotune.trial import Json

_ELAPSED = "elapsed_s"
_FAILED = "without_configuration"


@dataclass(frozen=True, slots=True)
class PortfolioRequest:
    """A user's wish.

    - `most_kernels`: at most so many kernels are kept.
    - `held_out`: the share of the cases that judges the rule, and that no search sees.
    - `trials`: of all searches together; None: each has the space's own budget.
    - `minutes`: of the whole portfolio, over all times it was worked on.
    """

    space: str
    cases: Sequence[CaseEntry]
    runs_dir: Path
    most_kernels: int
    held_out: float = 0.2
    trials: int | None = None
    minutes: float | None = None
    seed: int = 0
    device: str = "auto"
    command: tuple[str, ...] = ()


def stored_request(
    runs_dir: Path,
    *,
    most_kernels: int | None = None,
    trials: int | None = None,
    minutes: float | None = None,
    command: tuple[str, ...] = (),
) -> PortfolioRequest:
    """The request of the portfolio in a folder, with new totals where they are given. UsageError
    where there is none."""
    with locked_matrix(runs_dir, None) as matrix, matrix.store.trusting_facts():
        asked = matrix.store.meta("request")
        cases = msgspec.convert(matrix.store.meta("cases"), list[GivenCase])
        return PortfolioRequest(
            space=str(asked["space"]),
            cases=[CaseEntry({}, c.shape, c.variant, None, c.count) for c in cases],
            runs_dir=runs_dir,
            most_kernels=int(asked["most_kernels"] if most_kernels is None else most_kernels),
            held_out=float(asked["held_out"]),
            trials=asked["trials"] if trials is None else trials,
            minutes=asked["minutes"] if minutes is None else minutes,
            seed=int(asked["seed"]),
            device=str(asked["device"]),
            command=command,
        )


def build_portfolio(
    request: PortfolioRequest,
    *,
    observing: Observing,
    say: Callable[[str], None] = lambda text: None,
    open_executor: OpenExecutor = opened_executor,
) -> Portfolio:
    """Builds the portfolio, or goes on with the one in the folder, and writes `portfolio.json`.

    KeyboardInterrupt where the user ended it; RunLocked while another process works on it.
    UsageError where the folder holds a portfolio of another space, device or list of cases, or for
    cases of which the space serves none; EvotuneError (exit 1) where no search has a champion.
    """
    if not 0.0 <= request.held_out < 1.0:
        raise UsageError(f"the held-out share must be at least 0 and below 1: {request.held_out}")
    setup = load_kernel_setup(find_space(request.space), request.device)
    kept, skipped = kept_cases(setup.document, setup.planner.problem, request.cases)
    if said := skipped_in_words(skipped, len(kept)):
        say(said)
    facts = _facts(request, setup, kept, said)
    with locked_matrix(request.runs_dir, facts) as matrix:
        _require_same(request, matrix, facts)
        work = _Work(request, matrix, setup, kept, observing, say, open_executor)
        try:
            found = work.finished(said)
        finally:
            matrix.store.set_meta(_ELAPSED, work.elapsed_s())
        write_portfolio(request.runs_dir, matrix, found, markdown(found))
        return found


def _facts(
    request: PortfolioRequest, setup: KernelSetup, kept: Sequence[GivenCase], skipped: str
) -> dict[str, Json]:
    digest = hashlib.sha256()
    for name, content in sorted(setup.files.items()):
        digest.update(hashlib.sha256(content).digest() + name.encode())
    path = find_space(request.space)
    return {
        "id": uuid.uuid4().hex,
        "request": {
            "space": request.space if str(path) != request.space else str(path.absolute()),
            "most_kernels": request.most_kernels,
            "held_out": request.held_out,
            "trials": request.trials,
            "minutes": request.minutes,
            "seed": request.seed,
            "device": request.device,
        },
        "files": digest.hexdigest(),
        "device": setup.profile.name,
        "cases": msgspec.to_builtins(list(kept)),
        "skipped": skipped,
    }


def _require_same(request: PortfolioRequest, matrix: Matrix, facts: Mapping[str, Json]) -> None:
    """UsageError when the folder's portfolio is another one. The number of kernels and the budget
    may change."""
    store = matrix.store
    with store.trusting_facts():
        before, now = store.meta("request"), facts["request"]
        differing = [
            words
            for words, same in (
                ("another space", store.meta("files") == facts["files"]),
                ("another device", store.meta("device") == facts["device"]),
                ("other cases", store.meta("cases") == facts["cases"]),
                ("another seed", before["seed"] == now["seed"]),
                ("another held-out share", before["held_out"] == now["held_out"]),
            )
            if not same
        ]
        if differing:
            raise UsageError(
                f"{request.runs_dir} holds a portfolio of {' and '.join(differing)}: name "
                "another folder"
            )
        if before != now:
            store.set_meta("request", now)


class _Work:
    """One part of the work on a portfolio, from a start or a resumption to its end."""

    def __init__(  # noqa: PLR0917
        self,
        request: PortfolioRequest,
        matrix: Matrix,
        setup: KernelSetup,
        kept: Sequence[GivenCase],
        observing: Observing,
        say: Callable[[str], None],
        open_executor: OpenExecutor,
    ) -> None:
        self._request = request
        self._matrix = matrix
        self._setup = setup
        self._observing = observing
        self._say = say
        self._open_executor = open_executor
        self._plans = CellPlans()
        self._began_s = time.monotonic()
        self._before_s = float(matrix.store.meta(_ELAPSED, 0.0))
        problem = setup.planner.problem
        self._variants = problem.variant_symbols
        self._given: dict[str, GivenCase] = {}
        self._cases: dict[str, Case] = {}
        for each in kept:
            case = problem.case(each.shape, each.variant)
            self._given[case.label], self._cases[case.label] = each, case
        points = [point_of(problem, c, self._given[c.label].count) for c in self._cases.values()]
        held_out = held_out_labels(points, request.held_out, request.seed)
        self._seen = [point for point in points if point.label not in held_out]
        self._judges = [point for point in points if point.label in held_out]
        self._plan = SearchPlan(
            first=min(request.most_kernels, len(self._seen)),
            trials=request.trials,
            minutes=request.minutes,
        )
        self._searches = CaseSearches(
            str(matrix.store.meta("id")),
            request.space,
            request.device,
            request.runs_dir,
            request.command,
        )

    def elapsed_s(self) -> float:
        """Time at work over all parts."""
        return self._before_s + time.monotonic() - self._began_s

    def finished(self, skipped: str) -> Portfolio:
        self._search_first()
        self._search_where_served_badly()
        champions = self._champions()
        if not champions:
            raise EvotuneError(
                "no search has a confirmed champion: resume with more --trials or --minutes"
            )
        self._measure(champions, self._judges)
        seen, judges = (self._scored(champions, some) for some in (self._seen, self._judges))
        return finished_portfolio(
            self._matrix,
            self._setup,
            champions,
            most_kernels=self._request.most_kernels,
            seed=self._request.seed,
            skipped=skipped,
            given=self._given,
            cases=self._cases,
            seen=seen,
            judges=judges,
            searched={label: run.id for label, run in self._searches.runs.items()},
            unmeasured=self._unmeasured(champions),
            say=self._say,
        )

    # --- searches ----------------------------------------------------------------------------

    def _search_first(self) -> None:
        """The cases that stand for the others. Searches of an earlier part are finished first."""
        labels = self._matrix.store.meta("first")
        if labels is None:
            chosen = representatives(
                self._seen, self._plan.first, self._request.seed, self._variants
            )
            labels = [self._seen[number].label for number in chosen]
            self._matrix.store.set_meta("first", labels)
        begun = [label for label in self._searches.runs if label in self._cases]
        for label in dict.fromkeys([*begun, *map(str, labels)]):
            if not self._searches.is_finished(label) and label not in self._failed():
                if not self._plan.has_time(self.elapsed_s()):
                    self._say("no time is left for further searches")
                    return
                self._search(label)

    def _search_where_served_badly(self) -> None:
        """Measures the matrix; then, while there is budget, searches where all champions serve a
        case worse than their own cases promise."""
        while champions := self._champions():
            self._measure(champions, self._seen)
            done = len(self._searches.runs)
            if not self._plan.has_more(done, self._searches.trials(), self.elapsed_s()):
                return
            tried = {*self._searches.runs, *self._failed()}
            scored = self._scored(champions, self._seen)
            worst = worst_served(scored, tried, self._variants)
            if worst is None:
                return
            self._say(f"searching for {worst}, which all champions serve badly")
            self._search(worst)

    def _search(self, label: str) -> None:
        number = len(self._searches.runs)
        options = self._plan.options(number, self._searches.trials())
        options["seed"] = self._request.seed + number
        near = nearest_searched(self._point(label), map(self._point, self._searches.runs))
        self._say(f"search {number + 1}: {label}")
        try:
            self._searches.search(label, self._given[label], options, near, self._observing)
        except SpaceError as error:
            self._say(f"{label} is not searched: {error}")
            self._matrix.store.set_meta(_FAILED, [*self._failed(), label])

    def _failed(self) -> list[str]:
        """The cases for which the space has no configuration."""
        return [str(label) for label in self._matrix.store.meta(_FAILED, [])]

    def _point(self, label: str) -> Point:
        return next(point for point in self._seen if point.label == label)

    # --- the matrix --------------------------------------------------------------------------

    def _champions(self) -> list[Champion]:
        return self._searches.champions(self._say)

    def _measure(self, champions: Sequence[Champion], points: Sequence[Point]) -> None:
        measure_cells(
            self._matrix,
            champions,
            [self._cases[point.label] for point in points],
            self._plans,
            elapsed_s=self.elapsed_s,
            out_of_time=self._out_of_time,
            say=self._say,
            open_executor=self._open_executor,
        )

    def _scored(self, champions: Sequence[Champion], points: Sequence[Point]) -> list[Point]:
        def scores(case: Case) -> list[Score | None]:
            known = self._matrix.cells
            return [self._plans.score(c, case, known.get(cell_of(c, case))) for c in champions]

        return [point.with_scores(scores(self._cases[point.label])) for point in points]

    def _unmeasured(self, champions: Sequence[Champion]) -> int:
        missing = sum(
            cell_of(champion, case) not in self._matrix.cells
            and self._plans.job(champion, case) is not None
            for champion in champions
            for case in self._cases.values()
        )
        if missing:
            self._say(f"{counted(missing, 'cell')} could not be measured: nothing is served there")
        return missing

    def _out_of_time(self) -> bool:
        minutes = self._request.minutes
        return minutes is not None and self.elapsed_s() > 60 * minutes
