"""The CPU backend: C++ kernels compiled by the system's compiler, called through ctypes."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from evotune.device.cpu_leftovers import (
    BesideBaseline,
    UndisturbedSampler,
    float_environment_changed,
    has_children,
    kept_busy,
)
from evotune.device.cpu_sampler import CpuSampler
from evotune.device.launch import CompileFailure, CompileJob, LaunchPlan
from evotune.device.libc import settle_allocator
from evotune.device.process_state import ProcessState, changed_at_once
from evotune.device.profile import DeviceProfile
from evotune.device.protocol import Disturb, Fault, LaunchFailure, Sampler
from evotune.device.scalars import c_value
from evotune.device.signals import describe_status
from evotune.errors import EnvironmentProblem
from evotune.trial import Json, OutcomeKind, Value

if TYPE_CHECKING:
    pass

# No -ffast-math: its start-up code makes the whole process flush denormals, the baseline too.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fPIC",
    "-shared",
    "-s",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wl,--build-id=none",
    "-Wl,-z,defs",  # a function that is missing is the compiler's error, not the loader's
)
OPTIONS = frozenset(
    {
        "-O1",
        "-O2",
        "-O3",
        "-funroll-loops",
        "-fno-tree-vectorize",
        "-fno-semantic-interposition",
        "-mprefer-vector-width=128",
        "-mprefer-vector-width=256",
        "-mprefer-vector-width=512",
    }
)
"""What a space may add under `options:`; nothing that names a file or loads a plugin."""

_LOG_BYTES = 8192
_CRASH_MARKS = (
    "internal compiler error",
    "signal terminated program",  # g++ about the compiler proper that it drives
    "out of memory allocating",
    "virtual memory exhausted",
    "clang frontend command failed due to signal",
)
_ERROR_MARKS = ("error:", "undefined reference")
_LOOKS = 4
_SEEN = 2  # in so many of them: one may meet a busy machine
_HIGHEST_CLOCK_GHZ = 6.5  # above any CPU sold: keeps the roofline check free of false alarms


def threads() -> int:
    """Threads used for candidate and baseline alike: the cores this process may run on."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    cores = len(os.sched_getaffinity(0))
    return min(int(limit), cores) if limit.isdigit() and int(limit) > 0 else cores


@functools.cache
def profile() -> DeviceProfile:
    """This machine's CPU."""
    flags = _cpu_flags()
    simd_bytes = 64 if "avx512f" in flags else 32 if "avx2" in flags else 16
    attributes: dict[str, Value] = {
        "threads": threads(),
        "cores": len(os.sched_getaffinity(0)),
        "simd_bytes": simd_bytes,
        "vector_registers": 32 if "avx512f" in flags or platform.machine() == "aarch64" else 16,
        "l1_bytes": _cache_bytes(1, 32 << 10),
        "l2_bytes": _cache_bytes(2, 512 << 10),
        "l3_bytes": _cache_bytes(3, 8 << 20),
    }
    level = {64: "avx512", 32: "avx2", 16: "simd128"}[simd_bytes]
    return DeviceProfile(
        name=_cpu_name(),
        backend="cpu",
        arch=f"{platform.machine()}-{level}",
        attributes=attributes,
        peak_gflops=threads() * _HIGHEST_CLOCK_GHZ * _flops_per_cycle(flags, simd_bytes),
    )


def _flops_per_cycle(flags: frozenset[str], simd_bytes: int) -> int:
    """At most, of one core, in the narrowest type that a problem may have."""
    if {"amx_bf16", "amx_fp16"} & flags:
        return 2048  # one 16x16x32 tile product every 16 cycles
    two_units = 2 * 2 * simd_bytes // 4
    narrow = {"avx512_bf16", "avx512_fp16", "asimdhp", "bf16"} & flags
    return 2 * two_units if narrow else two_units


def _cpuinfo(field: str) -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == field:
                return value.strip()
    except OSError:
        pass
    return ""


