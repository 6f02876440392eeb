"""The CPU backend: C++ kernels compiled by the system's compiler, called through ctypes."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from evotune.backends.cpu import cpu_cores, openmp
from evotune.backends.cpu.cpp_log import failure, read_log
from evotune.backends.cpu.cpu_leftovers import (
    BesideBaseline,
    UndisturbedSampler,
    float_environment_changed,
    has_children,
    kept_busy,
)
from evotune.backends.cpu.cpu_sampler import CpuSampler
from evotune.backends.cpu.libc import file_of, settle_allocator
from evotune.backends.cpu.process_state import ProcessState, changed_at_once
from evotune.device.argument_check import check_text, errs_in_check, mismatch
from evotune.device.define_checks import checked_end
from evotune.device.dependencies import LISTING, SEARCH_VARIABLES, foreign_file
from evotune.device.launch import CompileFailure, CompileJob, LaunchPlan
from evotune.device.profile import DeviceProfile
from evotune.device.protocol import Disturb, Fault, LaunchFailure, Sampler
from evotune.device.scalars import c_value
from evotune.errors import EnvironmentProblem
from evotune.regular_file import read_regular
from evotune.trial import Json, OutcomeKind, Value

FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
)
# Linking is a step of its own without the compiler's options: linking with -ffast-math adds
# start-up code that makes the whole process flush denormals, the baseline too.
LINK_FLAGS = (
    "-shared",
    "-s",
    "-fopenmp",
    "-Wl,--build-id=none",
    "-Wl,-z,defs",  # a missing function then fails at compile time, not at load time
)

_LOOKS = 4
_SEEN = 2  # looks that must find a busy thread: a single one may be due to a busy machine
_HIGHEST_CLOCK_GHZ = 6.5  # above any CPU sold: keeps the roofline check free of false alarms


@functools.cache
def profile() -> DeviceProfile:
    """This machine's CPU."""
    flags = _cpu_flags()
    simd_bytes = 64 if "avx512f" in flags else 32 if "avx2" in flags else 16
    attributes: dict[str, Value] = {
        "threads": cpu_cores.threads(),
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
        peak_gflops=cpu_cores.threads() * _HIGHEST_CLOCK_GHZ * _flops_per_cycle(flags, simd_bytes),
    )


def _flops_per_cycle(flags: frozenset[str], simd_bytes: int) -> int:
    """The most that one core can do, in the narrowest type that a problem may have."""
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
    """Compiles C++ to a shared library by $CXX, g++, clang++ or c++."""

    def __init__(self) -> None:
        self._path = find_compiler()

    def version(self) -> str:
        return _compiler_version(self._path)

    def compile(
        self, job: CompileJob, output: Path, timeout_s: float
    ) -> Mapping[str, Json] | CompileFailure:
        started = time.monotonic()
        check = check_text(job.entries, job.signature, exact=False)
        status, log = self._build(job, output, check, started + timeout_s)
        if status and errs_in_check(log):
            if reason := mismatch(log):
                seconds = time.monotonic() - started
                return CompileFailure(OutcomeKind.COMPILE_ERROR, reason, log, seconds)
            status, log = self._build(job, output, "", started + timeout_s)
        seconds = time.monotonic() - started
        if status is None:
            reason = f"the compiler ran longer than {timeout_s:g} s"
            return CompileFailure(OutcomeKind.COMPILE_TIMEOUT, reason, "", seconds)
        if status != 0 or not output.is_file():
            return failure(status, log, seconds)
        if foreign := foreign_file(self._path, job, output.parent):
            return CompileFailure(OutcomeKind.COMPILE_ERROR, foreign, log, seconds)
        return {"code_bytes": output.stat().st_size}

    def _build(
        self, job: CompileJob, output: Path, check: str, deadline: float
    ) -> tuple[int | None, str]:
        """Compiles and links the source followed by `check`. Returns the exit status (None when
        time ran out) and the log."""
        built = output.with_suffix(".o")
        command = [self._path, *FLAGS, *job.options, *LISTING]
        if "clang" in self.version():
            command.append("-fno-integrated-as")  # clang's own assembler lists no files it reads
        command += [f"-D{name}={value}" for name, value in job.defines]
        source = str(Path(job.root) / job.source)
        # The empty first file keeps g++ from using a precompiled header beside the source.
        command += ["-include", os.devnull, "-include", source]
        command += ["-c", "-o", str(built), "-x", "c++", "-"]
        link = [self._path, *LINK_FLAGS, "-o", str(output), str(built)]
        end = checked_end(_text(Path(source)), source, job.defines) + check
        words = output.with_suffix(".log")
        status: int | None = None
        # The log is a file and not a pipe: the compiler's own children may outlive it and hold a
        # pipe open. They belong to this process's group, which the parent kills after a time-out.
        with words.open("wb") as log_file:
            for step, stdin in ((command, end), (link, "")):
                rest_s = deadline - time.monotonic()
                status = _run(step, stdin, log_file, output.parent, timeout_s=rest_s)
                if status != 0 or not built.is_file():
                    break
        return status, read_log(words).replace(job.root + os.sep, "")


