"""Measures what each choice of a champion is worth, by changing one gene at a time.

A change sets a gene to the space's default or to a neighbouring value, or sets a number to its
smallest value, such as one stage or no producer warp. Candidate and champion are sampled in
alternation, in one process, on the same inputs. So the ratio is paired, like a speedup, with the
champion as the baseline. The first row times the champion against itself in several processes,
which shows how far a ratio deviates from 1 if nothing differs. The other rows are timed in one
process, and their intervals are widened by the spread of the first row.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from evotune.errors import EnvironmentProblem
from evotune.runs.compiling import build_jobs
from evotune.runs.confirming import outcome_of, repeated
from evotune.runs.folder import RunFolder
from evotune.runs.reopening import ReopenedRun, against
from evotune.store import RunStore
from evotune.store.facts import AblatedChange
from evotune.timing.processes import MOST, fitness_by_process, widened
from evotune.trial import Configuration, Json, NamedFigures, Outcome, Value

# Facts in a run's store: the newest ablation, those of other trials, and one that has not ended.
_NEWEST, _EARLIER, _PART = "ablation", "earlier_ablations", "ablation_part"
_TRIES = "tries"  # results of `explain --try`
SMALLEST = "smallest"
_NEIGHBOURS = 2  # of each gene: the nearest below and above, where there are two


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the champion.

    - `configuration`: the champion with `parameter` changed.
    - `also`: other values that had to change for the configuration to be valid.
    - `why`: what the new value is: default, neighbour, smallest, pair (two changes at once), or ""
      for the champion itself.
    """

    configuration: Configuration
    parameter: str
    before: Value | None
    after: Value | None
    why: str
    also: Mapping[str, Value]

    def to_json(self) -> dict[str, Json]:
        return {
            "parameter": self.parameter,
            "before": self.before,
            "after": self.after,
            "also": dict(self.also),
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class AblationRow:
    """A change and its effect.

    - `ratio`: the champion's time / the changed candidate's, geometric mean over the timed cases,
      with its 95% interval. Below 1 the change makes it slower. None if the candidate failed.
    - `same_code`: whether champion and changed candidate have the same machine code.
    - `resources`: the compiler's figures of the changed candidate.
    """

    change: Change
    outcome: str
    reason: str
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    same_code: bool
    resources: NamedFigures = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        return {
            **self.change.to_json(),
            "outcome": self.outcome,
            "reason": self.reason,
            "ratio": self.ratio,
            "ratio_low": self.ratio_low,
            "ratio_high": self.ratio_high,
            "same_code": self.same_code,
            "resources": dict(self.resources),
        }

    def fact(self) -> AblatedChange:
        """The row in the form that a run's store has."""
        found: AblatedChange = msgspec.convert(self.to_json(), AblatedChange)
        return found


@dataclass(slots=True)
class Progress:
    """The rows of an ablation that are measured so far. `fitnesses` and `binary` are those of the
    champion's row against itself: the fitness in each process, and the hash of the machine code."""

    rows: list[AblationRow] = field(default_factory=list)
    fitnesses: list[float] = field(default_factory=list)
    binary: str = ""

    def to_json(self) -> dict[str, Json]:
        rows: list[Json] = [row.to_json() for row in self.rows]
        return {"rows": rows, "fitnesses": [*self.fitnesses], "binary": self.binary}

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def from_json(cls, stored: Mapping[str, Json] | None, changes: Sequence[Change]) -> Progress:
        """The stored rows, up to the first one that belongs to none of `changes`."""
        if stored is None:
            return cls()
        rows = []
        for row, change in zip(stored["rows"], changes, strict=False):
            if any(row[name] != value for name, value in change.to_json().items()):
                break
            rest = {name: value for name, value in row.items() if name not in change.to_json()}
            rows.append(AblationRow(change, **rest))
        return cls(rows, stored["fitnesses"], stored["binary"]) if rows else cls()


def ablate_run(
    run: RunFolder,
    number: int,
    champion: Configuration,
    more: Callable[[Sequence[AblationRow]], Sequence[Change]] = lambda rows: (),
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[AblationRow]:
    """Measures every change of trial `number` and yields its row. After the last one it stores the
    rows in the run. `more` returns additional changes, given the rows so far. After an
    interruption, measured rows are not measured again. `stop` is called after each measured row;
    True ends the ablation like an interruption.

    Raises RunLocked while another process works on the run, and EnvironmentProblem on another model
    of device.
    """
    with run.locked():
        reopened = ReopenedRun.load(run)
        if reopened.away:
            raise EnvironmentProblem(
                f"{reopened.away}: the times would not compare; fix: ablate it there"
            )
        champion = reopened.configuration(champion)
        about = {"trial": number, "configuration": champion.to_json()}
        interrupted = _interrupted(run, about)
        changes = changes_of(reopened, champion)
        progress = Progress.from_json(interrupted, changes)
        yield from _kept(run, about, progress, reopened, changes, stop)
        if len(progress) < len(changes) and stop():
            return
        known = {change.configuration for change in changes}
        changes += [each for each in more(progress.rows) if each.configuration not in known]
        told = len(progress.rows)
        progress = max(progress, Progress.from_json(interrupted, changes), key=len)
        rows_of = _kept(run, about, progress, reopened, changes, stop)
        yield from itertools.islice(rows_of, told, None)
        if len(progress) < len(changes) and stop():
            return
        date = datetime.now(UTC).isoformat(timespec="seconds")
        rows: list[Json] = [row.to_json() for row in progress.rows]
        newest = {**about, "date": date, "rows": rows}
        _store(run, {_NEWEST: newest, _EARLIER: _others(run, champion), _PART: None})


def _kept(  # noqa: PLR0917
    run: RunFolder,
    about: Mapping[str, Json],
    progress: Progress,
    reopened: ReopenedRun,
    changes: Sequence[Change],
    stop: Callable[[], bool],
) -> Iterator[AblationRow]:
    """The rows of the changes. Each new row is stored at once: an interruption loses none."""
    known = len(progress)
    champion = changes[0].configuration
    rows = measured_rows(reopened, about["trial"], champion, changes, progress, stop=stop)
    for row in rows:
        if len(progress) > known:
            left = len(changes) - len(progress)
            _store(run, {_PART: {**about, **progress.to_json(), "left": left}})
        yield row


def keep_tries(run: RunFolder, own: Configuration, rows: Sequence[AblationRow]) -> None:
    """Stores the results of `explain --try`, measured in alternation with `own`. A result replaces
    an earlier one of the same configuration."""
    found: list[Json] = [
        {
            "own": own.to_json(),
            "configuration": row.change.configuration.to_json(),
            "outcome": row.outcome,
            "measured": row.ratio,
            "measured_low": row.ratio_low,
            "measured_high": row.ratio_high,
        }
        for row in rows
    ]
    with RunStore.open_for_reading(run.store) as store, store.trusting_facts():
        kept = store.meta(_TRIES) or []
    names = ("own", "configuration")
    new = [[each[name] for name in names] for each in found]
    kept = [each for each in kept if [each[name] for name in names] not in new]
    _store(run, {_TRIES: [*kept, *found]})


def _interrupted(run: RunFolder, about: Mapping[str, Json]) -> Mapping[str, Json] | None:
    """The rows of an interrupted ablation of the same trial; None if there is none."""
    with RunStore.open_for_reading(run.store) as store, store.trusting_facts():
        stored: Mapping[str, Json] | None = store.meta(_PART)
    if not stored or any(stored[name] != value for name, value in about.items()):
        return None
    return stored


def _others(run: RunFolder, champion: Configuration) -> list[Json]:
    """The stored ablations of other configurations, the oldest first."""
    with RunStore.open_for_reading(run.store) as store, store.trusting_facts():
        stored = [*(store.meta(_EARLIER) or ()), store.meta(_NEWEST)]
    own = champion.to_json()
    return [each for each in stored if each and each["configuration"] != own]


def _store(run: RunFolder, facts: Mapping[str, Json]) -> None:
    with RunStore.open_for_writing(run.store) as store:
        store.set_facts(facts)


def measured_rows(
    reopened: ReopenedRun,
    number: int,
    champion: Configuration,
    changes: Sequence[Change],
    progress: Progress | None = None,
    *,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[AblationRow]:
    """Measures each change of trial `number`; the first is the champion unchanged. Rows that
    `progress` has are not measured again, and new rows are added to it. All candidates are compiled
    on all cores before the first is timed. Ends when `stop` returns True, but not before a row
    other than the champion's own is new, so that each call makes progress."""
    progress = Progress() if progress is None else progress
    yield from tuple(progress.rows)
    left = changes[len(progress.rows) :]
    if not left:
        return
    with reopened.executor() as executor:
        rival = reopened.rival_jobs(champion)
        planned = (reopened.planner.proposal(number, change.configuration) for change in left)
        proposals = [against(proposal, rival) for proposal in planned]
        jobs = [job for proposal in proposals for job in proposal.compile_jobs.values()]
        build_jobs(jobs, reopened.setup.document.timeouts.compile_s, stop)
        for change, proposal in zip(left, proposals, strict=True):
            outcome = outcome_of(executor, proposal)
            if not progress.rows:  # the champion against itself
                time_again = functools.partial(outcome_of, executor)
                outcome = repeated(time_again, proposal, outcome, processes=MOST)
                progress.fitnesses = fitness_by_process(outcome)
            elif outcome.ok and len(progress.fitnesses) > 1:
                outcome = widened(outcome, progress.fitnesses)
            progress.binary = progress.binary or outcome.binary
            row = _row(change, outcome, same_code=outcome.binary == progress.binary)
            progress.rows.append(row)
            yield row
            if stop() and len(progress.rows) > 1:
                return


def unchanged(champion: Configuration) -> Change:
    """The champion as a change of nothing."""
    return Change(champion, "", None, None, "", {})


def changes_of(reopened: ReopenedRun, champion: Configuration) -> list[Change]:
    """The champion unchanged, then every change of one gene, in the space's order."""
    found = [unchanged(champion)]
    seen = {champion}
    default = reopened.space.default()
    neighbours: dict[str, list[Configuration]] = {}
    for neighbour in reopened.space.neighbours(champion):
        neighbours.setdefault(_differing(champion, neighbour)[0], []).append(neighbour)
    for name in reopened.space.active(champion):
        back = _with_value(reopened, champion, name, default[name])
        candidates = [(back, "default")] if back is not None else []
        candidates += [(near, "neighbour") for near in _nearest(name, champion, neighbours)]
        if (least := _smallest(reopened, champion, name)) is not None:
            candidates.append((least, SMALLEST))
        for configuration, why in candidates:
            if configuration not in seen:
                seen.add(configuration)
                also = {
                    other: configuration[other]
                    for other in _differing(champion, configuration)
                    if other != name
                }
                found.append(
                    Change(configuration, name, champion[name], configuration[name], why, also)
                )
    return found


def _nearest(
    name: str, champion: Configuration, neighbours: Mapping[str, list[Configuration]]
) -> list[Configuration]:
    """The nearest neighbours of a gene, for numbers one on either side."""
    known = neighbours.get(name, [])
    mine = champion[name]
    if isinstance(mine, str):
        return known[:_NEIGHBOURS]
    below = [near for near in known if not isinstance(near[name], str) and near[name] < mine]  # type: ignore[operator]
    above = [near for near in known if near not in below]
    return [*below[:1], *above[:1]]


def _smallest(reopened: ReopenedRun, champion: Configuration, name: str) -> Configuration | None:
    """The champion with the smallest value of a number that is valid with its other values; None if
    that is its own. Others change only if this value makes them inactive or active."""
    own, space = champion[name], reopened.space
    if isinstance(own, (bool, str)):
        return None
    values = next(each.values for each in space.parameters if each.name == name)
    for value in sorted(v for v in values if not isinstance(v, (bool, str)) and v < own):
        found = space.repair({**champion, name: value}, random.Random(0))
        if found is None or found[name] != value:
            continue
        active = {*space.active(champion)} & {*space.active(found)}
        if {*_differing(champion, found)} & active <= {name}:
            return found
    return None


def _with_value(
    reopened: ReopenedRun, champion: Configuration, name: str, value: Value
) -> Configuration | None:
    """The champion with one other value, repaired if necessary; None if it cannot be."""
    if champion[name] == value:
        return None
    wanted = {**champion, name: value}
    repaired = reopened.space.repair(wanted, random.Random(0))
    return repaired if repaired is not None and repaired[name] == value else None


def _differing(one: Configuration, other: Configuration) -> list[str]:
    return [name for name in one if one[name] != other[name]]


def _row(change: Change, outcome: Outcome, *, same_code: bool) -> AblationRow:
    fitness = (outcome.fitness, outcome.fitness_low, outcome.fitness_high)
    ratio, low, high = (None if value is None else math.exp(value) for value in fitness)
    resources = {
        name: value for name, value in outcome.resources.items() if isinstance(value, (int, float))
    }
    return AblationRow(
        change, outcome.kind.value, outcome.reason, ratio, low, high, same_code, resources
    )
