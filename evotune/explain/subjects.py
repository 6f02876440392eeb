"""The candidates of an explanation: the explained trial, and the one with which it is compared."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from evotune.backends.base.evidence import GatheredEvidence
from evotune.backends.base.launch import DeviceProfile
from evotune.errors import UsageError
from evotune.explain.machine_differences import Machine
from evotune.report.data import RunData
from evotune.report.leaderboard import rank
from evotune.runs.folder import RunFolder, find_run
from evotune.store import RunStore
from evotune.store.facts import Ablation, Baselines, Facts, read_facts
from evotune.trial import Configuration, Measurement, Outcome, Trial, Value

BASELINE, DEFAULT = "baseline", "default"


@dataclass(frozen=True, slots=True)
class Subject:
    """A trial of a run with its deciding outcome, on the case that is explained.

    `case` and `baseline` are "" on a recorded space; `time_us` is None for a trial that failed.
    """

    trial: Trial
    outcome: Outcome
    case: str
    time_us: float | None
    baseline: str
    baseline_us: float | None
    speedup: float | None
    interval: tuple[float, float] = (math.inf, math.inf)
    """The 95% interval of `speedup`."""
    confirmed: bool = False

    @property
    def configuration(self) -> Configuration:
        return self.trial.configuration


def chosen_subject(data: RunData, number: int | None) -> Subject:
    """Trial `number`, or the leaderboard's first row. Raises UsageError if there is no such valid
    trial."""
    if number is None:
        rows = rank(data).rows
        if not rows:
            raise UsageError(f"run {data.id} has no valid candidate")
        number = rows[0].number
    found = subject_of(data, number)
    if found is None:
        raise UsageError(f"run {data.id} has no trial {number}")
    if not found.outcome.ok:
        why = f": {found.outcome.reason}" if found.outcome.reason else ""
        raise UsageError(f"trial {number} has no time: {found.outcome.kind}{why}")
    return found


def of_one_model(data: RunData, subject: Subject) -> RunData:
    """The run's data with only the trials on the subject's model of device, because speedups and
    failures of other models do not count. For a model that is not the run's first, nothing else is
    known."""
    own = data.facts.device.name
    model = subject.outcome.device_model or own

    def belongs(trial: Trial) -> bool:
        found = trial.outcome.device_model
        if not found and not trial.outcome.ok:
            return True  # it failed before a device ran it, or on the only model
        return (found or own) == model

    facts = data.facts
    if model != own:  # these were measured on the run's first one
        facts = dataclasses.replace(
            facts,
            ablation=None,
            earlier_ablations=(),
            ablation_part=None,
            tries=(),
            baselines=Baselines(),
            evidence=(),
            device=DeviceProfile(model, "", "", {}),
        )
    return dataclasses.replace(data, facts=facts, trials=tuple(filter(belongs, data.trials)))


def subject_of(data: RunData, number: int, case: str = "") -> Subject | None:
    """Trial `number` on a case, or on its first timed case; None if there is no such trial."""
    trial = next((trial for trial in data.trials if trial.number == number), None)
    if trial is None:
        return None
    outcome, confirmed = _deciding(data, trial)
    timed = [m for m in outcome.measurements if m.counts]
    measured = next((m for m in timed if m.case == case), timed[0] if timed else None)
    time_us = _time_us(data, outcome, measured)
    if measured is None:
        return Subject(trial, outcome, "", time_us, "", None, None, confirmed=confirmed)
    return Subject(
        trial,
        outcome,
        measured.case,
        time_us,
        measured.baseline,
        measured.baseline_us,
        measured.speedup,
        (measured.speedup_low, measured.speedup_high),
        confirmed,
    )


def _deciding(data: RunData, trial: Trial) -> tuple[Outcome, bool]:
    """The outcome of the confirmation of the trial, or of one with the same code; the trial's own
    if nothing was confirmed. Also returns whether it was confirmed."""
    board = rank(data)
    for row in board.rows:
        if trial.number == row.number or trial.number in row.duplicates:
            return row.outcome, row.confirmed
    refused = (item for item in board.disqualified if item.trial.number == trial.number)
    return next((item.outcome for item in refused), trial.outcome), False


def _time_us(data: RunData, outcome: Outcome, measured: Measurement | None) -> float | None:
    if measured is not None:
        return measured.time_us
    return outcome.recorded_time_us if data.recorded else None


def evidence_for(
    kept: Sequence[GatheredEvidence], configuration: Mapping[str, Value], case: str
) -> GatheredEvidence | None:
    """The evidence of a configuration on a case, or on another case if there is none on this
    one."""
    own = [item for item in kept if dict(item.configuration or {}) == dict(configuration)]
    return next((item for item in own if item.case == case), own[0] if own else None)


def evidence_of_baseline(
    kept: Sequence[GatheredEvidence], name: str, case: str
) -> GatheredEvidence | None:
    found = (item for item in kept if item.baseline == name and item.case == case)
    return next(found, None) if name else None


def machine_of(name: str, subject: Subject, kept: Sequence[GatheredEvidence]) -> Machine:
    """The known facts about how the machine executes a trial. The compilers' figures are those of
    the search."""
    return Machine(
        name,
        subject.configuration,
        subject.time_us,
        evidence_for(kept, subject.configuration, subject.case),
        subject.trial.outcome.resources,
    )


def trial_like(data: RunData, configuration: Mapping[str, Value]) -> Trial | None:
    """The first trial with this configuration."""
    wanted = dict(configuration)
    return next((t for t in data.trials if t.configuration.to_json() == wanted), None)


def ablation_of(facts: Facts, subject: Subject) -> Ablation | None:
    """The stored ablation of this configuration."""
    own = subject.configuration.to_json()
    return next((each for each in facts.ablations if each.configuration == own), None)


def begun_ablation_of(facts: Facts, subject: Subject) -> Ablation | None:
    """The rows so far of an unfinished ablation of this configuration. `left` counts the changes
    that are not measured yet, if the run's evotune stored that."""
    found = facts.ablation_part
    own = subject.configuration.to_json()
    return found if found and found.rows and found.configuration == own else None


