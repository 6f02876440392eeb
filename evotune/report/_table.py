"""The leaderboard as text cells, a line a row, for Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evotune.report import wording
from evotune.report.data import RunData
from evotune.report.leaderboard import Row

_MOST_CASES = 4  # a column each; with more cases only their geometric mean has one


@dataclass(frozen=True, slots=True)
class TextTable:
    """Cells are plain text, not yet made safe for a medium; `numeric` columns align right."""

    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]


def leaderboard_table(data: RunData, rows: Sequence[Row]) -> TextTable:
    """A line a row; a recorded run has times in milliseconds and no baseline."""
    return _recorded_table(rows) if data.recorded else _kernel_table(data, rows)


def _recorded_table(rows: Sequence[Row]) -> TextTable:
    return TextTable(
        ("rank", "trial", "time ms", "flags", "configuration"),
        (True, True, True, False, False),
        tuple(
            (
                row.place,
                str(row.number),
                wording.time_ms_text(row.figures.time_us),
                wording.flags_text(row),
                wording.configuration_text(row.configuration),
            )
            for row in rows
        ),
    )


def _kernel_table(data: RunData, rows: Sequence[Row]) -> TextTable:
    cases = data.cases if len(data.cases) <= _MOST_CASES else ()
    heads = [f"{case} µs vs {_baselines(data, case, rows)}" for case in cases] or ["mean µs"]
    return TextTable(
        (
            *("rank", "trial", "speedup [95%]", *heads),
            *("error / limit", "confirmed", "flags", "configuration"),
        ),
        (True, True, True, *(True for _ in heads), True, False, False, False),
        tuple(
            (
                row.place,
                str(row.number),
                wording.speedup_text(row.figures),
                *(_times(row, cases) or [wording.time_us_text(row.figures.time_us)]),
                wording.error_text(row.figures),
                "yes" if row.confirmed else "no",
                wording.flags_text(row),
                wording.configuration_text(row.configuration),
            )
            for row in rows
        ),
    )


def _baselines(data: RunData, case: str, rows: Sequence[Row]) -> str:
    """The baseline that the rows were measured against; without such rows, the run's choice."""
    used: Mapping[str, None] = dict.fromkeys(
        measurement.baseline
        for row in rows
        for measurement in row.timed
        if measurement.case == case
    )
    return ", ".join(used) or data.chosen_baselines.get(case, wording.NONE)


def _times(row: Row, cases: Sequence[str]) -> list[str]:
    times = {measurement.case: measurement.time_us for measurement in row.timed}
    return [wording.time_us_text(times.get(case)) for case in cases]
