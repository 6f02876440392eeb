"""The kernels and the rule of a portfolio, as a package serves them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from evotune.errors import EvotuneError, StoreError
from evotune.export._champions import Selection, require_exportable
from evotune.export._served_regions import ServedRegion
from evotune.portfolios.matrix_store import Cell
from evotune.portfolios.points import Point, point_of
from evotune.portfolios.portfolio_file import Portfolio, PortfolioKernel, read_portfolio
from evotune.portfolios.portfolio_text import group_words
from evotune.problems import UserProblem
from evotune.problems.problem import Case
from evotune.runs.confirmed_champions import Champion, champions_of, widened_alone
from evotune.runs.folder import RunFolder
from evotune.runs.reopening import ReopenedRun
from evotune.trial import Check, Json, Measurement

_Timed = Mapping[Cell, Measurement]


def selected_by_rule(folder: Path) -> Selection:
    """UsageError for a portfolio that is not finished, StoreError for one whose runs are not as
    they were; EvotuneError (exit 1) where its rule names no kernel."""
    found, timed, further = read_portfolio(folder)
    if not found.rule:
        raise EvotuneError(
            f"no kernel of the portfolio in {folder} is surely faster than PyTorch in any "
            "case: a package would serve no call"
        )
    champions = [_champion(folder, kernel) for kernel in found.kernels]
    problem = champions[0].problem
    held_out = {case.label: case.held_out for case in found.cases}
    served: list[tuple[int, Case]] = []
    for each in found.cases:
        case = problem.case(each.given.shape, each.given.variant)
        number = _kernel_of(found, timed, point_of(problem, case))
        if number is not None:
            served.append((number, case))
    return Selection(
        champions=tuple(
            _with_figures(
                champion,
                [
                    msgspec.structs.replace(
                        widened_alone(champion.run.setup.profile, measured),
                        held_out=held_out[case.label],
                    )
                    for at, case in served
                    if at == number
                    and (measured := timed.get(Cell(case.label, *champion.key))) is not None
                ],
                [
                    check
                    for cell, outcome in further
                    if (cell.run, cell.trial) == champion.key and outcome.ok
                    for check in outcome.checks
                ],
            )
            for number, champion in enumerate(champions)
        ),
        served=tuple(
            ServedRegion(
                region.kernel, region.fixed, region.ranges, region.speedup_low, not region.exact
            )
            for region in found.rule
        ),
        timed=tuple(served),
        rule=_in_words(found, isinstance(problem, UserProblem)),
    )


def _kernel_of(found: Portfolio, timed: _Timed, point: Point) -> int | None:
    """The kernel that a package takes for a case of the list; None for PyTorch. A kernel without a
    figure there cannot run the case."""
    for region in found.rule:
        kernel = found.kernels[region.kernel]
        if region.holds(point) and Cell(point.label, kernel.run, kernel.trial) in timed:
            return region.kernel
    return None


def _champion(folder: Path, kernel: PortfolioKernel) -> Champion:
    """The champion as its run confirmed it, with the domain that the portfolio found."""
    run = RunFolder(folder / kernel.run)
    if not run.store.is_file():
        raise StoreError(f"{run.path} is missing: the portfolio names its trial {kernel.trial}")
    reopened = ReopenedRun.load(run, anywhere=True)
    require_exportable(reopened)
    for champion in champions_of(reopened):
        if champion.number == kernel.trial:
            outcome = msgspec.structs.replace(champion.outcome, domain=kernel.domain)
            return dataclasses.replace(champion, outcome=outcome)
    raise StoreError(f"trial {kernel.trial} of run {kernel.run} is not confirmed any more")


def _with_figures(champion: Champion, figures: list[Measurement], checks: list[Check]) -> Champion:
    """The champion with the figures of the matrix beside those of its confirmation, and with the
    further checks of the portfolio: on other variants, and at served sizes."""
    outcome = champion.outcome
    known = {measured.case for measured in outcome.measurements}
    more = tuple(measured for measured in figures if measured.case not in known)
    outcome = msgspec.structs.replace(
        outcome,
        measurements=(*outcome.measurements, *more),
        checks=(*outcome.checks, *checks),
    )
    return dataclasses.replace(champion, outcome=outcome)


def _in_words(found: Portfolio, keeps_all: bool) -> dict[str, Json]:
    """The portfolio in the certificate. `keeps_all`: there is nothing that serves other cases."""
    return {
        "rule": [
            {
                "cases": region.words,
                "kernel": region.kernel,
                "speedup_low": region.speedup_low,
                "measured": len(region.cases),
            }
            for region in found.rule
        ],
        "otherwise": "the kernel with the greatest speedup" if keeps_all else "PyTorch",
        "figures": {
            group_words(found, name, name.replace("_", " ")): msgspec.to_builtins(
                found.figures[name]
            )
            for name in _groups(found)
        },
        "cuts": [each.words for each in found.cuts],
    }


def _groups(found: Portfolio) -> Iterator[str]:
    return (name for name in ("listed", "seen", "held_out", "drawn") if name in found.figures)
