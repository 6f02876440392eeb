"""What a user asks of a portfolio, kept by its store so that it can be resumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from evotune.portfolios.matrix_store import locked_matrix
from evotune.space.reading.case_file import CaseEntry
from evotune.space.specs import GivenCase


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