def _cpu_flags() -> frozenset[str]:
    return frozenset(_cpuinfo("flags").split())


def _cpu_name() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _cache_bytes(level: int, fallback: int) -> int:
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            if (index / "level").read_text().strip() != str(level):
                continue
            if (index / "type").read_text().strip() == "Instruction":
                continue
            text = (index / "size").read_text().strip()
        except OSError:
            continue
        unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
        return int(text.rstrip("KM")) * unit
    return fallback


class CpuCompiler:
    """g++ (or $CXX, clang++, c++) to a shared library."""

    def __init__(self) -> None:
        self._path = find_compiler()

    def version(self) -> str:
        return _compiler_version(self._path)

    def compile(
        self, job: CompileJob, output: Path, timeout_s: float
    ) -> Mapping[str, Json] | CompileFailure:
        started = time.monotonic()
        command = [self._path, *FLAGS, *job.options]
        command += [f"-D{name}={value}" for name, value in job.defines]
        command += ["-o", str(output), str(Path(job.root) / job.source)]
        words = output.with_suffix(".log")
        # A file, not a pipe: the compiler's own children may outlive it and hold a pipe open.
        # They belong to this process's group, which the parent kills after a time-out.
        with words.open("wb") as log_file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                cwd=output.parent,
                env={**os.environ, "LC_ALL": "C", "TMPDIR": str(output.parent)},
            )
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                seconds = time.monotonic() - started
                reason = f"the compiler ran longer than {timeout_s:g} s"
                return CompileFailure(OutcomeKind.COMPILE_TIMEOUT, reason, "", seconds)
        if process.returncode == 0 and output.is_file():
            return {"code_bytes": output.stat().st_size}
        log = _read_log(words).replace(job.root + os.sep, "")
        return _failure(process.returncode, log, time.monotonic() - started)


def _read_log(path: Path) -> str:
    """What a compiler said; of a long story the beginning (where the cause is) and the end."""
    with path.open("rb") as file:
        head = file.read(_LOG_BYTES)
        rest = path.stat().st_size - len(head)
        if rest > 0:
            file.seek(max(len(head), len(head) + rest - _LOG_BYTES))
            head += b"\n[...]\n" + file.read(_LOG_BYTES)
    return head.decode(errors="replace")


def _failure(status: int, log: str, seconds: float) -> CompileFailure:
    if status < 0:
        reason = f"the compiler {describe_status(status)}"
        return CompileFailure(OutcomeKind.COMPILE_CRASH, reason, log, seconds)
    lines = [line.strip() for line in log.splitlines()]
    crash = next((line for line in lines if any(mark in line for mark in _CRASH_MARKS)), "")
    if crash:
        return CompileFailure(OutcomeKind.COMPILE_CRASH, crash, log, seconds)
    error = next((line for line in lines if any(mark in line for mark in _ERROR_MARKS)), "")
    reason = error or f"the compiler {describe_status(status)}"
    return CompileFailure(OutcomeKind.COMPILE_ERROR, reason, log, seconds)


def find_compiler() -> str:
    """Path of the C++ compiler. EnvironmentProblem with the fix when there is none."""
    wanted = os.environ.get("CXX", "")
    for name in (wanted,) if wanted else ("g++", "clang++", "c++"):
        path = shutil.which(name)
        if path:
            return path
    missing = f"the compiler named by CXX ({wanted})" if wanted else "a C++ compiler"
    raise EnvironmentProblem(
        f"{missing} was not found; install one (Debian/Ubuntu: apt-get install g++) "
        "or set CXX to its path"
    )


@functools.cache
def _compiler_version(path: str) -> str:
    """First line of --version, and what -march=native means here."""
    try:
        version = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=30, check=True
        ).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        raise EnvironmentProblem(
            f"the C++ compiler {path} does not run ({error}); set CXX to one that does"
        ) from error
    return " ".join((version, *FLAGS, *sorted(_cpu_flags())))


