"""Does the work of `evotune explain`: measures the missing parts, stores them in the run, and
explains."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from evotune.backends import registry
from evotune.backends.base.evidence import GatheredEvidence, Work
from evotune.errors import EnvironmentProblem, EvotuneError, RunLocked, SpaceError, UsageError
from evotune.explain.assembling import SpaceView, TrialStudy, explain_data
from evotune.explain.explanation import Explanation
from evotune.explain.findings import Suggestion
from evotune.explain.measured_pairs import (
    Choices,
    TrialTable,
    changes_of_pair,
    is_pair,
    pair_changes,
    pairs_to_measure,
)
from evotune.explain.predicting import LaunchFigures, Predictor
from evotune.explain.subjects import (
    Side,
    Subject,
    ablation_of,
    begun_ablation_of,
    chosen_subject,
    evidence_for,
    evidence_of_baseline,
    facts_now,
    machine_on,
    number_in,
    read_run,
    side_of,
)
from evotune.explain.suggestions import with_tries
from evotune.report import wording
from evotune.report.data import RunData
from evotune.runs.ablation import (
    AblationRow,
    Change,
    ablate_run,
    changes_of,
    keep_tries,
    measured_rows,
    unchanged,
)
from evotune.runs.evidence_gathering import Access, gathered_or_reason, keep_evidence
from evotune.runs.folder import RunFolder
from evotune.runs.reopening import ReopenedRun
from evotune.search.gaussian_process import Difference
from evotune.store.facts import AblatedChange, Ablation
from evotune.trial import Configuration, Value
from evotune.util.commands import run_command
from evotune.util.words import counted


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """- `trial`: the number of the trial to explain; None for the leaderboard's first.
    - `against`: baseline, default, a trial's number, RUN:NUMBER or RUN; "" for none.
    - `measure`: None measures if the run's device is present; the machine code is read even without
      the device. False compiles and launches nothing.
    - `tries`: measures the suggestions that are configurations.
    - `effects`: whether to measure each choice in alternation with the trial, which takes longest.
    - `minutes`: the time limit on measuring; tries do not count. None stands for the backend's
      default. The explanation names what was not measured; the next one measures it.
    """

    trial: int | None = None
    against: str = ""
    measure: bool | None = None
    tries: bool = False
    effects: bool = True
    minutes: float | None = None


def explain_run(
    run: RunFolder, request: ExplainRequest, note: Callable[[str], object] = lambda text: None
) -> Explanation:
    """Explains a trial of the run. `note` is called with a line before each measurement.

    Raises UsageError for a trial, a run or a side that does not exist, and for `tries` with
    `measure` False. If something is to be measured, raises EnvironmentProblem if the run's device
    is absent, and RunLocked while another process works on the run.
    """
    if request.tries and request.measure is False:
        raise UsageError("--no-measure and --try exclude each other")
    named = (request.trial, number_in(request.against))
    wanted = [number for number in named if number is not None]
    data = read_run(run, wanted)
    subject = chosen_subject(data, request.trial)
    side = side_of(run, data, subject, request.against)
    demanded = request.measure is True or request.tries
    access, missing = _access(run, data, demanded=demanded)
    if demanded:
        _require_device(data, access, missing)
    study = TrialStudy.of(data, subject, _view(access) if access is not None else None)
    if request.measure is not False and access is not None:
        minutes = request.minutes or _usual_minutes(access)
        gathering = Gathering(data, study, access, note, missing, seconds=60 * minutes)
        _gather(gathering, side, request)
        data = dataclasses.replace(data, facts=facts_now(run))
    other = None
    if side is not None:
        theirs = data if side.own_run else read_run(side.run, wanted)
        other = machine_on(side, subject, theirs)
    if other is not None and other.time_us is None:
        missing.append(f"the speed of {other.name}: it was not timed on this trial's case")
    if other is not None and other.gathered is not None and other.gathered.case != subject.case:
        missing.append(f"counters of {other.name}: the known ones are of {other.gathered.case}")
    found = explain_data(data, other=other, missing=missing, study=study)
    if request.tries:
        assert access is not None
        try_suggestions(run, access.reopened, subject, found.next, note)
        tried = with_tries(found.next, subject.configuration, facts_now(run).tries)
        found = msgspec.structs.replace(found, next=tried)
    return found


def predict_changes(
    run: RunFolder, start: Mapping[str, Value], changed: Sequence[Mapping[str, Value]]
) -> list[Difference | None]:
    """ln of the time of `start` / the time of each changed configuration, predicted from the run's
    trials; None if a value was neither tried nor is in the space. Raises UsageError for a run with
    too few valid trials."""
    data = read_run(run)
    access, _ = _access(run, data)
    view = _view(access) if access is not None else None
    table = TrialTable.of(data.trials, view.space.parameters if view is not None else ())
    try:
        predictor = Predictor(table, view.launch_figures if view is not None else None)
    except ValueError as error:
        raise UsageError(f"run {run.id}: {error}") from error
    return predictor.changes(start, changed)


def _access(
    run: RunFolder, data: RunData, *, demanded: bool = False
) -> tuple[Access | None, list[str]]:
    """The run opened again, or the reason why not. If it is `demanded`, code that the user has not
    agreed to execute is an error, as for the other commands."""
    if data.recorded:
        return None, []
    try:
        return Access.to(run), []
    except EvotuneError as error:
        if demanded and isinstance(error, UsageError | SpaceError):
            raise
        return None, [f"the space's files were not read: {error}"]


def _usual_minutes(access: Access) -> float:
    return registry.named(access.reopened.setup.profile.backend).explain_minutes


def _gather(gathering: Gathering, side: Side | None, request: ExplainRequest) -> None:
    try:
        gathering.evidence(side, demanded=bool(request.measure))
        if gathering.access.away:
            gathering.missing.append(f"nothing was launched: {gathering.access.away}")
        elif request.effects:
            if not ablation_of(facts_now(gathering.run), gathering.subject):
                gathering.ablation()
            gathering.costliest()
    except RunLocked as error:
        if request.measure:
            raise
        gathering.missing.append(f"nothing was measured: {error}")


def _require_device(data: RunData, access: Access | None, missing: Sequence[str]) -> None:
    if data.recorded:
        raise UsageError(f"run {data.id} replays a recording: there is no kernel to measure")
    if access is None:
        raise EnvironmentProblem("; ".join(missing))
    if access.away:
        raise EnvironmentProblem(access.away)


def _view(access: Access) -> SpaceView:
    def work_of(configuration: Configuration, label: str) -> Work | None:
        try:
            return access.work_of(access.timed_job(configuration, label))
        except EvotuneError:
            return None

    figures = functools.partial(launch_figures, access)
    return SpaceView(access.reopened.space, work_of, figures)


def launch_figures(access: Access, configuration: Configuration) -> LaunchFigures:
    """The launch figures of a configuration; {} if it cannot run."""
    try:
        job = access.timed_job(configuration)
    except EvotuneError:
        return {}
    launches = job.plan.launches
    if not launches:
        return {"launches": 1.0}
    largest = max(launches, key=lambda launch: launch.threads)
    blocks = math.prod(largest.grid)
    figures = {
        "launches": float(len(launches)),
        "threads": float(largest.threads),
        "blocks": float(blocks),
        "shared_bytes": float(largest.shared_bytes),
        "bytes_in_flight": largest.shared_bytes / max(1, largest.threads),
    }
    return {**figures, **_on_device(figures, access.reopened.setup.profile.attributes)}


def _on_device(figures: LaunchFigures, attributes: Mapping[str, Value]) -> LaunchFigures:
    """Resident blocks and warps of a multiprocessor, and its idle time, as far as threads and
    shared memory determine them, because registers are known only after compiling. {} on a CPU."""

    def limit(name: str) -> int:
        found = attributes.get(name, 0)
        return int(found) if isinstance(found, int) else 0

    multiprocessors, most_threads = limit("multiprocessors"), limit("threads_per_multiprocessor")
    if not multiprocessors or not most_threads or not figures["threads"]:
        return {}
    room, reserved = (
        limit(f"{name}")
        for name in ("shared_bytes_per_multiprocessor", "reserved_shared_bytes_per_block")
    )
    resident = max(1, most_threads // int(figures["threads"]))
    if room:
        resident = max(1, min(resident, int(room // (figures["shared_bytes"] + reserved or 1))))
    waves = figures["blocks"] / (multiprocessors * resident)
    each = min(float(resident), max(1.0, figures["blocks"] / multiprocessors))
    rounds = math.ceil(figures["blocks"] / multiprocessors)
    return {
        "resident": float(resident),
        "waves": waves,
        "warps": each * figures["threads"] / 32,
        "idle": 1 - figures["blocks"] / (rounds * multiprocessors),
    }


_SAID_EVERY_S = 30.0
_OWN = "this trial"
_EXPLAINED_EFFECTS = 5  # of which the changed candidate's evidence is gathered
_LEAST_EXPLAINED = 1.03  # a worth
_PAIRED = 3  # a paired measurement takes about so many times the search's own


@dataclass(slots=True)
class Gathering:
    """Gathers the evidence and the ablation of the subject of a `study`.

    - `missing`: the parts that could not be measured, in words.
    - `note`: is called with a line before each step.

    The methods raise RunLocked while another process works on the run.
    """

    data: RunData
    study: TrialStudy
    access: Access
    note: Callable[[str], object]
    missing: list[str]
    seconds: float = math.inf
    """The time limit in s. The evidence of the subject and one change are measured in any case."""
    until_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.until_s = time.monotonic() + self.seconds

    @property
    def run(self) -> RunFolder:
        return self.access.reopened.run

    @property
    def subject(self) -> Subject:
        return self.study.subject

    def is_over(self) -> bool:
        return time.monotonic() >= self.until_s

    def evidence(self, side: Side | None, *, demanded: bool) -> None:
        """Gathers the evidence of the subject and of the other side. If `demanded`, the other
        side's run must open."""
        subject = self.subject
        self._trial(self.run, self.access, subject.configuration, _OWN)
        if side is None:
            return
        if side.baseline:
            self._baseline(side)
        elif side.configuration is not None:
            try:
                access = self.access if side.own_run else Access.to(side.run)
            except EvotuneError as error:
                if demanded:
                    raise
                self.missing.append(f"machine code and counters of {side.name}: {error}")
                return
            self._trial(side.run, access, side.configuration, side.name)

    def _trial(
        self, run: RunFolder, access: Access, configuration: Mapping[str, Value], name: str
    ) -> None:
        label = self.subject.case
        if _is_wanting(evidence_for(facts_now(run).evidence, configuration, label), access):
            gather = functools.partial(access.gather, Configuration(configuration), label)
            self._keep(run, gather, name)

    def _baseline(self, side: Side) -> None:
        label = self.subject.case
        kept = evidence_of_baseline(facts_now(side.run).evidence, side.baseline, label)
        if not self.access.away and _is_wanting(kept, self.access):
            gather = functools.partial(
                self.access.gather_baseline, self.subject.configuration, label
            )
            self._keep(side.run, gather, side.name)

    def _keep(self, run: RunFolder, gather: Callable[[], GatheredEvidence], name: str) -> None:
        if self.is_over() and name != _OWN:
            again = run_command("explain", self.run.path)
            self.missing.append(
                f"machine code and counters of {name}: no time was left; this continues: {again}"
            )
            return
        self.note(f"reading the machine code and the counters of {name}")
        found = gathered_or_reason(gather)
        if isinstance(found, str):
            self.missing.append(f"machine code and counters of {name}: {found}")
        else:
            keep_evidence(run, [found])

    def ablation(self) -> None:
        """Measures the paired effects of the subject, as far as the time allows."""
        subject = self.subject
        changes = len(changes_of(self.access.reopened, subject.configuration)) - 1
        about = wording.duration_text(changes * _seconds_a_trial(self.data))
        self.note(
            f"measuring {changes} changes of trial {subject.trial.number} in alternation with it, "
            f"about {about}{self._at_most()}; --no-effects leaves them out"
        )
        said_s = time.monotonic()
        number, own = subject.trial.number, subject.configuration
        rows = ablate_run(self.run, number, own, self._in_pairs, self.is_over)
        for done, _ in enumerate(rows):  # the first row is the trial against itself
            if time.monotonic() - said_s >= _SAID_EVERY_S:
                said_s = time.monotonic()
                self.note(f"{done} changes measured")

    def _at_most(self) -> str:
        if math.isinf(self.seconds):
            return ""
        return f", at most {wording.duration_text(self.seconds)} in all (--minutes)"

    def costliest(self) -> None:
        """Gathers the machine code and counters of the costliest changes."""
        subject = self.subject
        for row in _costliest(ablation_of(facts_now(self.run), subject)):
            changed = {**subject.configuration, row.parameter: row.values[1], **row.also}
            name = f"{row.parameter}={wording.value_text(row.values[1])}"
            self._trial(self.run, self.access, changed, name)

    def _in_pairs(self, rows: Sequence[AblationRow]) -> list[Change]:
        """The changes of pairs of choices. The measured single changes help to choose the pairs."""
        champion, space = self.subject.configuration, self.access.reopened.space

        def is_possible(choices: Choices) -> bool:
            changes = changes_of_pair(champion, choices)
            return all(space.is_valid(change.configuration) for change in changes)

        effects = self.study.effects(begun_ablation_of(self.data.facts, self.subject))
        choices = pairs_to_measure(self.study.over_space.pairs, effects, rows, is_possible)
        found = pair_changes(champion, choices)
        measured = {row.change.configuration for row in rows}
        count = sum(change.configuration not in measured for change in found)
        if count:
            self.note(f"measuring {count} more: do the most valuable choices depend on each other?")
        return found


