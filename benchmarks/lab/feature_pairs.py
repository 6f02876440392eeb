"""Times a feature's recorded champion and that of plain attention in turn, in one process.

`attention_features.py --pair` does so. Both sides get the same q, k and v, each in buffers of its
own and with its own case. They are timed as compare_kernels.py times two kernels: warm, in rounds
of plain, feature, feature, plain, each sample a mean over 8 graphs. Results are not checked beyond
that all of the output is written: both champions were confirmed by the runs that found them.

Without a rest an H200 soon reaches its power limit, and lowers its clock. With `rest_s` it rests
before each sample, then runs the sample's calls once untimed, and nearly keeps its full clock.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from compare_kernels import SEED, Subject, build, placed_sampler
from tuning import derive, shipped

from evotune.backends.base.session import Sampler, Session
from evotune.errors import EvotuneError
from evotune.problems import create_problem
from evotune.problems.problem import Tensors
from evotune.runs.setup import load_kernel_setup
from evotune.timing.paired import TimingSettings, measure_paired, places
from evotune.trial import Configuration, Json
from evotune.verify.buffers import BufferSets, unwritten
from evotune.workers.device_worker import open_session
from evotune.workers.executor import TIMED

FAULTS = (AssertionError, EvotuneError, OSError, RuntimeError, ValueError)
"""A pair that raises one of these is left out, and the reason is printed; the other pairs go on."""


@dataclass(frozen=True)
class Pair:
    """Two recorded configurations of a space, each with what its problem has in place of the
    space's own."""

    name: str
    space: str
    feature: Mapping[str, Any]
    feature_problem: Mapping[str, Any]
    plain: Mapping[str, Any]
    plain_problem: Mapping[str, Any]

    def subjects(self, device: str) -> tuple[Subject, Subject]:
        """Plain, then the feature. ValueError where a configuration is none of today's space."""
        sides = ((self.plain, self.plain_problem), (self.feature, self.feature_problem))
        plain, feature = (
            _subject(self.name, self.space, problem, recorded, device)
            for recorded, problem in sides
        )
        return plain, feature


def _subject(
    name: str, space: str, problem: Mapping[str, Any], recorded: Mapping[str, Any], device: str
) -> Subject:
    """A parameter that is newer than a record has the default, as in `--confirm`."""
    values = {**shipped(space).get("default", {}), **recorded}
    with tempfile.TemporaryDirectory() as folder:
        changes = {"problem": problem, "default": values}
        setup = load_kernel_setup(derive(space, changes, Path(folder) / "space.yaml"), device)
    known = Configuration({**setup.space.default(), **recorded})
    if not setup.space.is_valid(known):
        why = "; ".join(setup.space.violations(known)) or "it is not in canonical form"
        raise ValueError(f"a recorded configuration is none of {space}: {why}")
    proposal = setup.planner.proposal(0, known)
    if proposal.rejection:
        raise ValueError(f"a recorded configuration is refused: {proposal.rejection}")
    timed = next(case for case in proposal.cases if case.role == TIMED)
    spec = setup.problem_spec
    return Subject(name, setup.profile, known, create_problem(spec.name, spec.dtype), timed)


class Clocked:
    """A sampler that reads the device's state right after each sample, and with `rest_s` lets the
    device rest before it."""

    def __init__(self, sampler: Sampler, session: Session, rest_s: float = 0.0) -> None:
        self._sampler = sampler
        self._session = session
        self._rest_s = rest_s
        self.states: list[Mapping[str, Json]] = []

    def run(self) -> None:
        self._sampler.run()

    def time_us(self) -> float:
        if self._rest_s:
            time.sleep(self._rest_s)
            self._sampler.run()
        time_us = self._sampler.time_us()
        self.states.append(self._session.state())
        return time_us

    def clock(self, samples: int) -> dict[str, Any]:
        """Medians of the readings after the last `samples` samples; empty where there are none."""
        states = self.states[-samples:]
        found: dict[str, Any] = {}
        for name in ("sm_mhz", "power_w"):
            values = [state[name] for state in states if state.get(name) is not None]
            if values:
                found[name] = statistics.median(values)
        reasons = {reason for state in states for reason in state.get("throttled_by", ())}
        return {**found, **({"throttled_by": sorted(reasons)} if found else {})}


@dataclass(frozen=True)
class Side:
    """One of the two kernels on its buffers."""

    inputs: Tensors
    buffers: BufferSets
    sampler: Clocked


def sides(
    session: Session,
    subjects: Sequence[Subject],
    paths: Sequence[Path],
    settings: TimingSettings,
    *,
    kind: str = "normal",
    rest_s: float = 0.0,
) -> list[Side]:
    """Plain and the feature. The feature's case has the inputs of the plain one, and may have
    more, as sinks are. RuntimeError where a launch leaves a part of its output unwritten."""
    plain, feature = subjects
    inputs = feature.problem.make_inputs(feature.timed.case, kind, SEED, session.torch_device)
    tensors = [each.problem.tensors(each.timed.case) for each in subjects]
    own = [
        {spec.name: inputs[spec.name] for spec in specs if not spec.is_output} for specs in tensors
    ]
    if any(inputs[spec.name].shape != spec.shape for spec in tensors[0] if not spec.is_output):
        raise ValueError(f"{plain.timed.case.label} has other inputs than the feature's case")
    sizes = [
        sum(spec.nbytes for spec in specs) + sum(w.bytes for w in each.timed.plan.workspaces)
        for each, specs in zip(subjects, tensors, strict=True)
    ]
    count = min(places(session, nbytes, settings.places) for nbytes in sizes)
    found = []
    for each, specs, given, path in zip(subjects, tensors, own, paths, strict=True):
        plan = each.timed.plan
        buffers = BufferSets(specs, plan, [given] * count, session.torch_device)
        sampler = placed_sampler(session, path, plan, buffers, settings)
        session.synchronize()
        for name, output in buffers.outputs().items():
            if bool(unwritten(output).any()):
                raise RuntimeError(f"{each.timed.case.label}: {name} is not written everywhere")
        found.append(Side(given, buffers, Clocked(sampler, session, rest_s)))
    return found


