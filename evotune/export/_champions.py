"""The confirmed champions of runs, and which of them serve cases best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evotune.backends import registry
from evotune.engine.folder import RunFolder
from evotune.engine.reopening import ReopenedRun
from evotune.errors import EvotuneError, UsageError
from evotune.execute.executor import HELD_OUT, TIMED
from evotune.export._case_shapes import has_own_check
from evotune.export._served_regions import (
    MeasuredCase,
    ServedRegion,
    contains,
    exact_regions,
    in_order,
    near_regions,
)
from evotune.problems import UserProblem
from evotune.problems.attention import Attention
from evotune.problems.problem import Case, Place
from evotune.store import RunStore
from evotune.trial import Configuration, Domain, Measurement, Outcome, Region


@dataclass(frozen=True, slots=True)
class Champion:
    """A configuration that passed a run's confirmation. `number` is its trial's."""

    run: ReopenedRun
    number: int
    configuration: Configuration
    outcome: Outcome

    @property
    def domain(self) -> Domain:
        assert self.outcome.domain is not None
        return self.outcome.domain

    @property
    def bound(self) -> float:
        """The lower end of the interval of its fitness."""
        return self.outcome.fitness_low or 0.0

    @property
    def key(self) -> tuple[str, int]:
        """Orders champions of several runs."""
        return self.run.run.id, self.number

    def measured(self) -> list[MeasuredCase]:
        """The timed and held-out cases with their speedups, warm."""
        cases = {case.label: case for role in (TIMED, HELD_OUT) for case in self._cases(role)}
        return [
            self._measured(cases[m.case], m)
            for m in self.outcome.measurements
            if (m.counts or m.held_out) and m.cache == "warm" and m.case in cases
        ]

    def _cases(self, role: str) -> Sequence[Case]:
        return self.run.setup.cases[role]

    def _measured(self, case: Case, measured: Measurement) -> MeasuredCase:
        place, problem = self.place(case), self.run.planner.problem
        known = problem.sizes if isinstance(problem, UserProblem) else case.symbols.keys()
        sizes = frozenset(n for n in known if isinstance(place.ranged.get(n), int))
        speedup_low = measured.speedup_low
        gain_us = measured.baseline_us - measured.baseline_us / speedup_low
        if isinstance(problem, Attention):  # of other problems the kernel serves lost cases too
            gain_us -= registry.named(self.run.setup.profile.backend).exported_call_us
        return MeasuredCase(case.label, place, sizes, speedup_low, measured.held_out, gain_us)

    def place(self, case: Case) -> Place:
        """The case's place, of attention with the ratio of its lengths."""
        problem = self.run.planner.problem
        place = problem.place(case)
        if not isinstance(problem, Attention):
            return place
        ratio = int(case.symbols["seq_len_k"]) / int(case.symbols["seq_len_q"])
        return Place(place.fixed, {**place.ranged, "length_ratio": ratio})

    def holds(self, case: Case) -> bool:
        """Whether the champion was right on all cases around this one."""
        place = self.place(case)
        return any(contains(region.fixed, region.ranges, place) for region in self.domain.regions)

    def regions(self, checked: Iterable[Case]) -> tuple[Region, ...]:
        """The regions of its domain. For a problem that refuses sizes by Python code, which a
        package does not have, they are the `checked` cases themselves."""
        if not has_own_check(self.run.planner.problem):
            return self.domain.regions
        places = [self.place(case) for case in checked if self.holds(case)]
        return tuple(
            Region(place.fixed, {n: (value, value) for n, value in place.ranged.items()}, 1)
            for place in places
        )


def confirmed(run: RunFolder) -> list[Champion]:
    """The run's confirmed champions, the best first. EvotuneError (exit 1) when there is none,
    UsageError for a recorded run and for a backend whose kernels cannot be exported."""
    reopened = ReopenedRun.load(run, anywhere=True)
    profile = reopened.setup.profile
    if not registry.named(profile.backend).binary_suffix:
        raise UsageError(f"run {run.id}: kernels for {profile.name} cannot be exported")
    with RunStore.open_for_reading(run.store) as store:
        passed = {n: outcome for n, outcome in store.confirmations().items() if outcome.ok}
        trials = store.trials_of(passed)
    found = [
        Champion(reopened, trial.number, trial.configuration, passed[trial.number])
        for trial in trials
        if (domain := passed[trial.number].domain) is not None and domain.device == profile.name
    ]
    if passed and not found:
        raise EvotuneError(
            f"run {run.id} does not say on which cases its champions were right on {profile.name}; "
            "tune again with this evotune"
        )
    if not found:
        raise EvotuneError(
            f"run {run.id} has no confirmed champion: let it finish, or resume it with more trials"
        )
    return sorted(found, key=lambda champion: (-champion.bound, champion.number))


@dataclass(frozen=True, slots=True)
class Selection:
    """The champions of a package, by their number there, and the regions that they serve, in the
    order in which the package looks."""

    champions: tuple[Champion, ...]
    served: tuple[ServedRegion, ...]

    @property
    def best(self) -> Champion:
        """The champion with the greatest lower bound."""
        return min(self.champions, key=lambda champion: (-champion.bound, champion.key))


def _covering(champions: Sequence[Champion]) -> Iterable[int]:
    """The best champion for each of the values that regions fix, such as a size that is compiled
    in. Attention needs none: PyTorch serves the cases that no champion wins."""
    found: dict[str, int] = {}
    for number in sorted(range(len(champions)), key=lambda n: (-champions[n].bound, n)):
        if not isinstance(champions[number].run.planner.problem, Attention):
            for region in champions[number].domain.regions:
                found.setdefault(repr(sorted(region.fixed.items())), number)
    return found.values()


def selected(champions: Sequence[Champion]) -> Selection:
    """The champions that win a timed case from all others, the best one, and those that alone
    serve some cases. EvotuneError (exit 1) where none wins a case of attention: then PyTorch would
    serve all of them."""
    ordered = sorted(champions, key=lambda champion: champion.key)
    measured = [champion.measured() for champion in ordered]
    exact = in_order(
        region for number, cases in enumerate(measured) for region in exact_regions(number, cases)
    )
    best = min(range(len(ordered)), key=lambda n: (-ordered[n].bound, ordered[n].key))
    winners: dict[str, int] = {}
    for region in exact:
        winners.setdefault(repr((region.fixed, region.ranges)), region.kernel)
    chosen = sorted({best, *winners.values(), *_covering(ordered)})
    regions: list[ServedRegion] = []
    for number, old in enumerate(chosen):
        regions += exact_regions(number, measured[old])
        if not has_own_check(ordered[old].run.planner.problem):
            regions += near_regions(number, measured[old], ordered[old].domain.regions)
    if not regions and isinstance(ordered[0].run.planner.problem, Attention):
        raise EvotuneError(
            "no confirmed champion is surely faster than PyTorch on a case: a package would serve "
            "nothing"
        )
    return Selection(tuple(ordered[n] for n in chosen), tuple(in_order(regions)))
