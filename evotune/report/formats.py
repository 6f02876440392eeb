"""The formats a report or a leaderboard can be written in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from evotune.report import markdown
from evotune.report.data import RunData
from evotune.report.frame import csv_lines, leaderboard_columns, run_columns
from evotune.report.records import (
    document,
    jsonl_lines,
    leaderboard_records,
    records,
    to_json,
    to_jsonl,
)
from evotune.report.t4 import t4_document

REPORTS: Final[Mapping[str, Callable[[RunData], Iterator[str]]]] = {
    "md": lambda data: iter([markdown.page(data)]),
    "csv": lambda data: csv_lines(run_columns(data)),
    "json": document,
    "jsonl": lambda data: jsonl_lines(records(data)),
    "t4": t4_document,
}
"""One whole run as the pieces of a text; `evotune.report.html` makes the page."""

LEADERBOARDS: Final[Mapping[str, Callable[[RunData, int | None], str]]] = {
    "md": markdown.leaderboard_page,
    "csv": lambda data, count: "".join(csv_lines(leaderboard_columns(data, count))),
    "json": lambda data, count: to_json(leaderboard_records(data, count)),
    "jsonl": lambda data, count: to_jsonl(leaderboard_records(data, count)),
}
"""The first rows of the leaderboard."""
