"""A proposal on its way through compiler and device, and the earlier trials of the same machine
code."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from evotune.backends.base.backend import Figures, Limits
from evotune.backends.base.launch import MBARRIERS, Binary, CompileFailure, CompileJob, LaunchPlan
from evotune.space.bound import BoundSpace
from evotune.trial import QUARANTINED, Json, NamedFigures, Outcome, OutcomeKind, Value, number
from evotune.util.channel import plain
from evotune.workers.executor import TIMED, CaseJob, Proposal
from evotune.workers.messages import TrialCase, TrialRequest

# Review of a compiled candidate before its launch: `after_compile` and the device's limits.
_Known = dict[tuple[str, str, tuple[int, ...], int], Figures]


@dataclass(frozen=True, slots=True)
class BuildRules:
    """The rules for binaries of one space on one device.

    - `space`: the space, which has the `after_compile` constraints.
    - `limits`: the backend's limits.
    - `device`: the attributes of the device's profile.
    """

    space: BoundSpace
    limits: Limits
    device: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class BuildReview:
    """What a candidate's compiled figures say. `resources`: the figures, for its record.
    `violation`: why it must not be launched; "" if it may be launched."""

    resources: NamedFigures
    violation: str = ""


def review_build(
    proposal: Proposal, binaries: Mapping[str, Binary], rules: BuildRules | None
) -> BuildReview:
    """Reviews the proposal's own binaries, not its rival's. `binaries`: by compile key.

    The device's limits hold for every case, `after_compile` for timed cases only. Without rules
    nothing is refused.
    """
    own = {case.compile.key: binaries[case.compile.key] for case in proposal.cases}
    resources = _worst_resources(own.values())
    if rules is None:
        return BuildReview(resources)
    known: _Known = {}
    found = [(case, _figures(case, own[case.compile.key], rules, known)) for case in proposal.cases]
    timed = [(case, figures) for case, figures in found if case.role == TIMED]
    resources |= rules.limits.worst(item.values for _, figures in timed for item in figures)
    for case, figures in found:
        for item in figures:
            if item.violation:
                return BuildReview(resources, f"{case.case.label}: {item.violation}")
    for case, figures in timed:
        values = rules.limits.worst(item.values for item in figures)
        violated = rules.space.violated_after_compile(
            proposal.configuration, case.case.symbols, values
        )
        if violated:
            return BuildReview(resources, f"after_compile: {violated}")
    return BuildReview(resources)


def _figures(case: CaseJob, binary: Binary, rules: BuildRules, known: _Known) -> list[Figures]:
    """The figures of each launch. No grid enters them, so most cases find them `known`."""
    found = []
    for launch in case.plan.completed(binary.resources).launches:
        key = (case.compile.key, launch.entry, launch.block, launch.shared_bytes)
        if key not in known:
            known[key] = rules.limits.figures(launch, binary.resources, rules.device)
        found.append(known[key])
    return found


def _worst_resources(binaries: Iterable[Binary]) -> dict[str, int | float]:
    """The largest value of every figure, without the figures of single functions."""
    found: dict[str, int | float] = {}
    for binary in binaries:
        for name, value in binary.resources.items():
            if isinstance(value, int | float):
                found[name] = max(value, found.get(name, value))
    return found


# --- Earlier outcomes of the same machine code, so that no code is measured twice in a run --------

Twin: TypeAlias = tuple[int, Outcome]  # the trial's number and its outcome

_RECENT = 256  # far more outcomes than can be finished and not yet stored


class Twins:
    """Finds the earlier trial with the same fingerprint (machine code and launches), so that
    nothing is measured twice.

    The latest outcomes are kept in memory, because they may not be stored yet. `stored` looks up
    the others in the run's store, in the thread that calls `find`.
    """

    def __init__(self, stored: Callable[[str], Twin | None] = lambda fingerprint: None) -> None:
        self._stored = stored
        self._recent: dict[str, Twin] = {}

    def find(self, fingerprint: str) -> Twin | None:
        return self.recent(fingerprint) or self._stored(fingerprint)

    def recent(self, fingerprint: str) -> Twin | None:
        """The twin among the latest outcomes alone, without a query of the store; None if there is
        none.
        """
        return self._recent.get(fingerprint)

    def remember(self, number: int, outcome: Outcome) -> None:
        self._recent[outcome.binary] = (number, outcome)
        if len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]


_encode = json.JSONEncoder(check_circular=False).encode
_NOT_ITS_FAULT = frozenset(
    {OutcomeKind.WORKER_LOST, OutcomeKind.DEVICE_LOST, OutcomeKind.UNDECIDED}
)


def speaks_for_its_code(outcome: Outcome) -> bool:
    """Whether the outcome holds for every trial of the same machine code, so that the code need not
    be tried again."""
    return outcome.kind not in _NOT_ITS_FAULT or QUARANTINED in outcome.flags


@dataclasses.dataclass(slots=True)
class InFlight:
    """A proposal, with the results of its compilations and the facts that follow from them.

    `fingerprint` covers the machine code and the launch of every case, so candidates with equal
    fingerprints are equivalent. It is known once all binaries exist.
    """

    proposal: Proposal
    binaries: dict[str, Binary] = dataclasses.field(default_factory=dict)
    resources: NamedFigures = dataclasses.field(default_factory=dict)
    fingerprint: str = ""
    twin: Twin | None = None  # an earlier trial of the same code

    @property
    def missing(self) -> list[CompileJob]:
        """The compile jobs that have no binary yet."""
        jobs = self.proposal.compile_jobs
        return [job for key, job in jobs.items() if key not in self.binaries]

    def lost_binaries(self) -> bool:
        """Forgets the binaries that were removed from the cache, and returns whether any were. A
        user may run `evotune cache --clear` during a run."""
        gone = [key for key, binary in self.binaries.items() if not os.path.exists(binary.path)]
        for key in gone:
            del self.binaries[key]
        return bool(gone)

    @property
    def searched(self) -> bool:
        """Whether it is a trial of the search: its code is measured once, on any free device."""
        proposal = self.proposal
        alone = proposal.needs_fresh_process or proposal.rival
        return not alone and proposal.device is None

    def review(self, rules: BuildRules | None = None) -> str:
        """Reads the binaries' figures and makes the fingerprint. Returns why the binaries must not
        be launched; "" if they may be."""
        review = review_build(self.proposal, self.binaries, rules)
        self.resources = review.resources
        parts = [
            [case.case.label, self.binaries[case.compile.key].sha256, _parts(case.plan)]
            for case in self.proposal.cases
        ]
        self.fingerprint = hashlib.sha256(_encode(parts).encode()).hexdigest()
        return review.violation

    def request(
        self,
        *,
        contender: float,
        fixed_sampling: bool,
        baselines: Mapping[str, str],
        build_s: float = 0.0,
    ) -> TrialRequest:
        """The request for the device worker."""
        proposal = self.proposal
        return TrialRequest(
            number=proposal.number,
            cases=tuple(map(self._compiled, proposal.cases)),
            confirm=proposal.confirm,
            part=proposal.part,
            audit=proposal.audit,
            repeat=proposal.repeat,
            skipped=proposal.skipped,
            until_s=proposal.until_s,
            rival=tuple(map(self._compiled, proposal.rival)),
            lengths=proposal.lengths,
            only_served=proposal.only_served,
            served_s=proposal.served_s,
            contender=contender,
            fixed_sampling=fixed_sampling,
            baselines=baselines,
            build_s=build_s,
        )

    def _compiled(self, job: CaseJob) -> TrialCase:
        binary = self.binaries[job.compile.key]
        mbarriers = number(binary.resources, MBARRIERS)
        return TrialCase(
            case=job.case,
            role=job.role,
            plan=job.plan.completed(binary.resources),
            flops=job.flops,
            binary=binary.path,
            mbarriers=None if mbarriers is None else int(mbarriers),
            compile=job.compile if self.proposal.confirm and job.role == TIMED else None,
        )

    def with_build(self, outcome: Outcome) -> Outcome:
        """The outcome with compile time, compiler figures and fingerprint added."""
        return msgspec.structs.replace(
            outcome,
            stage_s={"compile": self._compile_s(), **outcome.stage_s},
            resources={**outcome.resources, **self.resources},
            binary=self.fingerprint,
        )

    def beyond_limit(self, reason: str) -> Outcome:
        """The outcome of a proposal whose binary exceeds a limit. It has no fingerprint, because
        the same code may be allowed if other parameters set another limit."""
        return Outcome(
            OutcomeKind.RESOURCE_LIMIT,
            reason=reason,
            stage_s={"compile": self._compile_s()},
            resources=self.resources,
        )

    def _compile_s(self) -> float:
        return sum(0.0 if binary.cached else binary.seconds for binary in self.binaries.values())


def failed_to_compile(failure: CompileFailure) -> Outcome:
    return Outcome(
        failure.kind,
        reason=failure.reason,
        log=failure.log,
        stage_s={"compile": failure.seconds},
    )


def _parts(plan: LaunchPlan) -> Json:
    """The plan as fingerprints hold it. An argument without a tensor map has three parts, a map of
    a contiguous tensor has no strides, and most plans have no `call`, as in older runs, so that
    their fingerprints still agree.
    """
    parts = msgspec.to_builtins(plan, enc_hook=plain)
    if plan.call is None:
        del parts["call"]
    for argument in parts["arguments"]:
        if argument[-1] is None:
            del argument[-1]
        elif not argument[-1][-1]:
            del argument[-1][-1]
    return parts
