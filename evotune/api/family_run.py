"""`FamilyRun`: reads the folder of a family's run, resumes and exports it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evotune.api.observing import Observer, watching
from evotune.api.run import Run
from evotune.portfolios.family_file import (
    Family,
    Group,
    Unserved,
    exportable_runs,
    family_runs,
    family_state,
    is_confirmed,
    read_family,
    winning_runs,
)
from evotune.report import wording
from evotune.report.data import RunData
from evotune.report.front import TextTable
from evotune.report.leaderboard import rank
from evotune.runs.folder import FAMILY, RunFolder, find_family, is_family, list_families
from evotune.trial import Json, Trial
from evotune.util.commands import RUNS_DIR

if TYPE_CHECKING:
    from evotune.export.exporting import Exported
    from evotune.portfolios.case_searches import Observing

__all__ = [
    "FAMILY",
    "FamilyRun",
    "all_families",
    "is_family",
    "observing_runs",
    "open_family",
    "saying",
    "where_table",
]


@dataclass(frozen=True, slots=True)
class FamilyRow:
    """The search of one space for a group. `standing`: racing, finalist, winner, or the reason why
    the space does not go on."""

    group: Group
    space: str
    run: Run
    data: RunData
    standing: str


class FamilyRun:
    """A family's run in its folder, finished or not. Each property reads the folder again."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        """The folder with `family.json` and the runs."""

    @property
    def id(self) -> str:
        return self.folder.id

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def found(self) -> Family:
        """The cases, spaces, budget and decisions (`evotune.portfolios.family_file.Family`)."""
        return read_family(self.folder)

    @property
    def state(self) -> str:
        """The state: `finished`, `interrupted`, `running`, or `killed`."""
        return family_state(self.folder, self.found)

    @property
    def runs(self) -> list[Run]:
        """All runs of the family, the oldest first."""
        return [Run(run) for run in sorted(family_runs(self.folder).values(), key=lambda r: r.id)]

    @property
    def winners(self) -> dict[str, Run]:
        """The run of the space that won each group, by the group's name."""
        found = winning_runs(self.folder, self.found)
        return {group: Run(run) for group, run in found.items()}

    @property
    def confirmed(self) -> bool:
        """Whether a champion of any winner is confirmed."""
        return any(is_confirmed(run.folder) for run in self.winners.values())

    @property
    def confirms(self) -> bool:
        """Whether champions are to be confirmed, and there is one that could be."""
        return self.found.champions > 0 or not self.winners

    @property
    def undecided(self) -> bool:
        """Whether the machine was too noisy to judge some champion."""
        confirmations = (row.data.confirmations.values() for row in self.rows())
        return any(outcome.undecided for each in confirmations for outcome in each)

    @property
    def unserved(self) -> list[tuple[str, str]]:
        """The cases that no space can compute, each with the reason."""
        return [(each.case, each.why) for each in self.found.unserved]

    def rows(self) -> Iterator[FamilyRow]:
        """A `FamilyRow` for each search, group by group."""
        family, runs = self.found, family_runs(self.folder)
        for group in family.groups:
            race = family.races.get(group.name)
            for contender in group.contenders:
                run = runs.get((group.name, contender.space))
                if run is None or race is None:
                    continue
                standing = "raced" if race.second is not None else "racing"
                if contender.space in race.finalists:
                    standing = "finalist"
                if contender.space == race.winner:
                    standing = "winner"
                elif contender.space in {step.space for step in race.last}:
                    standing = "not confirmed"
                data = RunData.load(run, 1)
                yield FamilyRow(group, contender.space, Run(run), data, standing)

    def where(self) -> TextTable:
        """A table of the spaces to which each case was sent, or why it was sent to none."""
        family = self.found
        return where_table(family.groups, family.unserved)

    def races(self) -> TextTable:
        """A table with a row for each search."""
        rows = []
        for row in self.rows():
            best = _best(row.data)
            count = str(row.data.totals.trials)
            rows.append((row.group.name, row.space, row.run.id, count, best, row.standing))
        columns = ("group", "space", "run", "trials", "best", "standing")
        return TextTable(columns, (False, False, False, True, False, False), tuple(rows))

    def to_json(self) -> dict[str, Json]:
        """The state, groups, searches and unserved cases as JSON-able data."""
        family = self.found
        searches: list[Json] = [
            {
                "group": row.group.name,
                "space": row.space,
                "run": row.run.id,
                "path": str(row.run.path),
                "state": row.data.state,
                "trials": row.data.totals.trials,
                "standing": row.standing,
                "best": _best_json(row.data),
            }
            for row in self.rows()
        ]
        return {
            "id": self.id,
            "path": str(self.path),
            "family": family.name,
            "state": self.state,
            "device": family.device_name,
            "trials": family.budget.trials,
            "minutes": family.budget.minutes,
            "groups": [
                {
                    "name": group.name,
                    "cases": list(group.labels),
                    "count": group.count,
                    "share": group.share,
                    "spaces": [each.space for each in group.contenders],
                    "passed_over": dict(group.passed_over),
                    "winner": _winner(family, group),
                }
                for group in family.groups
            ],
            "searches": searches,
            "unserved": [
                {"case": each.case, "why": each.why, "count": each.count}
                for each in family.unserved
            ],
        }

    def resume(
        self,
        *,
        trials: int | None = None,
        minutes: float | None = None,
        champions: int | None = None,
        on_trial: Callable[[Trial], object] | None = None,
        on_note: Callable[[str], object] | None = None,
    ) -> FamilyRun:
        """Continues the family, and returns it. `trials` and `minutes` are new totals. Ctrl-C
        raises KeyboardInterrupt."""
        observing = observing_runs(on_trial, on_note)
        self.resumed(observing, on_note, trials=trials, minutes=minutes, champions=champions)
        return self

    def resumed(
        self,
        observing: Observing,
        say: Callable[[str], object] | None,
        *,
        trials: int | None = None,
        minutes: float | None = None,
        champions: int | None = None,
    ) -> None:
        """Continues the family for a caller that watches it; see `resume`."""
        from evotune.portfolios.family_race import resume_family

        resume_family(
            self.folder,
            observing,
            saying(say),
            trials=trials,
            minutes=minutes,
            champions=champions,
        )

    def exported(self, folder: str | Path, name: str | None = None) -> Exported:
        """Writes the confirmed champions of all winners as one package, `attention` by default; see
        `Run.export`. Raises UsageError if no winner has one, or if they are of different problems
        or dtypes, which need a package each."""
        from evotune.export.exporting import export_runs

        return export_runs(exportable_runs(self.folder), Path(folder), name or FAMILY)

    def export(self, folder: str | Path, *, name: str | None = None) -> Path:
        """Writes the champions of all winners as one package; see `exported`. Returns the
        folder."""
        return self.exported(folder, name).folder

    def __repr__(self) -> str:
        return f"<evotune family {self.id}: {self.state}>"


