"""The state of this process on which a baseline's time depends and which native code can change.

A candidate on the CPU is native code in the process that times the baseline. The state is read
before the first candidate and after each one, and a difference shows what a candidate changed:
timers, signal handlers, affinity, priorities, numbers of threads, limits, the allocator, Python's
hooks and garbage collector, PyTorch's modes (`pytorch_settings`). Changes that libraries make by
themselves do not count: new threads, opened files, memory in use. Functions that are registered for
the end of the process do not count either: a static object needs one, and no worker runs them
(`end_without_hooks`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import resource
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evotune.backends.base.session import Sampler
from evotune.backends.cpu import native_runtime
from evotune.backends.cpu.native_runtime import function

_SIGNAL_MASKS = {"SigBlk": "blocked", "SigIgn": "ignored"}
_GLIBC_SIGNALS = 0b11 << 31  # 32 and 33, which glibc handles once threads are cancelled
_INTERVAL_TIMERS = {
    "ITIMER_REAL": signal.ITIMER_REAL,
    "ITIMER_VIRTUAL": signal.ITIMER_VIRTUAL,
    "ITIMER_PROF": signal.ITIMER_PROF,
}
_LIMITS = {
    name: getattr(resource, name)
    for name in dir(resource)
    if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"
}
_NOT_FILES = ("anon_inode:", "socket:", "pipe:")
_REALTIME = (1, 2, 6)  # SCHED_FIFO, SCHED_RR, SCHED_DEADLINE


@dataclass(frozen=True, slots=True)
class ThreadState:
    """One thread's cores, policy and niceness, and everything else that the system reports about
    its scheduling."""

    cores: frozenset[int]
    policy: int
    niceness: int
    scheduling: bytes | None

    @classmethod
    def read(cls, thread: int) -> ThreadState:
        """Reads the state of a thread. Raises OSError if the thread has ended."""
        return cls(
            frozenset(os.sched_getaffinity(thread)),
            os.sched_getscheduler(thread),
            os.getpriority(os.PRIO_PROCESS, thread),
            native_runtime.scheduling(thread),
        )


@dataclass(frozen=True)
class ProcessState:
    """All state of a process that a kernel could change. The keys of most mappings are the names of
    settings, in words.

    - handlers: the signal handlers, by the signal's number.
    - threads: the states of threads, by the thread's number.
    - files: the open files, by the descriptor's number.
    """

    handlers: Mapping[int, bytes]
    masks: Mapping[str, int]
    timers: frozenset[str]
    threads: Mapping[int, ThreadState]
    openmp: Mapping[str, int]
    python: Mapping[str, object]
    torch: Mapping[str, object]
    limits: Mapping[str, object]
    allocator: Mapping[str, int]
    variables: Mapping[bytes, bytes]
    settings: Mapping[str, object]
    files: Mapping[int, str] = field(default_factory=dict)
    pool: frozenset[int] = frozenset()
    """The numbers of the threads that were in PyTorch's pool. PyTorch may have replaced them
    since."""
    unusual_floats: bool = False
    """Whether a thread of the pool rounds, traps or treats denormals otherwise than usual."""

    @classmethod
    def read(cls) -> ProcessState:
        """Reads the present state, in half a millisecond."""
        timers = frozenset(armed_timers())  # first, because a short timer soon runs out
        pool = native_runtime.in_each_thread(float_environment_changed)
        status = _status()
        return cls(
            handlers=native_runtime.signal_handlers(),
            masks=_masks(status),
            timers=timers,
            threads=dict(_threads()),
            openmp=_openmp_settings(),
            python=python_settings(),
            torch=pytorch_settings(),
            limits={name: resource.getrlimit(which) for name, which in _LIMITS.items()},
            allocator=native_runtime.allocator_behaviour(),
            variables=native_runtime.environment(),
            settings=_settings(status),
            files=dict(_files()),
            pool=frozenset(pool),
            unusual_floats=any(pool.values()),
        )

    def changes(self, now: ProcessState) -> list[str]:
        """The changes from this state to `now`, in words that follow "the kernel"; the worst
        first."""
        return [words for find in _FINDERS for words in find(self, now)]


def changed_at_once(before: ProcessState) -> str:
    """Looks only for new timers and a changed affinity, in some 20 µs, so that it can be called
    between two samples. Returns a change in words that follow "the kernel", or ""."""
    for name in armed_timers():
        if name not in before.timers:
            return f"left {_timer_in_words(name)} running"
    own = before.threads.get(threading.get_native_id())
    if own is not None and own.cores != os.sched_getaffinity(0):
        return "changed the CPU affinity"
    return ""


def armed_timers() -> Iterator[str]:
    """The armed interval timers, by name, and the process's POSIX timers."""
    for name, which in _INTERVAL_TIMERS.items():
        if any(signal.getitimer(which)):
            yield name
    with contextlib.suppress(OSError):
        timers = Path("/proc/self/timers").read_text()
        yield from (line.strip() for line in timers.splitlines() if line.startswith("ID:"))


