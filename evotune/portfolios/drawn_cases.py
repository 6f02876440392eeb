"""Draws cases between the measured ones, on which a rule is tried before it is written.

A region reaches from one measured case to the next. Between them a kernel may lose, especially if a
size is one more than a multiple of its tiles, so that the last tile computes one row. So cases are
drawn all over a region. Those for which a model of the kernel's speed (`predicted_lows`) cannot
exclude a loss are tried. A few are tried although the model is sure, because it may know too
little.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from evotune.portfolios.cell_measuring import CellPlans, cell_of
from evotune.portfolios.matrix_store import (
    BATCH_HEADS,
    Cell,
    Matrix,
    Point,
    Score,
    independent_features,
    point_of,
)
from evotune.portfolios.rule import Doubted, RuleRegion
from evotune.problems.problem import Case, Problem
from evotune.runs.confirmed_champions import Champion
from evotune.runs.setup import KernelSetup
from evotune.space.specs import GivenCase
from evotune.trial import Value

_SURE = 1.02
"""A case with a greater predicted speedup is not tried if others in the region were."""
_DOUBTED = 0.98
"""A region ends before a case that was not tried and has a smaller predicted speedup."""
_AT_ONCE = 3
"""The number of cases of a region that are tried together. The model knows their times before it
chooses the next ones."""
_APART = 0.2
"""Cases that are tried together differ in a size by at least this many doublings."""
_CANDIDATES = 600
_TRIES = 3000
_AROUND = 16.0
"""A size is drawn between a sixteenth of the measured one and sixteen times it."""
_TILES = (192, 128, 1, 0)
"""Sizes are one more than a multiple of one of these, which are multiples of the usual tiles of 16,
32, 64, 96, 128 and 192. 1: any size. 0: a multiple of the power of 2 that divides the measured
size, because kernels may take no others."""
_SMALLEST = 128
_ALIGNED = 64
_KEPT = frozenset({"heads", "kv_heads", "window_left", "window_right"})
"""Programs have few numbers of heads, and few windows."""
CanRun = Callable[[int, Case], bool]


class DrawnCases:
    """Draws cases in the regions of rules.

    - `given`: the shapes of the listed cases, by label. The drawn cases have at most as many
      operations as the largest of these. Numbers of heads and windows are those that were measured.
    - `parallel`: the number of multiprocessors, or of a CPU's threads.
    """

    def __init__(
        self, problem: Problem, given: Mapping[str, GivenCase], seed: int, parallel: int
    ) -> None:
        self._problem = problem
        self._given = given
        self._seed = seed
        self._parallel = parallel
        cases = (problem.case(each.shape, each.variant) for each in given.values())
        self._most_operations = max(map(problem.flops, cases), default=0)
        self._candidates: dict[str, dict[str, tuple[Case, Point]]] = {}

    def drawn(
        self, regions: Sequence[RuleRegion], tried: Sequence[Point], can_run: CanRun
    ) -> list[tuple[int, Case]]:
        """Cases drawn in the regions, each with the number of the region's kernel. None are drawn
        if cases were tried before and the model excludes losses.

        `tried`: the measured cases, those drawn before among them, with the scores of the kernels.
        `can_run`: whether a kernel can run a case.
        """
        found: dict[str, tuple[int, Case]] = {}
        for region in regions:
            known = [point for point in tried if _teaches(point, region)]
            if region.exact or not region.cases or not known:
                continue
            tried_labels = {point.label for point in known}
            left = {
                label: each
                for label, each in self._inside(region).items()
                if label not in tried_labels and label not in found
            }
            drawn_before = (point for point in known if point.label not in self._given)
            is_untried = not any(region.holds(point) for point in drawn_before)
            for case in self._doubtful(region, known, left, can_run, is_untried=is_untried):
                found[case.label] = region.kernel, case
        return list(found.values())

    def doubted(
        self, region: RuleRegion, tried: Sequence[Point], can_run: CanRun
    ) -> tuple[Point, float] | None:
        """The untried case of a region on which its kernel loses most, by the model, and the
        predicted speedup. None if the model predicts no loss."""
        known = [point for point in tried if _teaches(point, region)]
        if region.exact or not region.cases or not known:
            return None
        tried_labels = {point.label for point in known}
        left = [
            point
            for label, (case, point) in self._inside(region).items()
            if label not in tried_labels and can_run(region.kernel, case)
        ]
        if not left:
            return None
        lows = predicted_lows(known, region.kernel, left, self._parallel)
        worst = int(np.argmin(lows))
        speedup = math.exp(lows[worst])
        return (left[worst], speedup) if speedup < _DOUBTED else None

    def _doubtful(
        self,
        region: RuleRegion,
        known: Sequence[Point],
        left: Mapping[str, tuple[Case, Point]],
        can_run: CanRun,
        *,
        is_untried: bool,
    ) -> Iterator[Case]:
        """The candidates that the kernel may lose, the most doubtful first, and apart from each
        other."""
        if not left:
            return
        cases, points = zip(*left.values(), strict=True)
        lows = predicted_lows(known, region.kernel, points, self._parallel)
        sure = math.inf if is_untried else math.log(_SURE)
        chosen: list[Point] = []
        for number in np.argsort(lows, kind="stable"):
            if len(chosen) == _AT_ONCE or lows[number] >= sure:
                return
            point = points[number]
            is_apart = all(_doublings(point, other) >= _APART for other in chosen)
            if is_apart and can_run(region.kernel, cases[number]):
                chosen.append(point)
                yield cases[number]

    def _inside(self, region: RuleRegion) -> Mapping[str, tuple[Case, Point]]:
        """The candidates of a region, drawn around each of its measured cases alternately. They
        stay the same within a process."""
        words = f"{region.kernel} {region.words}"
        if words not in self._candidates:
            rng = random.Random(f"drawn {self._seed} {region.words}")
            around = [_around(self._problem, self._given[label], rng) for label in region.cases]
            found: dict[str, tuple[Case, Point]] = {}
            for number in range(_TRIES):
                case = next(around[number % len(around)], None)
                if case is None or case.label in self._given or len(found) == _CANDIDATES:
                    continue
                point = point_of(self._problem, case)
                if region.holds(point) and self._problem.flops(case) <= self._most_operations:
                    found[case.label] = case, point
            self._candidates[words] = found
        return self._candidates[words]


def _teaches(point: Point, region: RuleRegion) -> bool:
    """Whether the model of the region's kernel learns from the case."""
    score = point.scores[region.kernel]
    return point.place.fixed == region.fixed and score is not None and score.low > 0.0


