"""The confirmed champions of runs, and which of them serve cases best."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from evotune.backends import registry
from evotune.errors import EvotuneError, UsageError
from evotune.export._served_regions import (
    MeasuredCase,
    ServedRegion,
    exact_regions,
    in_order,
    near_regions,
)
from evotune.problems import UserProblem
from evotune.problems.problem import Case
from evotune.runs.confirmed_champions import Champion, champions_of, has_own_check, sure_gain_us
from evotune.runs.folder import RunFolder
from evotune.runs.reopening import ReopenedRun
from evotune.trial import Json, Measurement, Region
from evotune.workers.executor import HELD_OUT, TIMED


def confirmed(run: RunFolder) -> list[Champion]:
    """The run's confirmed champions, the best first. EvotuneError (exit 1) when there is none,
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

    If the problem has a `check` of its own, the regions are the single `checked` cases: a package
    has no such Python code, so it cannot tell which other sizes the problem refuses.
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

    - `timed`: further cases that were timed and are served, by the champion's number. A check of
      the package compares these, or else the cases of exact regions.
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

    EvotuneError (exit 1) if no champion wins a case of attention: then PyTorch would serve all
    calls.
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
            "serve no call"
        )
    timed = () if exact else _held_out(ordered[best], figures[best])
    return Selection(tuple(ordered[n] for n in chosen), tuple(in_order(regions)), tuple(timed))


def _held_out(champion: Champion, figures: Iterable[MeasuredCase]) -> Iterator[tuple[int, Case]]:
    """The held-out cases that the only champion of a package won in its domain."""
    won = {each.label for each in figures if each.won}
    for case in champion.run.setup.cases[HELD_OUT]:
        if case.label in won and champion.holds(case):
            yield 0, case
