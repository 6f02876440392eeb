"""Runs as one self-contained page: everything is in the file, nothing is fetched.

No text from elsewhere ever becomes markup. The runs are one JSON text in which no character can
end its element; the script puts text into the page as text. A content security policy lets only
the page's own script run (by its hash), lets no text become code, and forbids every connection.

A run's data are columns of numbers, and each text once. Ten thousand trials must stay a small part
of the page. So figures keep five digits, reasons and values are indices into lists of texts, and
only the leaders have measurements of single cases.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Final

from evotune.packages import __version__
from evotune.report import wording
from evotune.report.data import RunData
from evotune.report.formats import finite, trial_record
from evotune.report.front import (
    DEVICES_MEANING,
    devices_table,
    domain_table,
    domain_text,
    pareto_front,
)
from evotune.report.front import DOMAIN_MEANING as DOMAIN
from evotune.report.html.pictures import picture_style
from evotune.report.leaderboard import Evidence, Leaderboard, Row, figures, rank, weigh
from evotune.report.markdown import Explained, answers, sentence
from evotune.report.summary import RunSummary, StageTime, summarize
from evotune.report.whole import failures, in_proposal_order
from evotune.report.wording import alike_reasons, change_text
from evotune.store.facts import AblatedChange
from evotune.timing.processes import agreement
from evotune.trial import Json, Measurement, Outcome, Trial, Value, throttled_by, worst_check
from evotune.util.commands import run_command
from evotune.util.words import printable, shorten

__all__ = ["MOST_TRIALS", "Explained", "html_page"]

MOST_TRIALS: Final = 20_000
"""The most trials on a page; of a longer run it shows a sample. A browser takes seconds for
100,000."""


_SCRIPTS = (
    "elements.js",
    "filter.js",
    "table.js",
    "axes.js",
    "charts.js",
    "parallel.js",
    "figures.js",
    "pictures.js",
    "explain.js",
    "sections.js",
    "main.js",
)


def html_page(runs: Sequence[RunData], explanations: Sequence[Explained | None] = ()) -> str:
    """The page of one or more runs.

    `explanations`: for each run the explanation of its winner, or None (`explain.report_parts`).
    """
    found = explanations or [None] * len(runs)
    payloads = [run_payload(run, each) for run, each in zip(runs, found, strict=True)]
    data = {"evotune": __version__, "runs": payloads}
    script = "'use strict';\n" + "\n".join(_asset(name) for name in _SCRIPTS)
    names = ", ".join(dict.fromkeys(run.space or "run" for run in runs))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">
<title>{html.escape(names)} - evotune</title>
<link rel="icon" href="data:,">
<style>
{_asset("report.css")}
{picture_style()}
</style>
</head>
<body>
<noscript>
<p>This report draws itself with JavaScript, all of which is inside the file. In short:</p>
{_opening(payloads)}
</noscript>
<main id="page"></main>
<script type="application/json" id="data">{_embedded(data)}</script>
<script>{script}</script>
</body>
</html>
"""


def _opening(payloads: Sequence[Mapping[str, Json]]) -> str:
    """The answers of each run, for a reader without JavaScript."""
    parts = []
    for payload in payloads:
        parts.append(f"<h2>{html.escape(str(payload['id']))}</h2>")
        for answer in payload["answers"]:
            said = html.escape(" ".join(answer["sentences"]))
            parts.append(f"<p><b>{html.escape(answer['question'])}</b> {said}</p>")
            lines = [f"{line}  # {why}" for line, why in answer["commands"]]
            parts += [f"<pre>{html.escape(line)}</pre>" for line in lines]
    return "\n".join(parts)


