"""Times champions in several fresh processes: as many as their spread needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from evotune.execute.protocol import TIMED, Executor, Proposal
from evotune.measure.processes import LEAST, MOST, SETTLED, combined, fitness_by_process, widened
from evotune.trial import Outcome

_ROUNDING = 1e-9  # so that an interval of exactly the allowed width counts as narrow


def repeated(
    run: Callable[[Proposal], Outcome | None],
    proposal: Proposal,
    first: Outcome,
    *,
    leader: Outcome | None = None,
    processes: int = LEAST,
    least_width: float = 0.0,
    no_time: Callable[[], bool] = lambda: False,
) -> Outcome:
    """The `first` outcome of `proposal`, joined with the figures of further processes.

    Starts further processes until
    - the interval is narrow, or
    - the interval lies below the `leader`'s. The leader's spread between processes is assumed for
      the first process too, so one process may be enough; or
    - `MOST` processes have run; or
    - `processes` have run and there is `no_time` for more; or
    - `run` returns None: it was told to stop.

    The interval is never narrower to either side than `least_width`. When a process fails, its
    outcome is returned: the kernel is not right each time.
    """
    spread = fitness_by_process(leader) if leader is not None else []
    if first.ok and leader is not None and len(spread) > 1:
        supposed = widened(first, spread, least_width)
        if _is_below(supposed, leader):
            return supposed
    outcomes = [first]
    again = timed_again(proposal)
    while first.ok and len(outcomes) < MOST:
        enough = len(outcomes) >= processes
        if enough and (
            no_time() or _is_known(combined(outcomes, least_width), leader, least_width)
        ):
            break
        outcome = run(again)
        if outcome is None:
            break
        if not outcome.ok:
            return outcome
        outcomes.append(outcome)
    return combined(outcomes, least_width) if first.ok else first


def timed_again(proposal: Proposal) -> Proposal:
    """The same candidate in a fresh process, which checks the timed cases alone."""
    cases = tuple(job for job in proposal.cases if job.role == TIMED)
    return dataclasses.replace(proposal, cases=cases, confirm=False, repeat=True, skipped=())


def _is_known(found: Outcome, leader: Outcome | None, least_width: float) -> bool:
    assert found.fitness_low is not None
    assert found.fitness_high is not None
    narrow = (found.fitness_high - found.fitness_low) / 2 <= max(SETTLED, least_width) + _ROUNDING
    return narrow or (leader is not None and _is_below(found, leader))


def _is_below(outcome: Outcome, leader: Outcome) -> bool:
    assert outcome.fitness_high is not None
    assert leader.fitness_low is not None
    return outcome.fitness_high < leader.fitness_low


def outcome_of(executor: Executor, proposal: Proposal) -> Outcome:
    """Runs one proposal to its end."""
    outcome = outcome_unless(executor, proposal, lambda: False)
    assert outcome is not None
    return outcome


def outcome_unless(
    executor: Executor, proposal: Proposal, stop: Callable[[], bool]
) -> Outcome | None:
    """Runs one proposal to its end; None when `stop` said so before."""
    executor.submit(proposal)
    while not stop():
        for _, outcome in executor.poll(0.5):
            return outcome
    return None
