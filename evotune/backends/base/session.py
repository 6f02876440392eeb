"""The two seams of a backend: a Compiler, which needs no device, and a Session, which owns one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from evotune.backends.base.launch import Argument, CompileFailure, CompileJob, LaunchPlan
from evotune.trial import DeviceState, NamedFigures, OutcomeKind

if TYPE_CHECKING:
    import torch


Disturb = Callable[[int], None]
"""A function that is called with a seed before each launch and disturbs that launch."""


class Compiler(Protocol):
    """Turns a job into machine code in a CPU process; never touches a device."""

    def version(self) -> str:
        """The compiler and its flags, which are part of the build cache's key. Raises
        EnvironmentProblem if the compiler is missing."""

    def compile(
        self, job: CompileJob, output: Path, timeout_s: float
    ) -> NamedFigures | CompileFailure:
        """Writes machine code to `output` and returns its resources (registers, spills, ...)."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A candidate's outcome after an error of the device's libraries.

    `fatal`: this process can no longer use the device.
    """

    kind: OutcomeKind
    reason: str
    fatal: bool = False


Write: TypeAlias = "tuple[torch.Tensor, torch.Tensor]"
"""The target and the source of a copy: rows of elements, contiguous within a row."""


@dataclass(frozen=True, slots=True)
class Intervention:
    """Copies into memory in the middle of a sampler's run: while the calls `first` to `last` - 1
    are made, after the share `begin` of these calls."""

    first: int
    last: int
    begin: float
    writes: Sequence[Write]


@dataclass(frozen=True, slots=True)
class Renewal:
    """Elements that are overwritten at each turn. `target` is a column; its new elements come from
    `values`, a flat tensor."""

    target: torch.Tensor
    values: torch.Tensor


class Sampler(Protocol):
    """A fixed sequence of calls that can be run and timed again and again."""

    def run(self) -> None:
        """Makes all calls once. They are done before torch's next operation begins."""

    def time_us(self) -> float:
        """Makes all calls once; the mean device time of one call, in microseconds."""


class WatchableSampler(Sampler, Protocol):
    """A sampler whose runs can be watched and interfered with."""

    @property
    def count(self) -> int:
        """The number of calls in one run."""

    def watch(self, interventions: Sequence[Intervention], call_us: float) -> Sequence[float]:
        """Makes all calls as `time_us` does, with interventions that a call can notice only by the
        memory they write. They are sorted by their calls, which do not overlap; a call takes about
        `call_us`. Returns for each intervention the time in µs that a call must take at least so
        that one of its calls surely began after the writes: 0 if that is sure in any event."""

    def time_while_renewing(self, renewals: Sequence[Sequence[Renewal]], turn: int) -> float:
        """Like `time_us`, while `renewals` are made cyclically, about as many as there are calls.
        They have the values of turn `turn` and of the turns after it."""


class Session(Protocol):
    """An open device in a worker process. Tensors are torch tensors on `torch_device`."""

    torch_device: str
    pool_bytes: int
    """How much of the device's memory input sets and references may take."""
    cold_bytes: int
    """Inputs that rotate over this many bytes are never found in a cache; 0: no cold timing."""
    sample_us: float
    """The length of a sample in the search: the clock's error is far below 1% of it."""
    champion_sample_us: float
    """The length of a sample of one graph for a champion, whose samples are means over graphs."""
    warm_bytes: int
    """Copies of a call's buffers stay in the cache together up to this many bytes in all; 0 if
    times depend neither on the copy nor on the sampler."""
    allocates: bool
    """Whether a baseline's timed call allocates its output; then a candidate's call does so too."""
    untimed_calls: int
    """How many calls come before the timed ones of a warm sample, but never more than the timed
    ones. The first calls find the caches as earlier code left them, which differs between the two
    sides of a pair. On a CPU five calls may make a sample: there the same code came out 6% faster
    as a candidate than as the baseline, and 3% with one untimed call
    (`benchmarks/lab/confirmations.py --of itself`)."""
    step_bytes: int
    """The number of consecutive bytes that may be written before a watched call without measurably
    changing its time. 0 means any number, because they are written while calls run."""
    in_order: bool
    """Whether a launch begins only after all work of earlier launches has ended."""

    def load(self, path: Path, plan: LaunchPlan) -> Callable[..., object]:
        """A loaded kernel. LaunchFailure when the machine code cannot be loaded."""

    def bind(
        self, kernel: Callable[..., object], plan: LaunchPlan, pointers: Mapping[str, int]
    ) -> Callable[[], object]:
        """A function that launches the kernel once on these buffers, by tensor/workspace name."""

    def synchronize(self) -> None:
        """Waits until all launches are done."""

    def settle(self) -> None:
        """To be called after a launch and before torch uses its results: torch then sees them, and
        computes under its own settings."""

    def free(self) -> None:
        """Gives back the device memory that deleted tensors and samplers left reserved."""

    def sampler(
        self, calls: Sequence[Callable[[], object]], *, untimed: int = 0
    ) -> WatchableSampler:
        """A sampler of these calls, all of which have run before. The first `untimed` calls are not
        timed."""

    def eager_sampler(self, calls: Sequence[Callable[[], object]]) -> Sampler | None:
        """A sampler that issues the calls one by one and then waits for all; it measures wall time.
        None if `sampler` measures just that."""

    def undisturbed(self, sampler: Sampler) -> Sampler:
        """A baseline's sampler that no candidate's threads disturb. Before each sample it waits
        until they rest; `left_running` reports a thread that does not come to rest."""

    def perturbations(self) -> Mapping[str, Callable[[], AbstractContextManager[Disturb]]]:
        """Ways to disturb launches, by their description; empty if there are none."""

    def copy_gbps(self) -> float:
        """Measured bandwidth of a large copy, bytes read plus bytes written; 0: not measured."""

    def take_stock(self) -> str:
        """Call it before a candidate is loaded. The first call records the process's state, with
        which `left_running` compares later states. Returns a description of a change since then, or
        "" if there is none."""

    def left_running(self, run: Callable[[], object] | None = None) -> str:
        """Describes work that a candidate left running after its launch returned, or a change that
        it made to this process, in words that follow "the kernel"; "" when there is neither. Call
        it right after a launch. With `run`, which launches the candidate again, it checks several
        times."""

    def fault(self, error: RuntimeError) -> Fault | None:
        """The fault that `error` shows; None if the error is not the device's."""

    def state(self) -> DeviceState:
        """Clocks, power, temperature and throttling, if the device reports them."""


class LaunchFailure(RuntimeError):
    """A kernel that could not be loaded or launched; the trial ends as launch_error."""


# Scalar arguments as C values, for ctypes and for the CUDA driver alike.

_TYPES: Mapping[str, type[Any]] = {
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}


def c_value(argument: Argument) -> Any:
    """The argument as a C value. Raises LaunchFailure if ctypes would silently drop upper bits."""
    if argument.type == "null":
        return ctypes.c_void_p()
    converted = _TYPES[argument.type](argument.value)
    if argument.type.startswith("int") and converted.value != argument.value:
        raise LaunchFailure(f"the argument {argument.value} does not fit {argument.type}")
    return converted