def _costliest(ablation: Ablation | None) -> list[AblatedChange]:
    """The costliest single change of each parameter, the greatest first. Changes that cost less
    than 3% are left out."""
    rows = [row for row in (ablation.rows if ablation else ()) if row.parameter and row.ratio]
    found: dict[str, AblatedChange] = {}
    for row in sorted(rows, key=lambda row: row.ratio or 0.0):
        if (
            row.speed
            and row.speed.value * _LEAST_EXPLAINED <= 1
            and not (is_pair(row) or row.same_code)
        ):
            found.setdefault(row.parameter, row)
    return list(found.values())[:_EXPLAINED_EFFECTS]


def _is_wanting(kept: GatheredEvidence | None, access: Access) -> bool:
    """Whether to gather evidence: there is none, or it was gathered without the device, which is
    here now."""
    if kept is None:
        return True
    counted = any(launch.counters is not None for launch in kept.evidence.launches)
    return not access.away and not counted and kept.evidence.ceilings.kind == "model"


def _seconds_a_trial(data: RunData) -> float:
    """By the stages of the run's own trials; a paired measurement takes longer than theirs, and all
    cores compile."""
    medians = {stage: statistics.median(s) for stage, s in data.totals.stage_s.items() if s}
    times = {"measure": _PAIRED, "compile": 1 / (os.cpu_count() or 1)}
    return sum(s * times.get(stage, 1) for stage, s in medians.items())


def try_suggestions(
    run: RunFolder,
    reopened: ReopenedRun,
    subject: Subject,
    suggestions: Sequence[Suggestion],
    note: Callable[[str], object],
) -> None:
    """Measures the suggestions that are configurations, in alternation with the explained trial,
    and stores the results in the run."""
    own = subject.configuration
    wanted = [Configuration(item.configuration) for item in suggestions if item.configuration]
    if not wanted:
        note("none of the suggestions is a configuration of this space: nothing to try")
        return
    changes = [unchanged(own)]
    for configuration in wanted:
        name = next(name for name, value in configuration.items() if value != own[name])
        changes.append(Change(configuration, name, own[name], configuration[name], "tried", {}))
    number = subject.trial.number
    note(f"trying {counted(len(wanted), 'suggestion')} in alternation with trial {number}")
    with run.locked():
        rows = list(measured_rows(reopened, number, own, changes))[1:]
        keep_tries(run, own, rows)