def open_family(text: str | Path, runs_dir: str | Path = RUNS_DIR) -> FamilyRun | None:
    """The family that an id, a unique beginning of it, a path, or `latest` names; None if the text
    names none."""
    found = find_family(str(text), Path(runs_dir))
    return None if found is None else FamilyRun(found)


def all_families(runs_dir: str | Path = RUNS_DIR) -> list[FamilyRun]:
    """The families of a folder, the oldest first."""
    return [FamilyRun(folder) for folder in list_families(Path(runs_dir))]


def where_table(groups: Sequence[Group], unserved: Sequence[Unserved]) -> TextTable:
    rows = []
    for number, group in enumerate(groups, 1):
        spaces = ", ".join(each.space for each in group.contenders)
        for label, case in zip(group.labels, group.cases, strict=True):
            rows.append((label, group.dtype, f"{case.count:g}", str(number), spaces))
    rows += [(each.case, "", f"{each.count:g}", "-", each.why) for each in unserved]
    columns = ("case", "dtype", "count", "group", "spaces, or why none")
    return TextTable(columns, (False, False, True, True, False), tuple(rows))


def _winner(family: Family, group: Group) -> str | None:
    race = family.races.get(group.name)
    return race.winner or None if race is not None else None


def _best(data: RunData) -> str:
    rows = rank(data).rows
    if not rows:
        return wording.NONE
    row = rows[0]
    text = wording.result_text(row.figures)
    return text if row.confirmed else f"{text} (search)"


def _best_json(data: RunData) -> Json:
    rows = rank(data).rows
    if not rows:
        return None
    row = rows[0]
    return {
        "trial": row.number,
        "confirmed": row.confirmed,
        "speedup": row.figures.speedup,
        "speedup_low": row.figures.speedup_low,
        "speedup_high": row.figures.speedup_high,
        "time_us": row.figures.time_us,
    }


def saying(say: Callable[[str], object] | None) -> Callable[[str], None]:
    def told(text: str) -> None:
        if say is not None:
            say(text)

    return told


def observing_runs(
    on_trial: Callable[[Trial], object] | None, on_note: Callable[[str], object] | None
) -> Observing:
    @contextlib.contextmanager
    def observed() -> Iterator[Observer]:
        yield watching(on_trial, on_note)

    return observed
