"""A run as T4, the auto-tuning community's results format, version 1.0.0.

The schema: `kernel_tuner/schema/T4/1.0.0/results-schema.json` in github.com/KernelTuner. Every
trial is a result, failed ones too; each holds what evotune knows in T4's words:

    invalidity    correct, constraints (also a limit of the device), compile, runtime, timeout or
                  correctness
    times         ms: compilation_time, validation (load and verify), benchmark, and `runtimes`, the
                  median time of each timed case
    measurements  time (ms, geometric mean over the timed cases), speedup and its interval where
                  there is a baseline, and as texts evotune's own outcome and its reason
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from evotune.report.data import RunData
from evotune.report.evidence import Evidence, figures
from evotune.report.records import listing
from evotune.report.whole import in_proposal_order
from evotune.trial import Json, OutcomeKind

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
    return listing({"schema_version": _VERSION}, "results", _results(data))


def _results(data: RunData) -> Iterator[dict[str, Json]]:
    started = _started(data)
    for item in in_proposal_order(data):
        invalidity = _INVALIDITY.get(item.outcome.kind, "runtime")
        result: dict[str, Json] = {
            "configuration": item.trial.configuration.to_json(),
            "objectives": ["time"],
            "times": _times(item),
            "invalidity": invalidity,
            "correctness": 0 if invalidity == "correctness" else 1,
            "measurements": list(_measurements(data, item)),
        }
        seconds = data.finish_times_s.get(item.trial.number)
        if started is not None and seconds is not None:
            with contextlib.suppress(OverflowError):  # a damaged time
                result["timestamp"] = (started + timedelta(seconds=seconds)).isoformat()
        yield result


def _times(item: Evidence) -> dict[str, Json]:
    stage_s = item.trial.outcome.stage_s
    times: dict[str, Json] = {
        name: 1000 * stage_s[stage] for stage, name in _STAGES.items() if stage in stage_s
    }
    times["runtimes"] = [m.time_us / 1000 for m in item.outcome.measurements if m.counts]
    return times


def _measurements(data: RunData, item: Evidence) -> Iterator[dict[str, Json]]:
    numbers = figures(item.outcome, recorded=data.recorded)
    if numbers.time_us is not None:
        yield {"name": "time", "value": numbers.time_us / 1000, "unit": "ms"}
    for name in ("speedup", "speedup_low", "speedup_high"):
        if (value := getattr(numbers, name)) is not None:
            yield {"name": name, "value": value, "unit": ""}
    yield {"name": "outcome", "value": item.outcome.kind.value, "unit": ""}
    if item.reason:
        yield {"name": "reason", "value": item.reason, "unit": ""}


def _started(data: RunData) -> datetime | None:
    try:
        return datetime.fromisoformat(str(data.meta.get("created")))
    except ValueError:
        return None
