"""A run as JSON: the document of `report --format json` and the lines of `--format jsonl`.

A trial's record, times in microseconds, seconds where the name says so, null for no value:

    number configuration     which proposal, and the value of every parameter
    outcome reason           what became of it: the confirmation's verdict where there is one
    rank confirmed           place on the leaderboard (ties share one); confirmed afresh and valid
    speedup _low _high       geometric mean over the timed cases, and its 95% interval
    time_us                  geometric mean over the timed cases (or the recorded time)
    error error_limit        maximum error of the check nearest its limit, and that limit
    flags duplicate_of       remarks; the trial with the same machine code
    stage_s resources        seconds per stage; what the compiler reported
    measurements checks      per case: times, baseline, speedup; the correctness checks kept
    search_outcome search_speedup   what the search itself saw, before any confirmation
    finished_s log           seconds from the run's start; the compiler's or worker's words
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping

from evotune.report.data import RunData
from evotune.report.evidence import Evidence, figures, weigh
from evotune.report.front import pareto_front
from evotune.report.leaderboard import Leaderboard, rank
from evotune.trial import Json


def document(data: RunData) -> dict[str, Json]:
    """{run, environment, baseline, trials}; trials in proposal order."""
    run = {
        "id": data.id,
        "state": data.state,
        **{name: data.meta.get(name) for name in ("space", "kind", "created", "command")},
        **{name: data.meta.get(name) for name in ("problem", "device", "settings")},
        "parameters": list(data.parameters),
        "cases": list(data.cases),
        "held_out_cases": list(data.held_out_cases),
        "front": [row.number for row in pareto_front(data)],
    }
    baseline = {
        "timings": [dict(timing) for timing in data.baseline_timings],
        "chosen": dict(data.chosen_baselines),
        "copy_gbps": data.copy_gbps,
    }
    return {
        "run": run,
        "environment": dict(data.environment),
        "baseline": baseline,
        "trials": list(records(data)),
    }


def records(data: RunData) -> Iterator[dict[str, Json]]:
    """One record a trial, failed ones too, in proposal order."""
    evidence = weigh(data)
    ranks = _ranks(rank(data, evidence))
    for number, item in evidence.items():
        yield trial_record(data, item, ranks.get(number))


def leaderboard_records(data: RunData, count: int | None = None) -> list[dict[str, Json]]:
    """The records of the first `count` rows of the leaderboard, in its order."""
    evidence = weigh(data)
    rows = rank(data, evidence).rows[:count]
    return [trial_record(data, evidence[row.number], row.rank) for row in rows]


def ordered_records(data: RunData) -> list[dict[str, Json]]:
    """The records of the leaderboard in its order, then the rest by number."""
    evidence = weigh(data)
    ranks = _ranks(rank(data, evidence))
    order = [*ranks, *(number for number in evidence if number not in ranks)]
    return [trial_record(data, evidence[number], ranks.get(number)) for number in order]


def to_json(value: Json) -> str:
    """JSON text that every reader accepts: numbers that JSON cannot hold become null."""
    return json.dumps(finite(value), indent=2, allow_nan=False) + "\n"


def to_jsonl(values: Iterable[Json]) -> str:
    """One value a line, with the same guarantee."""
    return "".join(
        json.dumps(finite(value), separators=(",", ":"), allow_nan=False) + "\n" for value in values
    )


def _ranks(board: Leaderboard) -> dict[int, int]:
    """Trial number -> rank, in rank order; duplicates hold none: their twin's row is theirs."""
    return {row.number: row.rank for row in board.rows}


def trial_record(data: RunData, item: Evidence, place: int | None) -> dict[str, Json]:
    """One trial as the module's docstring says; `place` is its rank, None where it has none."""
    trial, outcome = item.trial, item.outcome
    numbers = figures(outcome, recorded=data.recorded)
    searched = (
        numbers if outcome is trial.outcome else figures(trial.outcome, recorded=data.recorded)
    )
    flags = dict.fromkeys((*trial.outcome.flags, *outcome.flags))
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
        "flags": list(flags),
        "duplicate_of": trial.outcome.duplicate_of,
        "stage_s": dict(trial.outcome.stage_s),
        "resources": dict(trial.outcome.resources),
        "measurements": [measurement.to_json() for measurement in outcome.measurements],
        "checks": [check.to_json() for check in outcome.checks],
        "search_outcome": trial.outcome.kind.value,
        "search_speedup": searched.speedup,
        "finished_s": data.finish_times_s.get(trial.number),
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