def _doublings(one: Point, other: Point) -> float:
    """The largest difference of two sizes, in doublings."""
    return max(abs(math.log2(value / other.features[name])) for name, value in one.features.items())


def _around(problem: Problem, like: GivenCase, rng: random.Random) -> Iterator[Case]:
    """Cases of other sizes. Some of the sizes stay as they were measured, since a region may be
    wide in one size alone."""
    features = point_of(problem, problem.case(like.shape, like.variant)).features
    varying = {"seq_len", "batch", *features} - _KEPT
    sizes = {name: int(value) for name, value in like.shape.items() if name in varying}
    leaders = [name for name in sizes if _leader(name, sizes) == name]
    for _ in range(_TRIES if leaders else 0):
        drawn = [name for name in leaders if rng.random() < 0.5] or [rng.choice(leaders)]
        tile = rng.choice(_TILES)
        power = rng.choice((1, 3))  # 3: most sizes are near, and meet a narrow region
        others = {
            name: _other_size(sizes[name], tile, _AROUND ** rng.uniform(-1, 1) ** power)
            for name in drawn
        }
        for name, value in sizes.items():
            leader = _leader(name, sizes)
            if leader != name and leader in others:
                # A rule keeps the ratio of the lengths.
                others[name] = max(1, round(value * others[leader] / sizes[leader]))
        with contextlib.suppress(ValueError):  # sizes that the problem does not have
            yield problem.case({**like.shape, **others}, like.variant)


def _leader(name: str, sizes: Mapping[str, int]) -> str:
    """The size that determines this one when cases are drawn. For the numbers of queries and keys
    it is the number of queries, unless there are few queries and fewer than keys. Any other size
    determines itself."""
    queries, keys = f"{name[:-2]}_q", f"{name[:-2]}_k"
    if name not in (queries, keys) or queries not in sizes or keys not in sizes:
        return name
    return queries if sizes[queries] >= min(sizes[keys], _SMALLEST) else keys


