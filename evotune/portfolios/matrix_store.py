"""Stores the measured cells of a portfolio (champions x cases) in its folder, as a run stores
trials.

RUNS/portfolio/matrix.sqlite   facts, and an outcome for each cell: checked and durable as a run's
RUNS/portfolio/lock            held by the process that works on the portfolio

The facts include the user's request (`PortfolioRequest`), so that the portfolio can be resumed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from evotune.errors import UsageError
from evotune.problems import UserProblem
from evotune.problems.attention import Attention
from evotune.problems.problem import Case, Place, Problem
from evotune.problems.short_cases import place_with_ratio
from evotune.runs.folder import RunFolder
from evotune.space.reading.case_file import CaseEntry
from evotune.space.specs import GivenCase
from evotune.store import RunStore
from evotune.trial import Configuration, Json, Outcome, Trial

FOLDER = "portfolio"
_FILE = "matrix.sqlite"
VARIANT = "variant "
"""The prefix of `case` for an outcome that is not a cell but a confirmation on another variant."""
SIZES = "sizes "
"""The prefix of `case` for an outcome that is not a cell but the launches at sizes that a rule
serves."""


class Cell(NamedTuple):
    """One champion on one case. The champion is trial `trial` of `run`."""

    case: str
    run: str
    trial: int

    @property
    def is_timed(self) -> bool:
        """Whether the cell is a timed case, and not an additional check of a champion."""
        return not self.case.startswith((VARIANT, SIZES))


@dataclass(slots=True)
class Matrix:
    """An open store of cells."""

    store: RunStore
    cells: dict[Cell, Outcome] = field(default_factory=dict)
    _next: int = 0

    def __post_init__(self) -> None:
        for trial in self.store.trials():
            with self.store.trusting_facts():
                self.cells[_cell(trial.configuration)] = trial.outcome
            self._next = trial.number + 1

    def add(self, cell: Cell, outcome: Outcome, finished_s: float) -> None:
        """Stores an outcome. Once this method has returned, the outcome survives the death of the
        process."""
        self.store.append(Trial(self._next, Configuration(cell._asdict()), outcome), finished_s)
        self.cells[cell] = outcome
        self._next += 1


def has_portfolio(runs_dir: Path) -> bool:
    return matrix_path(runs_dir).is_file()


def matrix_path(runs_dir: Path) -> Path:
    return runs_dir / FOLDER / _FILE


@contextlib.contextmanager
def locked_matrix(runs_dir: Path, facts: Mapping[str, Json] | None) -> Iterator[Matrix]:
    """The portfolio's matrix, locked for this process; raises RunLocked in any other. If there is
    none, creates one with these facts, or raises UsageError without facts."""
    path = matrix_path(runs_dir)
    if facts is None and not path.is_file():
        raise UsageError(f"{runs_dir} holds no portfolio")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot create {path.parent}: {error.strerror}") from error
    with RunFolder(path.parent).locked():
        known = path.is_file()
        with RunStore.open_for_writing(path) if known else RunStore.create(path, facts) as store:
            yield Matrix(store)


@contextlib.contextmanager
def read_matrix(runs_dir: Path) -> Iterator[Matrix]:
    """The portfolio's matrix, opened for reading, without a lock."""
    with RunStore.open_for_reading(matrix_path(runs_dir)) as store:
        yield Matrix(store)


def _cell(configuration: Configuration) -> Cell:
    case, run, trial = (configuration[name] for name in Cell._fields)
    return Cell(str(case), str(run), int(trial))


