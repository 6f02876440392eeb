"""The leaderboard's columns for a given width.

If they fit, each case has a column, with its label over two lines. Else the cases are numbered, or
there is only the geometric mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from evotune.report import wording
from evotune.report.evidence import Figures
from evotune.report.layout import Column, Role, Span, grid_width
from evotune.report.leaderboard import Row


@dataclass(frozen=True, slots=True)
class Standings:
    """`numbers` maps cases to their numbers, if the columns have numbers in place of labels."""

    columns: tuple[Column, ...]
    numbers: Mapping[str, int]


def kernel_standings(rows: Sequence[Row], cases: Sequence[str], width: int) -> Standings:
    """Speedups, times and errors of at least one row, in the fullest form that fits `width`."""
    labels = [Column(_heading(case), _times(rows, case)) for case in cases]
    numbered = [
        Column((f"case {number}", "µs"), _times(rows, case))
        for number, case in enumerate(cases, start=1)
    ]
    mean = [
        Column(
            ("mean", "µs"),
            tuple(Span(wording.time_us_text(row.figures.time_us)) for row in rows),
        )
    ]
    for times in (labels, numbered):
        columns = _around(rows, times)
        if cases and grid_width(columns) <= width:
            known = {case: n for n, case in enumerate(cases, start=1)} if times is numbered else {}
            return Standings(columns, known)
    return Standings(_around(rows, mean), {})


def recorded_standings(rows: Sequence[Row]) -> Standings:
    """The times of a recorded space; it has no baseline and nothing to confirm."""
    times = Column(
        ("time ms",), tuple(Span(wording.time_ms_text(row.figures.time_us)) for row in rows)
    )
    return Standings((*_places(rows), times, *_flags(rows)), {})


def _around(rows: Sequence[Row], times: Iterable[Column]) -> tuple[Column, ...]:
    speedups = tuple(Span(wording.speedup_text(row.figures), _verdict(row.figures)) for row in rows)
    shares = tuple(Span(wording.error_share_text(row.figures)) for row in rows)
    marks = tuple(
        Span("yes", Role.GOOD) if row.confirmed else Span("no", Role.QUIET) for row in rows
    )
    return (
        *_places(rows),
        Column(("speedup [95%]",), speedups),
        *times,
        Column(("error /", "limit"), shares),
        Column(("confirmed",), marks, right=False),
        *_flags(rows),
    )


def _places(rows: Sequence[Row]) -> tuple[Column, ...]:
    tied = any(row.tied for row in rows)  # then a space keeps digits aligned
    places = tuple(Span(f"{row.place} " if tied and not row.tied else row.place) for row in rows)
    columns = (
        Column(("rank",), places),
        Column(("trial",), tuple(Span(str(row.number)) for row in rows)),
    )
    if not any(row.model for row in rows):
        return columns
    return (Column(("device",), tuple(Span(row.model) for row in rows), right=False), *columns)


def _flags(rows: Sequence[Row]) -> tuple[Column, ...]:
    if not any(row.outcome.flags for row in rows):
        return ()
    flags = tuple(Span(", ".join(row.outcome.flags)) for row in rows)
    return (Column(("flags",), flags, right=False),)


def _times(rows: Sequence[Row], case: str) -> tuple[Span, ...]:
    found = ({m.case: m.time_us for m in row.timed}.get(case) for row in rows)
    return tuple(Span(wording.time_us_text(time_us)) for time_us in found)


def _heading(case: str) -> tuple[str, str]:
    """The label and the unit on two lines, broken where that makes the column narrowest."""
    words = [*case.split(), "µs"]
    splits = [(" ".join(words[:at]), " ".join(words[at:])) for at in range(1, len(words))]
    return min(splits, key=lambda split: max(map(len, split)), default=("", words[0]))


def _verdict(figures: Figures) -> Role:
    """Role of a speedup: faster or slower than the baseline beyond the interval."""
    if figures.speedup_low is not None and figures.speedup_low > 1:
        return Role.GOOD
    if figures.speedup_high is not None and figures.speedup_high < 1:
        return Role.BAD
    return Role.PLAIN
