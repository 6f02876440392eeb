"""The confirmed champions of runs, and which of them serve cases best."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from evotune.backends import registry
from evotune.errors import EvotuneError, StoreError, UsageError
from evotune.export.case_shapes import (
    MeasuredCase,
    ServedRegion,
    exact_regions,
    in_order,
    near_regions,
)
from evotune.portfolios.matrix_store import Cell, Point, point_of
from evotune.portfolios.portfolio_file import (
    Portfolio,
    PortfolioKernel,
    group_words,
    read_portfolio,
)
from evotune.problems import UserProblem
from evotune.problems.problem import Case
from evotune.runs.confirmed_champions import (
    Champion,
    champions_of,
    has_own_check,
    sure_gain_us,
    widened_alone,
)
from evotune.runs.folder import RunFolder
from evotune.runs.reopening import ReopenedRun
from evotune.trial import Check, Json, Measurement, Region
from evotune.workers.executor import HELD_OUT, TIMED


def confirmed(run: RunFolder) -> list[Champion]:
    """The run's confirmed champions, the best first. Raises EvotuneError (exit 1) if there is none,
    UsageError for a recorded run and for a backend whose kernels cannot be exported."""
    reopened = ReopenedRun.load(run, anywhere=True)
    require_exportable(reopened)
    return champions_of(reopened)


def require_exportable(reopened: ReopenedRun) -> None:
    profile = reopened.setup.profile
    if not registry.named(profile.backend).binary_suffix:
        raise UsageError(f"run {reopened.run.id}: kernels for {profile.name} cannot be exported")


def measured(champion: Champion) -> list[MeasuredCase]:
    """The timed and held-out cases with the champion's speedups, warm."""
    by_role = champion.run.setup.cases
    cases = {case.label: case for role in (TIMED, HELD_OUT) for case in by_role[role]}
    return [
        _measured_case(champion, cases[m.case], m)
        for m in champion.outcome.measurements
        if (m.counts or m.held_out) and m.cache == "warm" and m.case in cases
    ]


def _measured_case(champion: Champion, case: Case, measured: Measurement) -> MeasuredCase:
    place, problem = champion.place(case), champion.problem
    known = problem.sizes if isinstance(problem, UserProblem) else case.symbols.keys()
    sizes = frozenset(n for n in known if isinstance(place.ranged.get(n), int))
    gain_us = sure_gain_us(champion.run.setup.profile, problem, measured)
    low = measured.speedup_low
    return MeasuredCase(case.label, place, sizes, low, measured.held_out, gain_us)


def regions(champion: Champion, checked: Iterable[Case]) -> tuple[Region, ...]:
    """The regions of a champion's domain.

    If the problem has its own `check`, the regions are the single `checked` cases. A package does
    not contain that Python code, so it cannot know which other sizes the problem refuses.
    """
    if not has_own_check(champion.problem):
        return champion.domain.regions
    places = [champion.place(case) for case in checked if champion.holds(case)]
    return tuple(
        Region(place.fixed, {n: (value, value) for n, value in place.ranged.items()}, 1)
        for place in places
    )


@dataclass(frozen=True, slots=True)
class Selection:
    """The champions of a package, by their number there, and the regions that they serve, in the
    order in which the package looks.

    - `timed`: more cases that were timed and are served, by the champion's number. A check of the
      package compares these, or else the cases of exact regions.
    - `rule`: what the package's README says about its portfolio; None for a package of runs.
    """

    champions: tuple[Champion, ...]
    served: tuple[ServedRegion, ...]
    timed: tuple[tuple[int, Case], ...] = ()
    rule: Mapping[str, Json] | None = None

    @property
    def best(self) -> Champion:
        """The champion with the greatest lower bound."""
        return min(self.champions, key=lambda champion: (-champion.bound, champion.key))


def _covering(champions: Sequence[Champion]) -> Iterable[int]:
    """The best champion for each of the values that regions fix, such as a size that is compiled
    in. Attention needs none: PyTorch serves the cases that no champion wins."""
    found: dict[str, int] = {}
    for number in sorted(range(len(champions)), key=lambda n: (-champions[n].bound, n)):
        if isinstance(champions[number].problem, UserProblem):
            for region in champions[number].domain.regions:
                found.setdefault(repr(sorted(region.fixed.items())), number)
    return found.values()


def selected(champions: Sequence[Champion]) -> Selection:
    """The champions that go into a package: each that wins a timed case against all others, the
    best one, and each that alone serves some cases.

    Raises EvotuneError (exit 1) if no champion wins a case of attention: then PyTorch would serve
    all calls.
    """
    ordered = sorted(champions, key=lambda champion: champion.key)
    figures = [measured(champion) for champion in ordered]
    exact = in_order(
        region for number, cases in enumerate(figures) for region in exact_regions(number, cases)
    )
    best = min(range(len(ordered)), key=lambda n: (-ordered[n].bound, ordered[n].key))
    winners: dict[str, int] = {}
    for region in exact:
        winners.setdefault(repr((region.fixed, region.ranges)), region.kernel)
    chosen = sorted({best, *winners.values(), *_covering(ordered)})
    regions: list[ServedRegion] = []
    for number, old in enumerate(chosen):
        regions += exact_regions(number, figures[old])
        if not has_own_check(ordered[old].problem):
            regions += near_regions(number, figures[old], ordered[old].domain.regions)
    if isinstance(ordered[0].problem, UserProblem):
        return Selection(tuple(ordered[n] for n in chosen), tuple(in_order(regions)))
    if not regions:
        raise EvotuneError(
            "no confirmed champion is surely faster than PyTorch in any case: a package would "
            "serve no call; search on (`evotune resume RUN --trials N`), on a quiet machine"
        )
    timed = () if exact else _held_out(ordered[best], figures[best])
    return Selection(tuple(ordered[n] for n in chosen), tuple(in_order(regions)), tuple(timed))


def _held_out(champion: Champion, figures: Iterable[MeasuredCase]) -> Iterator[tuple[int, Case]]:
    """The held-out cases that the only champion of a package won in its domain."""
    won = {each.label for each in figures if each.won}
    for case in champion.run.setup.cases[HELD_OUT]:
        if case.label in won and champion.holds(case):
            yield 0, case


_Timed = Mapping[Cell, Measurement]


def selected_by_rule(folder: Path) -> Selection:
    """Raises UsageError for a portfolio that is not finished, StoreError for one whose runs have
    changed, and EvotuneError (exit 1) if its rule names no kernel."""
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
    """The champion with the figures of the matrix in addition to those of its confirmation, and
    with the portfolio's additional checks: on other variants, and at served sizes."""
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
