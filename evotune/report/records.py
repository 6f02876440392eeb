"""A run as JSON: the document of `report --format json` and the lines of `--format jsonl`.

A trial's record, times in microseconds, seconds where the name says so, null for no value:

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
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from evotune.report.data import RunData
from evotune.report.deciding_outcomes import Evidence, figures, weigh
from evotune.report.front import pareto_front
from evotune.report.leaderboard import rank
from evotune.report.whole import Ranked, each_part, in_proposal_order, ranks
from evotune.store.facts import stored
from evotune.trial import Json

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
    """JSON text that every reader accepts: numbers that JSON cannot hold become null."""
    return json.dumps(finite(value), indent=2, allow_nan=False) + "\n"


def to_jsonl(values: Iterable[Json]) -> str:
    """JSON text with one value a line; numbers that JSON cannot hold become null."""
    rest = iter(values)
    pieces = []
    while some := list(itertools.islice(rest, _LINES_AT_ONCE)):
        pieces.append(_lines(some))
    return "".join(pieces)


def listing(head: Mapping[str, Json], name: str, pieces: Iterable[str]) -> Iterator[str]:
    """The JSON text of `head` with a last member `name`: the list of the values in `pieces`, each
    on a line. `pieces` are texts of `to_jsonl`. So a million values are never in memory at once,
    and Python's encoder, which is slow where it indents, has little to do."""
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
    """One trial's record, as the module's docstring describes it. `recorded` tells whether the run
    is on a recorded space. `place` is the trial's rank, None without one."""
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
    """The value with null for every number that JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
