"""The worth of the champion's values: against the default, and parameter by parameter."""

from __future__ import annotations

from collections.abc import Mapping

from evotune.report import wording
from evotune.report.data import RunData
from evotune.report.deciding_outcomes import figures
from evotune.report.leaderboard import Row
from evotune.report.wording import change_text
from evotune.trial import Json, Outcome, Value
from evotune.util.words import printable


def against_default(data: RunData, leader: Row | None) -> Json:
    """The parameters in which the leader differs from the space's starting point, and how both
    did in the search; None when there is no leader or no known starting point."""
    default = data.default
    if leader is None or default is None:
        return None
    tried = next((t for t in data.trials if _same(t.configuration, default)), None)
    mine = next(t for t in data.trials if t.number == leader.number)
    changed = wording.difference(leader.configuration, default)
    return {
        "rows": [
            [
                printable(name),
                printable(wording.value_text(default[name])) if name in default else "",
                printable(wording.value_text(value)),
            ]
            for name, value in changed.items()
        ],
        "default": None if tried is None else _result(data, tried.number, tried.outcome),
        "leader": _result(data, mine.number, mine.outcome),
    }


def ablation(data: RunData, leader: int | None) -> Json:
    """The stored ablation of the leader, else the newest one, texts made printable; None before
    `evotune ablate`."""
    if not data.ablations:
        return None
    of_leader = (each for each in data.ablations if each.get("trial") == leader)
    stored = next(of_leader, data.ablations[0])
    return {
        "trial": stored.get("trial"),
        "date": printable(str(stored.get("date", ""))),
        "rows": [
            {
                "change": printable(change_text(row)),
                "parameter": printable(str(row.get("parameter", ""))),
                "why": "same code" if _same_code(row) else printable(str(row.get("why", ""))),
                "outcome": printable(str(row.get("outcome", ""))),
                "reason": printable(str(row.get("reason", ""))),
                **{name: row.get(name) for name in ("ratio", "ratio_low", "ratio_high")},
            }
            for row in sorted(stored["rows"], key=_worst_first)
        ],
    }


def _same_code(row: Mapping[str, Json]) -> bool:
    return bool(row.get("same_code")) and bool(row["parameter"])


def _worst_first(row: Mapping[str, Json]) -> tuple[bool, bool, float]:
    """The champion against itself leads; failures come last."""
    return (bool(row["parameter"]), row["ratio"] is None, row["ratio"] or 0.0)


def _result(data: RunData, number: int, outcome: Outcome) -> Json:
    found = figures(outcome, recorded=data.recorded)
    return {
        "trial": number,
        "outcome": outcome.kind.value,
        "result": wording.result_text(found) if outcome.ok else printable(outcome.reason),
        "time": wording.time_text(found.time_us) if found.time_us else "",
    }


def _same(one: Mapping[str, Value], other: Mapping[str, Value]) -> bool:
    return not wording.difference(one, other) and len(one) == len(other)
