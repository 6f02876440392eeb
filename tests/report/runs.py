"""Run folders as the engine would write them, made without running anything."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from evotune.report.data import RunData
from evotune.report.formats import REPORTS
from evotune.runs.folder import RunFolder
from evotune.store import RunStore
from evotune.trial import (
    Check,
    Configuration,
    Json,
    Measurement,
    Outcome,
    OutcomeKind,
    Trial,
    Value,
)

CASES = ("512x64", "512x64-causal")
META: Mapping[str, Json] = {
    "space": "attention-cpu",
    "kind": "kernel",
    "device": {"name": "Test CPU", "backend": "cpu", "arch": "x86_64-avx2", "attributes": {}},
    "problem": {"name": "attention", "dtype": "float32"},
    "settings": {
        "strategy": "evolution",
        "seed": 7,
        "population": 8,
        "elites": 2,
        "lookahead": 4,
        "trials": 100,
        "minutes": None,
        "champions": 3,
    },
    "baselines": {
        "timings": [
            {"case": CASES[0], "name": "sdpa:flash", "time_us": 900.0, "passed": True},
            {"case": CASES[0], "name": "sdpa:math", "time_us": 2500.0, "passed": True},
            {"case": CASES[1], "name": "sdpa:flash", "time_us": 500.0, "passed": True},
        ],
        "chosen": dict.fromkeys(CASES, "sdpa:flash"),
    },
    "state": "finished:trials",
    "created": "2030-01-02T03:04:05+00:00",
    "command": ["evotune", "run", "attention-cpu"],
}
ENVIRONMENT: Mapping[str, Json] = {
    "evotune": "0.1.0",
    "python": "3.11.9",
    "packages": {"torch": "2.9.0"},
    "compiler": "g++ 14",
}


def ok(
    speedup: float,
    low: float | None = None,
    high: float | None = None,
    *,
    cases: Sequence[str] = CASES,
    held_out: Sequence[str] = (),
    flags: Sequence[str] = (),
    duplicate_of: int | None = None,
    max_error: float = 1e-4,
) -> Outcome:
    """A valid outcome with the same speedup on every case, +-1% unless bounds are given."""
    low = speedup * 0.99 if low is None else low
    high = speedup * 1.01 if high is None else high
    measurements = tuple(
        Measurement(case, 1000 / speedup, 990 / speedup, "sdpa:flash", 1000.0, speedup, low, high,
                    20, held_out=case in held_out)
        for case in (*cases, *held_out)
    )  # fmt: skip
    return Outcome(
        OutcomeKind.OK,
        fitness=math.log(speedup),
        fitness_low=math.log(low),
        fitness_high=math.log(high),
        flags=tuple(flags),
        duplicate_of=duplicate_of,
        measurements=measurements,
        checks=(Check(cases[0], "normal", "passed", max_error, 2e-3, 1e-5, 1e-4),),
        stage_s={"compile": 1.0, "verify": 0.25, "measure": 0.5},
        resources={"code_bytes": 4096},
    )


def failed(kind: OutcomeKind, reason: str = "because") -> Outcome:
    return Outcome(kind, reason=reason, log=f"log of {reason}", stage_s={"compile": 2.0})


def recorded(time_ms: float) -> Outcome:
    return Outcome(OutcomeKind.OK, fitness=-math.log(time_ms), resources={"time_ms": time_ms})


def configuration(number: int) -> Mapping[str, Value]:
    return {"BLOCK_M": 16 << (number % 4), "UNROLL": number, "PACK": number % 2 == 0}


def text_of(style: str, data: RunData) -> str:
    """The whole report."""
    return "".join(REPORTS[style](data))


def make_run(
    runs_dir: Path,
    outcomes: Sequence[Outcome],
    *,
    name: str = "20300102-030405-attention-cpu-ab12",
    confirmations: Mapping[int, Outcome] | None = None,
    meta: Mapping[str, Json] | None = None,
    environment: str | None = None,
    configurations: Mapping[int, Mapping[str, Value]] | None = None,
) -> RunFolder:
    """Trial n gets outcome n, finished two seconds after the one before."""
    path = runs_dir / name
    (path / "logs").mkdir(parents=True)
    run = RunFolder(path)
    run.environment.write_text(json.dumps(ENVIRONMENT) if environment is None else environment)
    with RunStore.create(run.store) as store:
        for key, value in {**META, **(meta or {})}.items():
            store.set_meta(key, value)
        for number, outcome in enumerate(outcomes):
            values = (configurations or {}).get(number, configuration(number))
            store.append(Trial(number, Configuration(values), outcome), 2.0 * (number + 1))
        for number, outcome in (confirmations or {}).items():
            store.confirm(number, outcome, 100.0)
    return run
