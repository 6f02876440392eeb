"""Confirming the best trials: a fresh process, unseen inputs, held-out shapes, more samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from evotune.execute.protocol import Executor, Proposal
from evotune.store import RunStore
from evotune.trial import Outcome, Trial


def finalists(store: RunStore) -> Iterator[Trial]:
    """Successful trials, best first, one of each machine code."""
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
) -> Iterator[tuple[Trial, Outcome]]:
    """Confirms one after the other until `count` of them passed, those `known` included.

    Each is timed until it is known whether it leads those before it. Gives up after three times as
    many; ends early when `stop` says so.
    """
    passed = 0
    leader = -math.inf
    for trial in islice(candidates, 3 * count):
        if passed == count:
            return
        outcome = known.get(trial.number)
        if outcome is None:
            executor.set_contender(leader)
            executor.submit(propose(trial))
            finished: list[tuple[int, Outcome]] = []
            while not finished:
                if stop():
                    return
                finished = executor.poll(0.5)
            outcome = finished[0][1]
            yield trial, outcome
        passed += outcome.ok
        if outcome.fitness_low is not None:
            leader = max(leader, outcome.fitness_low)