class CpuSession:
    """Candidates run in this process's OpenMP threads, as many as PyTorch's."""

    torch_device = "cpu"
    pool_bytes = 1 << 30
    cold_bytes = 0
    sample_us = 1000.0  # whatever else runs interrupts for tens of microseconds
    warm_bytes = 0
    in_order = False  # what threads still write shows only before the next launch

    def __init__(self) -> None:
        import torch

        count = threads()
        torch.set_num_threads(count)
        # A candidate that asks for more threads than the baseline has gets no more cores.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
        self._float_environment_left = False
        settle_allocator()
        self._opened: ProcessState | None = None
        self._noticed = ""
        self._beside = BesideBaseline(count)

    def take_stock(self) -> str:
        """The first time, when PyTorch has set up all that it uses, the state is noted."""
        self._beside.words()
        now = ProcessState.read()
        if self._opened is None:
            self._opened = now
        return ", ".join(self._opened.changes(now)[:1])

    def load(self, path: Path, plan: LaunchPlan) -> Callable[..., object]:
        self._reset_float_environment()
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise LaunchFailure(f"cannot load entry {plan.entry}: {error}") from error
        try:
            function: Callable[..., object] = getattr(library, plan.entry)
        except AttributeError:
            reason = 'the source has no such function; is it extern "C"?'
            raise LaunchFailure(f"cannot load entry {plan.entry}: {reason}") from None
        return function

    @staticmethod
    def _reset_float_environment() -> None:
        """A candidate before may have changed rounding, traps or what becomes of denormals."""
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
        """Calls return when they are done."""
        self.settle()

    def settle(self) -> None:
        """What follows must not compute as a candidate set."""
        if float_environment_changed():
            self._float_environment_left = True
            self._reset_float_environment()

    def free(self) -> None:
        """The allocator's affair."""

    def left_running(self, run: Callable[[], object] | None = None) -> str:
        """Threads that a candidate started would slow the baseline, or finish its work late; so
        would timers, and whatever else it changed of this process."""
        seen = 0
        for _ in range(_LOOKS):
            self._notice()  # at once: a timer may be gone when threads have come to rest
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
        return self._left_behind()

    def _left_behind(self) -> str:
        noticed, self._noticed = self._noticed, ""
        if noticed or (noticed := self._beside.words()):
            return noticed
        if has_children():
            return "left a process running"
        if self._float_environment_left:
            self._float_environment_left = False
            return "left the processor's rounding or its denormals other than it found them"
        return self.take_stock() if self._opened is not None else ""

    def _notice(self) -> None:
        if self._opened is not None and not self._noticed:
            self._noticed = changed_at_once(self._opened)

    def _before_sample(self) -> None:
        self._reset_float_environment()
        self._notice()

    def sampler(self, calls: Sequence[Callable[[], object]]) -> CpuSampler:
        return CpuSampler(calls, self._before_sample)

    def perturbations(self) -> Mapping[str, Callable[[], AbstractContextManager[Disturb]]]:
        """None: the system's scheduler disturbs enough."""
        return {}

    def undisturbed(self, sampler: Sampler) -> Sampler:
        return UndisturbedSampler(sampler, self._beside)

    def eager_sampler(self, calls: Sequence[Callable[[], object]]) -> None:
        """There are no graphs on the CPU: `sampler` times eager calls."""

    def copy_gbps(self) -> float:
        return 0.0

    def fault(self, error: RuntimeError) -> Fault | None:
        """PyTorch has no class of its own for memory that runs out on the CPU."""
        reason = str(error).splitlines()[0] if str(error) else ""
        return Fault(OutcomeKind.DEVICE_OOM, reason) if "can't allocate memory" in reason else None

    def state(self) -> Mapping[str, Json]:
        clocks = _cpuinfo("cpu MHz")
        load = os.getloadavg()[0]
        return {"clock_mhz": float(clocks) if clocks else None, "load_1min": round(load, 2)}