def _asset(name: str) -> str:
    return files("evotune.report.html").joinpath("assets", name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules = (
        "default-src 'none'",
        f"script-src 'sha256-{digest}'",
        "style-src 'unsafe-inline'",
        "img-src data:",
    )
    return "; ".join(rules)


def _embedded(data: Json) -> str:
    """JSON that is safe inside a script element: no `<`, so neither `</script` nor `<!--`."""
    text = json.dumps(finite(data), separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


_DETAILED_ROWS = 100
_REASON_CHARACTERS = 160
_SHOWN_REASONS = 6


def run_payload(data: RunData, explained: Explained | None = None) -> dict[str, Json]:
    """The run as a JSON value in which every text is `printable`. `explained`: the explanation of
    its winner, if there is one."""
    evidence = weigh(data)
    board = rank(data, evidence)
    if data.sample is not None:  # the other trials are a sample and have no rank
        board = dataclasses.replace(board, rows=board.rows[: data.sample.leaders])
    summary = summarize(data, board)
    leader = board.rows[0] if board.rows else None
    return {
        "id": printable(data.id),
        "space": printable(data.space or "run"),
        "device": printable(summary.device),
        "recorded": data.recorded,
        "csv_command": printable(run_command("report", data.path, "--format", "csv")),
        "ablate_command": printable(run_command("ablate", data.path)),
        "total": data.totals.trials,
        "every": data.sample.every if data.sample else 1,
        "sentence": printable(sentence(summary)),
        "headline": _headline(data, summary, leader),
        "answers": [answer.to_json() for answer in answers(data, summary, leader, explained)],
        "explanation": None if explained is None else printable_json(explained.section),
        "facts": _facts(data, summary),
        "command": shlex.join(printable(str(word)) for word in data.facts.command),
        "environment": printable_json(data.environment),
        "parameters": _parameters(data.trials),
        "trials": _columns(data, board, evidence),
        "front": _front(data),
        "details": {str(row.number): _details(row) for row in board.rows[:_DETAILED_ROWS]},
        "leader": None if leader is None else leader.number,
        "domain": _domain(leader),
        "baselines": _baselines(data),
        "baselines_note": wording.TIMED_ALONE,
        "devices": _devices(data),
        "outcomes": _outcomes(data, summary),
        "stages": _stages(summary.stages),
        "confirmation_stages": _stages(summary.confirmation_stages),
        "state": _device_state(data),
        "default": against_default(data, leader),
        "ablation": ablation(data, None if leader is None else leader.number),
        "disqualified": [
            [item.trial.number, printable(item.reason)] for item in board.disqualified
        ],
        "warnings": [
            [row.number, printable(warning)]
            for row in board.rows[:_DETAILED_ROWS]
            for warning in row.warnings
        ],
    }


def printable_json(value: Json) -> Json:
    """A copy of the value in which every text is `printable`."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(str(name)): printable_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [printable_json(item) for item in value]
    return value


def short(figure: float | None) -> float | None:
    """The figure with five significant digits, as many as a chart or a table can show."""
    if figure is None or not math.isfinite(figure):
        return None
    return float(f"{figure:.5g}")


def _headline(data: RunData, summary: RunSummary, leader: Row | None) -> Json:
    if leader is None:
        return None
    figures = leader.figures
    used = dict.fromkeys(m.baseline for m in leader.timed)
    return {
        "trial": leader.number,
        "speedup": short(figures.speedup),
        "low": short(figures.speedup_low),
        "high": short(figures.speedup_high),
        "time": wording.time_text(figures.time_us) if figures.time_us else "",
        "time_us": short(figures.time_us),
        "baseline": printable(", ".join(used)),
        "confirmed": leader.confirmed,
        "noise": wording.noise_text(leader.outcome),
        "configuration": printable(wording.configuration_text(leader.configuration)),
    }


def _facts(data: RunData, summary: RunSummary) -> list[list[str]]:
    packages: Mapping[str, Json] = data.environment.get("packages") or {}
    pace = summary.trials_per_minute
    facts = {
        "state": wording.state_text(summary.state),
        "device": summary.device_text,
        "beside": wording.beside_text(summary.beside),
        "problem": data.facts.problem.text,
        "its own tolerance": data.facts.problem.tolerance,
        "cases": ", ".join(data.cases),
        "held out": ", ".join(data.held_out_cases),
        "search": f"{summary.strategy}, seed {summary.seed}",
        "trials": f"{summary.done} of {summary.trials or '?'}",
        "elapsed": wording.duration_text(summary.elapsed_s),
        "pace": "" if pace is None else f"{pace:.1f} trials per minute",
        "created": data.facts.created,
        "versions": ", ".join(
            f"{name} {version}"
            for name, version in {
                **{name: data.environment.get(name) for name in ("evotune", "python")},
                **packages,
            }.items()
            if version
        ),
        "compiler": shorten(str(data.environment.get("compiler", "")), _REASON_CHARACTERS),
    }
    return [[name, printable(text)] for name, text in facts.items() if text]


def _parameters(trials: Sequence[Trial]) -> list[dict[str, Json]]:
    """Every parameter with the values that were tried, in order: numbers, then words."""
    if not trials:
        return []
    found: dict[str, dict[Value, None]] = {name: {} for name in trials[0].configuration}
    for trial in trials:
        for name, value in trial.configuration.items():
            found.setdefault(name, {})[value] = None
    return [
        {"name": printable(name), "values": [printable(wording.value_text(v)) for v in values]}
        for name, values in ((name, _ordered(values)) for name, values in found.items())
    ]


def _ordered(values: Iterable[Value]) -> list[Value]:
    """Numbers by value, then words, numbers in them by value too: `tile9` before `tile10`."""
    numbers: list[bool | int | float] = []
    words: list[str] = []
    for value in values:
        if isinstance(value, str):
            words.append(value)
        else:
            numbers.append(value)
    return [*sorted(numbers), *sorted(words, key=_natural)]


def _natural(word: str) -> list[tuple[str, int, str]]:
    """A sort key: the texts in a word and the numbers between them. Numbers stay digits, since
    Python refuses to convert very long ones."""
    return [
        ("", len(part.lstrip("0")), part.lstrip("0")) if at % 2 else (part, 0, "")
        for at, part in enumerate(re.split("([0-9]+)", word))
    ]


def _columns(
    data: RunData, board: Leaderboard, evidence: Mapping[int, Evidence]
) -> dict[str, list[Json]]:
    """A list for each column, with a value for each trial: leaders first, the rest by number."""
    rows = {row.number: row for row in board.rows}
    order = [*rows, *(number for number in evidence if number not in rows)]
    reasons: dict[str, int] = {}
    columns: dict[str, list[Json]] = {
        name: []
        for name in (
            *("number", "place", "outcome", "reason", "speedup", "low", "high", "time_us"),
            *("error", "confirmed", "flags", "same_code", "finished_s", "seen"),
        )
    }
    for number in order:
        item = evidence[number]
        row = rows.get(number)
        record = trial_record(data.recorded, item, row.rank if row else None)
        reason = shorten(printable(item.reason), _REASON_CHARACTERS)
        error, limit = record["error"], record["error_limit"]
        cells = {
            "number": number,
            "place": row.place if row else None,
            "outcome": item.outcome.kind.value,
            "reason": reasons.setdefault(reason, len(reasons)),
            "speedup": short(record["speedup"]),
            "low": short(record["speedup_low"]),
            "high": short(record["speedup_high"]),
            "time_us": short(record["time_us"]),
            "error": None if _is_rounding(item) else short(_share(error, limit)),
            "confirmed": int(item.confirmed),
            "flags": " ".join(record["flags"]),
            "same_code": record["duplicate_of"],
            "finished_s": short(data.finish_times_s.get(number)),
            "seen": _seen(data, item.trial),
        }
        for name, cell in cells.items():
            columns[name].append(cell)
    places = [
        {value: place for place, value in enumerate(spec["values"])}
        for spec in _parameters(data.trials)
    ]
    columns["configurations"] = [
        [
            place.get(printable(wording.value_text(value)))
            for place, value in zip(
                places, evidence[number].trial.configuration.values(), strict=False
            )
        ]
        for number in order
    ]
    columns["reasons"] = list(reasons)
    return columns


def _share(error: float | None, limit: float | None) -> float | None:
    return error / limit if limit and error is not None else error


def _is_rounding(item: Evidence) -> bool:
    check = worst_check(item.outcome.checks)
    return check is not None and check.rounding


def _seen(data: RunData, trial: Trial) -> list[float | None] | None:
    """The search's own measurement: [speedup, low, high], or [time_us] of a recording."""
    outcome = trial.outcome
    if outcome.fitness is None:
        return None
    if data.recorded:
        return None if outcome.recorded_time_us is None else [short(outcome.recorded_time_us)]
    bounds = (outcome.fitness, outcome.fitness_low, outcome.fitness_high)
    return [short(_exp(outcome.fitness if bound is None else bound)) for bound in bounds]


def _exp(fitness: float) -> float:
    return math.exp(min(fitness, 700.0))


def _front(data: RunData) -> Json:
    return [
        {
            "trial": row.number,
            "speedup": short(row.speedup),
            "error": short(row.error),
            "confirmed": row.confirmed,
            "configuration": printable(wording.configuration_text(row.configuration)),
        }
        for row in pareto_front(data, in_proposal_order(data))
    ]


def _details(row: Row) -> dict[str, Json]:
    return {
        "cases": [_case(measurement) for measurement in row.outcome.measurements],
        "compiled": wording.compiled_text(row.outcome.resources),
        "duplicates": list(row.duplicates[:20]),
    }


def _case(m: Measurement) -> dict[str, Json]:
    return {
        "case": printable(m.case),
        "cache": m.cache,
        "held_out": m.held_out,
        "time_us": short(m.time_us),
        "baseline": printable(m.baseline),
        "baseline_us": short(m.baseline_us),
        "speedup": short(m.speedup),
        "low": short(m.speedup_low),
        "high": short(m.speedup_high),
        "samples": m.samples,
    }


def _baselines(data: RunData) -> list[list[Json]]:
    return [
        [
            printable(str(timing.case)),
            printable(str(timing.name)),
            short(timing.time_us),
            bool(timing.passed),
            data.facts.baselines.chosen.get(timing.case) == timing.name,
        ]
        for timing in data.facts.baselines.timings
    ]


def _domain(leader: Row | None) -> Json:
    """The leader's domain; None if there is none."""
    found = None if leader is None else leader.outcome.domain
    if leader is None or found is None:
        return None
    table = domain_table(found)
    return printable_json(
        {
            "note": f"Trial {leader.number} {domain_text(found)}. {DOMAIN}",
            "columns": table.columns,
            "rows": table.rows,
            "numeric": table.numeric,
        }
    )


def _devices(data: RunData) -> Json:
    """None in a run on one device."""
    table = devices_table(data.facts.devices)
    if table is None:
        return None
    return printable_json(
        {
            "note": f"{DEVICES_MEANING} {agreement(data.facts.devices)}.",
            "columns": table.columns,
            "rows": table.rows,
            "numeric": table.numeric,
        }
    )


def _outcomes(data: RunData, summary: RunSummary) -> list[dict[str, Json]]:
    """Counts by kind, with the most frequent reasons."""
    reasons: dict[str, list[list[Json]]] = {}
    for reason in alike_reasons(failures(data)):
        if reason.example:
            example = shorten(printable(reason.example), _REASON_CHARACTERS)
            reasons.setdefault(reason.kind, []).append([reason.trials, example])
    return [
        {
            "kind": kind,
            "count": count,
            "reasons": reasons.get(kind, [])[:_SHOWN_REASONS],
            "more": max(0, len(reasons.get(kind, ())) - _SHOWN_REASONS),
        }
        for kind, count in summary.outcomes.items()
    ]


def _stages(stages: Iterable[StageTime]) -> list[list[Json]]:
    return [[printable(s.stage), s.trials, short(s.total_s), short(s.median_s)] for s in stages]


def _device_state(data: RunData) -> dict[str, Json]:
    """The seconds at which trials ended, and the figures that the device gave after the last
    measurement of each."""
    moments = []
    names: dict[str, None] = {}
    every = data.sample.every if data.sample else 1
    trials = (trial for trial in data.trials if trial.number % every == 0)
    for trial in sorted(trials, key=lambda t: data.finish_times_s.get(t.number, 0.0)):
        state = trial.outcome.measurements[-1].state if trial.outcome.measurements else {}
        figures = {n: v for n, v in state.items() if isinstance(v, int | float)}
        if figures:
            names.update(dict.fromkeys(figures))
            throttled = " ".join(throttled_by(state))
            moments.append((data.finish_times_s.get(trial.number), figures, printable(throttled)))
    return {
        "seconds": [short(seconds) for seconds, _, _ in moments],
        "figures": {
            printable(name): [short(figures.get(name)) for _, figures, _ in moments]
            for name in names
        },
        "throttled": [throttled for _, _, throttled in moments],
    }


# The worth of the champion's values: against the default, and parameter by parameter.
def against_default(data: RunData, leader: Row | None) -> Json:
    """The parameters in which the leader differs from the space's starting point, and how both did
    in the search; None if there is no leader or no known starting point."""
    default = data.facts.default
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
    if not data.facts.ablations:
        return None
    of_leader = (each for each in data.facts.ablations if each.trial == leader)
    stored = next(of_leader, data.facts.ablations[0])
    return {
        "trial": stored.trial,
        "date": printable(str(stored.date)),
        "rows": [
            {
                "change": printable(change_text(row)),
                "parameter": printable(str(row.parameter)),
                "why": "same code" if _same_code(row) else printable(str(row.why)),
                "outcome": printable(str(row.outcome)),
                "reason": printable(str(row.reason)),
                **{name: getattr(row, name) for name in ("ratio", "ratio_low", "ratio_high")},
            }
            for row in sorted(stored.rows, key=_worst_first)
        ],
    }


def _same_code(row: AblatedChange) -> bool:
    return row.same_code and bool(row.parameter)


def _worst_first(row: AblatedChange) -> tuple[bool, bool, float]:
    """The champion against itself leads; failures come last."""
    return (bool(row.parameter), row.ratio is None, row.ratio or 0.0)


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
