"""The formats a report or a leaderboard can be written in; each is one text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from evotune.report import markdown
from evotune.report.data import RunData
from evotune.report.frame import leaderboard_frame, run_frame, to_csv
from evotune.report.records import document, leaderboard_records, records, to_json, to_jsonl
from evotune.report.t4 import t4_document

REPORTS: Final[Mapping[str, Callable[[RunData], str]]] = {
    "md": markdown.page,
    "csv": lambda data: to_csv(run_frame(data)),
    "json": lambda data: to_json(document(data)),
    "jsonl": lambda data: to_jsonl(records(data)),
    "t4": lambda data: to_json(t4_document(data)),
}
"""One whole run as text; `evotune.report.html` makes the page."""

LEADERBOARDS: Final[Mapping[str, Callable[[RunData, int | None], str]]] = {
    "md": markdown.leaderboard_page,
    "csv": lambda data, count: to_csv(leaderboard_frame(data, count)),
    "json": lambda data, count: to_json(leaderboard_records(data, count)),
    "jsonl": lambda data, count: to_jsonl(leaderboard_records(data, count)),
}
"""The first rows of the leaderboard."""