def _timer_in_words(name: str) -> str:
    return f"the interval timer {name}" if name in _INTERVAL_TIMERS else "a POSIX timer"


def _status() -> dict[str, str]:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _masks(status: Mapping[str, str]) -> dict[str, int]:
    return {
        words: int(status[name], 16) & ~_GLIBC_SIGNALS
        for name, words in _SIGNAL_MASKS.items()
        if name in status
    }


def _settings(status: Mapping[str, str]) -> dict[str, object]:
    found: dict[str, object] = dict(native_runtime.process_settings())
    found["the stack that signals are handled on"] = native_runtime.alternate_stack()
    found["the working folder"] = _or_none(os.getcwd)
    found["the mask of new files' modes"] = status.get("Umask")
    found["its locked memory"] = status.get("VmLck")
    for words, path in (
        ("its control group", "/proc/self/cgroup"),
        ("the priority of its session", "/proc/self/autogroup"),
        ("how its memory is laid out", "/proc/self/personality"),
    ):
        found[words] = _or_none(Path(path).read_text)
    return found


def _or_none(read: Callable[[], str]) -> str | None:
    try:
        return read()
    except OSError:
        return None


def _threads() -> Iterator[tuple[int, ThreadState]]:
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/task")]
    except OSError:
        numbers = [0]
    for number in numbers:
        with contextlib.suppress(OSError):
            yield number, ThreadState.read(number)


def _openmp_settings() -> dict[str, int]:
    """Settings of PyTorch's OpenMP runtime, which a candidate shares if it loads a library of the
    same name."""
    found = {}
    for name in ("omp_get_max_threads", "omp_get_dynamic", "omp_get_max_active_levels",
                 "omp_get_thread_limit", "omp_get_proc_bind"):  # fmt: skip
        ask = native_runtime.function(name)
        if ask is not None:
            found[name] = ask()
    return found


def _files() -> Iterator[tuple[int, str]]:
    """The open descriptors, each with the target of its link in /proc."""
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                yield int(name), os.readlink(f"/proc/self/fd/{name}")


def _new_timers(before: ProcessState, now: ProcessState) -> Iterator[str]:
    for name in sorted(now.timers - before.timers):
        yield f"left {_timer_in_words(name)} running"


def _new_handlers(before: ProcessState, now: ProcessState) -> Iterator[str]:
    for number in _differing(before.handlers, now.handlers):
        yield f"changed the handler of {_signal_name(number)}"
    for words in _differing(before.masks, now.masks):
        yield f"changed which signals are {words}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _threads_changed(before: ProcessState, now: ProcessState) -> Iterator[str]:
    """A new thread may have fewer cores and less priority than the process had: it is the
    candidate's own, and it rests. A new thread of PyTorch's pool must be like the main thread,
    which started it."""
    main = before.threads.get(os.getpid())
    for number, thread in now.threads.items():
        was = before.threads.get(number, main if number in now.pool else None)
        if was is not None:
            if was.cores != thread.cores:
                yield "changed the CPU affinity"
            elif was != thread:
                yield "changed the priority of a thread"
        elif main is not None:
            if not thread.cores <= main.cores:
                yield "has a thread on more cores than the process may use"
            elif thread.policy in _REALTIME or thread.niceness < main.niceness:
                yield "has a thread with more priority than the process has"


def _threads_counted(before: ProcessState, now: ProcessState) -> Iterator[str]:
    for name in _differing(before.torch, now.torch):
        yield (f"changed PyTorch's {name} from {before.torch.get(name)} to {now.torch.get(name)}")
    for name in _differing(before.openmp, now.openmp):
        yield f"changed OpenMP's settings ({name} is now {now.openmp.get(name)})"


def _interpreter_changed(before: ProcessState, now: ProcessState) -> Iterator[str]:
    for name in _differing(before.python, now.python):
        yield f"changed Python's {name}"


