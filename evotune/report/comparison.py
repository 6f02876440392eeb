"""Compares two candidates: their differences, and their times.

A ratio is the first candidate's time / the second one's: above 1 the second is faster. `slowdown`
is 1 / ratio - 1. There are three ways to find a ratio:

- From stored figures the ratio is the quotient of two speedups over the same baseline. Each
  candidate was timed in alternation with the baseline, so two runs are comparable even if the
  machine was slower during one of them. The interval spans every value that the two 95% intervals
  allow.
- If the baselines differ, the ratio is the quotient of the times, without an interval.
- `--remeasure` times the two in alternation, which gives a paired interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from evotune.report.data import RunData
from evotune.report.leaderboard import weigh
from evotune.report.wording import difference, value_text
from evotune.trial import Configuration, Json, Measurement, Outcome


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: a trial of a run with its deciding outcome. `number` and `outcome`
    are None if the configuration was not tried."""

    data: RunData
    number: int | None
    configuration: Configuration
    outcome: Outcome | None

    @property
    def name(self) -> str:
        return f"{self.data.id}:{'default' if self.number is None else self.number}"


@dataclass(frozen=True, slots=True)
class CaseRatio:
    """The two times on one case, in µs, and their `ratio` (see the module's docstring). `low` and
    `high` are None without an interval."""

    case: str
    first_us: float
    second_us: float
    ratio: float
    low: float | None
    high: float | None

    @property
    def slowdown(self) -> float:
        return 1 / self.ratio - 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison. `basis`: paired (timed now, in alternation), baseline (speedups
    over the same baseline) or times."""

    first: Side
    second: Side
    facts: Sequence[tuple[str, str, str]]
    """(name, first value, second value) of every difference, the configuration last."""
    basis: str
    cases: Sequence[CaseRatio]

    @property
    def mean(self) -> tuple[float, float | None, float | None]:
        """The geometric mean of the cases' ratios, and the geometric means of their bounds, if all
        cases have bounds."""
        return (
            _geometric([case.ratio for case in self.cases]),
            _all([case.low for case in self.cases]),
            _all([case.high for case in self.cases]),
        )

    def slowdowns(self) -> dict[str, float]:
        """The slowdowns by the names that `--fail-if` takes (`evotune.cli.explain_commands`)."""
        mean, _, high = self.mean
        each = [case.slowdown for case in self.cases]
        found = {"median": statistics.median(each), "mean": 1 / mean - 1, "worst": max(each)}
        return found if high is None else {**found, "sure": 1 / high - 1}

    def to_json(self) -> dict[str, Json]:
        mean, low, high = self.mean
        return {
            "first": self.first.name,
            "second": self.second.name,
            "differences": [list(fact) for fact in self.facts],
            "basis": self.basis,
            "ratio": mean,
            "ratio_low": low,
            "ratio_high": high,
            "slowdowns": self.slowdowns(),
            "cases": [
                {name: getattr(case, name) for name in case.__slots__} for case in self.cases
            ],
        }


def compare(first: Side, second: Side, measured: Outcome | None = None) -> Comparison | None:
    """Compares two sides. `measured` is the outcome of timing both in alternation. None if there is
    nothing to compare: no common case, or a side without times."""
    if measured is not None:
        cases = [_paired(m) for m in measured.measurements if m.counts]
        basis = "paired"
    else:
        cases, basis = _stored(_timed(first), _timed(second))
    if not cases:
        return None
    return Comparison(first, second, tuple(_facts(first, second)), basis, tuple(cases))


def side(data: RunData, wanted: str) -> Side | None:
    """The side that `wanted` names: "" for the leaderboard's first row, a trial's number, or
    `default`.

    None if the run has no such trial. A trial that failed is a side without times.
    """
    from evotune.report.leaderboard import rank

    evidence = weigh(data)
    if wanted == "default":
        if data.facts.default is None:
            return None
        configuration = Configuration(data.facts.default)
        tried = [i for i in evidence.values() if i.trial.configuration == configuration]
        if not tried:
            return Side(data, None, configuration, None)
        return Side(data, tried[0].trial.number, configuration, tried[0].outcome)
    if not wanted:
        rows = rank(data, evidence).rows
        return Side(data, rows[0].number, rows[0].configuration, rows[0].outcome) if rows else None
    item = evidence.get(int(wanted))
    if item is None:
        return None
    return Side(data, item.trial.number, item.trial.configuration, item.outcome)


def _timed(one: Side) -> dict[str, Measurement]:
    outcome = one.outcome
    if outcome is None or not outcome.ok:
        return {}
    if one.data.recorded:
        time_us = outcome.recorded_time_us or math.nan
        return {"recorded": Measurement("recorded", time_us, time_us, "", 0.0, 1.0, 1.0, 1.0, 1)}
    return {m.case: m for m in outcome.measurements if m.counts}


def _paired(m: Measurement) -> CaseRatio:
    return CaseRatio(m.case, m.baseline_us, m.time_us, m.speedup, m.speedup_low, m.speedup_high)


def _stored(
    first: Mapping[str, Measurement], second: Mapping[str, Measurement]
) -> tuple[list[CaseRatio], str]:
    common = [(m, second[case]) for case, m in first.items() if case in second]
    if all(m.baseline and m.baseline == n.baseline for m, n in common):
        return [_by_baseline(m, n) for m, n in common], "baseline"
    return [
        CaseRatio(m.case, m.time_us, n.time_us, m.time_us / n.time_us, None, None)
        for m, n in common
    ], "times"


def _by_baseline(first: Measurement, second: Measurement) -> CaseRatio:
    return CaseRatio(
        first.case,
        first.time_us,
        second.time_us,
        second.speedup / first.speedup,
        second.speedup_low / first.speedup_high,
        second.speedup_high / first.speedup_low,
    )


def _facts(first: Side, second: Side) -> Iterator[tuple[str, str, str]]:
    one, other = _described(first.data), _described(second.data)
    for name in dict.fromkeys((*one, *other)):
        if one.get(name) != other.get(name):
            yield name, str(one.get(name, "-")), str(other.get(name, "-"))
    changed = difference(second.configuration, first.configuration)
    gone = [name for name in first.configuration if name not in second.configuration]
    for name in (*changed, *gone):
        texts = (
            value_text(s.configuration[name]) if name in s.configuration else "-"
            for s in (first, second)
        )
        yield (name, *texts)  # type: ignore[misc]


def _described(data: RunData) -> dict[str, Json]:
    """Conditions of a run, other than the configuration, on which its times depend."""
    environment = data.environment
    packages: Mapping[str, Json] = environment.get("packages") or {}
    found = {
        "space": data.space,
        "device": data.facts.device.name,
        "driver": data.facts.device.driver,
        "problem": data.facts.problem.text,
        "its own tolerance": data.facts.problem.tolerance,
        "compiler": environment.get("compiler"),
        "evotune": environment.get("evotune"),
        "torch": packages.get("torch"),
    }
    found |= {f"baseline of {case}": name for case, name in data.facts.baselines.chosen.items()}
    return {name: value for name, value in found.items() if value}


def _geometric(values: Sequence[float]) -> float:
    return math.exp(sum(math.log(value) for value in values) / len(values))


def _all(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _geometric(known) if len(known) == len(values) else None
