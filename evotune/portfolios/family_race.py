"""Works on a family: in each group the spaces race for a small part of its budget, the better ones
go on, and the winner gets the rest and has its champions confirmed.

A search is an ordinary run in the family's folder. A decision is written into `family.json` before
anything follows from it, so a family that is killed at any moment goes on as if it had not been.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from evotune.backends import registry
from evotune.errors import EvotuneError, SpaceError, UsageError
from evotune.portfolios.case_searches import Observing
from evotune.portfolios.family_file import (
    Family,
    FamilyBudget,
    Group,
    Race,
    Step,
    family_fact,
    family_runs,
    is_confirmed,
    read_family,
    runs_of_groups,
    write_family,
)
from evotune.portfolios.family_groups import group_entries, point_in, require_cases, sorted_cases
from evotune.portfolios.near_champions import nearest_starts
from evotune.problems import create_problem
from evotune.runs.folder import FAMILY, RunFolder, create_folder
from evotune.runs.spaces import find_space
from evotune.runs.starting import RunRequest, resume_run, start_run, stored_options
from evotune.space.document import load_space
from evotune.space.reading.case_file import CaseEntry
from evotune.store import RunStore
from evotune.trial import Json, Value
from evotune.util.commands import RUNS_DIR
from evotune.util.words import counted

NO_CASES = f"the family {FAMILY} needs cases: --cases FILE (`evotune record` writes one)"
RACING = 0.15
"""The share of a group's budget that is spent on the race."""
GOING_ON = 0.25
"""The share of a group's budget that the better contenders get after the race, if there are
several."""
_HANDFUL = 4  # trials that each contender gets at least: near champions, the default, another
_TRIALS_OF_A_RACE = 8  # if only minutes limit the family
_MOST_FINALISTS = 3
_LOOKED_AT = 16  # of the best trials of a search
_FAR_BEHIND = math.log(1.5)
"""A space that is so much slower than the best after the race does not go on."""
_MOST_RACED = 0.4
"""Racing ends at this share of the minutes if compiling is slow. Then the best goes on alone."""
_LEAST_S = 1.0
_STARTING_S = 10.0
"""About what a run takes before its search: workers, baselines, the first kernels."""


@dataclasses.dataclass(frozen=True, slots=True)
class FamilyRequest:
    """A request for a family's run.

    - `budget`: the budget of all groups together.
    - `options`: other options of each run: seed, strategy, lookahead, racing, speedup,
      no_improvement.
    - `champions`: how many of a winner's trials to confirm.
    """

    cases: Sequence[CaseEntry]
    device: str = "auto"
    runs_dir: Path = RUNS_DIR
    budget: FamilyBudget = dataclasses.field(default_factory=FamilyBudget)
    options: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    champions: int = 3
    command: tuple[str, ...] = ()


Say = Callable[[str], None]


def start_family(request: FamilyRequest, observing: Observing, say: Say) -> RunFolder:
    """Makes a new family's run and runs it to its end. Everything that can be refused is refused
    before the family has a folder.

    Raises SpaceError for a mistake in the cases, UsageError if no space can compute any of them or
    the budget is too small. Raises KeyboardInterrupt if the user ended it: `resume_family`
    continues it.
    """
    if not request.cases:
        raise UsageError(NO_CASES)
    backend = registry.asked_for(request.device) or registry.choose(request.device)
    wanted = backend.left_free(request.device)
    profile = backend.profile(wanted)
    found = sorted_cases(request.cases, wanted)
    require_cases(found)
    family = Family(
        name=FAMILY,
        device=backend.same_device(profile),
        device_name=profile.name,
        groups=found.groups,
        unserved=found.unserved,
        options=dict(request.options),
        champions=request.champions,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=request.command,
    )
    set_budget(family, request.budget)
    folder = create_folder(request.runs_dir, FAMILY, parts=("logs",))
    with folder.locked():
        write_family(folder, family)
        _work(folder, family, observing, say)
    return folder


def resume_family(
    folder: RunFolder,
    observing: Observing,
    say: Say,
    *,
    trials: int | None = None,
    minutes: float | None = None,
    champions: int | None = None,
) -> None:
    """Continues a family's run, with new totals if they are given. Raises RunLocked while another
    process works on it, KeyboardInterrupt if the user ended it."""
    with folder.locked():
        family = read_family(folder)
        before = family.budget, family.champions
        given = FamilyBudget(
            family.budget.trials if trials is None else trials,
            family.budget.minutes if minutes is None else minutes,
        )
        set_budget(family, given)
        if champions is not None:
            family.champions = champions
        if (family.budget, family.champions) != before:
            _reopen(folder, family)
        elif family.state == "finished":
            say("the family is finished; --trials or --minutes asks for more")
        family.state = "running"
        write_family(folder, family)
        _work(folder, family, observing, say)