def _limits_changed(before: ProcessState, now: ProcessState) -> Iterator[str]:
    for name in _differing(before.limits, now.limits):
        yield f"changed the limit {name}"
    for words in _differing(before.settings, now.settings):
        yield f"changed {words}"
    for name in _differing(before.variables, now.variables):
        yield f"changed the environment variable {name.decode(errors='replace')}"


def _floats_changed(before: ProcessState, now: ProcessState) -> Iterator[str]:
    if now.unusual_floats and not before.unusual_floats:
        yield "changed how the processor rounds, traps or treats denormals in PyTorch's threads"


def _allocator_changed(before: ProcessState, now: ProcessState) -> Iterator[str]:
    if before.allocator and now.allocator and before.allocator != now.allocator:
        which = ", ".join(map(str, _differing(before.allocator, now.allocator)))
        yield f"changed how malloc works ({which})"


def _files_changed(before: ProcessState, now: ProcessState) -> Iterator[str]:
    """New descriptors of plain files do not count, since many libraries open files. Any other new
    descriptor (a timer, a socket, a pipe, something of this process in /proc) may act by itself."""
    own = f"/proc/{os.getpid()}/"
    for number in _differing(before.files, now.files):
        what = now.files.get(number, "")
        if number in before.files:
            yield "changed a file descriptor that was not its own"
        elif what.startswith((*_NOT_FILES, own)) and what != f"{own}fd":
            yield f"left {what.split(own)[-1]} open"


_FINDERS = (
    _new_timers,
    _new_handlers,
    _threads_changed,
    _threads_counted,
    _interpreter_changed,
    _limits_changed,
    _floats_changed,
    _allocator_changed,
    _files_changed,
)


def _differing(before: Mapping[Any, object], now: Mapping[Any, object]) -> list[Any]:
    """Keys of either whose values differ."""
    keys = {**before, **now}
    return [key for key in keys if before.get(key) != now.get(key)]


# Settings of Python and PyTorch that a baseline's time depends on, by their names in words.
#
# A candidate is native code in the process that times the baseline, and can call Python's C API.
_AUDITED = ("sys.addaudithook", "sys.setprofile", "sys.settrace")
_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "number of threads": ("get_num_threads",),
    "number of threads between operations": ("get_num_interop_threads",),
    "precision of float32 products": ("_get_float32_matmul_precision",),
    "use of oneDNN": ("_get_mkldnn_enabled",),
    "backends of attention": (
        *("_get_flash_sdp_enabled", "_get_mem_efficient_sdp_enabled", "_get_math_sdp_enabled"),
        *("_get_cudnn_sdp_enabled", "_get_overrideable_sdp_enabled"),
    ),
    "deterministic mode": (
        *("_get_deterministic_algorithms", "_get_deterministic_algorithms_warn_only"),
        "_get_deterministic_fill_uninitialized_memory",
    ),
    "gradient mode": ("is_grad_enabled", "is_inference_mode_enabled", "is_anomaly_enabled"),
    "default type": ("get_default_dtype",),
    "autocast": ("_is_any_autocast_enabled", "is_autocast_cache_enabled"),
    "settings of cuDNN": (
        *("_get_cudnn_enabled", "_get_cudnn_benchmark", "_get_cudnn_deterministic"),
        "_get_cudnn_allow_tf32",
    ),
    "default device, or modes that watch operations": (
        *("_len_torch_dispatch_stack", "_len_torch_function_stack"),
    ),
}
"""By name, functions of torch._C; PyTorch may lack some of them."""


def pytorch_settings() -> dict[str, object]:
    """PyTorch's settings in this thread."""
    found: dict[str, object] = {}
    for name, functions in _functions().items():
        values = tuple(_answer(ask) for ask in functions)
        found[name] = values[0] if len(values) == 1 else values
    return found


def _answer(ask: Callable[[], object]) -> object:
    try:
        return ask()
    except RuntimeError:  # after a mix of two ways to set a precision
        return "unclear"


@functools.cache
def _functions() -> Mapping[str, tuple[Callable[[], object], ...]]:
    import torch

    found: dict[str, tuple[Callable[[], object], ...]] = {
        name: tuple(getattr(torch._C, each) for each in functions if hasattr(torch._C, each))
        for name, functions in _SETTINGS.items()
    }
    found["profiler"] = (torch._C._autograd._profiler_enabled,)
    if precision := getattr(torch._C, "_get_fp32_precision_getter", None):
        asked = (("generic", "all"), ("mkldnn", "all"), ("mkldnn", "matmul"))
        found["precision by library"] = tuple(functools.partial(precision, *each) for each in asked)
    return found


