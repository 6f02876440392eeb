"""The formats of a report and of a leaderboard."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from evotune.report import markdown
from evotune.report.data import RunData
from evotune.report.deciding_outcomes import Evidence, figures
from evotune.report.records import (
    document,
    leaderboard_records,
    listing,
    record_lines,
    to_json,
    to_jsonl,
)
from evotune.report.whole import Ranked, each_part
from evotune.trial import Json, OutcomeKind

# --- A run as T4, the auto-tuning community's results format, version 1.0.0 -----------------------
# The schema: `kernel_tuner/schema/T4/1.0.0/results-schema.json` in github.com/KernelTuner. Every
# trial is a result, failed ones too; each holds evotune's figures in T4's words:
#
#     invalidity    correct, constraints (also a limit of the device), compile, runtime, timeout or
#                   correctness
#     times         ms: compilation_time, validation (load and verify), benchmark, and `runtimes`,
# the
#                   median time of each timed case
#     measurements  time (ms, geometric mean over the timed cases), speedup and its interval where
#                   there is a baseline, and as texts evotune's own outcome and its reason

_VERSION = "1.0.0"
_INVALIDITY: Mapping[OutcomeKind, str] = {
    OutcomeKind.OK: "correct",
    OutcomeKind.REJECTED: "constraints",
    OutcomeKind.RESOURCE_LIMIT: "constraints",
    OutcomeKind.COMPILE_ERROR: "compile",
    OutcomeKind.COMPILE_CRASH: "compile",
    OutcomeKind.COMPILE_TIMEOUT: "timeout",
    OutcomeKind.TIMEOUT: "timeout",
    OutcomeKind.WRONG_RESULT: "correctness",
    OutcomeKind.NAN: "correctness",
    OutcomeKind.OUT_OF_BOUNDS: "correctness",
    OutcomeKind.NONDETERMINISTIC: "correctness",
    OutcomeKind.TOO_FAST: "correctness",
}
"""All other kinds are `runtime`."""

_STAGES = {"compile": "compilation_time", "verify": "validation", "measure": "benchmark"}


def t4_document(data: RunData) -> Iterator[str]:
    """The text of {schema_version, results}, results in proposal order, a line each."""
    lines = each_part(data, functools.partial(_result_lines, _started(data)), {})
    return listing({"schema_version": _VERSION}, "results", lines)


def _result_lines(started: datetime | None, recorded: bool, items: Sequence[Ranked]) -> str:
    return to_jsonl(_results(started, recorded, items))


def _results(
    started: datetime | None, recorded: bool, items: Sequence[Ranked]
) -> Iterator[dict[str, Json]]:
    for item, _ in items:
        invalidity = _INVALIDITY.get(item.outcome.kind, "runtime")
        result: dict[str, Json] = {
            "configuration": item.trial.configuration.to_json(),
            "objectives": ["time"],
            "times": _times(item),
            "invalidity": invalidity,
            "correctness": 0 if invalidity == "correctness" else 1,
            "measurements": _measurements(recorded, item),
        }
        if started is not None and item.finished_s is not None:
            with contextlib.suppress(OverflowError):  # a damaged time
                result["timestamp"] = (started + timedelta(seconds=item.finished_s)).isoformat()
        yield result


def _times(item: Evidence) -> dict[str, Json]:
    stage_s = item.trial.outcome.stage_s
    times: dict[str, Json] = {}
    if stage_s:
        times = {n: 1000 * stage_s[stage] for stage, n in _STAGES.items() if stage in stage_s}
    times["runtimes"] = [m.time_us / 1000 for m in item.outcome.measurements if m.counts]
    return times


def _measurements(recorded: bool, item: Evidence) -> list[dict[str, Json]]:
    numbers = figures(item.outcome, recorded=recorded)
    found: list[dict[str, Json]] = []
    if numbers.time_us is not None:
        found.append({"name": "time", "value": numbers.time_us / 1000, "unit": "ms"})
    if numbers.speedup is not None:
        found.append({"name": "speedup", "value": numbers.speedup, "unit": ""})
        found.append({"name": "speedup_low", "value": numbers.speedup_low, "unit": ""})
        found.append({"name": "speedup_high", "value": numbers.speedup_high, "unit": ""})
    found.append({"name": "outcome", "value": item.outcome.kind.value, "unit": ""})
    if reason := item.reason:
        found.append({"name": "reason", "value": reason, "unit": ""})
    return found


def _started(data: RunData) -> datetime | None:
    try:
        return datetime.fromisoformat(data.facts.created)
    except ValueError:
        return None


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
