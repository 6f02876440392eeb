"""The other side of `--against`: a baseline, the default, or a trial of this or another run."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

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
from evotune.runs.folder import RunFolder, find_run
from evotune.trial import Configuration

MOST_TRIALS: Final = 20_000
"""Of a longer run, a sample of so many trials is looked at."""


def read_run(run: RunFolder, wanted: Collection[int] = ()) -> RunData:
    """The run's facts and trials, those with the `wanted` numbers among them. StoreError when they
    are damaged."""
    with RunData.thinned(run, MOST_TRIALS, wanted) as data:
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


def number_in(text: str) -> int | None:
    """The trial's number in the text of a side: `7`, or `RUN:7`."""
    number = text.rpartition(":")[2]
    return int(number) if number.isdecimal() and number.isascii() else None


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
        if found.device.get("name") != data.device.get("name"):
            label += f" on {found.device.get('name', 'another device')}"
    elif chosen.outcome.device_model != subject.outcome.device_model:
        label += f" on {chosen.outcome.device_model}"
    return Side(label, other, chosen.trial.number, chosen.configuration, own_run=other is run)


def machine_on(side: Side, subject: Subject, data: RunData) -> Machine:
    kept = kept_in(data)
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
    """By the speedup, which is of pairs timed in the same moments. The quotient of the two times,
    each a median of its own, would be another figure than the leaderboard's."""
    if subject.time_us is None or subject.speedup is None:
        return subject.baseline_us
    return subject.time_us * subject.speedup