def python_settings() -> dict[str, object]:
    """Settings of Python's interpreter. The first call installs a hook, which stays, since the
    functions that C code installs show in nothing else."""
    _listen()
    return {
        "garbage collector": (gc.isenabled(), gc.get_threshold(), gc.get_debug()),
        "callbacks of its garbage collector": tuple(map(id, gc.callbacks)),
        "profiler": (_hooks("profile"), _events["sys.setprofile"]),
        "tracer": (_hooks("trace"), _events["sys.settrace"]),
        "tools that monitor it": _monitored(),
        "audit hooks": _events["sys.addaudithook"],
        "switch interval": sys.getswitchinterval(),
    }


def _hooks(kind: str) -> tuple[int, int]:
    return id(getattr(sys, f"get{kind}")()), id(getattr(threading, f"get{kind}")())


def _monitored() -> object:
    monitoring = getattr(sys, "monitoring", None)  # since Python 3.12
    if monitoring is None:
        return ()
    named = {tool: monitoring.get_tool(tool) for tool in range(6)}
    return [(name, monitoring.get_events(tool)) for tool, name in named.items() if name]


_events: Counter[str] = Counter()


@functools.cache
def _listen() -> None:
    sys.addaudithook(_note)


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event in _AUDITED and threading.current_thread() is threading.main_thread():
        _events[event] += 1


# Finds threads, child processes and float settings that native code left behind.
_GLANCE_S = 0.0005
_LONGEST_WAIT_S = 2.0  # a thread that waits for a core goes to sleep as soon as it gets one
_SPIN_S = 0.001  # on a core: five times as long as a pool spins after its work
_LOOK_S = 0.003
_BUSY_SHARE = 0.02  # of a core: a thread at rest uses none
_REST_S = 0.002  # the longest wait for threads at work before a sample of a baseline
_STARVED_S = 0.02  # the longest wait for threads that have no core
_DISTURBED = 4  # samples, and at least a tenth of all: other processes may disturb a few
_CLOCK_OF_THREAD = 6  # Linux: CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED


def float_environment_changed() -> bool:
    """Whether this thread flushes denormals, rounds otherwise than to nearest, or traps.

    The numbers come from a list, since Python computes an expression of literals beforehand.
    """
    one, tiny, least = _PROBES
    traps = function("fegetexcept")
    if traps is not None and traps():
        return True
    return tiny + one != one or one - tiny != one or least * one != least or least + least == 0


_PROBES = [1.0, 2.0**-60, 5e-324]


def kept_busy() -> str:
    """The names of the other threads of this process that are busy now; "" if all rest.

    PyTorch's pool spins for milliseconds after its work, so this function ends it. A candidate's
    own pool may spin for some 200 µs before it sleeps. So the function first waits until no thread
    runs; a thread that computes for a millisecond meanwhile is busy. After that no thread has work
    left, so a thread that still computes a little now and then is busy too. Only time on a core
    counts, so the load of other processes makes no difference.
    """
    native_runtime.rest()
    began, started_s = cpu_seconds(), time.perf_counter()
    while running := _running_threads():
        spent = _spent(began, cpu_seconds())
        busy = [thread for thread in running if spent.get(thread, 0.0) > _SPIN_S]
        waited_s = time.perf_counter() - started_s
        if busy:
            return _in_words(len(busy), sum(spent.values()) / waited_s)
        if waited_s > _LONGEST_WAIT_S:
            return ""
        time.sleep(_GLANCE_S)
    return _look()


def _look() -> str:
    """Counts the threads that take a core from now on, when all rest, in words; "" if none does."""
    # The process's clock counts threads that come and go; it is exact while all threads rest.
    began, others_s, started_s = cpu_seconds(), _seconds_of_other_threads(), time.perf_counter()
    time.sleep(_LOOK_S)
    spent = _spent(began, cpu_seconds())
    elapsed_s = time.perf_counter() - started_s
    busy_s = max(sum(spent.values()), _seconds_of_other_threads() - others_s)
    if busy_s <= _BUSY_SHARE * elapsed_s:
        return ""
    return _in_words(max(1, sum(each > 0.0 for each in spent.values())), busy_s / elapsed_s)


def _in_words(threads: int, cores: float) -> str:
    counted = "1 thread" if threads == 1 else f"{threads} threads"
    return f"kept {counted} and {cores:.2f} cores busy after it returned"