def set_budget(family: Family, budget: FamilyBudget) -> None:
    """Sets the family's budget. Raises UsageError if a group would get no trial."""
    count = len(family.groups)
    if budget.trials is not None and budget.trials < count:
        groups = counted(count, "group")
        trials = counted(budget.trials, "trial")
        raise UsageError(f"{trials} for {groups} of cases: each needs at least one")
    family.budget = budget


def trial_shares(family: Family) -> dict[str, int | None]:
    """The trials of each group, by its name. What is left after rounding down goes to the first
    groups, the heaviest; each has at least one."""
    trials = family.budget.trials
    if trials is None:
        return {group.name: None for group in family.groups}
    found = {group.name: max(1, int(trials * group.share)) for group in family.groups}
    names = [group.name for group in family.groups]
    spare = trials - sum(found.values())
    at = 0
    while spare:
        name = names[at % len(names)] if spare > 0 else max(names, key=lambda n: found[n])
        found[name] += 1 if spare > 0 else -1
        spare += -1 if spare > 0 else 1
        at += 1
    return dict(found)


def where_cases_go(family: Family) -> Iterator[str]:
    """A line for each group, and one for each case that no space can compute."""
    for group in family.groups:
        spaces = ", ".join(each.space for each in group.contenders)
        yield f"{group.name}: {spaces}"
    for each in family.unserved:
        yield f"{each.case}: goes nowhere: {each.why}"


def _reopen(folder: RunFolder, family: Family) -> None:
    """Winners that were decided get the new totals; races that were not go on as they were."""
    runs = family_runs(folder)
    trials = trial_shares(family)
    for group in family.groups:
        race = family.races.get(group.name)
        if race is not None and race.last:
            minutes = family.budget.minutes
            seconds = None if minutes is None else 60 * minutes * group.share
            plan = _Plan(group, race, runs, trials[group.name], seconds, family.champions)
            race.last = (*race.last[:-1], plan.last_step(race.winner))
        if race is not None:
            race.done = False
            if race.first and not race.last and race.second == ():
                race.first, race.second = None, None  # nothing valid: the race goes on


def _work(folder: RunFolder, family: Family, observing: Observing, say: Say) -> None:
    for line in where_cases_go(family):
        say(line)
    races = Races(
        folder.path,
        family.races,
        keep=lambda: write_family(folder, family),
        observing=observing,
        say=say,
        champions=family.champions,
        device=family.device,
        command=family.command,
    )
    trials, minutes = trial_shares(family), family.budget.minutes
    try:
        for group in family.groups:
            seconds = None if minutes is None else 60 * minutes * group.share
            races.run_group(group, trials[group.name], seconds, family.options)
        family.state = "finished"
    except (KeyboardInterrupt, EvotuneError):
        family.state = "interrupted"
        raise
    finally:
        if family.state != "running":  # after a bug the state says that the process died
            write_family(folder, family)


