"""The two seams of a backend: a Compiler, which needs no device, and a Session, which owns one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

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
"""The target and the source of a copy: rows of elements that are contiguous within a row."""


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
    """Elements that are overwritten at each turn. `target`: a column. `values`: a flat tensor with
    the column's new elements."""

    target: torch.Tensor
    values: torch.Tensor


class Sampler(Protocol):
    """A fixed sequence of calls that can be run and timed again and again."""

    def run(self) -> None:
        """Makes all calls once. They are complete before torch's next operation begins."""

    def time_us(self) -> float:
        """Makes all calls once. Returns the mean device time of one call, in µs."""


class WatchableSampler(Sampler, Protocol):
    """A sampler whose runs can be watched and interfered with."""

    @property
    def count(self) -> int:
        """The number of calls in one run."""

    def watch(self, interventions: Sequence[Intervention], call_us: float) -> Sequence[float]:
        """Makes all calls as `time_us` does, with interventions that a call can notice only by the
        memory that they write. The interventions are sorted by their calls, which do not overlap. A
        call takes about `call_us`. Returns, for each intervention, the least time in µs that a call
        must take so that one of the intervention's calls surely began after the writes; 0 if that
        is sure anyway."""

    def time_while_renewing(self, renewals: Sequence[Sequence[Renewal]], turn: int) -> float:
        """Like `time_us`, while `renewals` are made cyclically, about as many as there are calls.
        They have the values of turn `turn` and of the turns after it."""


@runtime_checkable
class RepeatingSampler(Protocol):
    """A sampler that may run again within one call, because a sample came to nothing."""

    before_repeating: Callable[[], None]


class RestoringSampler:
    """A sampler before each of whose runs tensors get their values again, outside the clock."""

    def __init__(self, sampler: WatchableSampler, restore: Callable[[], None]) -> None:
        self._sampler = sampler
        self._restore = restore
        if isinstance(sampler, RepeatingSampler):
            sampler.before_repeating = restore

    @property
    def count(self) -> int:
        return self._sampler.count

    def run(self) -> None:
        self._restore()
        self._sampler.run()

    def time_us(self) -> float:
        self._restore()
        return self._sampler.time_us()

    def watch(self, interventions: Sequence[Intervention], call_us: float) -> Sequence[float]:
        self._restore()
        return self._sampler.watch(interventions, call_us)

    def time_while_renewing(self, renewals: Sequence[Sequence[Renewal]], turn: int) -> float:
        self._restore()
        return self._sampler.time_while_renewing(renewals, turn)


class Timed(NamedTuple):
    """Calls that were released together: `time_us` until they had ended by this process's clock,
    the places that have their results, and whether a process had to wait for a core meanwhile."""

    time_us: float
    places: Sequence[int]
    is_disturbed: bool = False


class Row(Protocol):
    """Calls that another process makes, each on a place of its own (`verify/own_clock.py`)."""

    def at_once(self, wanted: int, *, complement: bool) -> Timed:
        """Releases so many of the calls together. With `complement` they are others."""

    def one_by_one_us(self, places: Sequence[int]) -> float:
        """Releases these calls one after the other, as timed calls are. The time of a call, in the
        way in which it counts."""


class Session(Protocol):
    """An open device in a worker process. Tensors are torch tensors on `torch_device`."""

    torch_device: str
    pool_bytes: int
    """The bytes of the device's memory that input sets and references may take."""
    cold_bytes: int
    """Inputs that rotate over this many bytes are never in a cache; 0 if there is no cold
    timing."""
    sample_us: float
    """The length of a sample in the search, of which the clock's error is far below 1%."""
    champion_sample_us: float
    """The length of a sample of one graph for a champion, whose samples are means over graphs."""
    warm_bytes: int
    """The most bytes that copies of a call's buffers may have in all to stay in the cache together;
    0 if times depend neither on the copy nor on the sampler."""
    allocates: bool
    """Whether a baseline's timed call allocates its output; then a candidate's call does so too."""
    untimed_calls: int
    """How many calls come before the timed calls of a warm sample, but never more than the timed
    ones. The first calls find the caches as earlier code left them, which differs between the two
    sides of a pair. On a CPU a sample may have only five calls. Without untimed calls the same code
    came out 6% faster as a candidate than as the baseline, and 3% with one
    (`benchmarks/lab/confirmations.py --of itself`)."""
    step_bytes: int
    """The number of consecutive bytes that may be written before a watched call without measurably
    changing its time. 0 means any number, because they are written while calls run."""
    in_order: bool
    """Whether a launch begins only after all work of earlier launches has ended."""
    has_rows: bool
    """Whether another process makes calls and answers each, so that their times must be checked by
    rows. False also if samples are such rows already."""
    calls_once: bool
    """Whether a sample has one call on each place, whose outputs are poisoned before: another
    process makes the calls, and could leave out what a later call on the same place repeats."""

    def memory(self, nbytes: int) -> torch.Tensor:
        """Bytes on the device, not filled, for the buffers of launches."""

    def load(self, path: Path, plan: LaunchPlan) -> Callable[..., object]:
        """Loads a kernel. Raises LaunchFailure if the machine code cannot be loaded."""

    def build(
        self,
        kernel: Callable[..., object],
        plan: LaunchPlan,
        inputs: Mapping[str, torch.Tensor],
        limit_s: float,
    ) -> None:
        """Of a backend that `builds_in_worker`: builds the kernel for a case, and calls it once on
        copies of these inputs. Raises an error that is a `fault` if that fails or takes longer than
        `limit_s`. A kernel that was not built for a case is built when it is bound, within the last
        limit given."""

    def bind(
        self, kernel: Callable[..., object], plan: LaunchPlan, pointers: Mapping[str, int]
    ) -> Callable[[], object]:
        """A function that launches the kernel once. `pointers`: the addresses of tensors and
        workspaces, by name."""

    def synchronize(self) -> None:
        """Waits until all launches are done."""

    def settle(self) -> None:
        """Must be called after a launch and before torch uses its results. Torch then sees the
        results, and computes with its own settings."""

    def free(self) -> None:
        """Gives back the device memory that deleted tensors and samplers left reserved."""

    def sampler(
        self, calls: Sequence[Callable[[], object]], *, untimed: int = 0
    ) -> WatchableSampler:
        """A sampler of these calls, all of which have run before. The first `untimed` calls are not
        timed."""

    def row(self, calls: Sequence[Callable[[], object]]) -> Row:
        """A row of calls, of a session that `has_rows`."""

    def eager_sampler(self, calls: Sequence[Callable[[], object]]) -> Sampler | None:
        """A sampler that issues the calls one by one and then waits for all; it measures wall time.
        None if `sampler` measures just that."""

    def undisturbed(self, sampler: Sampler) -> Sampler:
        """A baseline's sampler that no candidate's threads disturb. Before each sample it waits
        until they rest; `left_running` reports a thread that does not come to rest."""

    def perturbations(self) -> Mapping[str, Callable[[], AbstractContextManager[Disturb]]]:
        """The ways to disturb launches, by their description; empty if there are none."""

    def copy_gbps(self) -> float:
        """Measures the bandwidth of a large copy, bytes read plus bytes written; 0 if the device
        measures none."""

    def take_stock(self) -> str:
        """Must be called before a candidate is loaded. The first call records the process's state,
        with which `left_running` compares later states. Returns a description of a change since the
        first call, or "" if there is none."""

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
    """Raised if a kernel cannot be loaded or launched. The trial ends as launch_error."""


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
