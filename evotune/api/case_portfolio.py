"""`portfolio`: few kernels that serve many cases, and the rule that chooses among them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Unpack

from evotune.api.given_space import (
    AnyCases,
    AnySpace,
    SpaceKeywords,
    case_entries,
    space_file,
    trusting,
)
from evotune.api.observing import Observer, SilentObserver
from evotune.portfolios import portfolio_file
from evotune.portfolios.building import build_portfolio
from evotune.portfolios.matrix_store import PortfolioRequest, stored_request
from evotune.portfolios.portfolio_file import Portfolio
from evotune.report.front import TextTable
from evotune.util.words import counted

if TYPE_CHECKING:
    from evotune.api.run import Run


_RULE_NUMERIC = (True, False, True, True, True)
_FIGURE_NUMERIC = (False, True, True, True, True, True)


class CasePortfolio:
    """A finished portfolio in its folder."""

    def __init__(self, folder: Path, found: Portfolio) -> None:
        self.folder = folder.absolute()
        """The folder with the runs, the matrix and `portfolio.json`."""
        self.found = found
        """Kernels, rule, figures and cells: `evotune.portfolios.portfolio_file.Portfolio`."""

    @property
    def rule(self) -> list[tuple[str, int]]:
        """The regions of the rule: each region's cases in words, and the number of its kernel. The
        first region that contains a case decides, and PyTorch serves all other cases."""
        return [(region.words, region.kernel) for region in self.found.rule]

    @property
    def runs(self) -> list[Run]:
        """The run of each kernel."""
        from evotune.api.run import open_run

        return [open_run(self.folder / kernel.run) for kernel in self.found.kernels]

    def markdown(self) -> str:
        return portfolio_file.markdown(self.found)

    def to_json(self) -> str:
        """The content of `portfolio.json`."""
        return portfolio_file.to_json(self.found).decode()

    def tables(self) -> Iterator[TextTable]:
        """The rule, the figures and the kernels as tables."""
        found = self.found
        for columns, numeric, rows in (
            (portfolio_file.RULE_COLUMNS, _RULE_NUMERIC, portfolio_file.rule_rows(found)),
            (portfolio_file.FIGURE_COLUMNS, _FIGURE_NUMERIC, portfolio_file.figure_rows(found)),
            (portfolio_file.KERNEL_COLUMNS, (True, True), portfolio_file.kernel_rows(found)),
        ):
            yield TextTable(columns, numeric, tuple(rows))

    def remarks(self) -> Iterator[str]:
        """The remarks for a reader of the tables, a line each."""
        return portfolio_file.remarks(self.found)

    def export(self, folder: str | Path, *, name: str | None = None, trust: bool = False) -> Path:
        """Writes the kernels and their rule as a Python package; see `Run.export`. Returns the
        folder."""
        from evotune.export.exporting import export_portfolio

        with trusting(trust):
            return export_portfolio(self.folder, Path(folder), name).folder

    def __repr__(self) -> str:
        return f"<portfolio {self.folder}: {counted(len(self.found.kernels), 'kernel')}>"


def portfolio(
    space: AnySpace,
    cases: AnyCases,
    *,
    runs_dir: str | Path,
    kernels: int = 8,
    held_out_share: float = 0.2,
    trials: int | None = None,
    minutes: float | None = None,
    seed: int = 0,
    device: str = "auto",
    trust: bool = False,
    say: Callable[[str], object] | None = None,
    **space_keywords: Unpack[SpaceKeywords],
) -> CasePortfolio:
    """Finds at most `kernels` kernels that serve all cases, and a rule that chooses among them.
    Continues the portfolio in `runs_dir` if its space, cases, seed and share are equal.

    - `space`, `device`, `trust` and the keywords: as in `tune`; or `attention`, the family of all
      shipped attention spaces, for the cases of the most frequent dtype.
    - `cases`: a file, or a list of symbols of a shape and a variant with an optional `count`, the
      weight of the case.
    - `held_out_share`: the share of the cases that is held out: no search sees them, and the rule
      is judged on them. Nothing is held out of fewer than 20 cases.
    - `trials`: the total of all searches; `minutes`: the limit of the whole portfolio, earlier
      sessions included.
    - `say`: called with a line for each step, for skipped cases, and for the parts of the rule that
      held-out and drawn cases cut out. The result has the last two as `found.skipped` and
      `found.cuts`.

    Ctrl-C raises KeyboardInterrupt; the same call continues. Raises SpaceError or UsageError for a
    mistake in the arguments, and EvotuneError if no search has a confirmed champion.
    """
    with trusting(trust), space_file(space, space_keywords) as file:

        def told(text: str) -> None:
            if say is not None:
                say(text)

        return new_portfolio(
            file,
            cases,
            _silent,
            told,
            runs_dir=runs_dir,
            kernels=kernels,
            held_out_share=held_out_share,
            trials=trials,
            minutes=minutes,
            seed=seed,
            device=device,
        )


Observing: TypeAlias = Callable[[], AbstractContextManager[Observer]]
"""Makes the observer of each search."""


def new_portfolio(
    space: str,
    cases: AnyCases,
    observing: Observing,
    say: Callable[[str], None],
    *,
    runs_dir: str | Path,
    kernels: int = 8,
    held_out_share: float = 0.2,
    trials: int | None = None,
    minutes: float | None = None,
    seed: int = 0,
    device: str = "auto",
    command: tuple[str, ...] = (),
) -> CasePortfolio:
    """`portfolio` for a space's file and a caller that watches the searches."""
    request = PortfolioRequest(
        space=space,
        cases=case_entries(cases),
        runs_dir=Path(runs_dir),
        most_kernels=kernels,
        held_out=held_out_share,
        trials=trials,
        minutes=minutes,
        seed=seed,
        device=device,
        command=command,
    )
    found = build_portfolio(request, observing=observing, say=say)
    return CasePortfolio(request.runs_dir, found)


def resumed_portfolio(
    runs_dir: str | Path,
    observing: Observing,
    say: Callable[[str], None],
    *,
    kernels: int | None = None,
    trials: int | None = None,
    minutes: float | None = None,
    command: tuple[str, ...] = (),
) -> CasePortfolio:
    """Continues the portfolio in a folder, with new totals if they are given. Raises UsageError if
    there is none."""
    request = stored_request(
        Path(runs_dir), most_kernels=kernels, trials=trials, minutes=minutes, command=command
    )
    found = build_portfolio(request, observing=observing, say=say)
    return CasePortfolio(request.runs_dir, found)


@contextlib.contextmanager
def _silent() -> Iterator[Observer]:
    yield SilentObserver()
