"""The CPU as an open device: kernels are called through ctypes, in this process.

`CpuCaller` calls them in the user's own process.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import random
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from evotune.backends.base.backend import KernelCall
from evotune.backends.base.launch import DeviceProfile, LaunchPlan
from evotune.backends.base.session import (
    Disturb,
    Fault,
    Intervention,
    LaunchFailure,
    Renewal,
    Row,
    Sampler,
    c_value,
)
from evotune.backends.cpu import cpu_profile, native_runtime
from evotune.backends.cpu.cpu_profile import cpuinfo
from evotune.backends.cpu.native_runtime import file_of, settle_allocator
from evotune.backends.cpu.process_state import (
    BesideBaseline,
    ProcessState,
    UndisturbedSampler,
    changed_at_once,
    float_environment_changed,
    has_children,
    kept_busy,
)
from evotune.trial import DeviceState, OutcomeKind

if TYPE_CHECKING:
    import torch

_LOOKS = 4
_WHOLE_LOOKS = 1 / 16  # of the samples: such a look takes a millisecond
_SEEN = 2  # looks that must find a busy thread: a single one may be due to a busy machine

STEP_BYTES = 256
"""The most bytes to write before a call, if there are enough calls for all writes."""


class CpuSession:
    """The open CPU. Candidates run in PyTorch's own OpenMP threads, under the user's wait
    policy."""

    torch_device = "cpu"
    pool_bytes = 1 << 30
    cold_bytes = 0
    sample_us = 1000.0  # other processes interrupt for tens of microseconds
    champion_sample_us = 1000.0
    warm_bytes = 0
    allocates = True
    untimed_calls = 2
    step_bytes = STEP_BYTES
    has_rows = False
    calls_once = False
    in_order = False  # a thread that still writes is found only before the next launch

    def __init__(self) -> None:
        import torch

        count = cpu_profile.threads()
        if torch.get_num_threads() != count:
            torch.set_num_threads(count)
        native_runtime.share()
        # A candidate that requests more threads than the baseline has gets no additional cores.
        os.sched_setaffinity(0, cpu_profile.cpus_of_cores(count))
        self._float_environment_left = False
        settle_allocator()
        self._opened: ProcessState | None = None
        self._noticed = ""
        self._beside = BesideBaseline(count)

    def take_stock(self) -> str:
        """Records the process's state at the first call, when PyTorch has set up everything that it
        uses. Later calls report changes since then."""
        self._beside.words()
        if self._opened is None:
            self._opened = ProcessState.read()
        return self._changed()

    def _changed(self) -> str:
        if self._opened is None:
            return ""
        return ", ".join(self._opened.changes(ProcessState.read())[:1])

    def memory(self, nbytes: int) -> torch.Tensor:
        import torch

        return torch.empty(nbytes, dtype=torch.uint8)

    def build(
        self,
        kernel: Callable[..., object],
        plan: LaunchPlan,
        inputs: Mapping[str, torch.Tensor],
        limit_s: float,
    ) -> None:
        """Nothing to do: the compiler has built it."""

    def load(self, path: Path, plan: LaunchPlan) -> Callable[..., object]:
        self._reset_float_environment()
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise LaunchFailure(f"cannot load entry {plan.entry}: {error}") from error
        function: Callable[..., object] | None = getattr(library, plan.entry, None)
        # The loader also searches the libraries that this one needs: a space must not call `kill`.
        if function is None or os.path.realpath(file_of(function)) != os.path.realpath(path):
            reason = 'the source has no such function; is it extern "C"?'
            raise LaunchFailure(f"cannot load entry {plan.entry}: {reason}")
        return function

    @staticmethod
    def _reset_float_environment() -> None:
        """Undoes an earlier candidate's changes of rounding, traps or the treatment of
        denormals."""
        fesetenv = getattr(ctypes.CDLL(None), "fesetenv", None)
        if fesetenv is not None:
            fesetenv(ctypes.c_void_p(-1))  # FE_DFL_ENV

    def bind(
        self, kernel: Callable[..., object], plan: LaunchPlan, pointers: Mapping[str, int]
    ) -> Callable[[], object]:
        arguments = [
            ctypes.c_void_p(pointers[argument.name])
            if argument.type in ("tensor", "workspace")
            else c_value(argument)
            for argument in plan.arguments
        ]
        return functools.partial(kernel, *arguments)

    def synchronize(self) -> None:
        """Does nothing: a call returns when it is done."""
        self.settle()

    def settle(self) -> None:
        """Resets the float environment, so that PyTorch does not compute with a candidate's
        settings."""
        if float_environment_changed():
            self._float_environment_left = True
            self._reset_float_environment()

    def free(self) -> None:
        """Does nothing: the C library's allocator returns memory by itself."""

    def left_running(self, run: Callable[[], object] | None = None) -> str:
        """Looks for threads that a candidate left running, for timers, and for other changes in
        this process. They would slow down the baseline, or finish the candidate's work late."""
        seen = 0
        changed = self._changed()  # before `kept_busy`, which ends the threads of PyTorch's pool
        for _ in range(_LOOKS):
            self._notice()  # before waiting: a timer may be gone when threads have come to rest
            if self._noticed:
                break
            busy = kept_busy()
            seen += bool(busy)
            if seen == _SEEN:
                return busy
            if run is not None:
                run()
            elif not seen:
                break
        return self._left_behind() or changed

    def _left_behind(self) -> str:
        noticed, self._noticed = self._noticed, ""
        if noticed or (noticed := self._beside.words()):
            return noticed
        if has_children():
            return "left a process running"
        if self._float_environment_left:
            self._float_environment_left = False
            return "changed how the processor rounds, traps or treats denormals"
        return self._changed()

    def _notice(self) -> None:
        if self._opened is not None and not self._noticed:
            self._noticed = changed_at_once(self._opened)

    def _notice_all(self) -> None:
        """Before a few samples, drawn at random, reads the whole state: a candidate could change it
        while it is timed, and restore it before the trial ends.
        """
        if not self._noticed and random.random() < _WHOLE_LOOKS:
            self._noticed = self._changed()

    def _before_sample(self) -> None:
        """Wakes the pool of threads, so that candidate and baseline find it as in a program at
        work."""
        self._reset_float_environment()
        self._notice()
        self._notice_all()
        native_runtime.wake()

    def sampler(self, calls: Sequence[Callable[[], object]], *, untimed: int = 0) -> CpuSampler:
        return CpuSampler(calls, self._before_sample, untimed)

    def perturbations(self) -> Mapping[str, Callable[[], AbstractContextManager[Disturb]]]:
        """Returns none, because the system's scheduler disturbs launches enough."""
        return {}

    def undisturbed(self, sampler: Sampler) -> Sampler:
        return UndisturbedSampler(sampler, self._beside)

    def row(self, calls: Sequence[Callable[[], object]]) -> Row:
        raise NotImplementedError  # this process makes the calls itself

    def eager_sampler(self, calls: Sequence[Callable[[], object]]) -> None:
        """Returns None: the CPU has no graphs, so `sampler` itself times eager calls."""

    def copy_gbps(self) -> float:
        return 0.0

    def fault(self, error: RuntimeError) -> Fault | None:
        """Recognizes lack of memory by PyTorch's message, because PyTorch has no error class for it
        on a CPU."""
        reason = str(error).splitlines()[0] if str(error) else ""
        return Fault(OutcomeKind.DEVICE_OOM, reason) if "can't allocate memory" in reason else None

    def state(self) -> DeviceState:
        clocks = cpuinfo("cpu MHz")
        load = os.getloadavg()[0]
        return {"clock_mhz": float(clocks) if clocks else None, "load_1min": round(load, 2)}


