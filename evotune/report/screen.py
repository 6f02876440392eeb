"""The leaderboard on a screen of a given width.

It has a summary of the run and the meaning of its figures, the table, notes on rows left out or
doubtful, and the configurations: the leader's in full, and how the others differ from it.

`paragraph` and `grid` lay out lines of text for a given width. A line is a row of spans. A span
names its role, not its colour, so the layout is the same with colours and without. Every text is
made `printable` here.
"""

from __future__ import annotations

import enum
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from evotune.report import wording
from evotune.report.data import RunData
from evotune.report.front import FRONT_MEANING, pareto_front
from evotune.report.leaderboard import Figures, Leaderboard, Row, rank
from evotune.report.wording import alike_reasons
from evotune.trial import TOO_NOISY, Outcome, OutcomeKind
from evotune.util.commands import run_command
from evotune.util.words import printable

_NAMED_DUPLICATES = 5
_NEAR_RATIO = 10
_NEAR = (
    "that is near the limit, which is twice the error of compute() in the same dtype. PyTorch sums "
    "in parts, with small errors; a correct kernel that sums in order has larger ones. Sum in "
    "parts too, or let yardstick_of() in problem.py give the errors to allow "
    "(docs/writing-a-problem.md)"
)


def leaderboard_lines(data: RunData, count: int, width: int) -> list[Line]:
    """The first `count` rows, no line wider than `width` (72 columns are the least it needs)."""
    board = rank(data)
    rows = board.rows[:count]
    if not rows:
        return [*_heading(data, board, width), *_without_rows(data, board, width)]
    hidden = len(board.rows) - len(rows) + data.totals.unloaded_rows
    blocks = (
        [*_heading(data, board, width)],
        [*_table(data, board, rows, width)],
        [*_notes(data, board, rows, hidden, width)],
        [*_configurations(rows, width)],
        [*_front(data, width)],
    )
    lines: list[Line] = []
    for block in blocks:
        lines += [(), *block] if lines and block else block
    return lines


def _heading(data: RunData, board: Leaderboard, width: int) -> Iterator[Line]:
    counts = wording.counts_text(data.totals.outcomes)
    trials = "1 trial" if data.totals.trials == 1 else f"{data.totals.trials} trials"
    total = f"{counts} of {trials}" if counts else "no trials yet"
    confirmed = sum(row.confirmed for row in board.rows)
    parts = [total, *([f"{confirmed} confirmed"] if confirmed else [])]
    undecided = sum(item.outcome.undecided for item in board.disqualified)
    if failed := len(board.disqualified) - undecided:
        parts.append(f"{failed} failed confirmation")
    if undecided:
        parts.append(f"{undecided} undecided in confirmation")
    device = data.facts.device.name
    where = f"{data.space} on {device}" if device else data.space
    yield from paragraph(f"{where}: {'; '.join(parts)}", width, role=Role.TITLE)
    yield from paragraph(f"run {data.id}: {wording.state_text(data.state)}", width)


def _table(data: RunData, board: Leaderboard, rows: Sequence[Row], width: int) -> Iterator[Line]:
    if data.recorded:
        yield from paragraph("time: as recorded; a recording has no baseline", width)
        yield ()
        yield from grid(recorded_standings(rows).columns)
        return
    standings = kernel_standings(rows, data.cases, width)
    yield from paragraph(_meaning(data, board), width)
    yield from paragraph(_baselines(rows[0], standings.numbers), width)
    if data.facts.problem.tolerance:
        text = f"correct: within the problem's own tolerance, {data.facts.problem.tolerance}"
        yield from paragraph(text, width)
    yield ()
    yield from grid(standings.columns)


def _meaning(data: RunData, board: Leaderboard) -> str:
    over = f"geometric mean over {len(data.cases)} cases of " if len(data.cases) > 1 else ""
    standing = (
        "confirmed rows, which were measured again in fresh processes, come first"
        if any(row.confirmed for row in board.rows)
        else "no row is confirmed, and the search's own figures flatter the best"
    )
    return f"speedup: {over}baseline time / candidate time, with its 95% interval; {standing}"


