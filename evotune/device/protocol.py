"""The two seams of a backend: a Compiler (no device needed) and a Session (owns the device)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from evotune.device.launch import CompileFailure, CompileJob, LaunchPlan
from evotune.trial import Json, OutcomeKind

if TYPE_CHECKING:
    import torch

Disturb = Callable[[int], None]
"""Called before each launch, with a seed: disturbs that launch."""


class Compiler(Protocol):
    """Turns a job into machine code in a CPU process; never touches a device."""

    def version(self) -> str:
        """Compiler and flags; part of the build cache's key. EnvironmentProblem if missing."""

    def compile(
        self, job: CompileJob, output: Path, timeout_s: float
    ) -> Mapping[str, Json] | CompileFailure:
        """Writes machine code to `output`; returns its resources (registers, spills, ...)."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What an error of the device's libraries means for the candidate that met it.

    `fatal`: this process can use the device no more.
    """

    kind: OutcomeKind
    reason: str
    fatal: bool = False


Write: TypeAlias = "tuple[torch.Tensor, torch.Tensor]"
"""The target and the source of a copy: rows of elements, contiguous within a row."""


@dataclass(frozen=True, slots=True)
class Intervention:
    """Copies into memory in the middle of a sampler's run, while the calls `first` to `last` - 1
    are made, after the share `begin` of these."""

    first: int
    last: int
    begin: float
    writes: Sequence[Write]


@dataclass(frozen=True, slots=True)
class Renewal:
    """Elements that get others of `values`, a flat tensor, at each turn; `target` is a column."""

    target: torch.Tensor
    values: torch.Tensor


class Sampler(Protocol):
    """A fixed row of calls, ready to be run and timed again and again."""

    def run(self) -> None:
        """All calls once: they are done before what torch is asked for next."""

    def time_us(self) -> float:
        """Runs all calls once: the mean device time of one, in microseconds."""


class WatchableSampler(Sampler, Protocol):
    """A sampler whose own run can be looked into."""

    @property
    def count(self) -> int:
        """Calls in one run."""

    def watch(self, interventions: Sequence[Intervention], call_us: float) -> Sequence[bool]:
        """Makes all calls as `time_us` does, with interventions that a call can notice only by what
        they write. They stand in the order of their calls, which do not overlap; a call takes about
        `call_us`. Returns for each whether one of its calls surely began after the writes."""

    def time_while_renewing(self, renewals: Sequence[Sequence[Renewal]], turn: int) -> float:
        """As `time_us`, while `renewals` are made in turn, again and again, as many as there are
        calls, or nearly. Their values are those of this turn and the turns after it."""


class Session(Protocol):
    """An open device in a worker process. Tensors are torch tensors on `torch_device`."""

    torch_device: str
    pool_bytes: int
    """How much of the device's memory input sets and references may take."""
    cold_bytes: int
    """Inputs rotated over this many bytes are never found in a cache; 0: no cold timing."""
    sample_us: float
    """How long a sample of the search lasts: the error of the clock is far below 1% of it."""
    warm_bytes: int
    """Copies of a call's buffers may take so much in all and stay in the cache together; 0 where
    one copy, and one sampler, is as good as another."""
    allocates: bool
    """Whether a timed call of a baseline allocates its output: then one of a candidate does too."""
    untimed_calls: int
    """How many calls come before the timed ones of a warm sample, if the timed ones are as many.
    The first calls find in the caches whatever ran before them, which differs between the two sides
    of a pair. On a CPU five calls may make a sample: there the same code came out 6% faster as a
    candidate than as the baseline, and 3% with one untimed call
    (`benchmarks/confirmations.py --of itself`)."""
    in_order: bool
    """Whether a launch begins when all that launches before it started has ended."""

    def load(self, path: Path, plan: LaunchPlan) -> Callable[..., object]:
        """A loaded kernel. LaunchFailure when the machine code cannot be loaded."""

    def bind(
        self, kernel: Callable[..., object], plan: LaunchPlan, pointers: Mapping[str, int]
    ) -> Callable[[], object]:
        """A function that launches the kernel once on these buffers, by tensor/workspace name."""

    def synchronize(self) -> None:
        """Waits until all that was launched is done."""

    def settle(self) -> None:
        """After a launch, before torch works on its results: they are what it sees, computed with
        as under torch's own settings."""

    def free(self) -> None:
        """Gives the device back what tensors and samplers that are gone have left reserved."""

    def sampler(
        self, calls: Sequence[Callable[[], object]], *, untimed: int = 0
    ) -> WatchableSampler:
        """The calls, each of which ran before, as one thing to time, the first `untimed` of them
        left out."""

    def eager_sampler(self, calls: Sequence[Callable[[], object]]) -> Sampler | None:
        """The calls issued one by one, then waited for together: its time is the clock's on the
        wall. None where `sampler` measures just that."""

    def undisturbed(self, sampler: Sampler) -> Sampler:
        """A baseline's sampler, which no candidate's threads may disturb: it waits for them to rest
        before each sample, and `left_running` tells who did not rest meanwhile."""

    def perturbations(self) -> Mapping[str, Callable[[], AbstractContextManager[Disturb]]]:
        """Ways to disturb launches, by what they are in words; empty where there are none."""

    def copy_gbps(self) -> float:
        """Measured bandwidth of a large copy, bytes read plus bytes written; 0: not measured."""

    def take_stock(self) -> str:
        """Before a candidate is loaded: notes the state that `left_running` holds the process to.
        What has changed since it was noted first, in words; "" when nothing."""

    def left_running(self, run: Callable[[], object] | None = None) -> str:
        """What a candidate left at work after its launch returned, or changed in this process, in
        words that follow "the kernel"; "" when nothing. To be called right after a launch; with
        `run`, which launches it again, several times."""

    def fault(self, error: RuntimeError) -> Fault | None:
        """What `error` says about the candidate; None when it is no error of the device's."""

    def state(self) -> Mapping[str, Json]:
        """Clocks, power, temperature and throttling as far as the device tells."""


class LaunchFailure(RuntimeError):
    """A kernel that could not be loaded or launched; the trial ends as launch_error."""
