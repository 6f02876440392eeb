"""The measured cells of a portfolio, champions x cases, kept in its folder as a run keeps trials.

RUNS/portfolio/matrix.sqlite   facts, and an outcome for each cell: checked and durable as a run's
RUNS/portfolio/lock            held by the process that works on the portfolio
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from evotune.errors import UsageError
from evotune.runs.folder import RunFolder
from evotune.store import RunStore
from evotune.trial import Configuration, Json, Outcome, Trial

FOLDER = "portfolio"
_FILE = "matrix.sqlite"
VARIANT = "variant "
"""Begins the `case` of an outcome that is no cell, but a confirmation on another variant."""
SIZES = "sizes "
"""Begins the `case` of an outcome that is no cell, but launches at sizes that a rule serves."""


class Cell(NamedTuple):
    """A champion, which is trial `trial` of `run`, on a case."""

    case: str
    run: str
    trial: int

    @property
    def is_timed(self) -> bool:
        """Whether it is a champion on a case, and no further check of a champion."""
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
        """Keeps an outcome: once this returns, it survives the end of the process."""
        self.store.append(Trial(self._next, Configuration(cell._asdict()), outcome), finished_s)
        self.cells[cell] = outcome
        self._next += 1


def has_portfolio(runs_dir: Path) -> bool:
    return matrix_path(runs_dir).is_file()


def matrix_path(runs_dir: Path) -> Path:
    return runs_dir / FOLDER / _FILE


@contextlib.contextmanager
def locked_matrix(runs_dir: Path, facts: Mapping[str, Json] | None) -> Iterator[Matrix]:
    """The portfolio's matrix, for the only process that may work on it: RunLocked for another. A
    new one with these facts where there is none; without facts, UsageError."""
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
    """The same for reading."""
    with RunStore.open_for_reading(matrix_path(runs_dir)) as store:
        yield Matrix(store)


def _cell(configuration: Configuration) -> Cell:
    case, run, trial = (configuration[name] for name in Cell._fields)
    return Cell(str(case), str(run), int(trial))