def _other_size(size: int, tile: int, ratio: float) -> int:
    found = max(1, round(size * ratio))
    if tile == 0:
        step = math.gcd(size, _ALIGNED)
        return max(step, found // step * step)
    return found // tile * tile + 1 if tile > 1 and found >= _SMALLEST else found


_ROUNDS = 6
"""How many rounds of cases are drawn in a rule. The model that chooses the next round learns from
the earlier ones."""
_DRAWN = "drawn"
"""A fact: the symbols of all drawn cases, by label."""
Measure = Callable[[Sequence[tuple[Champion, Case]]], None]


class DrawnTrials:
    """Draws cases and has them measured. A process that resumes a portfolio makes the same draws
    again, although the matrix already has their cells. So the model learns only from cells that
    this process requested. `cases`: the cases that this process drew, by label."""

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
        """Draws cases in the regions, and measures each with its region's kernel. Returns the
        number of cases that could not be measured. `measured`: the listed cases, with the
        champions' scores."""
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
        """The cases in which the champions are expected to lose. `tried`: all measured cases."""

        def can_run(kernel: int, case: Case) -> bool:
            return self._plans.job(champions[kernel], case) is not None

        return lambda region: self._draws.doubted(region, tried, can_run)

    def ask(self, wanted: Sequence[tuple[Champion, Case]], measure: Measure) -> None:
        """Measures drawn cases that are not measured yet."""
        self._asked |= {cell_of(*each) for each in wanted}
        measure(wanted)

    def points(self, champions: Sequence[Champion]) -> list[Point]:
        """The drawn cases that were requested. A kernel that was not tried on a case has no score
        for it."""
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


_SPEED_MODEL_TILES = (64, 128, 192)
"""The rows of the usual tiles."""
# Predicts a kernel's speedup on sizes that were not measured.
#
# A linear model with a penalty for large coefficients (ridge regression, Bishop, "Pattern
# Recognition and Machine Learning", 3.3) of the logarithm of the speedup. Its terms are the
# logarithms of the sizes, their products, and how well the sizes fill tiles; for dense attention
# also how well its tiles fill waves of blocks. A kernel loses most if its last tile, or its last
# wave, is almost empty.
_REACH = 1.5
"""A measured case has less weight the farther it lies from the predicted ones: exp(-1/2) at this
many doublings of a size."""
_LEAST_WEIGHT = 0.02
_PENALTY = 0.3
"""Of a coefficient whose term has a standard deviation of 1. That of the constant is 1e-6."""
_LEAST_DEVIATION = 1e-6
"""A term that hardly differs among the measured cases is taken as it is."""
_NOISE = 0.01
"""The least standard deviation of the logarithm of a measured speedup."""
_LIKELY_TERMS = 3.0
"""The number of coefficients that the penalty leaves, about."""
_QUERIES = "seq_len_q"

Reals: TypeAlias = NDArray[np.float64]


def predicted_lows(
    measured: Sequence[Point], kernel: int, asked: Sequence[Point], parallel: int
) -> Reals:
    """The logarithms of the predicted lower ends of the `kernel`'s speedups on the `asked` cases,
    minus one standard deviation of the model.

    `measured`: cases with the same fixed values on which the kernel was measured and is right.
    `parallel`: the number of multiprocessors, each of which takes one block of attention at a time.
    """
    names = list(independent_features([*measured, *asked]))
    rows = np.array([_terms(point, names, parallel) for point in (*measured, *asked)])
    known = rows[: len(measured)]
    mean, deviation = known.mean(axis=0), known.std(axis=0)
    mean[0] = 0.0  # the constant
    deviation[deviation < _LEAST_DEVIATION] = 1.0
    known, wanted = ((part - mean) / deviation for part in (known, rows[len(measured) :]))
    lows = np.log([score.low for point in measured if (score := point.scores[kernel])])
    weights = _weights(measured, asked, names)
    penalty = np.full(rows.shape[1], _PENALTY)
    penalty[0] = 1e-6
    normal = known.T @ (known * weights[:, None]) + np.diag(penalty)
    coefficients = np.linalg.solve(normal, known.T @ (weights * lows))
    errors = lows - known @ coefficients
    variance = (weights * errors**2).sum() / max(1.0, weights.sum() - _LIKELY_TERMS) + _NOISE**2
    spread = np.einsum("ij,jk,ik->i", wanted, np.linalg.inv(normal), wanted)
    found: Reals = wanted @ coefficients - np.sqrt(variance * spread)
    return found


def _terms(point: Point, names: Sequence[str], parallel: int) -> list[float]:
    sizes = [point.features[name] for name in names]
    logs = [math.log2(size) for size in sizes]
    terms = [1.0, *logs]
    terms += [a * b for a, b in itertools.combinations_with_replacement(logs, 2)]
    for rows in _SPEED_MODEL_TILES:
        terms += [_filled(size / rows) for size in sizes]
        if BATCH_HEADS in point.features:
            tiles = point.features[BATCH_HEADS] * math.ceil(point.features[_QUERIES] / rows)
            terms.append(_filled(tiles / parallel))
    return terms


def _filled(number: float) -> float:
    """The log2 of the filled share of this many tiles; the last tile may be partly empty."""
    return math.log2(number / math.ceil(number))


def _weights(measured: Sequence[Point], asked: Sequence[Point], names: Sequence[str]) -> Reals:
    def place(points: Sequence[Point]) -> Reals:
        return np.log2([[point.features[name] for name in names] for point in points])

    distances = ((place(measured) - place(asked).mean(axis=0)) ** 2).sum(axis=1)
    weights: Reals = np.exp(-distances / (2 * _REACH**2)) + _LEAST_WEIGHT
    return weights
