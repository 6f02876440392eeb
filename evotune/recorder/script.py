"""Runs a Python script as `python SCRIPT ARGS` would, in this process."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Sequence
from types import TracebackType


def run_script(script: str, arguments: Sequence[str]) -> int:
    """Runs the script as `__main__`, with its `sys.argv` and its folder first in `sys.path`, and
    returns the exit code that Python would have had. An exception that the script leaves uncaught
    is printed as Python prints it. KeyboardInterrupt for Ctrl-C."""
    before = sys.argv, sys.path[:], signal.getsignal(signal.SIGINT)
    folder = os.path.dirname(os.path.realpath(script))
    if not sys.flags.safe_path:
        # A console script's own folder stands there, which Python would not have put there.
        own = os.path.dirname(os.path.realpath(sys.argv[0]))
        sys.path[:] = [folder, *(sys.path[1:] if sys.path[:1] == [own] else sys.path)]
    sys.argv = [script, *arguments]
    if before[2] is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ending:
        return _code(ending)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the script's own end, whatever it is
        error.__traceback__ = _of_script(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    finally:
        sys.argv, sys.path[:] = before[0], before[1]
        if before[2] is not None:
            signal.signal(signal.SIGINT, before[2])
        sys.stdout.flush()
    return 0


def _code(ending: SystemExit) -> int:
    """The exit code of sys.exit(…); any other object is printed, and means 1."""
    if ending.code is None or isinstance(ending.code, int):
        return int(ending.code or 0) & 0xFF
    print(ending.code, file=sys.stderr)
    return 1


def _of_script(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of this module and of runpy."""
    own = (__file__, runpy.__file__, "<frozen runpy>")
    while traceback is not None and traceback.tb_frame.f_code.co_filename in own:
        traceback = traceback.tb_next
    return traceback