def cpu_seconds() -> dict[int, float]:
    """How long every other thread has been on a core so far, in seconds, exact to a microsecond.

    The process's own clock counts the time of running threads only at the system's next tick, up to
    4 ms later, so the candidate's own work would look like a thread that it left.
    """
    own, found = threading.get_native_id(), {}
    for task in _tasks():
        thread = int(task.name)
        if thread != own:
            with contextlib.suppress(OSError, OverflowError):
                found[thread] = time.clock_gettime((~thread << 3) | _CLOCK_OF_THREAD)
    return found


def _spent(began: Mapping[int, float], now: Mapping[int, float]) -> dict[int, float]:
    """Seconds on a core since `began`, by thread. A new thread counts with all its seconds."""
    return {thread: seconds - began.get(thread, 0.0) for thread, seconds in now.items()}


def _seconds_of_other_threads() -> float:
    return time.process_time() - time.thread_time()


def _running_threads() -> set[int]:
    """The other threads of this process that run, or wait for nothing but a core."""
    found = set()
    for task in _tasks():
        with contextlib.suppress(OSError):
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            if state == "R" and int(task.name) != threading.get_native_id():
                found.add(int(task.name))
    return found


def _tasks() -> list[Path]:
    try:
        return list(Path("/proc/self/task").iterdir())
    except OSError:
        return []


def has_children() -> bool:
    """Whether this process has child processes, dead or alive; False if the system does not report
    it."""
    for task in _tasks():
        with contextlib.suppress(OSError):
            if (task / "children").read_text().strip():
                return True
    return False


class BesideBaseline:
    """Watches the other threads while a baseline is timed.

    The baseline itself keeps `threads` - 1 of them busy, and these may also be a candidate's OpenMP
    threads. So this class counts how many threads had a core: if they are more than `threads` - 1,
    a candidate left a helper. If the baseline leaves cores idle, a helper may go unnoticed, but
    then it takes no core from the baseline.
    """

    def __init__(self, threads: int) -> None:
        self._most = threads - 1
        self._samples = 0
        self._disturbed = 0
        self._cores = 0.0
        self._pool: frozenset[int] = frozenset()
        self._starved = False

    def let_rest(self) -> None:
        """Waits for a candidate's own pool of threads, which may spin before it sleeps. Threads of
        PyTorch's pool may go on spinning, because the baseline uses them too. On a busy machine a
        thread without a core cannot go to sleep. This method waits longer for it, and if the thread
        never gets a core, the sample does not count."""
        if _running_threads() - self._pool:
            self._pool = native_runtime.threads()
        began, started_s = cpu_seconds(), time.perf_counter()
        self._starved = False
        while running := _running_threads() - self._pool:
            waited_s = time.perf_counter() - started_s
            spent = _spent(began, cpu_seconds())
            self._starved = not any(spent.get(thread, 0.0) > _SPIN_S for thread in running)
            if waited_s > (_STARVED_S if self._starved else _REST_S):
                return
            time.sleep(_GLANCE_S / 10)
        self._starved = False

    def count(self, began: Mapping[int, float], elapsed_s: float) -> None:
        if self._starved:
            return
        shares = sorted(each / elapsed_s for each in _spent(began, cpu_seconds()).values())
        busy = [share for share in shares if share > _BUSY_SHARE]
        self._samples += 1
        if len(busy) > self._most:
            self._disturbed += 1
            self._cores += sum(busy[: len(busy) - self._most])

    def words(self) -> str:
        """How busy helper threads were in the samples since the last call, in words; "" if there
        are too few samples."""
        samples, disturbed, cores = self._samples, self._disturbed, self._cores
        self._samples = self._disturbed = 0
        self._cores = 0.0
        if disturbed < _DISTURBED or 10 * disturbed < samples:
            return ""
        return f"kept {cores / disturbed:.2f} cores busy while the baseline was timed"


class UndisturbedSampler:
    """See `evotune.backends.base.session.Session.undisturbed`."""

    def __init__(self, sampler: Sampler, beside: BesideBaseline) -> None:
        self._sampler = sampler
        self._beside = beside

    def run(self) -> None:
        self._sampler.run()

    def time_us(self) -> float:
        self._beside.let_rest()
        began, started_s = cpu_seconds(), time.perf_counter()
        time_us = self._sampler.time_us()
        self._beside.count(began, time.perf_counter() - started_s)
        return time_us