_LONGEST_RENEWING_NS = 30_000_000
_A_LOOK = 16  # calls between two looks at the clock

_Copy: TypeAlias = tuple[int, int, int]
"""Destination, source, number of bytes."""


Write: TypeAlias = Callable[[], object]
"""Makes the write that precedes the next call."""


def timed_ns(calls: Sequence[Callable[[], object]], write: Write) -> float:
    """Makes the calls, each after a write; the nanoseconds that all of this took."""
    started = time.perf_counter_ns()
    for call in calls:
        write()
        call()
    return time.perf_counter_ns() - started


class CpuSampler:
    """A sampler of calls on the CPU. A call returns when it is done, so the wall clock around the
    calls gives the device's time. The clock starts after the first `untimed` calls.

    Something is written before each call: to inputs and outputs if the run is watched or renews
    inputs, otherwise to memory that no call reads. So a call cannot infer from the time since the
    previous call whether its inputs changed.
    """

    def __init__(
        self,
        calls: Sequence[Callable[[], object]],
        before: Callable[[], None],
        untimed: int = 0,
        timed_ns: Callable[[Sequence[Callable[[], object]], Write], float] = timed_ns,
    ) -> None:
        self._timed_ns = timed_ns
        self._calls = calls
        self._before = before
        self._untimed = untimed
        self._idle = _Writes(len(calls))

    @property
    def count(self) -> int:
        return len(self._calls)

    def run(self) -> None:
        self._before()
        _make(self._calls, self._idle.begin())

    def time_us(self) -> float:
        self._before()
        untimed, timed = self._calls[: self._untimed], self._calls[self._untimed :]
        write = self._idle.begin()
        _make(untimed, write)
        return self._timed_ns(timed, write) / 1000 / len(timed)

    def watch(self, interventions: Sequence[Intervention], call_us: float) -> Sequence[float]:
        """Makes the writes between calls. If there are enough calls, there is one write between two
        calls. The pause is then as short as between any two calls, so no call can notice that
        inputs changed."""
        calls, writes = list(self._calls), _Writes(len(self._calls))
        made = 0
        for each in interventions:
            write = each.first + int(each.begin * (each.last - each.first))
            pauses = range(max(made, each.first + 1), write + 1) or range(write, write + 1)
            nbytes = sum(target.nbytes for target, _ in each.writes)
            # Whole blocks, so that no call finds half of an element new and half old.
            step = STEP_BYTES * max(1, -(-nbytes // (len(pauses) * STEP_BYTES)))
            copies = [copy for pair in each.writes for copy in writes.copies(*pair, step)]
            ends = [len(copies) * (n + 1) // len(pauses) for n in range(len(pauses))]
            for pause, (begin, end) in zip(pauses, itertools.pairwise((0, *ends)), strict=True):
                if begin < end:
                    writes.put(pause, copies[begin])
                if begin + 1 < end:
                    calls[pause] = _after(copies[begin + 1 : end], calls[pause])
            made = write
        self._before()
        _make(calls, writes.begin())
        return [0.0] * len(interventions)

    def time_while_renewing(self, renewals: Sequence[Sequence[Renewal]], turn: int) -> float:
        """Makes one renewal before each call. As in `time_us`, the clock starts after the first
        `untimed` calls. Calls that keep results take far longer than others, so the row ends after
        30 ms."""
        calls, writes = list(self._calls), _Writes(len(self._calls))
        each = itertools.cycle([renewal for group in renewals for renewal in group])
        for number in range(len(calls)) if any(renewals) else ():
            renewal = next(each)
            value = renewal.values[(turn + number) % len(renewal.values)]
            copies = [
                copy
                for target in renewal.target
                for copy in writes.copies(target[None], value[None, None])
            ]
            writes.put(number, copies[0])
            if copies[1:]:
                calls[number] = _after(copies[1:], calls[number])
        self._before()
        write = writes.begin()
        _make(calls[: self._untimed], write)
        timed, made, spent_ns = calls[self._untimed :], 0, 0.0
        while made < len(timed) and spent_ns <= _LONGEST_RENEWING_NS:
            spent_ns += self._timed_ns(timed[made : made + _A_LOOK], write)
            made += _A_LOOK
        return spent_ns / 1000 / min(made, len(timed))


class _Writes:
    """The write before each of `count` calls; at first all go to memory that no call reads.

    A call could recognize a write by its duration. So each write is a block of STEP_BYTES: the
    changed bytes with their unchanged neighbours. Arrays hold the destinations, because a separate
    Python object may not be in a cache. The block is in a cache when the row begins.
    """

    def __init__(self, count: int) -> None:
        place = ctypes.addressof(_NOWHERE)
        place += -place % STEP_BYTES
        self._targets = array("Q", [place]) * count
        self._sources = array("Q", [place + STEP_BYTES]) * count
        self._sizes = array("Q", [STEP_BYTES]) * count
        self._before: list[tuple[int, bytes]] = []
        self._held: list[ctypes.Array[ctypes.c_char]] = []

    def put(self, number: int, copy: _Copy) -> None:
        """Make this the write before call `number`."""
        self._targets[number], self._sources[number], self._sizes[number] = copy

    def copies(
        self, target: torch.Tensor, source: torch.Tensor, step: int = STEP_BYTES
    ) -> list[_Copy]:
        """Copies of up to `step` bytes that write each row of `source` to that of `target`. They
        are to be made in the order of these calls, since their blocks may overlap: until `begin`
        the memory is as it will be after them."""
        storage = target.untyped_storage()
        start, stop = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        made: list[_Copy] = []
        for to, from_ in zip(target, source, strict=True):
            place = to.data_ptr()
            first = max(start, place - place % STEP_BYTES)
            end = min(stop, place + to.nbytes + -(place + to.nbytes) % STEP_BYTES)
            self._before.append((first, ctypes.string_at(first, end - first)))
            ctypes.memmove(place, from_.data_ptr(), to.nbytes)
            block = ctypes.create_string_buffer(ctypes.string_at(first, end - first), end - first)
            self._held.append(block)
            made += [
                (first + at, ctypes.addressof(block) + at, min(step, end - first - at))
                for at in range(0, end - first, step)
            ]
        return made

    def begin(self) -> Callable[[], object]:
        """Returns a function that makes the next write at each call. Undoes what `copies` did."""
        for place, before in reversed(self._before):
            ctypes.memmove(place, before, len(before))
        self._before.clear()
        return map(ctypes.memmove, self._targets, self._sources, self._sizes).__next__


_NOWHERE = ctypes.create_string_buffer(3 * STEP_BYTES)


def _make(calls: Sequence[Callable[[], object]], write: Write) -> None:
    for call in calls:
        write()
        call()


def _after(copies: Sequence[_Copy], call: Callable[[], object]) -> Callable[[], object]:
    """The call, preceded by these copies."""

    def made() -> object:
        for copy in copies:
            ctypes.memmove(*copy)
        return call()

    return made


class CpuCaller:
    """Calls kernels in PyTorch's threads. During a call PyTorch has at most as many threads as the
    profile for which the kernel was compiled."""

    def __init__(self, profile: DeviceProfile) -> None:
        self._profile = profile

    def refusal(self, device: torch.device) -> str:
        return "" if device.type == "cpu" else f"the kernel was compiled for {self._profile.name}"

    def current(self, device: torch.device) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def load(self, binary: Path) -> KernelCall:
        import torch

        native_runtime.share()
        library = ctypes.CDLL(str(binary))
        threads = int(self._profile.attributes["threads"])

        def call(plan: LaunchPlan, tensors: Mapping[str, torch.Tensor]) -> None:
            arguments = [
                ctypes.c_void_p(tensors[argument.name].data_ptr())
                if argument.type in ("tensor", "workspace")
                else c_value(argument)
                for argument in plan.arguments
            ]
            before = torch.get_num_threads()
            if before > threads:
                torch.set_num_threads(threads)
            try:
                getattr(library, plan.entry)(*arguments)
            finally:
                if before > threads:
                    torch.set_num_threads(before)

        return call