def _baselines(leader: Row, numbers: Mapping[str, int]) -> str:
    """Name and time of each case's baseline, measured interleaved with the leader."""
    timed = (
        f"{m.baseline} {wording.time_us_text(m.baseline_us)} µs for "
        + (f"case {numbers[m.case]}, {m.case}" if m.case in numbers else m.case)
        for m in leader.timed
    )
    return f"baseline: {'; '.join(timed)} (timed with trial {leader.number})"


def _notes(
    data: RunData, board: Leaderboard, rows: Sequence[Row], hidden: int, width: int
) -> Iterator[Line]:
    if any(row.tied for row in rows):
        overlap = "overlapping intervals: their times do not distinguish them"
        why = "equal times" if data.recorded else overlap
        yield from paragraph(f"= rows of the same rank: {why}", width, role=Role.QUIET)
    if hidden:
        more = "1 more row" if hidden == 1 else f"{hidden} more rows"
        text = f"{more}: {run_command('top', data.path, '-n', len(rows) + hidden)}"
        yield (Span(printable(text), Role.QUIET),)  # never wrapped: users paste it
    for row in rows:
        for warning in row.warnings:
            text = f"warning: trial {row.number}: {warning}"
            yield from paragraph(text, width, role=Role.BAD)
    yield from _disqualified(board, width)


def _disqualified(board: Leaderboard, width: int) -> Iterator[Line]:
    for item in board.disqualified:
        stands = "undecided" if item.outcome.undecided else f"out: {item.outcome.kind}"
        text = f"trial {item.trial.number} is {stands} {item.reason}"
        yield from paragraph(text, width, role=Role.BAD)


def _configurations(rows: Sequence[Row], width: int) -> Iterator[Line]:
    leader, *others = rows
    labels = [f"#{row.place} trial {row.number}: " for row in rows]
    indent = max(map(len, labels))
    texts = [
        wording.configuration_text(leader.configuration),
        *(wording.difference_text(row.configuration, leader.configuration) for row in others),
    ]
    if others:
        yield from paragraph(
            "configurations: the leader's, and the others' differences from it",
            width,
            role=Role.TITLE,
        )
    for row, label, text in zip(rows, labels, texts, strict=True):
        yield from paragraph(
            text + _compiled(row) + _same_code(row), width, label=label.ljust(indent), indent=indent
        )


def _front(data: RunData, width: int) -> Iterator[Line]:
    found = pareto_front(data)
    if not found:
        return
    yield from paragraph(FRONT_MEANING, width, role=Role.TITLE)
    labels = [
        f"trial {row.number}: {row.speedup:.3f}x, error {row.error:.1%} of its limit: "
        for row in found
    ]
    for label, row in zip(labels, found, strict=True):
        yield from paragraph(
            wording.configuration_text(row.configuration), width, label=label, indent=4
        )


def _compiled(row: Row) -> str:
    text = wording.compiled_text(row.outcome.resources)
    return f" ({text})" if text else ""


def _same_code(row: Row) -> str:
    """The other trials with the same machine code."""
    if not row.duplicates:
        return ""
    named = [str(number) for number in row.duplicates[:_NAMED_DUPLICATES]]
    more = len(row.duplicates) - len(named)
    trials = "trials" if len(row.duplicates) > 1 else "trial"
    rest = f" and {more} more" if more else ""
    return f" (same code: {trials} {', '.join(named)}{rest})"


def _without_rows(data: RunData, board: Leaderboard, width: int) -> Iterator[Line]:
    noisy = any(item.outcome.undecided for item in board.disqualified)
    nothing = f"no confirmed candidate: {TOO_NOISY}" if noisy else "no valid candidate"
    yield from paragraph(nothing, width, role=Role.BAD)
    failed = [trial.outcome for trial in data.trials if not trial.outcome.ok]
    for reason in alike_reasons((outcome.kind.value, outcome.reason) for outcome in failed)[:1]:
        like = f"{reason.trials} ended in {reason.kind}: {reason.example}"
        yield from paragraph(like, width)
    name = data.facts.problem.name
    if ".py:" in name and any(map(_near_its_limit, failed)):
        yield from paragraph(_NEAR, width)
    yield from _disqualified(board, width)


