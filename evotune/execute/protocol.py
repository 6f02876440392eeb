"""The executor seam: proposals go in, outcomes come out in whatever order they finish."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from evotune.device.launch import Binary, CompileJob, LaunchPlan
from evotune.problems.base import Case
from evotune.trial import Check, Configuration, Json, Outcome

TIMED, EDGE, HELD_OUT, RANDOM = "timed", "edge", "held_out", "random"
RIVAL = "rival"
"""What stands for a baseline's name where a candidate was timed against another configuration."""


@dataclass(frozen=True, slots=True)
class CaseJob:
    """One case of a trial: what to compile for it and how to launch it.

    `role`: timed cases make the fitness, edge cases are only checked, held-out cases are
    checked and timed when a champion is confirmed, and never steer the search; random cases are
    checked then, each on inputs of one kind.
    """

    case: Case
    role: str
    compile: CompileJob
    plan: LaunchPlan
    flops: int


@dataclass(frozen=True, slots=True)
class BuildReview:
    """What compiled figures say of a candidate: `resources` for its record, and why it must
    not be launched ("" when it may)."""

    resources: Mapping[str, Json]
    violation: str = ""


@dataclass(frozen=True)
class Proposal:
    """A configuration to try. `rejection` says why it need not even be compiled.

    With `audit` too, a confirmation is one that somebody asked for: its outcome holds every check
    made, and its timing is as brief as in the search. `skipped` are checks that were to be made
    and cannot be. With `repeat`, what was found correct is timed once more, in a fresh process;
    only the timed launches are checked. `rival` are the timed cases of another configuration,
    known to be correct: the candidate is then timed against that one instead of the baselines,
    thoroughly. `review`, if there is one, is asked once all binaries (by compile key) are there.
    `device` is the only one of the executor's devices that may take it, whatever is known of its
    code already.
    """

    number: int
    configuration: Configuration
    cases: tuple[CaseJob, ...] = ()
    rejection: str = ""
    confirm: bool = False
    audit: bool = False
    repeat: bool = False
    skipped: tuple[Check, ...] = ()
    rival: tuple[CaseJob, ...] = ()
    device: int | None = None
    review: Callable[[Mapping[str, Binary]], BuildReview] | None = field(
        default=None, compare=False
    )

    @functools.cached_property
    def compile_jobs(self) -> dict[str, CompileJob]:
        """Everything that must be compiled for it, by key."""
        return {case.compile.key: case.compile for case in (*self.cases, *self.rival)}

    def examine(self, binaries: Mapping[str, Binary]) -> BuildReview:
        """The review of its own binaries; without one only the worst of each figure."""
        own = {case.compile.key: binaries[case.compile.key] for case in self.cases}
        if self.review is None:
            return BuildReview(worst_resources(own.values()))
        return self.review(own)


def worst_resources(binaries: Iterable[Binary]) -> dict[str, Json]:
    """The most of every figure; what a compiler tells of single functions is left out."""
    found: dict[str, Json] = {}
    for binary in binaries:
        for name, value in binary.resources.items():
            if not isinstance(value, dict):
                found[name] = max(value, found.get(name, value))
    return found


class BaselineTiming(msgspec.Struct, frozen=True):
    """One baseline on one case: its time alone in µs, and whether it passed the gate itself."""

    case: str
    name: str
    time_us: float
    passed: bool


class BaselineReport(msgspec.Struct, frozen=True, tag=True):
    """Every baseline on every case, and the bandwidth of a large copy (0: not measured)."""

    timings: tuple[BaselineTiming, ...]
    copy_gbps: float


class Executor(Protocol):
    """Runs trials. `submit` never blocks; `poll` waits at most `timeout_s` for outcomes."""

    def submit(self, proposal: Proposal) -> None: ...

    def poll(self, timeout_s: float) -> list[tuple[int, Outcome]]:
        """Finished (number, outcome) pairs, each proposal exactly once."""

    def set_contender(self, fitness: float) -> None:
        """Candidates surely below this fitness need no further samples."""

    def drop(self) -> None:
        """Forgets every proposal that has not finished; their outcomes never come."""

    def close(self) -> None:
        """Ends every child process; safe to call twice."""