def _text(source: Path) -> str:
    """The source's text; empty when the file cannot be read, since the compiler will say why."""
    try:
        return read_regular(source).decode(errors="replace")
    except OSError:
        return ""


def _run(
    command: Sequence[str], text: str, log: IO[bytes], folder: Path, *, timeout_s: float
) -> int | None:
    """Runs a compiler that reads `text`. Its exit status; None when it took too long."""
    with tempfile.TemporaryFile(dir=folder) as stdin:
        stdin.write(text.encode())
        stdin.seek(0)
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C", "TMPDIR": "."},
        )
    try:
        return process.wait(max(0.0, timeout_s))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def find_compiler() -> str:
    """The path of the C++ compiler. EnvironmentProblem with the fix when there is none."""
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
    """All that a build depends on: the first line of --version, the flags, the processor's features
    (the meaning of -march=native here) and environment variables with more header folders."""
    try:
        version = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=30, check=True
        ).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        raise EnvironmentProblem(
            f"the C++ compiler {path} does not run ({error}); set CXX to one that does"
        ) from error
    headers = (f"{name}={os.environ[name]}" for name in SEARCH_VARIABLES if os.environ.get(name))
    return " ".join((version, *FLAGS, *LINK_FLAGS, *sorted(_cpu_flags()), *headers))


class CpuSession:
    """The open CPU. Candidates run in PyTorch's own OpenMP threads, under the user's wait
    policy."""

    torch_device = "cpu"
    pool_bytes = 1 << 30
    cold_bytes = 0
    sample_us = 1000.0  # other processes interrupt for tens of microseconds
    warm_bytes = 0
    allocates = True
    untimed_calls = 2
    in_order = False  # a thread that still writes is found only before the next launch

    def __init__(self) -> None:
        import torch

        count = cpu_cores.threads()
        if torch.get_num_threads() != count:
            torch.set_num_threads(count)
        openmp.share()
        # A candidate that asks for more threads than the baseline has gets no more cores.
        os.sched_setaffinity(0, cpu_cores.cpus_of_cores(count))
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
            return "left the processor's rounding or its denormals other than it found them"
        return self._changed()

    def _notice(self) -> None:
        if self._opened is not None and not self._noticed:
            self._noticed = changed_at_once(self._opened)

    def _before_sample(self) -> None:
        """Wakes the pool of threads, so that candidate and baseline find it as in a program at
        work."""
        self._reset_float_environment()
        self._notice()
        openmp.wake()

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
        clocks = _cpuinfo("cpu MHz")
        load = os.getloadavg()[0]
        return {"clock_mhz": float(clocks) if clocks else None, "load_1min": round(load, 2)}
