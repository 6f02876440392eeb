"""The other side of `--against`: a baseline, the default, or a trial of this or another run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from evotune.engine.folder import RunFolder, find_run
from evotune.errors import UsageError
from evotune.explain._machine_differences import Machine
from evotune.explain._subjects import (
    BASELINE,
    DEFAULT,
    Subject,
    chosen_subject,
    evidence_for,
    evidence_of_baseline,
    kept_in,
    machine_of,
    subject_of,
    trial_like,
)
from evotune.report.data import RunData
from evotune.trial import Configuration

MOST_TRIALS: Final = 20_000
"""Of a longer run, a sample of so many trials is looked at."""


def read_run(run: RunFolder) -> RunData:
    """The run's facts and trials. StoreError when they are damaged."""
    with RunData.thinned(run, MOST_TRIALS) as data:
        return dataclasses.replace(data, store=None)


@dataclass(frozen=True, slots=True)
class Side:
    """The candidate to hold the explained one against. A baseline and a default that was not tried
    have no `number`. `own_run`: it is of the explained trial's run."""

    name: str
    run: RunFolder
    number: int | None
    configuration: Configuration | None
    baseline: str = ""
    own_run: bool = True


def side_of(run: RunFolder, data: RunData, subject: Subject, text: str) -> Side | None:
    """UsageError for a text that names nothing."""
    if not text:
        return None
    if text == BASELINE:
        if not subject.baseline:
            raise UsageError(f"run {data.id} has no baseline")
        return Side(subject.baseline, run, None, None, subject.baseline)
    if text == DEFAULT:
        if data.default is None:
            raise UsageError(f"run {data.id} does not record its space's default configuration")
        tried = trial_like(data, data.default)
        number = tried.number if tried is not None else None
        return Side("the default", run, number, Configuration(data.default))
    name, colon, number_text = text.rpartition(":")
    other = run
    if not (number_text.isdecimal() and number_text.isascii()):
        name, number_text = text, ""
    if name or colon:
        other = find_run(name, run.path.parent)
    found = data if other is run else read_run(other)
    number = int(number_text) if number_text else None
    chosen = chosen_subject(found, number)
    label = f"trial {chosen.trial.number}"
    if other is not run:
        label += f" of {other.id}"
    return Side(label, other, chosen.trial.number, chosen.configuration, own_run=other is run)


def machine_on(side: Side, subject: Subject, data: RunData) -> Machine:
    kept = kept_in(data)
    if side.baseline:
        gathered = evidence_of_baseline(kept, side.baseline, subject.case)
        return Machine(side.name, None, _baseline_us(subject), gathered)
    if side.number is not None:
        found = subject_of(data, side.number, subject.case)
        assert found is not None
        machine = machine_of(side.name, found, kept)
        return dataclasses.replace(machine, time_us=_other_us(side, subject, found))
    assert side.configuration is not None
    gathered = evidence_for(kept, side.configuration, subject.case)
    return Machine(side.name, side.configuration, None, gathered)


def _other_us(side: Side, subject: Subject, other: Subject) -> float | None:
    """By the two speedups over one baseline, which leave out that the machine was slower at one of
    the two times. None for another case, whose time says nothing here."""
    if other.case != subject.case:
        return None
    same = side.own_run and other.baseline == subject.baseline
    if not same or not other.speedup or subject.speedup is None or subject.time_us is None:
        return other.time_us
    return subject.time_us * subject.speedup / other.speedup


def _baseline_us(subject: Subject) -> float | None:
    """By the speedup, which is of pairs timed in the same moments. The quotient of the two times,
    each a median of its own, would be another figure than the leaderboard's."""
    if subject.time_us is None or subject.speedup is None:
        return subject.baseline_us
    return subject.time_us * subject.speedup
