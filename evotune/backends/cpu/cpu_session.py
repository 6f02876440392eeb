"""The CPU as an open device: kernels are called through ctypes, in this process."""

from __future__ import annotations

import ctypes
import functools
import os
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from evotune.backends.base.launch import LaunchPlan
from evotune.backends.base.session import Disturb, Fault, LaunchFailure, Sampler, c_value
from evotune.backends.cpu import _openmp, cpu_profile
from evotune.backends.cpu._cpu_leftovers import (
    BesideBaseline,
    UndisturbedSampler,
    float_environment_changed,
    has_children,
    kept_busy,
)
from evotune.backends.cpu._cpu_sampler import STEP_BYTES, CpuSampler
from evotune.backends.cpu._libc import file_of, settle_allocator
from evotune.backends.cpu._process_state import ProcessState, changed_at_once
from evotune.backends.cpu.cpu_profile import cpuinfo
from evotune.trial import Json, OutcomeKind

_LOOKS = 4
_WHOLE_LOOKS = 1 / 16  # of the samples: such a look takes a millisecond
_SEEN = 2  # looks that must find a busy thread: a single one may be due to a busy machine


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
    in_order = False  # a thread that still writes is found only before the next launch

    def __init__(self) -> None:
        import torch

        count = cpu_profile.threads()
        if torch.get_num_threads() != count:
            torch.set_num_threads(count)
        _openmp.share()
        # A candidate that asks for more threads than the baseline has gets no more cores.
        os.sched_setaffinity(0, cpu_profile.cpus_of_cores(count))
        self._float_environment_left = False
        settle_allocator()
        self._opened: ProcessState | None = None
        self._noticed = ""
        self._beside = BesideBaseline(count)

    def take_stock(self) -> str:
        """Records the process's state at the first call, when PyTorch has set up all that it uses.
        Later calls tell changes since then."""
        self._beside.words()
        if self._opened is None:
            self._opened = ProcessState.read()
        return self._changed()

    def _changed(self) -> str:
        if self._opened is None:
            return ""
        return ", ".join(self._opened.changes(ProcessState.read())[:1])

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
        """Nothing to wait for: a call returns when it is done."""
        self.settle()

    def settle(self) -> None:
        """Resets the float environment, so that PyTorch does not compute with a candidate's
        settings."""
        if float_environment_changed():
            self._float_environment_left = True
            self._reset_float_environment()

    def free(self) -> None:
        """Nothing to do: the C library's allocator gives memory back by itself."""

    def left_running(self, run: Callable[[], object] | None = None) -> str:
        """Looks for threads that a candidate left at work, timers, and other changes in this
        process: they would slow the baseline, or finish the candidate's work late."""
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
        """Before a few samples, drawn at random, looks at the whole state: a candidate could change
        it while it is timed, and restore it before the trial ends."""
        if not self._noticed and random.random() < _WHOLE_LOOKS:
            self._noticed = self._changed()

    def _before_sample(self) -> None:
        """Wakes the pool of threads, so that candidate and baseline find it as in a program at
        work."""
        self._reset_float_environment()
        self._notice()
        self._notice_all()
        _openmp.wake()

    def sampler(self, calls: Sequence[Callable[[], object]], *, untimed: int = 0) -> CpuSampler:
        return CpuSampler(calls, self._before_sample, untimed)

    def perturbations(self) -> Mapping[str, Callable[[], AbstractContextManager[Disturb]]]:
        """There are none: the system's scheduler disturbs enough."""
        return {}

    def undisturbed(self, sampler: Sampler) -> Sampler:
        return UndisturbedSampler(sampler, self._beside)

    def eager_sampler(self, calls: Sequence[Callable[[], object]]) -> None:
        """None: the CPU has no graphs, so that `sampler` itself times eager calls."""

    def copy_gbps(self) -> float:
        return 0.0

    def fault(self, error: RuntimeError) -> Fault | None:
        """Recognizes lack of memory by PyTorch's words, as it has no error class for the CPU."""
        reason = str(error).splitlines()[0] if str(error) else ""
        return Fault(OutcomeKind.DEVICE_OOM, reason) if "can't allocate memory" in reason else None

    def state(self) -> Mapping[str, Json]:
        clocks = cpuinfo("cpu MHz")
        load = os.getloadavg()[0]
        return {"clock_mhz": float(clocks) if clocks else None, "load_1min": round(load, 2)}