def _near_its_limit(outcome: Outcome) -> bool:
    """True if the error is so small that it may be rounding alone."""
    return outcome.kind is OutcomeKind.WRONG_RESULT and any(
        check.status == "failed"
        and check.max_error is not None
        and check.max_error <= _NEAR_RATIO * (check.max_limit or 0.0)
        for check in outcome.checks
    )


# The leaderboard's columns for a given width.
# If they fit, each case has a column, with its label over two lines. Else the cases are numbered,
# or
# there is only the geometric mean.


@dataclass(frozen=True, slots=True)
class Standings:
    """The columns of a leaderboard. `numbers` maps cases to their numbers, if the columns have
    numbers in place of labels."""

    columns: tuple[Column, ...]
    numbers: Mapping[str, int]


def kernel_standings(rows: Sequence[Row], cases: Sequence[str], width: int) -> Standings:
    """Speedups, times and errors of at least one row, in the fullest form that fits `width`."""
    labels = [Column(_case_heading(case), _times(rows, case)) for case in cases]
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


def _case_heading(case: str) -> tuple[str, str]:
    """The label and the unit on two lines, broken so that the column is narrowest."""
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


_GAP = "  "
_LEAST_TEXT = 20  # columns that a paragraph keeps after its indent, however narrow the screen


class Role(enum.StrEnum):
    """The role of a piece of text, for which the medium chooses a colour."""

    PLAIN = "plain"
    TITLE = "title"
    QUIET = "quiet"
    GOOD = "good"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Span:
    text: str
    role: Role = Role.PLAIN


Line: TypeAlias = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a grid: the lines of its heading, above the rule, and a cell for each row."""

    heading: tuple[str, ...]
    cells: tuple[Span, ...]
    right: bool = True

    @property
    def width(self) -> int:
        texts = (*self.heading, *(cell.text for cell in self.cells))
        return max(len(printable(text)) for text in texts)


def paragraph(
    text: str, width: int, *, label: str = "", indent: int = 2, role: Role = Role.PLAIN
) -> list[Line]:
    """Wraps `label` and `text` between words. Lines after the first start at `indent`."""
    wrapped = textwrap.wrap(
        printable(text),
        max(width, indent + _LEAST_TEXT),
        initial_indent=printable(label),
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
    )
    return [(Span(line, role),) for line in wrapped or [printable(label).rstrip()]]


def grid(columns: Sequence[Column]) -> list[Line]:
    """The lines of a grid: headings, a rule, and rows. Its width is `grid_width`, however wide the
    screen."""
    height = max(len(column.heading) for column in columns)
    headings = [
        tuple(Span(text, Role.TITLE) for text in ("",) * (height - len(column.heading)))
        + tuple(Span(text, Role.TITLE) for text in column.heading)
        for column in columns
    ]
    return [
        *(_row(columns, line) for line in zip(*headings, strict=True)),
        (Span("─" * grid_width(columns), Role.QUIET),),
        *(_row(columns, line) for line in zip(*(c.cells for c in columns), strict=True)),
    ]


def grid_width(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + len(_GAP) * (len(columns) - 1)


def plain(lines: Sequence[Line]) -> str:
    """The lines as text, without trailing blanks."""
    return "".join("".join(span.text for span in line).rstrip() + "\n" for line in lines)


def _row(columns: Sequence[Column], cells: Sequence[Span]) -> Line:
    spans: list[Span] = []
    for column, cell in zip(columns, cells, strict=True):
        text = printable(cell.text)
        padding = Span(" " * (column.width - len(text)))
        spans += (
            [padding, Span(text, cell.role)] if column.right else [Span(text, cell.role), padding]
        )
        spans.append(Span(_GAP))
    while spans and not spans[-1].text.strip():
        spans.pop()
    return tuple(spans)
