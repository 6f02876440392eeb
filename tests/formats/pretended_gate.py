"""A gate that reads its verdict in the candidate's text, without executing it."""

from __future__ import annotations

import math
import time
from pathlib import Path

from evotune.api.gating import Verdict
from evotune.errors import UsageError
from evotune.formats import evaluators
from evotune.report.formats import trial_record
from evotune.report.leaderboard import Evidence, figures
from evotune.trial import Configuration, Outcome, OutcomeKind, Trial

REASONS = {"wrong": "out is off by 3", "noisy": "the time limit of 120 s ended"}
_KINDS = {"wrong": OutcomeKind.WRONG_RESULT, "noisy": OutcomeKind.UNDECIDED}
CALLS: list[dict[str, object]] = []


def verdict_of(text: str) -> Verdict:
    """Of a text whose first word is `wrong`, `noisy` or a speedup: its interval is 10% wide."""
    word = text.split(maxsplit=1)[0]
    if word in REASONS:
        outcome = Outcome(_KINDS[word], reason=REASONS[word])
    else:
        fitness = math.log(float(word))
        low, high = fitness + math.log(0.9), fitness + math.log(1.1)
        outcome = Outcome(OutcomeKind.OK, fitness, low, high)
    trial = Trial(0, Configuration({"GATED": 1}), outcome)
    record = trial_record(False, Evidence(trial, outcome, True, 0), 1)
    return Verdict(
        trial.configuration, outcome, record, {"(8,64)": "torch:eager"}, {}, figures(outcome)
    )


def gate(candidate: Path, **given: object) -> Verdict:
    CALLS.append(given)
    text = candidate.read_text()
    if text.startswith("no kernel"):
        raise UsageError("kernel.py must have a function `make`")
    if text.startswith("slow"):
        time.sleep(1e6)
    return verdict_of(text)


def pretend() -> None:
    """For an evaluator's file, which a peer executes in a process of its own."""
    evaluators.gate = gate  # type: ignore[assignment]
