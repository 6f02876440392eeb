"""The interface of executors: proposals go in, outcomes come out in the order in which trials
finish."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Protocol

import msgspec

from evotune.backends.base.launch import CompileJob, LaunchPlan
from evotune.problems.executed_sizes import LengthPlan
from evotune.problems.problem import Case
from evotune.trial import Check, Configuration, Outcome

TIMED, EDGE, HELD_OUT, RANDOM = "timed", "edge", "held_out", "random"
SERVED = "served"
CHECKS, TIMING = "checks", "timing"
"""The parts of a champion's confirmation, if each has a separate process."""
SERVED_S = 8.0
"""The time limit on a champion's launches at served sizes, in s."""
WHEN_THERE_IS_TIME = (RANDOM, SERVED)
"""Roles of cases whose inputs are made when their turn comes, as long as there is time."""
RIVAL = "rival"
"""Stands for a baseline's name when a candidate is timed against another configuration."""


@dataclass(frozen=True, slots=True)
class CaseJob:
    """One case of a trial: its compile job and its launches.

    The `role` is one of:
    - timed: makes the fitness.
    - edge: is only checked.
    - held-out: is checked and timed when a champion is confirmed, and never steers the search.
    - random: is checked when a champion is confirmed, on inputs of one kind.
    - served: is launched once when a champion is confirmed, because a package could serve its
      sizes.
    """

    case: Case
    role: str
    compile: CompileJob
    plan: LaunchPlan
    flops: int


@dataclass(frozen=True)
class Proposal:
    """A configuration to try.

    - `rejection`: why it need not even be compiled.
    - `confirm`: it is a champion's confirmation, with every check.
    - `part`, with `confirm`: CHECKS for everything but the timing, TIMING for the timed and
      held-out cases of a candidate that passed the checks; "" for both in one process.
    - `audit`, with `confirm`: the user requested the confirmation. Its outcome has every check, and
      its timing is as brief as in the search.
    - `repeat`: the number, from 2 on, of a further fresh process that times a candidate that was
      found correct; only the timed launches are checked. 0 for other proposals.
    - `skipped`: checks that should be made but cannot be made.
    - `until_s`: the time of this machine's monotonic clock at which a champion's checks are cut
      short.
    - `rival`: the timed cases of another configuration, known to be correct. The candidate is timed
      against them instead of the baselines, thoroughly.
    - `lengths`: the lengths that the cases of role `served` execute together.
    - `only_served`: checks more sizes that a champion could serve. All cases have the role
      `served`: they are launched once, and nothing is timed. The outcome has the domain of the
      cases that passed.
    - `served_s`: the time limit on the cases of role `served`.
    - `device`: the only one of the executor's devices that may measure the proposal, even if an
      outcome of the same code is known.
    """

    number: int
    configuration: Configuration
    cases: tuple[CaseJob, ...] = ()
    rejection: str = ""
    confirm: bool = False
    part: str = ""
    audit: bool = False
    repeat: int = 0
    skipped: tuple[Check, ...] = ()
    until_s: float = math.inf
    rival: tuple[CaseJob, ...] = ()
    lengths: tuple[LengthPlan, ...] = ()
    only_served: bool = False
    served_s: float = SERVED_S
    device: int | None = None

    @property
    def needs_fresh_process(self) -> bool:
        """Whether it needs a worker that has run no other candidate."""
        return self.confirm or self.repeat > 0 or self.only_served

    @functools.cached_property
    def compile_jobs(self) -> dict[str, CompileJob]:
        """All compile jobs of the proposal, by key."""
        return {case.compile.key: case.compile for case in (*self.cases, *self.rival)}


class BaselineTiming(msgspec.Struct, frozen=True):
    """One baseline on one case: its time in µs, measured alone, and whether its results passed the
    gate.

    `reason` says why a requested library has no time; "" for a baseline that was timed.
    """

    case: str
    name: str
    time_us: float
    passed: bool
    reason: str = ""


class BaselineReport(msgspec.Struct, frozen=True, tag=True):
    """The times of every baseline on every case, and the bandwidth of a large copy in GB/s (0 if it
    was not measured). `warnings`: the problem's warnings, a line each."""

    timings: tuple[BaselineTiming, ...]
    copy_gbps: float
    warnings: tuple[str, ...] = ()


class Executor(Protocol):
    """Runs trials. `submit` never blocks; `poll` waits at most `timeout_s` for outcomes."""

    @property
    def step(self) -> str:
        """The present step of a champion's proposal, in words; "" if it is unknown."""

    def submit(self, proposal: Proposal) -> None: ...

    def poll(self, timeout_s: float) -> list[tuple[int, Outcome]]:
        """The (number, outcome) of proposals that have finished since the last call; each proposal
        is returned exactly once."""

    def set_contender(self, fitness: float) -> None:
        """Sets the fitness below which a candidate needs no more samples."""

    def drop(self) -> None:
        """Forgets every proposal that has not finished; their outcomes never come."""

    def close(self) -> None:
        """Ends every child process; safe to call twice."""
