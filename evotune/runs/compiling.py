"""Compiles configurations of a space without running them, for `evotune compile`."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from evotune.backends.base.launch import Binary, CompileFailure, CompileJob
from evotune.errors import SpaceError, UsageError
from evotune.runs.planning import Planner
from evotune.runs.setup import load_kernel_setup
from evotune.runs.spaces import find_space
from evotune.space.bound import BoundSpace
from evotune.space.reading.case_file import CaseEntry
from evotune.trial import Configuration, Json, NamedFigures, OutcomeKind, whole
from evotune.util.files import scratch_folder
from evotune.util.processes import interruptible
from evotune.workers.build_cache import BuildCache, writable_cache_dir
from evotune.workers.compile_pool import CompilePool
from evotune.workers.compile_worker import cached
from evotune.workers.executor import Proposal
from evotune.workers.in_flight import BuildRules, review_build

if TYPE_CHECKING:
    pass


_LEAST_IN_FLIGHT = 64
_MOST_REASONS = 1000
_MOST_COMPILED = 1_000_000  # weeks, at half a second each on one core


@dataclass(frozen=True, slots=True)
class CompileRow:
    """How one configuration compiled.

    - `resources`: the largest value of each figure over the configuration's binaries and launches.
    - `compiled`: whether it compiled. If so, the outcome resource_limit means that it then broke
      `after_compile` or a limit of the device.
    """

    configuration: Configuration
    outcome: OutcomeKind
    compiled: bool
    reason: str
    resources: NamedFigures
    seconds: float
    cached: bool

    @property
    def spill_bytes(self) -> int:
        return whole(self.resources, "spill_bytes")

    def to_json(self) -> dict[str, Json]:
        return {
            "configuration": self.configuration.to_json(),
            "ok": self.outcome is OutcomeKind.OK,
            "compiled": self.compiled,
            "outcome": self.outcome.value,
            "reason": self.reason,
            "resources": dict(self.resources),
            "seconds": self.seconds,
            "cached": self.cached,
        }


@dataclass(slots=True)
class CompileSummary:
    """Counts over all rows. `rejected`: configurations that never reached the compiler. `default`:
    the row of the space's default configuration, once it is known. `no_default`: why the default is
    not valid on this device.
    """

    device: str
    expected: int | None = None  # number of rows, when it is known beforehand
    rows: int = 0
    compiled: int = 0
    rejected: int = 0
    limited: int = 0
    spilling: int = 0
    cached: int = 0
    most_registers: int = 0
    most_spill_bytes: int = 0
    wall_s: float = 0.0
    default: CompileRow | None = None
    no_default: str = ""
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def tried(self) -> int:
        return self.rows - self.rejected

    @property
    def failed(self) -> int:
        return self.tried - self.compiled

    @property
    def all_compile(self) -> bool:
        return self.tried > 0 and self.failed == 0

    def add(self, row: CompileRow) -> None:
        self.rows += 1
        self.compiled += row.compiled
        self.rejected += row.outcome is OutcomeKind.REJECTED
        self.limited += row.compiled and row.outcome is OutcomeKind.RESOURCE_LIMIT
        self.spilling += row.spill_bytes > 0
        self.cached += row.cached
        self.most_registers = max(self.most_registers, whole(row.resources, "registers"))
        self.most_spill_bytes = max(self.most_spill_bytes, row.spill_bytes)
        key = (row.outcome.value, row.reason)
        if row.reason and (key in self.reasons or len(self.reasons) < _MOST_REASONS):
            self.reasons[key] += 1


def compile_space(
    space: str,
    device: str,
    *,
    sample: int | None,
    seed: int,
    on_row: Callable[[CompileRow, CompileSummary], object],
    cases: Sequence[CaseEntry] = (),
    dtype: str = "",
) -> CompileSummary:
    """Compiles every valid configuration, or `sample` distinct ones, on all cores. The sample has
    the default if that is valid.

    `on_row` is called with each row as it finishes, in any order, and the summary so far. Rows are
    not stored, so a space may have any size. `cases` and `dtype` replace the space's.
    """
    started = time.monotonic()
    setup = load_kernel_setup(
        find_space(space), device, compile_only=True, cases=cases, dtype=dtype
    )
    size = setup.space.size()
    if sample is None and size.valid > _MOST_COMPILED:
        raise UsageError(
            f"--all would compile {size.valid:,} configurations, more than {_MOST_COMPILED:,}; "
            "--sample N compiles N of them"
        )
    summary = CompileSummary(setup.profile.name, size.valid if size.exact else None)
    configurations: Iterable[Configuration] = setup.space.enumerate()
    if sample is not None:
        chosen = distinct_samples(setup.space, sample, seed)
        configurations, summary.expected = chosen, len(chosen)
    timeout_s = setup.document.timeouts.compile_s
    default, summary.no_default = _default_of(setup.space)
    with interruptible(), scratch_folder() as folder:
        pool = CompilePool(folder, writable_cache_dir(), timeout_s=timeout_s)
        try:
            for row in _compile_all(pool, setup.planner, iter(configurations)):
                summary.add(row)
                summary.default = row if row.configuration == default else summary.default
                summary.wall_s = time.monotonic() - started
                on_row(row, summary)
        finally:
            pool.close()
    return summary


def build_jobs(
    jobs: Iterable[CompileJob], timeout_s: float, stop: Callable[[], bool] = lambda: False
) -> dict[str, Binary | CompileFailure]:
    """The result of each job, by its key: from the build cache, or compiled now on all cores. If
    all are cached, no process starts. If `stop` returns True, the remaining jobs have no result."""
    wanted, folder = {job.key: job for job in jobs}, writable_cache_dir()
    cache = BuildCache(folder)
    found: dict[str, Binary | CompileFailure] = {}
    found |= {key: binary for key, job in wanted.items() if (binary := cached(job, cache))}
    missing = [job for key, job in wanted.items() if key not in found]
    if not missing:
        return found
    with scratch_folder() as scratch:
        processes = min(len(missing), os.cpu_count() or 1)
        pool = CompilePool(scratch, folder, processes=processes, timeout_s=timeout_s)
        try:
            for job in missing:
                pool.submit(job)
            while len(found) < len(wanted) and not stop():
                found |= {job.key: result for job, result in pool.wait(0.5)}
        finally:
            pool.close()
    return found


def distinct_samples(space: BoundSpace, count: int, seed: int) -> list[Configuration]:
    """Up to `count` distinct valid configurations, a valid default first; fewer when the space is
    smaller."""
    size = space.size()
    if size.exact and size.valid <= count:
        return list(space.enumerate())
    rng = random.Random(seed)
    default, _ = _default_of(space)
    found: dict[Configuration, None] = {} if default is None else {default: None}
    for _ in range(50 * count):
        if len(found) == count:
            break
        found[space.sample(rng)] = None
    return list(found)


def _default_of(space: BoundSpace) -> tuple[Configuration | None, str]:
    """The default, or None and why it is not valid on this device: others may compile there."""
    try:
        return space.default(), ""
    except SpaceError as error:
        return None, error.message


@dataclass(slots=True)
class _Waiting:
    proposal: Proposal
    missing: set[str]
    binaries: dict[str, Binary]
    failure: CompileFailure | None = None


def _compile_all(
    pool: CompilePool, planner: Planner, configurations: Iterator[Configuration]
) -> Iterator[CompileRow]:
    in_flight = max(_LEAST_IN_FLIGHT, 4 * (os.cpu_count() or 1))
    waiting: list[_Waiting] = []
    more = True
    while more or waiting:
        while more and len(waiting) < in_flight:
            configuration = next(configurations, None)
            if configuration is None:
                more = False
                break
            proposal = planner.proposal(0, configuration)
            if proposal.rejection:
                yield CompileRow(
                    configuration, OutcomeKind.REJECTED, False, proposal.rejection, {}, 0.0, False
                )
                continue
            jobs = {case.compile.key: case.compile for case in proposal.cases}
            waiting.append(_Waiting(proposal, set(jobs), {}))
            for job in jobs.values():
                pool.submit(job)
        for job, result in pool.wait(0.5):
            for item in waiting:
                if job.key in item.missing:
                    item.missing.discard(job.key)
                    if isinstance(result, Binary):
                        item.binaries[job.key] = result
                    else:
                        item.failure = result
        for item in [item for item in waiting if item.failure or not item.missing]:
            waiting.remove(item)
            yield _row(item, planner.rules)


def _row(item: _Waiting, rules: BuildRules | None) -> CompileRow:
    configuration, failure = item.proposal.configuration, item.failure
    if failure is not None:
        return CompileRow(
            configuration, failure.kind, False, failure.reason, {}, failure.seconds, False
        )
    review = review_build(item.proposal, item.binaries, rules)
    kind = OutcomeKind.RESOURCE_LIMIT if review.violation else OutcomeKind.OK
    binaries = item.binaries.values()
    return CompileRow(
        configuration,
        kind,
        True,
        review.violation,
        review.resources,
        sum(binary.seconds for binary in binaries),
        all(binary.cached for binary in binaries),
    )
