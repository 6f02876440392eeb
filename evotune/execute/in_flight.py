"""A proposal on its way through compiler and device, and the outcomes that it can come to."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping

import msgspec

from evotune.device.launch import MBARRIERS, Binary, CompileFailure
from evotune.execute.protocol import TIMED, CaseJob, Proposal
from evotune.execute.twins import Twin
from evotune.trial import QUARANTINED, Json, Outcome, OutcomeKind

_encode = json.JSONEncoder(check_circular=False).encode
_NOT_ITS_FAULT = frozenset({OutcomeKind.WORKER_LOST, OutcomeKind.DEVICE_LOST})


def speaks_for_its_code(outcome: Outcome) -> bool:
    """Whether the same machine code need not be tried again."""
    return outcome.kind not in _NOT_ITS_FAULT or QUARANTINED in outcome.flags


@dataclasses.dataclass(slots=True)
class InFlight:
    """`fingerprint` (machine code and launch of every case: equal means the same candidate) is
    known once all binaries are there."""

    proposal: Proposal
    binaries: dict[str, Binary] = dataclasses.field(default_factory=dict)
    resources: Mapping[str, Json] = dataclasses.field(default_factory=dict)
    fingerprint: str = ""
    twin: Twin | None = None  # what came of the same code before
    again: bool = False  # measured a second time, in a fresh worker
    plans: list[Json] = dataclasses.field(default_factory=list)  # of the proposal's cases, as JSON

    @property
    def missing(self) -> int:
        return len(self.proposal.compile_jobs) - len(self.binaries)

    @property
    def searched(self) -> bool:
        """A trial of the search: its code is measured once, on whichever device is free."""
        proposal = self.proposal
        alone = proposal.confirm or proposal.rival or proposal.repeat
        return not alone and proposal.device is None

    def review(self) -> str:
        """Takes stock of the binaries; why they must not be launched, "" when they may."""
        review = self.proposal.examine(self.binaries)
        self.resources = review.resources
        cases = self.proposal.cases
        self.plans = [case.plan.to_json() for case in cases]
        parts = [
            [case.case.label, self.binaries[case.compile.key].sha256, plan]
            for case, plan in zip(cases, self.plans, strict=True)
        ]
        self.fingerprint = hashlib.sha256(_encode(parts).encode()).hexdigest()
        return review.violation

    def request(self) -> dict[str, Json]:
        """What the device worker is told of it."""
        return {
            "request": "trial",
            "number": self.proposal.number,
            "confirm": self.proposal.confirm,
            "audit": self.proposal.audit,
            "repeat": self.proposal.repeat,
            "skipped": [check.to_json() for check in self.proposal.skipped],
            "cases": list(map(self._with_binary, self.proposal.cases, self.plans)),
            "rival": [self._with_binary(case, case.plan.to_json()) for case in self.proposal.rival],
        }

    def _with_binary(self, case: CaseJob, plan: Json) -> Json:
        """`plan` is the case's as JSON, as far as it was known before compiling."""
        binary = self.binaries[case.compile.key]
        completed = case.plan.completed(binary.resources)
        if completed is not case.plan:
            plan = completed.to_json()
        told = {**case.with_plan(plan), "binary": binary.path}
        if self.proposal.confirm:
            # What checks of champions alone ask for; None: the binary is of an older evotune's.
            told[MBARRIERS] = binary.resources.get(MBARRIERS)
            told["compile"] = case.compile.to_json() if case.role == TIMED else None
        return told

    def with_build(self, outcome: Outcome) -> Outcome:
        """The outcome with compile time, compiler figures and fingerprint added."""
        return msgspec.structs.replace(
            outcome,
            stage_s={"compile": self._compile_s(), **outcome.stage_s},
            resources={**outcome.resources, **self.resources},
            binary=self.fingerprint,
        )

    def beyond_limit(self, reason: str) -> Outcome:
        """Without a fingerprint: the same code may be fine where other parameters set the
        limit."""
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
