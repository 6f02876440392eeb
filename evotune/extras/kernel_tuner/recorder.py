"""Child process that runs a Kernel Tuner script until it calls `tune_kernel`: see `importing`."""

from __future__ import annotations

import os
import resource
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from evotune.extras.kernel_tuner.messages import RECORDER, NotRecorded, Recorded, RunScript
from evotune.extras.kernel_tuner.recorded_call import Unsuitable, describe
from evotune.extras.kernel_tuner.stubs import (
    Finished,
    NeedsGpu,
    Overlay,
    Written,
    install,
    named_calls,
)
from evotune.user_code import run_content
from evotune.workers.entry import lower_limit, open_channel

_MOST_WORDS = 300


def main() -> None:
    with open_channel(RECORDER, owns_processes=True) as channel:
        request = channel.receive()
        if request is not None:
            channel.send(_recorded(request))
            channel.receive()  # the parent kills this process, as the script's threads may go on


def _recorded(request: RunScript) -> Recorded:
    lower_limit(resource.RLIMIT_DATA, request.memory_bytes)
    recording = _Recording(request)
    tune_kernel, run_kernel = named_calls(recording.tuned, recording.overlay.begin)
    install({"tune_kernel": tune_kernel, "run_kernel": run_kernel})
    folder = os.path.dirname(request.path)
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.argv = [request.path, *request.arguments]
    try:
        run_content("__main__", request.path, request.content)
    except Finished:
        pass
    except BaseException as error:  # noqa: BLE001 (whatever the script raises is its end)
        if recording.result is None:
            return _failure(error, request)
    return recording.result or recording.none()


class _Recording:
    """Takes the first call of `tune_kernel`, or the first for the kernel that is asked for."""

    def __init__(self, request: RunScript) -> None:
        self.overlay = Overlay(Path(request.scratch))
        self.result: Recorded | None = None
        self._wanted = request.kernel
        self._passed: list[str] = []

    def tuned(self, given: Mapping[str, Any], frame: FrameType) -> object:
        name = str(given["kernel_name"])
        if self._wanted and self._wanted not in (name, name.partition("<")[0]):
            self._passed.append(name)
            self.overlay.begin()
            first = {key: values[0] for key, values in given["tune_params"].items()}
            return [{**first, "time": 1.0}], {}
        try:
            self.result = describe(given, frame)
        except Unsuitable as reason:
            self.result = NotRecorded(str(reason), frame.f_lineno)
        raise Finished

    def none(self) -> NotRecorded:
        if self._passed:
            names = ", ".join(dict.fromkeys(self._passed))
            return NotRecorded(f"it tunes {names}, not {self._wanted}")
        return NotRecorded("it ended without a call of kernel_tuner's tune_kernel()")


def _failure(  # noqa: PLR0911 (a line for each way to end)
    error: BaseException, request: RunScript
) -> NotRecorded:
    """The script's end, as one line."""
    traceback.print_exception(error)
    line = _line(error, request.path)
    words = " ".join(str(error).split())[:_MOST_WORDS]
    match error:
        case SyntaxError() if error.filename == request.path:
            return NotRecorded(f"not Python: {error.msg}", error.lineno or 1)
        case SystemExit():
            message = (
                f"it ended itself ({words or 0}) before tune_kernel() was called; give it its "
            )
            return NotRecorded(message + "arguments with --args", line)
        case ModuleNotFoundError() if error.name:
            message = f"it needs the package {error.name!r}; fix: pip install it, or what brings it"
            return NotRecorded(message, line, environment=True)
        case NeedsGpu():
            return NotRecorded(words, line, environment=True)
        case MemoryError():
            limit = f"{request.memory_bytes / 1e9:.1f} GB"
            message = f"it needs more than {limit} of memory, which is what is free here"
            return NotRecorded(message, line, environment=True)
        case Written():
            message = f"it would change {words} after run_kernel(), whose result is invented here"
            return NotRecorded(message, line)
    return NotRecorded(": ".join(filter(None, (type(error).__name__, words))), line)


def _line(error: BaseException, path: str) -> int:
    """The last line of the script itself in the error's traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((f.lineno or 0 for f in reversed(frames) if f.filename == path), 0)


if __name__ == "__main__":
    main()
