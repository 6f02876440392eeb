"""A proposal of served cases alone: they are launched, nothing is timed, what passed is kept."""

from __future__ import annotations

from verify.kernels import PROBLEM, Memory, exact, kernel, make_case, plan

from evotune.problems.executed_sizes import LengthPlan
from evotune.trial import ExecutedLengths, Outcome, OutcomeKind
from evotune.workers.executor import SERVED, Proposal
from evotune.workers.in_flight import InFlight
from evotune.workers.messages import TrialCase, TrialRequest
from evotune.workers.trial_runner import TrialRunner

from .test_graph_sessions import PROFILE, GraphSession

CASES = tuple(make_case(length, causal=False) for length in (20, 21, 22))


def launched(wrong_at: int = 0) -> Outcome:
    def off(memory: Memory) -> None:
        memory["out"][3] = 7.0

    kernels = {
        case.label: kernel(case, exact, off if case.symbols["seq_len_q"] == wrong_at else None)
        for case in CASES
    }
    cases = tuple(TrialCase(case, SERVED, plan(), 1, binary=case.label) for case in CASES)
    place = PROBLEM.place(CASES[0])
    lengths = (LengthPlan(place.fixed, {}, "seq_len_q", 20, 22, (20, 21, 22)),)
    request = TrialRequest(number=0, cases=cases, lengths=lengths, only_served=True)
    runner = TrialRunner(GraphSession(kernels), PROFILE, PROBLEM, deterministic=True)
    runner.prepare(request)
    with runner.beside(request) as beside:
        return runner.run(request, beside)


def test_what_passed_is_the_domain_and_nothing_is_timed() -> None:
    outcome = launched()
    assert (outcome.kind, outcome.fitness) == (OutcomeKind.OK, 0.0), outcome.reason
    assert outcome.measurements == ()
    (check,) = (each for each in outcome.checks if each.case == "3 served sizes")
    assert check.status == "passed"
    assert outcome.domain is not None
    found = [each for region in outcome.domain.regions for each in region.executed or ()]
    assert {each.name for each in found} == {"seq_len_q"}
    assert ExecutedLengths("seq_len_q", {}, ((21, 21),)) in found


def test_a_wrong_length_refuses_the_kernel() -> None:
    outcome = launched(wrong_at=21)
    assert outcome.kind is OutcomeKind.WRONG_RESULT
    assert outcome.reason.endswith("(a size that a package could serve)")
    assert outcome.domain is None


def test_its_worker_is_fresh_and_its_outcome_is_no_trials() -> None:
    proposal = Proposal(0, None, only_served=True)  # type: ignore[arg-type]
    assert proposal.needs_fresh_process
    assert not InFlight(proposal).searched
