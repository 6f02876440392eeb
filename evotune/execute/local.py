"""The executor of one machine: compile pool and device worker, joined by a small scheduler.

Each proposal moves through `compiling`, `ready` and `measuring`. With `exclusive` (the CPU),
compilers and the device never run at once: everything queued is compiled, then everything
compiled is measured, so that no compiler disturbs a measurement.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import select
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from evotune.device.launch import Binary, CompileFailure, CompileJob
from evotune.device.profile import DeviceProfile
from evotune.errors import EnvironmentProblem
from evotune.execute.child import Child
from evotune.execute.compile_pool import CompilePool
from evotune.execute.device_slot import DeviceSlot, ProblemSource
from evotune.execute.protocol import BaselineReport, BaselineTiming, CaseJob, Proposal
from evotune.problems.base import Case
from evotune.trial import QUARANTINED, Json, Outcome, OutcomeKind

_NOT_ITS_FAULT = frozenset({OutcomeKind.WORKER_LOST, OutcomeKind.DEVICE_LOST})


def speaks_for_its_code(outcome: Outcome) -> bool:
    """Whether the same machine code need not be tried again."""
    return outcome.kind not in _NOT_ITS_FAULT or QUARANTINED in outcome.flags


@dataclasses.dataclass(slots=True)
class _InFlight:
    proposal: Proposal
    binaries: dict[str, Binary] = dataclasses.field(default_factory=dict)
    resources: Mapping[str, Json] = dataclasses.field(default_factory=dict)
    again: bool = False  # measured a second time, in a fresh worker

    @property
    def missing(self) -> int:
        return len(self.proposal.compile_jobs) - len(self.binaries)


class LocalExecutor:
    """See `evotune.execute.protocol.Executor`.

    `baselines` names the baseline of each case label; with `fixed_sampling` losers get as many
    samples as contenders; `twins` gives the outcomes already known
    by fingerprint (machine code and launch), so that no code is measured twice in a run.
    """

    def __init__(
        self,
        compile_pool: CompilePool,
        device: DeviceSlot,
        *,
        exclusive: bool,
        twins: Mapping[str, tuple[int, Outcome]] | None = None,
    ) -> None:
        self._pool = compile_pool
        self._device = device
        self._exclusive = exclusive
        self._twins = dict(twins or {})
        self.baselines: Mapping[str, str] = {}
        self.fixed_sampling = False
        self._contender = float("-inf")
        self._compile_phase = True
        self._compiling: dict[int, _InFlight] = {}
        self._ready: dict[int, _InFlight] = {}
        self._measuring: _InFlight | None = None
        self._done: list[tuple[int, Outcome]] = []

    def submit(self, proposal: Proposal) -> None:
        if proposal.rejection:
            outcome = Outcome(OutcomeKind.REJECTED, reason=proposal.rejection)
            self._done.append((proposal.number, outcome))
            return
        self._compiling[proposal.number] = _InFlight(proposal)
        for job in proposal.compile_jobs.values():
            self._pool.submit(job)

    def set_contender(self, fitness: float) -> None:
        self._contender = fitness

    def poll(self, timeout_s: float) -> list[tuple[int, Outcome]]:
        deadline = time.monotonic() + timeout_s
        while True:
            self._advance()
            if self._done or time.monotonic() >= deadline:
                done, self._done = self._done, []
                return done
            self._wait(deadline)

    def drop(self) -> None:
        self._pool.drop()
        if self._measuring is not None:
            self._device.close()
        self._measuring = None
        self._compiling.clear()
        self._ready.clear()
        self._done.clear()

    def close(self) -> None:
        self._pool.close()
        self._device.close()

    def time_baselines(self, cases: Sequence[Case]) -> BaselineReport:
        """All baselines on all cases, before the first trial; nothing else may be running."""
        self._device.start(
            {
                "request": "time_baselines",
                "cases": [{"label": c.label, "symbols": dict(c.symbols)} for c in cases],
            }
        )
        while True:
            answer = None
            child = self._device.child
            if child is not None:
                self._select([child], 0.2)
                answer = self._device.handle()
            if answer is None:
                answer = self._device.expire()
            if isinstance(answer, Outcome):
                raise EnvironmentProblem(f"the baselines could not be timed: {answer.reason}")
            if answer is not None:
                timings = tuple(map(BaselineTiming.from_json, answer["baselines"]))
                return BaselineReport(timings, answer["copy_gbps"])

    def _advance(self) -> None:
        """Starts whatever may start now."""
        if self._exclusive:
            # Two phases: compile all that is queued, then measure all that is compiled.
            if self._compile_phase and not (self._pool.running or self._pool.queued):
                self._compile_phase = False
            elif not self._compile_phase and not (self._measuring or self._ready):
                self._compile_phase = True
        if self._compile_phase or not self._exclusive:
            self._pool.start_queued()
        if not (self._compile_phase and self._exclusive):
            while self._measuring is None and self._ready:
                self._measure(self._ready.pop(min(self._ready)))

    def _measure(self, item: _InFlight) -> None:
        if item.proposal.confirm:
            self._device.renew()
        elif not item.proposal.rival and (twin := self._twins.get(_fingerprint(item))):
            number, outcome = twin
            self._finish(item, dataclasses.replace(outcome, duplicate_of=number, stage_s={}))
            return
        self._measuring = item
        self._device.start(
            {
                "request": "trial",
                "number": item.proposal.number,
                "confirm": item.proposal.confirm,
                "audit": item.proposal.audit,
                "skipped": [check.to_json() for check in item.proposal.skipped],
                "contender": float("-inf") if self.fixed_sampling else self._contender,
                "fixed_sampling": self.fixed_sampling,
                "baselines": dict(self.baselines),
                "cases": _with_binaries(item.proposal.cases, item.binaries),
                "rival": _with_binaries(item.proposal.rival, item.binaries),
            }
        )

    def _wait(self, deadline: float) -> None:
        children = self._pool.children()
        if self._device.child is not None:
            children.append(self._device.child)
        readable = self._select(children, min(0.2, max(0.0, deadline - time.monotonic())))
        results: list[tuple[CompileJob, Binary | CompileFailure]] = []
        for child in readable:
            if child is self._device.child:
                self._device_answered(self._device.handle())
            elif child in self._pool.children():
                results += self._pool.handle(child)
        results += self._pool.expire()
        for job, result in results:
            self._compiled(job, result)
        if self._device.busy:
            self._device_answered(self._device.expire())

    @staticmethod
    def _select(children: Sequence[Child], timeout_s: float) -> list[Child]:
        if not children:
            time.sleep(timeout_s)
            return []
        readable, _, _ = select.select(children, [], [], timeout_s)
        return readable

    def _device_answered(self, answer: Json | Outcome | None) -> None:
        if answer is None or self._measuring is None:
            return
        item, self._measuring = self._measuring, None
        outcome = answer if isinstance(answer, Outcome) else Outcome.from_json(answer["outcome"])
        outcome = _with_build(outcome, item)
        damaged = not isinstance(answer, Outcome) and answer.get("damaged", False)
        if damaged and not (self._device.alone or item.again):
            # A candidate before wrote far beyond its buffers, into inputs or references.
            item.again = True
            self._device.renew()
            self._ready[item.proposal.number] = item
            return
        if outcome.kind is OutcomeKind.OUT_OF_BOUNDS:
            self._device.renew()  # who knows what else it overwrote
        in_search = not (item.proposal.confirm or item.proposal.rival)
        if in_search and speaks_for_its_code(outcome):
            self._twins[outcome.binary] = (item.proposal.number, outcome)
        self._finish(item, outcome)

    def _compiled(self, job: CompileJob, result: Binary | CompileFailure) -> None:
        """Hands a compile result to every proposal that waits for it."""
        for number, item in list(self._compiling.items()):
            if job.key not in item.proposal.compile_jobs:
                continue
            if isinstance(result, CompileFailure):
                del self._compiling[number]
                self._finish(item, _compile_outcome(result))
                continue
            item.binaries[job.key] = result
            if item.missing == 0:
                del self._compiling[number]
                self._reviewed(number, item)

    def _reviewed(self, number: int, item: _InFlight) -> None:
        """A candidate whose compiled figures break a limit is never launched."""
        review = item.proposal.examine(item.binaries)
        item.resources = review.resources
        if review.violation:
            self._finish(item, _limit_outcome(item, review.violation))
        else:
            self._ready[number] = item

    def _finish(self, item: _InFlight, outcome: Outcome) -> None:
        self._done.append((item.proposal.number, outcome))


def _with_binaries(cases: Sequence[CaseJob], binaries: Mapping[str, Binary]) -> list[Json]:
    messages = []
    for case in cases:
        binary = binaries[case.compile.key]
        whole = dataclasses.replace(case, plan=case.plan.completed(binary.resources))
        messages.append({**whole.to_json(), "binary": binary.path})
    return messages


def _compile_outcome(failure: CompileFailure) -> Outcome:
    return Outcome(
        failure.kind,
        reason=failure.reason,
        log=failure.log,
        stage_s={"compile": failure.seconds},
    )


def _with_build(outcome: Outcome, item: _InFlight) -> Outcome:
    """The outcome with compile time, compiler figures and fingerprint added."""
    return dataclasses.replace(
        outcome,
        stage_s={"compile": _compile_s(item), **outcome.stage_s},
        resources={**outcome.resources, **item.resources},
        binary=_fingerprint(item),
    )


def _limit_outcome(item: _InFlight, reason: str) -> Outcome:
    """Without a fingerprint: the same code may be fine where other parameters set the limit."""
    return Outcome(
        OutcomeKind.RESOURCE_LIMIT,
        reason=reason,
        stage_s={"compile": _compile_s(item)},
        resources=item.resources,
    )


def _compile_s(item: _InFlight) -> float:
    return sum(0.0 if binary.cached else binary.seconds for binary in item.binaries.values())


def _fingerprint(item: _InFlight) -> str:
    """Machine code and launch of every case: equal means the same candidate."""
    parts = [_case_fingerprint(case, item.binaries) for case in item.proposal.cases]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _case_fingerprint(case: CaseJob, binaries: Mapping[str, Binary]) -> Json:
    return [case.case.label, binaries[case.compile.key].sha256, case.plan.to_json()]


def open_local_executor(
    *,
    folder: Path,
    cache: Path,
    profile: DeviceProfile,
    problem: str,
    dtype: str,
    deterministic: bool,
    root: Path = Path(),
    compile_timeout_s: float = 60.0,
    trial_timeout_s: float = 120.0,
    twins: Mapping[str, tuple[int, Outcome]] | None = None,
) -> LocalExecutor:
    """Children write their logs and scratch files under `folder`; a problem's own file lies under
    `root`."""
    folder.mkdir(parents=True, exist_ok=True)
    pool = CompilePool(folder, cache, timeout_s=compile_timeout_s)
    device = DeviceSlot(
        folder,
        profile,
        ProblemSource(problem, dtype, root),
        deterministic=deterministic,
        longest_trial_s=trial_timeout_s,
    )
    return LocalExecutor(pool, device, exclusive=profile.backend == "cpu", twins=twins)
