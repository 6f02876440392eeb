"""The formats of a report and of a leaderboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from evotune.report import markdown
from evotune.report.data import RunData
from evotune.report.records import (
    document,
    leaderboard_records,
    record_lines,
    to_json,
    to_jsonl,
)
from evotune.report.t4 import t4_document


def _csv(data: RunData) -> Iterator[str]:
    from evotune.report.frame import csv_lines, run_columns  # NumPy: other formats do without

    return csv_lines(run_columns(data))


def _leaderboard_csv(data: RunData, count: int | None) -> str:
    from evotune.report.frame import csv_lines, leaderboard_columns

    return "".join(csv_lines(leaderboard_columns(data, count)))


REPORTS: Final[Mapping[str, Callable[[RunData], Iterator[str]]]] = {
    "md": lambda data: iter([markdown.page(data)]),
    "csv": _csv,
    "json": document,
    "jsonl": record_lines,
    "t4": t4_document,
}
"""One whole run as the pieces of a text; `evotune.report.html` makes the page."""

LEADERBOARDS: Final[Mapping[str, Callable[[RunData, int | None], str]]] = {
    "md": markdown.leaderboard_page,
    "csv": _leaderboard_csv,
    "json": lambda data, count: to_json(leaderboard_records(data, count)),
    "jsonl": lambda data, count: to_jsonl(leaderboard_records(data, count)),
}
"""The first rows of the leaderboard."""