def measured(
    session: Session,
    subjects: Sequence[Subject],
    paths: Sequence[Path],
    kind: str,
    rest_s: float = 0.0,
) -> dict[str, Any]:
    """The time of the feature as a share of the plain one's."""
    settings = TimingSettings.thorough()
    plain, feature = sides(session, subjects, paths, settings, kind=kind, rest_s=rest_s)
    of_plain, of_feature = subjects
    found = measure_paired(
        plain.sampler,
        feature.sampler,
        case=of_plain.timed.case.label,
        baseline_name=of_feature.timed.case.label,
        settings=settings,
        state=session.state,
    )
    samples = 2 * found.samples
    return {
        "ratio": found.speedup,
        "low": found.speedup_low,
        "high": found.speedup_high,
        "rounds": found.samples,
        "case": of_feature.timed.case.label,
        "time_us": found.baseline_us,
        "clock": feature.sampler.clock(samples),
        "plain_case": of_plain.timed.case.label,
        "plain_us": found.time_us,
        "plain_clock": plain.sampler.clock(samples),
        "throttled": found.throttled,
        "places": len(plain.buffers),
        "configuration": dict(of_feature.configuration),
        "plain_configuration": dict(of_plain.configuration),
        "device": of_plain.profile.name,
        "torch": torch.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def median_of(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of the middle one, of an odd number, with the least lower and the greatest upper
    bound of all, and `ratios`, each with its bounds."""
    assert len(found) % 2, "an even number has no middle one"
    ordered = sorted(found, key=lambda each: each["ratio"])
    return {
        **ordered[len(ordered) // 2],
        "low": min(each["low"] for each in found),
        "high": max(each["high"] for each in found),
        "ratios": [[each[name] for name in ("ratio", "low", "high")] for each in ordered],
    }


def measured_in_turn(
    pairs: Sequence[Pair],
    device: str,
    kind: str = "normal",
    *,
    rest_s: float = 0.0,
    repeats: int = 1,
) -> Iterator[tuple[Pair, dict[str, Any] | Exception]]:
    """Each pair with its figures, or with why it has none. `kind`: of the inputs, one of the gate's
    kinds. `repeats`: on as many sets of buffers and graphs, whose places in memory change a ratio
    by more than the bounds of one measurement tell; then the figures are median_of() them."""
    with tempfile.TemporaryDirectory() as folder, _builders() as pool:
        known: list[tuple[Pair, tuple[Subject, Subject]]] = []
        built: dict[str, tuple[Path, Future[None]]] = {}
        for pair in pairs:
            try:
                known.append((pair, pair.subjects(device)))
            except FAULTS as error:
                yield pair, error
                continue
            for subject in known[-1][1]:
                job = subject.timed.compile
                if job.key not in built:
                    path = Path(folder) / f"{len(built)}.bin"
                    built[job.key] = path, pool.submit(build, job, path)
        session: Session | None = None
        for pair, subjects in known:
            try:
                paths = []
                for subject in subjects:
                    path, future = built[subject.timed.compile.key]
                    future.result()
                    paths.append(path)
                session = session or open_session(subjects[0].profile)
                found = []
                for _ in range(repeats):
                    found.append(measured(session, subjects, paths, kind, rest_s))
                    session.free()
                yield pair, found[0] if repeats == 1 else median_of(found)
            except FAULTS as error:
                yield pair, error
                if session is not None:
                    session.free()


def keep_measured(
    pairs: Sequence[Pair],
    path: Path,
    device: str,
    command: str,
    *,
    dtype: str,
    kind: str = "normal",
    rest_s: float = 0.0,
    repeats: int = 1,
) -> None:
    """Measures each pair and writes FILE after each: in it a pair with these names, inputs, type,
    rest and configuration is replaced, whatever its repeats. Prints each ratio, or why there is
    none. `rest_s` and `repeats`: as of measured_in_turn()."""
    data = json.loads(path.read_text()) if path.exists() else {"pairs": []}
    data["command"] = command
    for pair, found in measured_in_turn(pairs, device, kind, rest_s=rest_s, repeats=repeats):
        if isinstance(found, Exception):
            print(f"{pair.name}: {type(found).__name__}: {found}", file=sys.stderr)
            continue
        print(f"{pair.name}: {found['ratio']:.3f} [{found['low']:.3f}, {found['high']:.3f}]")
        key = {"name": pair.name, "inputs": kind, "dtype": dtype}
        key |= {"rest_ms": 1000 * rest_s} if rest_s else {}
        known = (None, found["configuration"])  # older files have no configurations
        data["pairs"] = [
            each
            for each in data["pairs"]
            if not (
                key.items() <= each.items()
                and each.get("rest_ms") == key.get("rest_ms")
                and each.get("configuration") in known
            )
        ]
        data["pairs"].append({**key, **found})
        path.write_text(json.dumps(data, indent=1) + "\n")


@contextmanager
def _builders() -> Iterator[ProcessPoolExecutor]:
    """Processes that build. Nothing is built any more when they are left."""
    pool = ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
