"""Builds a portfolio: searches, measures the matrix, chooses kernels, learns and judges the rule.

Each step stores its results, so the same command continues after it was killed:

- a search is a run in the portfolio's folder,
- a cell of the matrix is stored as soon as it is measured,
- the choice and the rule follow from the matrix alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import random
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from evotune.backends import registry
from evotune.errors import EvotuneError, SpaceError, UsageError
from evotune.portfolios.case_searches import (
    CaseSearches,
    Observing,
    SearchPlan,
    nearest_searched,
    worst_served,
)
from evotune.portfolios.cell_measuring import (
    CellPlans,
    OpenExecutor,
    cell_of,
    measure_cells,
    opened_executor,
)
from evotune.portfolios.drawn_cases import DrawnTrials
from evotune.portfolios.family_file import Group
from evotune.portfolios.family_searches import FamilyCases, FamilySearches, family_cases
from evotune.portfolios.matrix_store import (
    Cell,
    Matrix,
    Point,
    PortfolioRequest,
    Score,
    distance,
    locked_matrix,
    point_of,
)
from evotune.portfolios.portfolio_file import Portfolio, markdown, write_portfolio
from evotune.portfolios.rule import Leaf, RuleRegion, held_out_labels, kernel_at, learnt_leaves
from evotune.portfolios.served_rule import (
    confirm_variant,
    cut_rule,
    finished_portfolio,
    launch,
    learnt_rule,
    refused_variants,
    rule_launches,
    variant_cell,
    variants_needed,
)
from evotune.problems.problem import Case
from evotune.runs.confirmed_champions import Champion
from evotune.runs.folder import FAMILY, is_family
from evotune.runs.given_cases import kept_cases, skipped_in_words
from evotune.runs.setup import KernelSetup, load_kernel_setup
from evotune.runs.spaces import find_space, shipped_name
from evotune.space.specs import GivenCase
from evotune.store import RunStore
from evotune.trial import Json
from evotune.util.commands import run_command
from evotune.util.words import counted
from evotune.workers.in_flight import speaks_for_its_code

MOST_CASES = 1000
"""The most cases of a portfolio. From a longer list it takes those of the greatest weight."""


def build_portfolio(
    request: PortfolioRequest,
    *,
    observing: Observing,
    say: Callable[[str], None] = lambda text: None,
    open_executor: OpenExecutor = opened_executor,
) -> Portfolio:
    """Builds the portfolio, or continues the one in the folder, and writes `portfolio.json`.

    Raises KeyboardInterrupt if the user ended it, and RunLocked while another process works on it.
    Raises UsageError if the folder has a portfolio of another space, device or list of cases, if
    the space can compute none of the cases, or if there are no kernels, trials or minutes. Raises
    EvotuneError (exit 1) if no search has a champion.
    """
    if not 0.0 <= request.held_out < 1.0:
        raise UsageError(f"the held-out share must be at least 0 and below 1: {request.held_out}")
    for name, count in (("kernels", request.most_kernels), ("trials", request.trials)):
        if not isinstance(count, int | None):
            raise UsageError(f"{name}: expected an integer, got {count!r}")
    for name, number in (
        ("kernels", request.most_kernels),
        ("trials", request.trials),
        ("minutes", request.minutes),
    ):
        if number is not None and not number > 0:
            raise UsageError(f"{name}: expected more than 0, got {number}")
    family = family_cases(request) if is_family(request.space) else None
    if family is not None:
        setup, kept, said = family.setup, family.kept, family.skipped
    else:
        setup = load_kernel_setup(find_space(request.space), request.device)
        problem = setup.planner.problem
        kept, skipped = kept_cases(setup.document, problem, request.cases, setup.profile)
        said = skipped_in_words(skipped, len(kept))
    if len(kept) > MOST_CASES:
        left = f"{len(kept) - MOST_CASES} of {len(kept)} cases are left out: those of least weight"
        said = "; ".join(filter(None, (said, left)))
        kept = tuple(sorted(kept, key=lambda case: -case.count)[:MOST_CASES])
    if said:
        say(said)
    facts = _facts(request, setup, kept, said, family)
    with locked_matrix(request.runs_dir, facts) as matrix:
        _require_same(request, matrix, facts)
        # A resumed portfolio knows only the cases that were kept.
        said = said or str(matrix.store.meta("skipped", ""))
        groups = None if family is None else family.groups
        work = PortfolioWork(request, matrix, setup, kept, observing, say, open_executor, groups)
        try:
            found = work.finished(said)
        finally:
            matrix.store.set_meta(ELAPSED, work.elapsed_s())
        write_portfolio(request.runs_dir, matrix, found, markdown(found))
        return found


def _facts(
    request: PortfolioRequest,
    setup: KernelSetup,
    kept: Sequence[GivenCase],
    skipped: str,
    family: FamilyCases | None,
) -> dict[str, Json]:
    digest = hashlib.sha256()
    for name, content in sorted(setup.files.items()):
        digest.update(hashlib.sha256(content).digest() + name.encode())
    space = FAMILY
    if family is None:
        path = find_space(request.space)
        space = shipped_name(path) or str(path.absolute())
    return {
        "id": uuid.uuid4().hex,
        "request": {
            "space": space,
            "problem": None if family is None else setup.problem_spec.name,
            "dtype": None if family is None else setup.problem_spec.dtype,
            "most_kernels": request.most_kernels,
            "held_out": request.held_out,
            "trials": request.trials,
            "minutes": request.minutes,
            "seed": request.seed,
            "device": request.device,
        },
        "files": digest.hexdigest() if family is None else family.digest(),
        "device": setup.profile.name,
        "cases": msgspec.to_builtins(list(kept)),
        "skipped": skipped,
    }


def _require_same(request: PortfolioRequest, matrix: Matrix, facts: Mapping[str, Json]) -> None:
    """Raises UsageError if the folder's portfolio is another one. The number of kernels and the
    budget may change."""
    store = matrix.store
    with store.trusting_facts():
        before, now = store.meta("request"), facts["request"]
        differing = [
            words
            for words, same in (
                ("another space, or of other files of it", store.meta("files") == facts["files"]),
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


ELAPSED = "elapsed_s"
FEWEST_TO_JUDGE = 20
"""With fewer cases than this none is held out, because the searches and the rule need all of
them."""
_FAILED = "without_configuration"
_SEARCH = "search"
"""A fact: the case of the search that has begun, and the elapsed seconds before it. None between
searches."""
_RULES = 4
"""So many rules are learnt at most, each without the drawn cases that those before it lost."""


class PortfolioWork:
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
        groups: Mapping[str, Group] | None = None,
    ) -> None:
        """`groups`: of a family's portfolio, by the labels of the cases."""
        self._request = request
        self._matrix = matrix
        self._setup = setup
        self._observing = observing
        self._say = say
        self._open_executor = open_executor
        self._plans = CellPlans()
        self._unconfirmed: set[Cell] = refused_variants(matrix)
        self._began_s = time.monotonic()
        problem = setup.planner.problem
        self._variants = problem.variant_symbols
        self._given: dict[str, GivenCase] = {}
        self._cases: dict[str, Case] = {}
        self._lost: dict[str, Point] = {}
        """Drawn cases that a kernel lost. They weigh nothing: no search and no choice sees them."""
        for each in kept:
            case = problem.case(each.shape, each.variant)
            self._given[case.label], self._cases[case.label] = each, case
        self._drawn = self._new_draws()
        points = [point_of(problem, c, self._given[c.label].count) for c in self._cases.values()]
        backend = registry.named(setup.profile.backend)
        # On a CPU all searches get the threads that the matrix is measured with.
        device = request.device if backend.several else backend.same_device(setup.profile)
        identity, runs_dir = str(matrix.store.meta("id")), request.runs_dir
        if groups is None:
            self._searches = CaseSearches(
                identity, request.space, device, runs_dir, request.command
            )
        else:
            self._searches = FamilySearches(
                identity,
                groups,
                device=device,
                runs_dir=runs_dir,
                command=request.command,
                say=say,
            )
        self._before_s = self._earlier_s()
        held_out: set[str] = set()
        if len(points) >= FEWEST_TO_JUDGE:
            held_out = held_out_labels(points, request.held_out, request.seed)
        # An earlier version may have drawn others: a case that a search saw judges nothing.
        held_out -= {*self._searches.runs, *map(str, matrix.store.meta("first", []))}
        self._seen = [point for point in points if point.label not in held_out]
        self._judges = [point for point in points if point.label in held_out]
        first = min(request.most_kernels, len(self._seen))
        self._plan = SearchPlan(
            # Each search has at least one trial.
            first=first if request.trials is None else min(first, request.trials),
            trials=request.trials,
            minutes=request.minutes,
        )

    def elapsed_s(self) -> float:
        """The time at work over all parts of the work."""
        return self._before_s + time.monotonic() - self._began_s

    def _earlier_s(self) -> float:
        """Working time of earlier sessions. A session that was killed counts up to its last cell or
        trial."""
        store = self._matrix.store
        found = [float(store.meta(ELAPSED, 0.0)), store.searched_s()]
        search = store.meta(_SEARCH)
        if search is not None and search[0] in self._searches.runs:
            found.append(float(search[1]) + self._searches.elapsed_s(str(search[0])))
        return max(found)

    def finished(self, skipped: str) -> Portfolio:
        self._search_first()
        while True:
            champions, leaves = self._settled()
            self._measure(champions, self._judges)
            if self._measure_each_once(champions, leaves):
                leaves = self._confirmed_leaves(champions)
            # A case that was not measured judges nothing.
            able = [p for p in self._judges if not self._lacking(champions, [self._case(p)])]
            regions, drawn = self._tried(champions, leaves)
            seen, held_out = (self._scored(champions, points) for points in (self._seen, able))
            on_rule = [point for point in drawn if kernel_at(regions, point) is not None]
            left, cuts = cut_rule(
                regions,
                seen=seen,
                held_out=held_out,
                drawn=on_rule,
                doubted=self._drawn.doubts(champions, [*seen, *held_out, *drawn]),
            )
            if self._launch_at_served_sizes(champions, left):
                break
            # As in a process that resumes the portfolio and knows of the refusal.
            self._lost.clear()
            self._drawn = self._new_draws()
        return finished_portfolio(
            self._matrix,
            self._setup,
            champions,
            regions=regions,
            left=left,
            cuts=cuts,
            most_kernels=self._request.most_kernels,
            seed=self._request.seed,
            skipped=skipped,
            given=self._given,
            cases=self._cases,
            seen=seen,
            held_out=held_out,
            listed=self._scored(champions, [*self._seen, *self._judges]),
            drawn=on_rule,
            searched={label: run.id for label, run in self._searches.runs.items()},
            unmeasured=self._unmeasured(champions),
            say=self._say,
        )

    def _settled(self) -> tuple[list[Champion], list[Leaf]]:
        """The champions of all searches, and the leaves of the rule. If a kernel was not confirmed
        on a variant, its cases may be served badly, so they are searched."""
        while True:
            self._search_where_served_badly()
            champions = self._champions()
            if not champions:
                raise EvotuneError(f"no search has a confirmed champion{self._advice()}")
            before = len(self._unconfirmed)
            leaves = self._confirmed_leaves(champions)
            if len(self._unconfirmed) == before or not self._may_search():
                return champions, leaves

    # --- searches ----------------------------------------------------------------------------

    def _search_first(self) -> None:
        """The representative cases that are searched first. Searches of an earlier part are
        finished first.
        """
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
        case worse than their own cases promise. Without a champion any case is searched."""
        while True:
            champions = self._champions()
            self._measure(champions, self._seen)
            if not self._may_search():
                return
            if champions:
                tried = {*self._searches.runs, *self._failed()}
                scored = self._scored(champions, self._seen)
                worst = worst_served(scored, tried, self._variants)
                why = "which all champions serve badly"
            else:
                worst = next(iter(self._untried()), None)
                why = "as no search has a champion"
            if worst is None:
                return
            self._say(f"searching for {worst}, {why}")
            self._search(worst)

    def _untried(self) -> list[str]:
        """The cases for which no search has begun, the greatest weight first."""
        tried = {*self._searches.runs, *self._failed()}
        heaviest = sorted(self._seen, key=lambda point: -point.weight)
        return [point.label for point in heaviest if point.label not in tried]

    def _advice(self) -> str:
        """The advice if no search has a champion; "" for none."""
        runs = self._searches.runs
        unfinished = any(not self._searches.is_finished(label) for label in runs)
        if unfinished or (self._untried() and len(runs) < self._plan.most):
            return ": resume with more --trials or --minutes"
        if self._untried():
            return ": resume with a greater -k, and with more --trials or --minutes"
        if not runs:
            return ""
        run = next(iter(runs.values()))
        with RunStore.open_for_reading(run.store) as store:
            trials = max(1, 2 * store.count())
        line = run_command("resume", run.path, "--trials", trials)
        return f": give one more trials, then resume: {line}"

    def _may_search(self) -> bool:
        """Whether there is budget for another search."""
        begun, trials = len(self._searches.runs), self._searches.trials()
        return self._plan.has_more(begun, trials, self.elapsed_s())

    def _search(self, label: str) -> None:
        number = len(self._searches.runs)
        options = self._plan.options(number, self._searches.trials())
        options["seed"] = self._request.seed + number
        near = nearest_searched(self._point(label), map(self._point, self._searches.runs))
        self._say(f"search {number + 1}: {label}")
        if label not in self._searches.runs:
            self._matrix.store.set_meta(_SEARCH, [label, self.elapsed_s()])
        try:
            self._searches.search(label, self._given[label], options, near, self._observing)
        except SpaceError as error:
            self._say(f"{label} is not searched: {error}")
            self._matrix.store.set_meta(_FAILED, [*self._failed(), label])
        self._keep_elapsed()

    def _failed(self) -> list[str]:
        """The cases for which the space has no configuration."""
        return [str(label) for label in self._matrix.store.meta(_FAILED, [])]

    def _point(self, label: str) -> Point:
        return next(point for point in self._seen if point.label == label)

    # --- the rule ----------------------------------------------------------------------------

    def _confirmed_leaves(self, champions: Sequence[Champion]) -> list[Leaf]:
        """The leaves of the rule. A kernel that would get cases of a variant that its run did not
        tune is confirmed there first. If it fails, the kernels are chosen again."""
        while True:
            seen = self._scored(champions, self._seen)
            chosen = chosen_kernels(seen, self._request.most_kernels)
            leaves = learnt_leaves(
                [*seen, *self._scored(champions, [*self._lost.values()])], chosen
            )
            needed = list(variants_needed(self._matrix, champions, leaves, self._cases))
            for number, case in needed:
                self._confirm(champions[number], case)
            if not needed:
                return leaves

    def _confirm(self, champion: Champion, case: Case) -> None:
        """Without a confirmation the champion gets no case of this variant, this time."""
        fixed = champion.place(case).fixed
        name, why = f"trial {champion.number} of {champion.run.run.id}", "no time is left"
        if variant_cell(champion, fixed) not in self._matrix.cells and not self._out_of_time():
            self._say(
                f"confirming trial {champion.number} of {champion.run.run.id} on {case.label}"
            )
            outcome = confirm_variant(
                self._matrix,
                champion,
                case,
                self._given[case.label],
                elapsed_s=self.elapsed_s,
                open_executor=self._open_executor,
            )
            if outcome.ok:
                return
            why = f"{outcome.kind}: {outcome.reason}"
        self._say(f"{name} is not confirmed on {case.label}: {why}")
        self._unconfirmed.add(variant_cell(champion, fixed))

    def _tried(
        self, champions: Sequence[Champion], leaves: Sequence[Leaf]
    ) -> tuple[list[RuleRegion], list[Point]]:
        """The rule, and all drawn cases. If a kernel loses a drawn case, the rule is learnt again
        with that case; the last rule may still have losing cases."""
        for left in reversed(range(_RULES)):
            regions = learnt_rule(self._matrix, self._setup, champions, leaves, self._cases)
            seen = self._scored(champions, self._seen)
            missing = self._drawn.try_rule(
                champions, regions, seen, self._measure_cells, self._out_of_time
            )
            if missing:
                cases = counted(missing, "case")
                self._say(f"{cases} between the measured ones could not be tried")
            drawn = self._drawn.points(champions)
            lost = [
                p
                for p in drawn
                if p.label not in self._lost and any(s is not None and not s.won for s in p.scores)
            ]
            if not (lost and left) or (missing and self._out_of_time()):
                break
            drawn_in_words = f"{len(lost)} of {counted(len(drawn), 'drawn case')}"
            self._say(f"{drawn_in_words} lost: learning a rule without them")
            chosen = sorted({leaf.kernel for leaf in leaves if leaf.kernel is not None})
            wanted = [(champions[n], self._case(p)) for p in lost for n in chosen]
            self._drawn.ask(wanted, self._measure_cells)
            self._lost |= {p.label: dataclasses.replace(p, weight=0.0) for p in lost}
            leaves = self._confirmed_leaves(champions)
        return regions, self._drawn.all_points(champions)

    def _new_draws(self) -> DrawnTrials:
        return DrawnTrials(self._matrix, self._setup, self._plans, self._given, self._request.seed)

    def _launch_at_served_sizes(
        self, champions: Sequence[Champion], rule: Sequence[RuleRegion]
    ) -> bool:
        """Launches the kernels of the rule at the sizes that it assigns to them. Returns False as
        soon as one fails. Then that kernel gets no case of the variant, and the rule must be learnt
        again."""
        for launches in rule_launches(self._matrix, champions, rule, self._cases):
            if not launches.missing(self._matrix, has_time=not self._out_of_time()):
                continue
            champion = launches.champion
            name = f"trial {champion.number} of {champion.run.run.id}"
            self._say(f"launching {name} at the sizes of {counted(len(launches.cases), 'case')}")
            outcome = launch(
                self._matrix,
                launches,
                until_s=time.monotonic() + self._left_s(),
                elapsed_s=self.elapsed_s,
                open_executor=self._open_executor,
            )
            self._keep_elapsed()
            if outcome is None or outcome.ok:
                continue
            self._say(f"{name} is not served there: {outcome.kind}: {outcome.reason}")
            if speaks_for_its_code(outcome):
                self._unconfirmed.add(variant_cell(champion, launches.fixed))
                return False
        return True

    # --- the matrix --------------------------------------------------------------------------

    def _champions(self) -> list[Champion]:
        return self._searches.champions(self._say)

    def _measure(self, champions: Sequence[Champion], points: Sequence[Point]) -> None:
        self._measure_cells([(c, self._case(p)) for p in points for c in champions])

    def _measure_each_once(self, champions: Sequence[Champion], leaves: Sequence[Leaf]) -> bool:
        """Measures each case of the list at least once, even if time is over. It takes the kernel
        whose own case is nearest, from the rule, or from any search if the rule has none. Returns
        whether any case had not been measured.
        """
        if not self._out_of_time():
            return False
        own = {run.id: label for label, run in self._searches.runs.items()}
        ruling = {leaf.kernel for leaf in leaves if leaf.kernel is not None}
        kernels = [champions[number] for number in sorted(ruling)] or champions
        wanted: list[tuple[Champion, Case]] = []
        for point in [*self._seen, *self._judges]:
            case = self._case(point)
            able = [c for c in kernels if self._plans.job(c, case) is not None]
            if able and not any(cell_of(c, case) in self._matrix.cells for c in champions):
                near = min(able, key=lambda c: distance(point, self._point(own[c.run.run.id])))
                wanted.append((near, case))
        if wanted:
            self._say(f"time is over: measuring {counted(len(wanted), 'case')} of the list once")
            self._measure_cells(wanted, in_any_event=True)
        return bool(wanted)

    def _measure_cells(
        self, wanted: Sequence[tuple[Champion, Case]], *, in_any_event: bool = False
    ) -> None:
        measure_cells(
            self._matrix,
            wanted,
            self._plans,
            elapsed_s=self.elapsed_s,
            out_of_time=(lambda: False) if in_any_event else self._out_of_time,
            say=self._say,
            open_executor=self._open_executor,
        )
        self._keep_elapsed()

    def _keep_elapsed(self) -> None:
        """No search is under way here."""
        self._matrix.store.set_facts({ELAPSED: self.elapsed_s(), _SEARCH: None})

    def _scored(self, champions: Sequence[Champion], points: Sequence[Point]) -> list[Point]:
        """Without the variants on which a champion was not confirmed."""
        known, refused = self._matrix.cells, self._unconfirmed

        def score(champion: Champion, case: Case) -> Score | None:
            if refused and variant_cell(champion, champion.place(case).fixed) in refused:
                return None
            return self._plans.score(champion, case, known.get(cell_of(champion, case)))

        def scores(case: Case) -> list[Score | None]:
            return [score(champion, case) for champion in champions]

        return [point.with_scores(scores(self._case(point))) for point in points]

    def _case(self, point: Point) -> Case:
        return self._cases.get(point.label) or self._drawn.cases[point.label]

    def _unmeasured(self, champions: Sequence[Champion]) -> int:
        missing = self._lacking(champions, list(self._cases.values()))
        if missing:
            self._say(f"{counted(missing, 'cell')} could not be measured: nothing is served there")
        return missing

    def _lacking(self, champions: Sequence[Champion], cases: Sequence[Case]) -> int:
        """The number of cells that could be measured and were not."""
        return sum(
            cell_of(champion, case) not in self._matrix.cells
            and self._plans.job(champion, case) is not None
            for champion in champions
            for case in cases
        )

    def _left_s(self) -> float:
        minutes = self._request.minutes
        return math.inf if minutes is None else 60 * minutes - self.elapsed_s()

    def _out_of_time(self) -> bool:
        return self._left_s() < 0.0


# Representative cases, for which the first searches run.
_Distances: TypeAlias = npt.NDArray[np.float64]

_ROUNDS = 20


def representatives(
    points: Sequence[Point], count: int, seed: int, variants: Sequence[str] = ()
) -> list[int]:
    """The indices of at most `count` points such that the weighted distances of all points to the
    nearest of these are small (k-medoids). Equal points and seeds give equal results.

    The first point is drawn at random, and each later one is the farthest from those before it.
    Then swaps improve the choice.
    """
    apart = _distances(points, variants)
    weights = np.array([point.weight for point in points])
    rng = random.Random(f"representatives {seed}")
    chosen = [rng.choices(range(len(points)), list(weights))[0]]
    while len(chosen) < min(count, len(points)):
        nearest = apart[:, chosen].min(axis=1)
        # Of equally distant ones the heaviest, then the first.
        farthest = int(np.lexsort((-np.arange(len(points)), weights, nearest))[-1])
        if nearest[farthest] == 0.0:  # all others are like one of these
            break
        chosen.append(farthest)
    for _ in range(_ROUNDS):
        swapped = _best_swap(apart, weights, chosen)
        if swapped is None:
            break
        chosen = swapped
    return chosen


def _distances(points: Sequence[Point], variants: Sequence[str]) -> _Distances:
    apart = np.zeros((len(points), len(points)))
    for i, one in enumerate(points):
        for j in range(i):
            apart[i, j] = apart[j, i] = distance(one, points[j], variants)
    return apart


def _best_swap(apart: _Distances, weights: _Distances, chosen: Sequence[int]) -> list[int] | None:
    """The medoids with the one replaced that lowers the cost most; None if none does."""
    best = float(weights @ apart[:, chosen].min(axis=1)) * (1 - 1e-12)
    found = None
    for at in range(len(chosen)):
        others = [*chosen[:at], *chosen[at + 1 :]]
        known = apart[:, others].min(axis=1) if others else np.full(len(weights), np.inf)
        costs = weights @ np.minimum(known[:, None], apart)
        costs[others] = np.inf
        cheapest = int(costs.argmin())
        if costs[cheapest] < best:
            best, found = float(costs[cheapest]), [*chosen[:at], cheapest, *chosen[at + 1 :]]
    return found


# Chooses the few kernels of a matrix that serve all cases best.
_MOST_SUBSETS = 20_000
_EPSILON = 1e-12


def chosen_kernels(points: Sequence[Point], most: int) -> list[int]:
    """The set of at most `most` kernels with the greatest weighted geometric mean of speedups, if
    each case gets the best kernel of the set, or PyTorch if none wins. In a tie it is the smallest
    set, then the first.

    Exact if there are few subsets; else greedy, then improved by swaps.
    """
    kernels = range(len(points[0].scores)) if points else range(0)
    gains = [[point.weight * max(0.0, point.gain(k)) for point in points] for k in kernels]
    useful = [k for k in kernels if any(gain > 0.0 for gain in gains[k])]
    most = min(most, len(useful))
    if sum(math.comb(len(useful), n) for n in range(most + 1)) <= _MOST_SUBSETS:
        subsets = (s for n in range(most + 1) for s in itertools.combinations(useful, n))
        return list(_best(gains, subsets))
    return sorted(_swapped(gains, useful, _greedy(gains, useful, most)))


def mean_speedup(points: Sequence[Point], kernels: Iterable[int]) -> float:
    """The weighted geometric mean of speedups with these kernels; 1 for no cases."""
    known = list(kernels)
    total = sum(point.weight for point in points)
    served = sum(p.weight * max([0.0, *(p.gain(k) for k in known)]) for p in points)
    return math.exp(served / total) if total else 1.0


def _value(gains: Sequence[Sequence[float]], kernels: Sequence[int]) -> float:
    return sum(map(max, zip(*(gains[k] for k in kernels), strict=True))) if kernels else 0.0


def _best(gains: Sequence[Sequence[float]], subsets: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    found: tuple[int, ...] = ()
    best = 0.0
    for subset in subsets:
        value = _value(gains, subset)
        if value > best + _EPSILON:
            found, best = subset, value
    return found


def _greedy(gains: Sequence[Sequence[float]], useful: Sequence[int], most: int) -> list[int]:
    found: list[int] = []
    while len(found) < most:
        left = [k for k in useful if k not in found]
        added = max(left, key=lambda k: (_value(gains, [*found, k]), -k))
        if _value(gains, [*found, added]) <= _value(gains, found) + _EPSILON:
            break
        found.append(added)
    return found


def _swapped(
    gains: Sequence[Sequence[float]], useful: Sequence[int], kernels: list[int]
) -> list[int]:
    """Replaces one kernel at a time as long as that helps."""
    while True:
        swaps = (
            [*kernels[:at], k, *kernels[at + 1 :]]
            for at in range(len(kernels))
            for k in useful
            if k not in kernels
        )
        best = max(swaps, key=lambda s: _value(gains, s), default=kernels)
        if _value(gains, best) <= _value(gains, kernels) + _EPSILON:
            return kernels
        kernels = best
