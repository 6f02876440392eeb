"""Starts Python processes that import nothing from the working folder, describes how they end, and
handles signals.

`python -m` puts the working folder before everything that is installed. So a file `msgspec.py` in a
folder of downloads would run in place of the library. The user's own site-packages stay on the path
(no `-s`): `pip install --user` puts torch there, and evotune too.

If evotune itself lies in the working folder (a checkout that is not installed), its processes must
find it there, as this one did.

Ctrl-C and SIGTERM: the first asks a run to end tidily, the second ends it at once. `interruptible`
is for work that must clean up after itself when it is stopped. A signal that the process ignores
stays ignored: a shell has the commands behind `&` ignore SIGINT. Python lets only the main thread
handle signals. Work in another thread leaves them to the program.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import NoReturn

_FOLDER = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))

_SAFE_PATH = "PYTHONSAFEPATH"


def module_command(module: str, *arguments: str) -> list[str]:
    """The command line that runs `module` as a program, with this process's interpreter."""
    safe = () if _works_beside_evotune() else ("-P",)
    return [sys.executable, *safe, "-m", module, *arguments]


@contextlib.contextmanager
def started_by_a_library() -> Iterator[None]:
    """Sets the environment variable that has the effect of -P, for processes whose command line a
    library writes (multiprocessing, Dask). They inherit it if they start within the block."""
    before = os.environ.get(_SAFE_PATH)
    if not _works_beside_evotune():
        os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_SAFE_PATH, None)
        else:
            os.environ[_SAFE_PATH] = before


def _works_beside_evotune() -> bool:
    try:
        return os.getcwd() == _FOLDER
    except OSError:  # the working folder was deleted
        return False


def end_without_hooks(main: Callable[[], None]) -> NoReturn:
    """Runs `main` and ends this process. What native code or a kernel registered for the end of the
    process (atexit, static destructors) does not run, and what it left in C's buffers is lost. So
    nothing follows the last output of `main`."""
    status: object = 0
    try:
        main()
    except SystemExit as leaving:
        status = leaving.code or 0
        if not isinstance(status, int):
            print(status, file=sys.stderr)
    except BaseException:  # noqa: BLE001 (the process ends, as it would by itself)
        traceback.print_exc()
        status = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status if isinstance(status, int) else 1)


# What a child process arranges with the system when it starts.
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent: int, death_signal: signal.Signals = signal.SIGKILL) -> None:
    """Asks the kernel to send this process `death_signal` when the process with the pid `parent`,
    or the thread that started this one, ends. Does nothing except on Linux."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        raise SystemExit(0)


def adopt_orphans() -> None:
    """Makes this process the parent of the processes that outlive their own parent, if they descend
    from it: so it sees each process that native code here has started. Does nothing except on
    Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def lower_limit(which: int, limit: int) -> None:
    """Lowers this process's soft limit, for itself and the processes it starts."""
    soft, hard = resource.getrlimit(which)
    if soft == resource.RLIM_INFINITY or soft > limit:
        resource.setrlimit(which, (limit, hard))


def child_processes(pid: int) -> set[int]:
    """The children of a process, dead ones too; none if the system does not report them."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as file:
                found |= set(map(int, file.read().split()))
    return found


# How a process ended, in words.


def signal_name(number: int) -> str:
    """The name of a signal: SIGSEGV for 11. "signal 40", for example, for a real-time signal, which
    has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_status(status: int) -> str:
    """A process's exit status, as subprocess gives it, in words."""
    return f"died of {signal_name(-status)}" if status < 0 else f"ended with status {status}"


def free_memory_bytes() -> int:
    """The bytes of this machine's memory that programs may still allocate. File caches count as
    free if the system reports them separately."""
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


_LAST_SHARE = 0.25


class StopSignal:
    """A context manager that handles SIGINT and SIGTERM while a run works.

    While `tidy` is False nothing is in flight, and the first signal raises KeyboardInterrupt too.
    From `until_s` on, a time of the system's monotonic clock, the run is to end as after a signal.
    """

    def __init__(self, until_s: float = math.inf) -> None:
        self._signalled = False
        self._until_s = until_s
        self._late_s = (1 - _LAST_SHARE) * until_s + _LAST_SHARE * time.monotonic()
        self.tidy = False
        self._handling = _handling(self._handle, signal.SIGINT, signal.SIGTERM)

    def __enter__(self) -> StopSignal:
        self._handling.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._handling.__exit__(kind, error, traceback)

    @property
    def requested(self) -> bool:
        return self._signalled or time.monotonic() >= self._until_s

    @property
    def is_near(self) -> bool:
        """Whether the last quarter of the time has begun."""
        return time.monotonic() >= self._late_s

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._signalled or not self.tidy:
            raise KeyboardInterrupt
        self._signalled = True


def interruptible() -> contextlib.AbstractContextManager[None]:
    """A block in which Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt, so that the work is
    cleaned up."""
    return _handling(_interrupt, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def _handling(
    handler: Callable[[int, FrameType | None], None], *numbers: signal.Signals
) -> Iterator[None]:
    main = threading.current_thread() is threading.main_thread()
    previous = {number: signal.getsignal(number) for number in numbers if main}
    # Python could not give a handler of another language back: None stands for one.
    ours = {n: old for n, old in previous.items() if old not in (signal.SIG_IGN, None)}
    try:
        for number in ours:
            signal.signal(number, handler)
        yield
    finally:
        for number, old in ours.items():
            signal.signal(number, old)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
