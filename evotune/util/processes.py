"""Starts Python processes so that they import nothing from the working folder; says how they end.

`python -m` puts the working folder before everything that is installed. So a file `msgspec.py`
in a folder of downloads would run in place of the library. The user's own site-packages stay on the
path (no `-s`): `pip install --user` puts torch there, and evotune too.

Where evotune itself lies in the working folder (a checkout that is not installed), its processes
must find it there, as this one did.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
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
    """Runs `main` and ends this process. Whatever native code or a kernel registered for the end of
    a process (atexit, static destructors) does not run, and what it left in C's buffers is lost: so
    nothing follows the last words of `main`."""
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


# --- How a process ended, in words ----------------------------------------------------------------


def signal_name(number: int) -> str:
    """SIGSEGV for 11; "signal 40", say, for a real-time signal, which has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_status(status: int) -> str:
    """A process's exit status, as subprocess gives it, in words."""
    return f"died of {signal_name(-status)}" if status < 0 else f"ended with status {status}"


def free_memory_bytes() -> int:
    """This machine's memory that programs may still take. Caches of files count as free where the
    system tells them apart."""
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
