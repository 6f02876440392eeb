"""Confirming the best trials: a fresh process, unseen inputs, held-out shapes, more samples."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from evotune.engine.repetition import outcome_unless, repeated
from evotune.execute.protocol import Executor, Proposal
from evotune.store import RunStore
from evotune.trial import Outcome, Trial


def finalists(store: RunStore) -> Iterator[Trial]:
    """Successful trials, best first, one for each machine code."""
    for trial in store.best_first():
        if trial.outcome.duplicate_of is None:
            yield trial


def confirm(
    executor: Executor,
    candidates: Iterable[Trial],
    *,
    known: Mapping[int, Outcome],
    count: int,
    propose: Callable[[Trial], Proposal],
    stop: Callable[[], bool],
    least_width: float = 0.0,
    no_time: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Trial, Outcome]]:
    """Confirms one candidate after the other until `count` of them passed; `known` outcomes count.

    Each is timed in further processes until it is clear whether it beats the leader so far;
    `least_width` is as for `repeated`. Gives up after three times `count` candidates. Ends early
    when `stop` says so, or when one passed and there is `no_time` for another.
    """
    passed = 0
    leader: Outcome | None = None
    for trial in islice(candidates, 3 * count):
        if passed == count or (passed and no_time()):
            return
        outcome = known.get(trial.number)
        if outcome is None:
            executor.set_contender(_bound(leader))
            proposal = propose(trial)
            first = outcome_unless(executor, proposal, stop)
            if first is None:
                return
            run = functools.partial(outcome_unless, executor, stop=stop)
            outcome = repeated(
                run,
                proposal,
                first,
                leader=leader,
                least_width=least_width,
                no_time=no_time,
            )
            if stop():
                return
            yield trial, outcome
        passed += outcome.ok
        if outcome.ok and _bound(outcome) > _bound(leader):
            leader = outcome


def _bound(outcome: Outcome | None) -> float:
    """The lower end of a champion's 95% interval; minus infinity for none."""
    known = outcome is not None and outcome.fitness_low is not None
    return outcome.fitness_low if known else -math.inf  # type: ignore[return-value, union-attr]
