"""The formats of a report and of a leaderboard: JSON, JSON lines, T4, CSV and others.

`document` is the JSON of `report --format json`, `record_lines` are those of `--format jsonl`. A
trial's record, times in microseconds, seconds where the name says so, null for no value:

    number configuration     which proposal, and the value of every parameter
    outcome reason           kind of outcome: the confirmation's verdict where there is one
    rank confirmed           place on the leaderboard (ties share one); confirmed afresh and valid
    speedup _low _high       geometric mean over the timed cases, and its 95% interval
    time_us                  geometric mean over the timed cases (or the recorded time)
    error error_limit        maximum error of the check nearest its limit, and that limit
    flags duplicate_of       remarks; the trial with the same machine code
    stage_s resources        seconds per stage; the compiler's report
    measurements checks      per case: times, baseline, speedup; the correctness checks kept
    domain                   of a champion: the cases it was checked on (`evotune.trial.Domain`)
    search_outcome search_speedup   of the search itself, before any confirmation
    finished_s log           seconds of searching until its end; the compiler's or worker's output
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from evotune.report import markdown
from evotune.report.data import RunData
from evotune.report.front import pareto_front
from evotune.report.leaderboard import Evidence, figures, rank, weigh
from evotune.report.whole import Ranked, each_part, in_proposal_order, ranks
from evotune.store.facts import stored
from evotune.trial import Json, OutcomeKind

"""The first rows of the leaderboard."""


_LINES_AT_ONCE = 100
_SHOWN = ("space", "kind", "created", "command", "problem", "device", "settings")
_encode_lines = msgspec.json.Encoder().encode_lines


def document(data: RunData) -> Iterator[str]:
    """The text of {run, environment, baseline, trials}; trials in proposal order, a line each."""
    run = {
        "id": data.id,
        "state": data.state,
        **{name: stored(getattr(data.facts, name)) for name in _SHOWN},
        "elapsed_s": data.totals.elapsed_s,
        "beside": {str(trials): list(work) for trials, work in data.beside.items()},
        "devices": stored(data.facts.devices),
        "parameters": list(data.parameters),
        "cases": list(data.cases),
        "held_out_cases": list(data.held_out_cases),
        "front": [row.number for row in pareto_front(data, in_proposal_order(data))],
    }
    baseline = {
        "timings": stored(data.facts.baselines.timings),
        "chosen": dict(data.facts.baselines.chosen),
        "copy_gbps": data.facts.baselines.copy_gbps,
    }
    head = {"run": run, "environment": dict(data.environment), "baseline": baseline}
    return listing(head, "trials", record_lines(data))


def record_lines(data: RunData) -> Iterator[str]:
    """A record for each trial, failed ones too, in proposal order; each piece has many lines."""
    return each_part(data, _record_lines, ranks(data))


def _record_lines(recorded: bool, items: Sequence[Ranked]) -> str:
    return to_jsonl(trial_record(recorded, item, place) for item, place in items)


def leaderboard_records(data: RunData, count: int | None = None) -> list[dict[str, Json]]:
    """The records of the first `count` rows of the leaderboard, in its order."""
    evidence = weigh(data)
    rows = rank(data, evidence).rows[:count]
    return [trial_record(data.recorded, evidence[row.number], row.rank) for row in rows]


def to_json(value: Json) -> str:
    """JSON text that every reader accepts: numbers that JSON cannot represent become null."""
    return json.dumps(finite(value), indent=2, allow_nan=False) + "\n"


def to_jsonl(values: Iterable[Json]) -> str:
    """JSON text with one value a line; numbers that JSON cannot represent become null."""
    rest = iter(values)
    pieces = []
    while some := list(itertools.islice(rest, _LINES_AT_ONCE)):
        pieces.append(_lines(some))
    return "".join(pieces)


def listing(head: Mapping[str, Json], name: str, pieces: Iterable[str]) -> Iterator[str]:
    """The JSON text of `head` with a last member `name`: the list of the values in `pieces`, each
    on a line. `pieces` are texts from `to_jsonl`. So a million values are never in memory at once,
    and Python's encoder, which is slow at indenting, has little to do."""
    yield to_json(head).removesuffix("\n}\n") + f',\n  "{name}": ['
    separator = "\n"
    for lines in pieces:  # JSON escapes line ends in texts
        yield separator + lines.removesuffix("\n").replace("\n", ",\n")
        separator = ",\n"
    yield "\n  ]\n}\n"


def _lines(values: list[Json]) -> str:
    """The values as JSON in ASCII: other characters could act on a terminal, and are escaped. NaN
    and infinities, which JSON cannot hold, become null."""
    with contextlib.suppress(ValueError):  # half of a surrogate pair
        text = _encode_lines(values).decode()
        if text.isascii():
            return text
    lines = (json.dumps(finite(v), allow_nan=False, separators=(",", ":")) for v in values)
    return "".join(f"{line}\n" for line in lines)


def trial_record(recorded: bool, item: Evidence, place: int | None) -> dict[str, Json]:
    """One trial's record, as the module's docstring describes it. `recorded`: whether the run is on
    a recorded space. `place`: the trial's rank, or None."""
    trial, outcome = item.trial, item.outcome
    searched = trial.outcome
    numbers = figures(outcome, recorded=recorded)
    before = numbers if outcome is searched else figures(searched, recorded=recorded)
    return {
        "number": trial.number,
        "configuration": trial.configuration.to_json(),
        "outcome": outcome.kind.value,
        "reason": item.reason,
        "rank": place,
        "confirmed": item.confirmed,
        "speedup": numbers.speedup,
        "speedup_low": numbers.speedup_low,
        "speedup_high": numbers.speedup_high,
        "time_us": numbers.time_us,
        "error": numbers.error,
        "error_limit": numbers.error_limit,
        "flags": list(dict.fromkeys(searched.flags + outcome.flags)),
        "duplicate_of": searched.duplicate_of,
        "stage_s": dict(searched.stage_s),
        "resources": dict(searched.resources),
        "measurements": [measurement.to_json() for measurement in outcome.measurements],
        "checks": [check.to_json() for check in outcome.checks],
        "domain": None if outcome.domain is None else outcome.domain.to_json(),
        "search_outcome": searched.kind.value,
        "search_speedup": before.speedup,
        "finished_s": item.finished_s,
        "log": outcome.log,
    }


def finite(value: Json) -> Json:
    """The value with null for every number that JSON cannot represent."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


# A run as T4, the auto-tuning community's results format, version 1.0.0.
# The schema: `kernel_tuner/schema/T4/1.0.0/results-schema.json` in github.com/KernelTuner. Every
# trial is a result, failed ones too; each holds evotune's figures in T4's words:
#
#     invalidity    correct, constraints (also a limit of the device), compile, runtime, timeout or
#                   correctness
#     times         ms: compilation_time, validation (load and verify), benchmark, and `runtimes`,
#                   the median time of each timed case
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
"""The formats by name. Each turns a whole run into pieces of text; `evotune.report.html` makes the
page."""

LEADERBOARDS: Final[Mapping[str, Callable[[RunData, int | None], str]]] = {
    "md": markdown.leaderboard_page,
    "csv": _leaderboard_csv,
    "json": lambda data, count: to_json(leaderboard_records(data, count)),
    "jsonl": lambda data, count: to_jsonl(leaderboard_records(data, count)),
}