BATCH_HEADS = "batch_heads"
"""batch * heads: the number of attentions that a launch computes in parallel."""


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a kernel on a case: the baseline's time / the kernel's time, and the lower end
    of its interval.

    `won`: whether a package may serve the case with the kernel. The speedup is 0 if the gate
    refused the kernel on this case.
    """

    speedup: float
    low: float
    won: bool


REFUSED = Score(0.0, 0.0, won=False)


@dataclass(frozen=True, slots=True)
class Point:
    """A case with the kernels' `scores`; None for a kernel that cannot run the case, so that a
    package never tries it."""

    label: str
    weight: float
    place: Place
    features: Mapping[str, int]
    scores: tuple[Score | None, ...] = ()

    def gain(self, kernel: int) -> float:
        """ln of the speedup over PyTorch that a package with this kernel reaches on the case."""
        score = self.scores[kernel]
        return math.log(score.speedup) if score is not None and score.won else 0.0

    def with_scores(self, scores: Sequence[Score | None]) -> Point:
        return Point(self.label, self.weight, self.place, self.features, tuple(scores))


def point_of(problem: Problem, case: Case, weight: float = 1.0) -> Point:
    """A case without scores. Its features are the sizes by which rules distinguish cases."""
    place = place_with_ratio(problem, case)
    ranged = place.ranged
    if isinstance(problem, Attention):
        features = {BATCH_HEADS: int(ranged["batch"]) * int(ranged["heads"])}
        features |= {name: int(ranged[name]) for name in ("seq_len_q", "seq_len_k")}
    else:
        known = problem.sizes if isinstance(problem, UserProblem) else tuple(ranged)
        features = {name: int(ranged[name]) for name in known if isinstance(ranged.get(name), int)}
    return Point(case.label, weight, place, features)


def distance(one: Point, other: Point, variants: Sequence[str] = ()) -> float:
    """The distance of two cases: the root of the sum of squares of log2 of the ratios of their
    sizes. Another variant counts as a ratio of 2. Another compiled-in value counts as
    `OTHER_BINARY`, which is more than any sizes give."""
    sizes = sum(
        math.log2(value / other.features[name]) ** 2
        for name, value in one.features.items()
        if name in other.features
    )
    for name, own in one.place.fixed.items():
        if other.place.fixed.get(name) != own:
            sizes += 1.0 if name in variants else OTHER_BINARY**2
    for name, ratio in one.place.ranged.items():
        if name in ("group", "length_ratio") and name in other.place.ranged:
            sizes += math.log2(ratio / other.place.ranged[name]) ** 2
    return math.sqrt(sizes)


OTHER_BINARY = 64.0


def independent_features(points: Sequence[Point]) -> Iterator[str]:
    """The names of the features, without those that equal an earlier one in every case. In
    self-attention both lengths are equal, for example."""
    kept: list[str] = []
    for name in points[0].features:
        column = [point.features[name] for point in points]
        if all([point.features[known] for point in points] != column for known in kept):
            kept.append(name)
            yield name


@dataclass(frozen=True, slots=True)
class PortfolioRequest:
    """A request for a portfolio.

    - `most_kernels`: the largest number of kernels to keep.
    - `held_out`: the share of the cases that judges the rule, and that no search sees.
    - `trials`: the total of all searches; with None each search has the space's own budget.
    - `minutes`: the limit on the whole portfolio, over all parts of the work.
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
    """The request of the portfolio in a folder, with new totals if they are given. Raises
    UsageError if there is none."""
    with locked_matrix(runs_dir, None) as matrix, matrix.store.trusting_facts():
        asked = matrix.store.meta("request")
        cases = msgspec.convert(matrix.store.meta("cases"), list[GivenCase])
        dtype, problem = asked.get("dtype"), asked.get("problem")  # of a family's portfolio
        return PortfolioRequest(
            space=str(asked["space"]),
            cases=[
                CaseEntry({}, c.shape, c.variant, dtype, c.count, problem=problem) for c in cases
            ],
            runs_dir=runs_dir,
            most_kernels=int(asked["most_kernels"] if most_kernels is None else most_kernels),
            held_out=float(asked["held_out"]),
            trials=asked["trials"] if trials is None else trials,
            minutes=asked["minutes"] if minutes is None else minutes,
            seed=int(asked["seed"]),
            device=str(asked["device"]),
            command=command,
        )
