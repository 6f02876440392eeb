"""Reads all trials of a run, and their ranks, without a million objects in memory at once.

Both come from the run's data, or from its store if the data has an open store (`RunData.opened`).
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeAlias, TypeVar

from evotune.errors import EnvironmentProblem
from evotune.report.data import RunData, stored_leaders, without_collecting
from evotune.report.leaderboard import (
    Evidence,
    interval,
    judge,
    rank,
    ranks_of,
    sort_key,
    verdicts_by_twin,
    weigh,
)
from evotune.store import RunStore, run_store
from evotune.store.run_store import Row, read_row
from evotune.trial import Outcome
from evotune.util.processes import die_with_parent, started_by_a_library

# Work on the parts of a long report, by several processes at once.

_MOST = 8  # this process reads parts and writes results, and cannot feed any number of others
_WAITING = 2  # parts in memory for each process, in addition to the one that it works on
_Part = TypeVar("_Part")


def available() -> int:
    """The number of processes to use on the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, _MOST)


def mapped(
    work: Callable[[_Part], _Result], parts: Iterable[_Part], processes: int
) -> Iterator[_Result]:
    """Yields `work(part)` for each part, in the order of the parts. Only a few parts are in memory
    at a time. An error of `work` is raised here.

    With less than two `processes` this process does the work itself. Otherwise its child processes
    do, and the parts and results are pickled on the way to them and back. No file is unpickled.
    Raises EnvironmentProblem if a child dies.
    """
    if processes < 2:
        yield from map(work, parts)
        return
    with started_by_a_library():
        pool = ProcessPoolExecutor(
            processes,
            # Not forked: a child would have the connection to the store.
            mp_context=multiprocessing.get_context("spawn"),
            initializer=die_with_parent,
            initargs=(os.getpid(),),
        )
    waiting: collections.deque[Future[_Result]] = collections.deque()
    try:
        for part in parts:
            with _interrupts_later(), started_by_a_library():
                waiting.append(pool.submit(work, part))
            if len(waiting) > (1 + _WAITING) * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise EnvironmentProblem(
            "a process that wrote the report was killed, perhaps because memory ran out: "
            "free some, then try again"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _interrupts_later() -> Iterator[None]:
    """Blocks Ctrl-C while a process may start, since the child inherits the mask: Ctrl-C is for
    this process, which ends the children."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


TRIALS_A_PART = 1000
_MANY = 50_000  # trials; for less there is little to gain, and processes take time to start
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
Ranked: TypeAlias = tuple[Evidence, int | None]
"""A trial and its rank; None if it has none."""
Work: TypeAlias = Callable[[bool, Sequence[Ranked]], _Result]
"""A function of two arguments: whether the run is a recorded one, and some trials."""


def ranks(data: RunData) -> dict[int, int]:
    """The rank of each trial by its number, in rank order. Duplicates have no rank, because their
    twin has one."""
    if data.store is None:
        return {row.number: row.rank for row in rank(data).rows}
    twins = stored_leaders(data.store)
    verdicts = verdicts_by_twin(data.confirmations, twins)

    def place(standing: _Standing) -> tuple[float, ...]:
        number, low, _ = standing
        fitness = verdicts[number].fitness
        assert fitness is not None
        return sort_key(True, fitness, low, number)

    found: dict[int, int] = {}
    for standings in _standings(data, data.store, twins, verdicts):
        if verdicts:
            confirmed = [standing for standing in standings if standing[0] in verdicts]
            others = (standing for standing in standings if standing[0] not in verdicts)
            standings[:] = [*sorted(confirmed, key=place), *others]
        numbers = (number for number, _, _ in standings)
        places = ranks_of((low, high) for _, low, high in standings)
        found.update(zip(numbers, places, strict=True))
    return found


def in_proposal_order(data: RunData) -> Iterator[Evidence]:
    if data.store is None:
        yield from weigh(data).values()
        return
    with data.store.trusting_facts():
        for found in _found(data, data.store, {}):
            yield _ranked(found)[0]


def each_part(data: RunData, work: Work[_Result], ranks: Mapping[int, int]) -> Iterator[_Result]:
    """The results of `work` on all trials, in proposal order, part by part. `ranks`: by trial
    number.

    For many trials other processes do the work (`mapped`). Raises the errors of `mapped`, and
    StoreError if an outcome is damaged.
    """
    if data.store is None:
        items = ((item, ranks.get(number)) for number, item in weigh(data).items())
        yield from map(functools.partial(work, data.recorded), _parts(items))
        return
    parts = _parts(_found(data, data.store, ranks))
    worked = functools.partial(_worked, work, data.recorded)
    with data.store.trusting_facts():
        yield from mapped(worked, parts, available() if data.totals.trials >= _MANY else 1)


def failures(data: RunData) -> Iterator[tuple[str, str]]:
    """Kind and reason of every trial that failed, in proposal order."""
    if data.store is not None:
        yield from run_store.failures(data.store)
        return
    for trial in data.trials:
        if not trial.outcome.ok:
            yield trial.outcome.kind.value, trial.outcome.reason


_Found: TypeAlias = tuple[Row, int, Outcome | None, int | None]
"""A stored trial, its twin, the confirmation that holds for it, and its rank."""


def _found(data: RunData, store: RunStore, ranks: Mapping[int, int]) -> Iterator[_Found]:
    twins = stored_leaders(store)
    verdicts = verdicts_by_twin(data.confirmations, twins)
    for row in store.rows():
        number = row[0]
        twin = twins.get(number, number)
        yield row, twin, verdicts.get(twin), ranks.get(number)


def _ranked(found: _Found) -> Ranked:
    row, twin, verdict, rank = found
    trial, finished_s = read_row(row)
    return judge(trial, twin, verdict, finished_s), rank


def _worked(work: Work[_Result], recorded: bool, part: Sequence[_Found]) -> _Result:
    """Works on one part, in this process or another. Garbage is not collected meanwhile: the part's
    objects are freed with it."""
    with without_collecting():
        return work(recorded, list(map(_ranked, part)))


def _parts(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    rest = iter(items)
    while part := list(itertools.islice(rest, TRIALS_A_PART)):
        yield part


_Standing = tuple[int, float, float]
"""Number of a row's trial, and its interval."""


def _standings(
    data: RunData, store: RunStore, twins: Mapping[int, int], verdicts: Mapping[int, Outcome]
) -> Iterable[list[_Standing]]:
    """Every row of the leaderboard, the fittest first, by model of device."""
    own = data.facts.device.name
    by_model: dict[str, list[_Standing]] = {own: []}
    for number, _, low, high, model in run_store.standings(store):
        if twins.get(number, number) != number:
            continue
        verdict = verdicts.get(number)
        if verdict is None:
            by_model.setdefault(model or own, []).append((number, low, high))
        elif verdict.fitness is not None:
            standing = (number, *interval(verdict))
            by_model.setdefault(verdict.device_model or own, []).append(standing)
    return by_model.values()
