"""Champions' checks side by side, and what becomes of them: with made-up and with real workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from red_team.pipeline import Pipeline
from report.runs import ok

from evotune.backends.cpu import CpuBackend
from evotune.runs.confirming import confirm, joined, timing_of
from evotune.trial import Check, Configuration, Domain, Outcome, OutcomeKind, Trial
from evotune.workers import local
from evotune.workers.executor import CHECKS, HELD_OUT, TIMED, TIMING, Proposal

DOMAIN = Domain("GPU", 1, ())


class Workers:
    """Answers all that was submitted at once, the latest first."""

    step = ""

    def __init__(self, answer: Callable[[Proposal], Outcome]) -> None:
        self._answer = answer
        self._waiting: list[Proposal] = []
        self.together: list[list[tuple[int, str]]] = []

    def submit(self, proposal: Proposal) -> None:
        self._waiting.append(proposal)

    def poll(self, timeout_s: float) -> list[tuple[int, Outcome]]:
        done, self._waiting = self._waiting[::-1], []
        self.together.append([(each.number, each.part) for each in done[::-1]])
        return [(each.number, self._answer(each)) for each in done]

    def set_contender(self, fitness: float) -> None: ...
    def drop(self) -> None: ...
    def close(self) -> None: ...


def _confirmed(workers: Workers, count: int) -> dict[int, Outcome]:
    trials = [Trial(n, Configuration({"N": n}), ok(2.0 - 0.05 * n)) for n in range(9)]
    found = confirm(
        workers,
        trials,
        known={},
        count=count,
        propose=lambda trial: Proposal(trial.number, trial.configuration, confirm=True),
        stop=lambda: False,
        checks_at_once=2,
    )
    return {trial.number: outcome for trial, outcome in found}


def _right(proposal: Proposal) -> Outcome:
    if proposal.part == CHECKS:
        check = Check("many", "all", "passed")
        return Outcome(
            OutcomeKind.OK, fitness=0.0, checks=(check,), domain=DOMAIN, stage_s={"verify": 1.0}
        )
    return ok(2.0 - 0.05 * proposal.number)


def test_checks_come_together_and_timing_one_by_one() -> None:
    workers = Workers(_right)
    found = _confirmed(workers, 3)
    assert list(found) == [0, 1, 2]
    assert workers.together[:2] == [[(0, CHECKS), (1, CHECKS)], [(0, TIMING)]]
    assert [(2, CHECKS)] in workers.together, "the third has no other one beside it"
    for outcome in found.values():
        assert outcome.domain == DOMAIN
        assert outcome.stage_s["verify"] >= 1.0
        assert "many" in [check.case for check in outcome.checks]
        assert outcome.measurements


def test_a_candidate_that_fails_its_checks_is_not_timed_and_the_next_one_follows() -> None:
    def answer(proposal: Proposal) -> Outcome:
        wrong = proposal.number == 0 and proposal.part == CHECKS
        return Outcome(OutcomeKind.WRONG_RESULT) if wrong else _right(proposal)

    workers = Workers(answer)
    found = _confirmed(workers, 2)
    assert [(n, outcome.ok) for n, outcome in found.items()] == [(0, False), (1, True), (2, True)]
    assert [(0, TIMING)] not in workers.together


def test_checks_that_found_no_memory_beside_others_are_made_alone() -> None:
    def answer(proposal: Proposal) -> Outcome:
        return Outcome(OutcomeKind.DEVICE_OOM) if proposal.part == CHECKS else _right(proposal)

    workers = Workers(answer)
    found = _confirmed(workers, 2)
    assert all(outcome.ok for outcome in found.values())
    assert [(0, "")] in workers.together


def test_a_kernel_that_fails_while_it_is_timed_is_not_confirmed() -> None:
    timing = Outcome(OutcomeKind.WRONG_RESULT, reason="watched")
    assert joined(_right(Proposal(0, Configuration({}), part=CHECKS)), timing) == timing


@pytest.mark.soak
def test_the_parts_of_a_real_confirmation_make_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuBackend, "exclusive", False)
    monkeypatch.setattr(local, "checkers_on", lambda cores: 2)
    space = "third_cpu_row_sum.yaml"
    pipeline = Pipeline(tmp_path, space)
    try:
        whole = pipeline._proposal("right", space, 3, confirm=True)
        checks = pipeline._outcome(dataclasses.replace(whole, part=CHECKS))
        timing = pipeline._outcome(timing_of(whole))
        found = joined(checks, timing)
    finally:
        pipeline.close()
    assert checks.ok, checks.reason
    assert checks.domain is not None
    assert not checks.measurements
    assert timing.ok, timing.reason
    assert {m.case for m in timing.measurements} == {
        job.case.label for job in whole.cases if job.role in (TIMED, HELD_OUT)
    }
    assert found.fitness is not None
    assert {check.case for check in found.checks} > {m.case for m in found.measurements}
