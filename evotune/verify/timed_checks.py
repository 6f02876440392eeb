"""Checks of a candidate's timed launches that take longer: the more its time matters, the more."""

from __future__ import annotations

import time

from evotune.problems.problem import Case
from evotune.trial import TOO_NOISY, Check, OutcomeKind
from evotune.verify._reuse import Answer
from evotune.verify.gate import Gate, Verdict
from evotune.verify.watch import Watch

_AUDITED_RUNS, _AUDIT_S, _READ_AFTER, _REUSE_ASKED = 200, 4.0, 20, 5


def watch_long_rows(gate: Gate, case: Case, watch: Watch, verdict: Verdict) -> None:
    """Watch rows of more launches than a sample has."""
    if verdict.passed:
        watch.run_long()
        gate.judge_watched(case, watch.take(), verdict)
        watch.settle()


def audit(gate: Gate, case: Case, watch: Watch, verdict: Verdict) -> None:
    """Examine a time that is hard to believe: as many watched runs as there is time for, and
    repeated checks of `reuse`."""
    deadline = time.monotonic() + _AUDIT_S
    runs = 0
    while verdict.passed and runs < _AUDITED_RUNS and time.monotonic() < deadline:
        watch.run()
        runs += 1
        if watch.is_full or runs % _READ_AFTER == 0:
            gate.judge_watched(case, watch.take(), verdict)
    gate.judge_watched(case, watch.take(), verdict)
    watch.settle()
    for _ in range(_REUSE_ASKED):
        reuse(case, watch, verdict)
    if verdict.passed:
        detail = f"{runs} more runs of the timed launches were watched"
        verdict.checks.append(Check(case.label, "audited", "passed", detail=detail))


def reuse(case: Case, watch: Watch, verdict: Verdict) -> None:
    """Check whether launches take longer while their inputs change. Needed only for times that
    matter. On a machine that is too noisy to tell, the verdict is undecided."""
    words, sure = watch.reuse() if verdict.passed else Answer()
    if words and sure:
        check = Check(case.label, "changing", "failed", detail=f"a launch {words}")
        verdict.fail(OutcomeKind.TOO_FAST, check)
    elif words:
        detail = f"{TOO_NOISY}: a launch {words}, but not each time it was asked"
        verdict.fail(OutcomeKind.UNDECIDED, Check(case.label, "changing", "skipped", detail=detail))