# The other side of `--against`: a baseline, the default, or a trial of this or another run.
MOST_TRIALS: Final = 20_000
"""The most trials that an explanation uses. Of a longer run it uses a sample."""


def read_run(run: RunFolder, wanted: Collection[int] = ()) -> RunData:
    """The run's facts and trials, those with the `wanted` numbers among them. Raises StoreError if
    they are damaged."""
    with RunData.thinned(run, MOST_TRIALS, wanted) as data:
        return dataclasses.replace(data, store=None)


def facts_now(run: RunFolder) -> Facts:
    """The run's facts, without its trials. Raises StoreError if they are damaged."""
    with RunStore.open_for_reading(run.store) as store, store.trusting_facts():
        return read_facts(store)


@dataclass(frozen=True, slots=True)
class Side:
    """The candidate with which the explained one is compared. A baseline, and a default that was
    not tried, have no `number`. `own_run`: whether it belongs to the explained trial's run."""

    name: str
    run: RunFolder
    number: int | None
    configuration: Configuration | None
    baseline: str = ""
    own_run: bool = True


def number_in(text: str) -> int | None:
    """The trial's number in the text of a side: `7`, or `RUN:7`."""
    number = text.rpartition(":")[2]
    return int(number) if number.isdecimal() and number.isascii() else None


def side_of(run: RunFolder, data: RunData, subject: Subject, text: str) -> Side | None:
    """The side of a comparison that a text names. Raises UsageError if it names nothing."""
    if not text:
        return None
    if text == BASELINE:
        if not subject.baseline:
            raise UsageError(f"run {data.id} has no baseline")
        return Side(subject.baseline, run, None, None, subject.baseline)
    if text == DEFAULT:
        if data.facts.default is None:
            raise UsageError(f"run {data.id} does not record its space's default configuration")
        tried = trial_like(data, data.facts.default)
        number = tried.number if tried is not None else None
        return Side("the default", run, number, Configuration(data.facts.default))
    number = number_in(text)
    name, colon, _ = (text, "", "") if number is None else text.rpartition(":")
    other = run
    if name or colon:
        other = find_run(name, run.path.parent)
        other = run if other.path.samefile(run.path) else other
    found = data if other is run else read_run(other, () if number is None else (number,))
    chosen = chosen_subject(found, number)
    label = f"trial {chosen.trial.number}"
    if other is not run:
        label += f" of {other.id}"
        if found.facts.device.name != data.facts.device.name:
            label += f" on {found.facts.device.name or 'another device'}"
    elif chosen.outcome.device_model != subject.outcome.device_model:
        label += f" on {chosen.outcome.device_model}"
    return Side(label, other, chosen.trial.number, chosen.configuration, own_run=other is run)


def machine_on(side: Side, subject: Subject, data: RunData) -> Machine:
    kept = data.facts.evidence
    if side.baseline:
        gathered = evidence_of_baseline(kept, side.baseline, subject.case)
        interval = subject.interval if subject.speedup is not None else None
        return Machine(side.name, None, _baseline_us(subject), gathered, interval=interval)
    if side.number is not None:
        found = subject_of(data, side.number, subject.case)
        assert found is not None
        machine = machine_of(side.name, found, kept)
        return dataclasses.replace(
            machine,
            time_us=_other_us(side, subject, found),
            interval=_interval(side, subject, found),
        )
    assert side.configuration is not None
    gathered = evidence_for(kept, side.configuration, subject.case)
    return Machine(side.name, side.configuration, None, gathered)


def _other_us(side: Side, subject: Subject, other: Subject) -> float | None:
    """By the two speedups over one baseline, which leave out that the machine was slower at one of
    the two times. None for another case, whose time says nothing here."""
    if other.case != subject.case:
        return None
    if not _over_one_baseline(side, subject, other):
        return other.time_us
    return (subject.time_us or 0.0) * (subject.speedup or 0.0) / (other.speedup or 1.0)


def _over_one_baseline(side: Side, subject: Subject, other: Subject) -> bool:
    same = side.own_run and other.baseline == subject.baseline and other.case == subject.case
    same = same and other.outcome.device_model == subject.outcome.device_model
    return same and bool(other.speedup and subject.speedup and subject.time_us)


def _interval(side: Side, subject: Subject, other: Subject) -> tuple[float, float] | None:
    """All quotients that the two speedups' intervals allow."""
    if not _over_one_baseline(side, subject, other) or other.interval[0] <= 0:
        return None
    return subject.interval[0] / other.interval[1], subject.interval[1] / other.interval[0]


def _baseline_us(subject: Subject) -> float | None:
    """Computed from the speedup, which comes from pairs timed together. The quotient of the two
    times, each a separate median, would differ from the leaderboard's figure."""
    if subject.time_us is None or subject.speedup is None:
        return subject.baseline_us
    return subject.time_us * subject.speedup