class _Plan:
    """The steps of a group's race, from its budget and what its runs have used."""

    def __init__(  # noqa: PLR0917
        self,
        group: Group,
        race: Race,
        runs: Mapping[tuple[str, str], RunFolder],
        trials: int | None,
        seconds: float | None,
        champions: int,
    ) -> None:
        self._group = group
        self._race = race
        self._runs = runs
        self._trials = trials
        self._seconds = seconds
        self._champions = champions

    def first_steps(self) -> tuple[Step, ...]:
        """The contenders' searches; none if one contender has the budget to itself."""
        spaces = [each.space for each in self._group.contenders]
        each = _TRIALS_OF_A_RACE
        if self._trials is not None:
            spaces = spaces[: max(1, self._trials // _HANDFUL)]
            share = int(RACING * self._trials / len(spaces))
            each = min(self._trials // len(spaces), max(_HANDFUL, share))
        if self._seconds is not None:  # starting a run takes its part of the time, too
            spaces = spaces[: max(1, int(_MOST_RACED * self._seconds / _STARTING_S))]
        if len(spaces) == 1:
            return ()
        limit_s = None if self._seconds is None else _MOST_RACED * self._seconds / len(spaces)
        minutes = None if limit_s is None else max(limit_s, _LEAST_S) / 60
        return tuple(Step(space, each, minutes) for space in spaces)

    def second_steps(self) -> tuple[Step, ...]:
        """The better half goes on, without those far behind. One alone needs no more racing."""
        scores = self._race.scores
        ranked = sorted(scores, key=lambda space: (-scores[space], self._rank(space)))
        near = [space for space in ranked if scores[space] >= scores[ranked[0]] - _FAR_BEHIND]
        half = math.ceil(len(ranked) / 2) if len(ranked) > 2 else 2
        finalists = near[: min(half, _MOST_FINALISTS)]
        if self._seconds is not None and self._spent_s() >= _MOST_RACED * self._seconds:
            finalists = finalists[:1]
        return tuple(self._longer(space, len(finalists)) for space in finalists)

    def last_step(self, space: str) -> Step:
        """All that the others have left."""
        trials, minutes = self._own_trials(space), None
        if self._trials is not None:
            others = sum(self._count(other) for other in self._others(space))
            trials = max(self._count(space), self._trials - others, 1)
        if self._seconds is not None:
            others_s = sum(self._elapsed_s(other) for other in self._others(space))
            minutes = max(_LEAST_S, self._seconds - others_s) / 60
        return Step(space, trials, minutes, self._champions)

    def _longer(self, space: str, finalists: int) -> Step:
        count = self._count(space)
        if finalists == 1:  # it goes on as the winner
            return Step(space, max(1, count), None)
        trials, minutes = self._own_trials(space), None
        if self._trials is not None:
            trials = count + int(GOING_ON * self._trials / finalists)
        if self._seconds is not None:
            extra_s = GOING_ON * self._seconds / finalists
            minutes = (self._elapsed_s(space) + extra_s) / 60
        return Step(space, max(1, count, trials), minutes)

    def _own_trials(self, space: str) -> int:
        """The space's own budget: a family without a limit in trials has it for each search."""
        return max(self._count(space), load_space(find_space(space)).options.trials)

    def _rank(self, space: str) -> int:
        return [each.space for each in self._group.contenders].index(space)

    def _others(self, space: str) -> list[str]:
        return [s for group, s in self._runs if group == self._group.name and s != space]

    def _spent_s(self) -> float:
        return sum(self._elapsed_s(s) for group, s in self._runs if group == self._group.name)

    def _count(self, space: str) -> int:
        run = self._runs.get((self._group.name, space))
        if run is None:
            return 0
        with RunStore.open_for_reading(run.store) as store:
            return store.count()

    def _elapsed_s(self, space: str) -> float:
        run = self._runs.get((self._group.name, space))
        if run is None:
            return 0.0
        with RunStore.open_for_reading(run.store) as store:
            return store.elapsed_s()


class Races:
    """Runs the races of groups whose runs lie in one folder.

    - `races`: the decisions so far, by the group's name.
    - `keep`: is called after each decision.
    - `facts`: additional facts for the store of each run.
    """

    def __init__(
        self,
        runs_dir: Path,
        races: dict[str, Race],
        *,
        keep: Callable[[], None],
        observing: Observing,
        say: Say,
        champions: int,
        device: str,
        command: tuple[str, ...] = (),
        facts: Mapping[str, Json] | None = None,
    ) -> None:
        self._runs_dir = runs_dir
        self._races = races
        self._keep = keep
        self._observing = observing
        self._say = say
        self._champions = champions
        self._device = device
        self._command = command
        self._facts = facts or {}
        self._options: Mapping[str, Json] = {}
        self.runs = runs_of_groups(runs_dir)

    def run_group(
        self,
        group: Group,
        trials: int | None,
        seconds: float | None,
        options: Mapping[str, Json],
    ) -> None:
        """Runs the race of a group to its end. `trials` and `seconds`: its budget. `options`:
        additional options of each run. Raises KeyboardInterrupt if the user ended it."""
        race = self._races.setdefault(group.name, Race())
        if race.done:
            return
        self._options = options
        plan = _Plan(group, race, self.runs, trials, seconds, self._champions)
        if race.first is None:
            race.first = plan.first_steps()
            self._keep()
        self._perform(group, race, race.first)
        if race.second is None:
            if race.first:
                race.scores = self._scores(group, race.first)
                race.second = plan.second_steps() if race.scores else ()
                self._tell_race(group, race)
            else:
                race.second = ()
            self._keep()
        if len(race.second) > 1:
            self._perform(group, race, race.second)
        if not race.last and (winner := self._winner(group, race)) is not None:
            race.last = (plan.last_step(winner),)
            self._keep()
        self._perform(group, race, race.last)
        if not race.last:
            self._say(f"{group.name}: no space has a valid candidate")
        while (
            race.last
            and not self._is_confirmed(group, race)
            and (other := self._next(group, race)) is not None
        ):
            self._say(f"{group.name}: no champion of {race.winner} is confirmed: {other} is next")
            race.last = (*race.last, plan.last_step(other))
            self._keep()
            self._perform(group, race, race.last[-1:])
        race.done = True
        self._keep()

    def _perform(self, group: Group, race: Race, steps: Sequence[Step]) -> None:
        for step in steps:
            if step.space not in race.failed and not self._is_done(group, step):
                self._search(group, race, step)

    def _is_done(self, group: Group, step: Step) -> bool:
        """Whether the run of the space has come to the end of this step, or of a later one."""
        run = self.runs.get((group.name, step.space))
        if run is None:
            return False
        with RunStore.open_for_reading(run.store) as store:
            options, finished = stored_options(store), _is_finished(store)
        asked = options.trials, options.minutes or 0.0, options.champions
        wanted = step.trials or 0, step.minutes or 0.0, step.champions
        if asked == wanted:
            return finished
        return step.champions == 0 and all(a >= w for a, w in zip(asked, wanted, strict=True))

    def _search(self, group: Group, race: Race, step: Step) -> None:
        key = group.name, step.space
        what = "the winner's search" if step in race.last else "racing"
        self._say(f"{group.name}: {what}: {step.space}")
        with self._observing() as observer:
            if key in self.runs:
                result = resume_run(
                    self.runs[key],
                    observer,
                    trials=step.trials,
                    minutes=step.minutes,
                    champions=step.champions,
                )
            else:
                try:
                    result = start_run(self._request(group, step), observer)
                except SpaceError as error:
                    self._say(f"{group.name}: {step.space} is left out: {error}")
                    race.failed[step.space] = str(error)
                    self._keep()
                    return
                self.runs[key] = result.run
        if result.reason == "interrupted":
            raise KeyboardInterrupt

    def _request(self, group: Group, step: Step) -> RunRequest:
        contender = next(each for each in group.contenders if each.space == step.space)
        problem = create_problem(group.problem, group.dtype)
        heaviest = point_in(problem, group.cases[0])
        limits = {"trials": step.trials, "minutes": step.minutes, "champions": step.champions}
        return RunRequest(
            space=step.space,
            device=self._device,
            runs_dir=self._runs_dir,
            options={**self._options, **limits},
            cases=group_entries(group),
            dtype=contender.dtype,
            near=nearest_starts(step.space, problem, heaviest),
            facts={**self._facts, **family_fact(group.name, step.space)},
            command=self._command,
        )

    def _scores(self, group: Group, steps: Sequence[Step]) -> dict[str, float]:
        """The greatest lower end of an interval, so that a lucky sample on a busy machine does not
        decide."""
        found: dict[str, float] = {}
        for step in steps:
            run = self.runs.get((group.name, step.space))
            if run is not None:
                with RunStore.open_for_reading(run.store) as store:
                    outcomes = [t.outcome for t in itertools.islice(store.best_first(), _LOOKED_AT)]
                lows = [each.fitness_low for each in outcomes if each.fitness_low is not None]
                if lows:
                    found[step.space] = max(lows)
        return found

    def _winner(self, group: Group, race: Race) -> str | None:
        """The best of the finalists after their second search; the only contender without a race;
        None if no space has a valid trial."""
        if not race.first:
            spaces = (each.space for each in group.contenders)
            return next((space for space in spaces if space not in race.failed), None)
        scores = self._scores(group, race.second or ())
        order = [step.space for step in race.second or ()]
        return max(order, key=lambda s: (scores.get(s, -math.inf), -order.index(s)), default=None)

    def _is_confirmed(self, group: Group, race: Race) -> bool:
        """True also where nothing was to be confirmed."""
        run = self.runs.get((group.name, race.winner))
        if not self._champions:
            return True
        return run is not None and is_confirmed(run)

    def _next(self, group: Group, race: Race) -> str | None:
        """The next best space with a valid trial whose champions were not confirmed yet."""
        tried = {step.space for step in race.last} | set(race.failed)
        left = [space for space in race.scores if space not in tried]
        ranked = sorted(left, key=lambda space: -race.scores[space])
        if not race.first:  # the only one that the budget allowed had no configuration
            ranked = [each.space for each in group.contenders if each.space not in tried]
            return ranked[0] if race.winner in race.failed and ranked else None
        return ranked[0] if ranked else None

    def _tell_race(self, group: Group, race: Race) -> None:
        ranked = sorted(race.scores, key=lambda space: -race.scores[space])
        told = ", ".join(f"{space} {math.exp(race.scores[space]):.3f}x" for space in ranked)
        going_on = ", ".join(race.finalists)
        self._say(f"{group.name}: after the race, lower bounds: {told or 'no valid candidate'}")
        if going_on:
            self._say(f"{group.name}: {going_on} {'goes' if len(race.finalists) == 1 else 'go'} on")


def _is_finished(store: RunStore) -> bool:
    return str(store.meta("state", "")).startswith("finished")
