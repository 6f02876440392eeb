"""Looking at a space without running it: `evotune check` and `evotune compile`."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from evotune.device.launch import Binary, CompileFailure
from evotune.engine.planning import Planner
from evotune.engine.setup import load_setup
from evotune.engine.spaces import find_space
from evotune.errors import UsageError
from evotune.execute.build_cache import default_cache_dir
from evotune.execute.compile_pool import CompilePool
from evotune.space.bound import BoundSpace
from evotune.space.counting.blame import ConstraintReport
from evotune.space.parameters import Parameter
from evotune.space.protocol import SpaceSize
from evotune.trial import Configuration, Json

_IN_FLIGHT = 64


@dataclass(frozen=True, slots=True)
class KernelSummary:
    """One kernel of a space and where it applies, in words."""

    name: str
    source: str
    language: str
    supports: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `evotune check` prints about a valid space."""

    name: str
    path: str
    device: str
    size: SpaceSize
    parameters: tuple[Parameter, ...]
    constraints: tuple[ConstraintReport, ...]
    kernels: tuple[KernelSummary, ...]
    cases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CompileRow:
    """How one configuration compiled. `resources` are the worst over its binaries."""

    configuration: Configuration
    ok: bool
    kind: str
    reason: str
    resources: Mapping[str, Json]
    seconds: float
    cached: bool


def check_space(space: str, device: str) -> CheckReport:
    """Validates a space for a device; SpaceError at the first mistake."""
    path = find_space(space)
    setup = load_setup(path, device)
    size = setup.space.size()
    document = setup.document
    return CheckReport(
        name=setup.name,
        path=str(path),
        device=setup.profile.name,
        size=size,
        parameters=setup.space.parameters,
        constraints=tuple(setup.space.constraint_report())
        if isinstance(setup.space, BoundSpace)
        else (),
        kernels=tuple(
            KernelSummary(
                kernel.name,
                kernel.source.name,
                kernel.language,
                ", ".join(str(support) for support in kernel.supports) or "everything",
            )
            for kernel in (document.kernels if document else ())
        ),
        cases=tuple(case.label for cases in setup.cases.values() for case in cases),
    )


def compile_space(
    space: str,
    device: str,
    *,
    sample: int | None,
    seed: int,
    on_row: Callable[[CompileRow], None],
) -> list[CompileRow]:
    """Compiles every valid configuration, or `sample` distinct ones, in parallel.

    Rows come in the order they finish; each is passed to `on_row` at once.
    """
    setup = load_setup(find_space(space), device)
    if setup.planner is None:
        raise UsageError(f"{space} is a recorded space: there is nothing to compile")
    configurations: Iterable[Configuration] = setup.space.enumerate()
    if sample is not None:
        configurations = distinct_samples(setup.planner.bound, sample, seed)
    with tempfile.TemporaryDirectory(prefix="evotune-") as folder:
        pool = CompilePool(Path(folder), default_cache_dir())
        try:
            rows = []
            for row in _compile_all(pool, setup.planner, iter(configurations)):
                rows.append(row)
                on_row(row)
            return rows
        finally:
            pool.close()


def distinct_samples(space: BoundSpace, count: int, seed: int) -> list[Configuration]:
    """Up to `count` distinct valid configurations; fewer when the space is smaller."""
    size = space.size()
    if size.exact and size.valid <= count:
        return list(space.enumerate())
    rng = random.Random(seed)
    found: dict[Configuration, None] = {}
    for _ in range(50 * count):
        if len(found) == count:
            break
        found[space.sample(rng)] = None
    return list(found)


@dataclass(slots=True)
class _Waiting:
    configuration: Configuration
    missing: set[str]
    results: list[Binary | CompileFailure]


def _compile_all(
    pool: CompilePool, planner: Planner, configurations: Iterator[Configuration]
) -> Iterator[CompileRow]:
    waiting: list[_Waiting] = []
    while True:
        for configuration in islice(configurations, _IN_FLIGHT - len(waiting)):
            jobs = planner.compile_jobs(configuration)
            if not jobs:
                reason = planner.proposal(0, configuration).rejection
                yield CompileRow(configuration, False, "rejected", reason, {}, 0.0, False)
                continue
            waiting.append(_Waiting(configuration, {job.key for job in jobs}, []))
            for job in jobs:
                pool.submit(job)
        if not waiting:
            return
        for job, result in pool.wait(0.5):
            for item in waiting:
                if job.key in item.missing:
                    item.missing.discard(job.key)
                    item.results.append(result)
        for item in [item for item in waiting if not item.missing]:
            waiting.remove(item)
            yield _row(item)


def _row(item: _Waiting) -> CompileRow:
    resources: dict[str, Json] = {}
    for result in item.results:
        if isinstance(result, CompileFailure):
            kind = result.kind.value
            return CompileRow(
                item.configuration, False, kind, result.reason, {}, result.seconds, False
            )
        for name, value in result.resources.items():
            resources[name] = max(value, resources.get(name, value))
    binaries = [result for result in item.results if isinstance(result, Binary)]
    return CompileRow(
        item.configuration,
        True,
        "ok",
        "",
        resources,
        sum(binary.seconds for binary in binaries),
        all(binary.cached for binary in binaries),
    )
