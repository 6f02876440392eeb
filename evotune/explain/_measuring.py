"""Gathers the evidence that a run's store lacks for an explanation, and stores it there."""

from __future__ import annotations

import functools
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from evotune.backends.base.gathered import GatheredEvidence
from evotune.errors import EvotuneError
from evotune.explain._measured_pairs import (
    Choices,
    changes_of_pair,
    is_pair,
    pair_changes,
    pairs_to_measure,
)
from evotune.explain._sides import Side, read_run
from evotune.explain._subjects import (
    Subject,
    ablation_of,
    evidence_for,
    evidence_of_baseline,
    kept_in,
)
from evotune.explain.explanation import Effect, Pair
from evotune.report import wording
from evotune.report.data import RunData
from evotune.runs.ablation import AblationRow, Change, ablate_run, changes_of
from evotune.runs.evidence_gathering import Access, gathered_or_reason, keep_evidence
from evotune.runs.folder import RunFolder
from evotune.trial import Configuration, Json, Value
from evotune.util.commands import run_command

_SAID_EVERY_S = 30.0
_OWN = "this trial"
_EXPLAINED_EFFECTS = 5  # of which the changed candidate's evidence is gathered
_LEAST_EXPLAINED = 1.03  # a worth
_PAIRED = 3  # a paired measurement takes about so many times the search's own


@dataclass(slots=True)
class Gathering:
    """The evidence and the ablation of one subject.

    - `missing`: the parts that could not be had, in words.
    - `note` gets a line before each step.
    - `pairs`, `effects`: of the model and the trials; they help to choose the pairs to measure.

    The methods raise RunLocked while another process works on the run.
    """

    run: RunFolder
    subject: Subject
    access: Access
    note: Callable[[str], object]
    missing: list[str]
    pairs: Sequence[Pair]
    effects: Sequence[Effect]
    seconds: float = math.inf
    """So long it may take; the evidence of the subject and one change are measured in any case."""
    until_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.until_s = time.monotonic() + self.seconds

    def is_over(self) -> bool:
        return time.monotonic() >= self.until_s

    def evidence(self, side: Side | None, *, demanded: bool) -> None:
        """Of the subject and of the other side. Where it is `demanded`, the other side's run must
        open."""
        subject = self.subject
        self._trial(self.run, self.access, subject.configuration, _OWN)
        if side is None:
            return
        if side.baseline:
            self._baseline(side)
        elif side.configuration is not None:
            try:
                access = self.access if side.run is self.run else Access.to(side.run)
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
        if _is_wanting(evidence_for(kept_in(read_run(run)), configuration, label), access):
            gather = functools.partial(access.gather, Configuration(configuration), label)
            self._keep(run, gather, name)

    def _baseline(self, side: Side) -> None:
        label = self.subject.case
        kept = evidence_of_baseline(kept_in(read_run(side.run)), side.baseline, label)
        if not self.access.away and _is_wanting(kept, self.access):
            gather = functools.partial(
                self.access.gather_baseline, self.subject.configuration, label
            )
            self._keep(side.run, gather, side.name)

    def _keep(self, run: RunFolder, gather: Callable[[], GatheredEvidence], name: str) -> None:
        if self.is_over() and name != _OWN:
            again = run_command("explain", self.run.path)
            self.missing.append(
                f"machine code and counters of {name}: no time was left; this goes on: {again}"
            )
            return
        self.note(f"reading the machine code and the counters of {name}")
        found = gathered_or_reason(gather)
        if isinstance(found, str):
            self.missing.append(f"machine code and counters of {name}: {found}")
        else:
            keep_evidence(run, [found])

    def ablation(self) -> None:
        """The paired effects of the subject, as far as the time allows."""
        data, subject = read_run(self.run), self.subject
        changes = len(changes_of(self.access.reopened, subject.configuration)) - 1
        about = wording.duration_text(changes * _seconds_a_trial(data))
        self.note(
            f"measuring {changes} changes of trial {subject.trial.number} in turn with it, about "
            f"{about}{self._at_most()}; --no-effects leaves them out"
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
        """The machine code and counters of the costliest changes."""
        subject = self.subject
        for row in _costliest(ablation_of(read_run(self.run), subject) or {}):
            changed = {**subject.configuration, row["parameter"]: row["after"], **row["also"]}
            name = f"{row['parameter']}={wording.value_text(row['after'])}"
            self._trial(self.run, self.access, changed, name)

    def _in_pairs(self, rows: Sequence[AblationRow]) -> list[Change]:
        """The changes of pairs of choices. The measured single changes help to choose the pairs."""
        champion, space = self.subject.configuration, self.access.reopened.space

        def is_possible(choices: Choices) -> bool:
            changes = changes_of_pair(champion, choices)
            return all(space.is_valid(change.configuration) for change in changes)

        choices = pairs_to_measure(self.pairs, self.effects, rows, is_possible)
        found = pair_changes(champion, choices)
        measured = {row.change.configuration for row in rows}
        count = sum(change.configuration not in measured for change in found)
        if count:
            self.note(f"measuring {count} more: do the most valuable choices depend on each other?")
        return found


def _costliest(ablation: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    """The costliest single change of each parameter, the greatest first. Changes that cost less
    than 3% are left out."""
    rows = [row for row in ablation.get("rows", ()) if row["parameter"] and row["ratio"]]
    found: dict[str, Mapping[str, Json]] = {}
    for row in sorted(rows, key=lambda row: float(row["ratio"])):
        if not is_pair(row) and not row["same_code"] and row["ratio"] * _LEAST_EXPLAINED <= 1:
            found.setdefault(row["parameter"], row)
    return list(found.values())[:_EXPLAINED_EFFECTS]


def _is_wanting(kept: GatheredEvidence | None, access: Access) -> bool:
    """Whether evidence is to be gathered: there is none, or it was gathered without the device and
    that is here now."""
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
