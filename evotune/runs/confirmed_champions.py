"""The confirmed champions of a run, and the cases on which each was right."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from evotune.backends import registry
from evotune.backends.base.launch import DeviceProfile
from evotune.errors import EvotuneError
from evotune.problems import UserProblem
from evotune.problems.executed_sizes import holds
from evotune.problems.problem import Case, Place, Problem
from evotune.problems.short_cases import place_with_ratio
from evotune.runs import environment
from evotune.runs.reopening import ReopenedRun
from evotune.store import RunStore
from evotune.trial import Configuration, Domain, Json, Measurement, Outcome


@dataclass(frozen=True, slots=True)
class Champion:
    """A configuration that passed a run's confirmation.

    - `number`: its trial's number.
    - `searched_code`: the fingerprint of the machine code and launches that the search measured.
      `outcome` has the fingerprint of the confirmation.
    - `created`: the date of the run.
    - `kept_record`: the record of the run's environment in its store.
    """

    run: ReopenedRun
    number: int
    configuration: Configuration
    outcome: Outcome
    searched_code: str = ""
    created: str = ""
    kept_record: Json = None

    @property
    def domain(self) -> Domain:
        assert self.outcome.domain is not None
        return self.outcome.domain

    @property
    def bound(self) -> float:
        """The lower end of the champion's fitness interval."""
        return self.outcome.fitness_low or 0.0

    @property
    def key(self) -> tuple[str, int]:
        """A key that orders champions of several runs."""
        return self.run.run.id, self.number

    @property
    def problem(self) -> Problem:
        return self.run.planner.problem

    def record(self) -> Mapping[str, Json]:
        """The record of the run's environment. Raises StoreError if it is damaged."""
        return environment.read(self.run.run.environment, self.kept_record)

    def place(self, case: Case) -> Place:
        """The `place_with_ratio` of the case, for the champion's problem."""
        return place_with_ratio(self.problem, case)

    def holds(self, case: Case) -> bool:
        """Whether the case lies in a region of the champion's domain."""
        place = self.problem.place(case)
        return any(holds(region, place) for region in self.domain.regions)


def has_own_check(problem: Problem) -> bool:
    """Whether the problem refuses sizes by Python code, which a package does not have."""
    return isinstance(problem, UserProblem) and type(problem).check is not UserProblem.check


def sure_gain_us(profile: DeviceProfile, problem: Problem, measured: Measurement) -> float:
    """The least time in µs that a call of an exported package saves, by the lower end of the
    speedup's interval.

    For attention the time of the package's dispatch is subtracted. For other problems it is not,
    because their packages serve every case, won or not.
    """
    gain_us = measured.baseline_us - measured.baseline_us / measured.speedup_low
    if not isinstance(problem, UserProblem):
        gain_us -= registry.named(profile.backend).exported_call_us
    return gain_us


def widened_alone(profile: DeviceProfile, measured: Measurement) -> Measurement:
    """The measurement of one process, with its interval widened to the spread that processes of the
    same code usually have on this kind of device."""
    least = math.exp(registry.named(profile.backend).least_half_width)
    return msgspec.structs.replace(
        measured,
        speedup_low=min(measured.speedup_low, measured.speedup / least),
        speedup_high=max(measured.speedup_high, measured.speedup * least),
    )


def is_won(profile: DeviceProfile, problem: Problem, measured: Measurement) -> bool:
    """Whether a package may serve the case: the whole interval lies above 1, and a call gains more
    than it costs."""
    return measured.speedup_low >= 1.0 and sure_gain_us(profile, problem, measured) >= 0.0


def champions_of(reopened: ReopenedRun) -> list[Champion]:
    """The run's confirmed champions, the best first. Raises EvotuneError (exit 1) if there is
    none."""
    run, profile = reopened.run, reopened.setup.profile
    with RunStore.open_for_reading(run.store) as store:
        passed = {n: outcome for n, outcome in store.confirmations().items() if outcome.ok}
        trials = store.trials_of(passed)
        created, kept = str(store.meta("created", "")), store.meta("environment")
    found = [
        Champion(
            reopened,
            trial.number,
            trial.configuration,
            passed[trial.number],
            trial.outcome.binary,
            created,
            kept,
        )
        for trial in trials
        if (domain := passed[trial.number].domain) is not None and domain.device == profile.name
    ]
    if passed and not found:
        raise EvotuneError(
            f"run {run.id} does not record the cases that its champions passed on {profile.name}, "
            "perhaps because an older evotune made it; start a new run"
        )
    if not found:
        raise EvotuneError(
            f"run {run.id} has no confirmed champion: let it finish, or resume it with more trials"
        )
    return sorted(found, key=lambda champion: (-champion.bound, champion.number))
