"""Tunes a script that the user runs as `python SCRIPT ARGS`: the command `tune-model`.

The script runs in child processes only, which this module is the program of: once to time its calls
of attention without a package, once with one, and then as a whole without and with it, in turn.
A job says what to do, and the child writes its answer into a file.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Literal

import msgspec

from evotune.api.model_package import Gain, ModelCall, ModelPackage
from evotune.api.model_tuning import MINUTES, tune_target
from evotune.api.recording_calls import run_script
from evotune.errors import EvotuneError, Interrupted, UsageError
from evotune.portfolios.case_searches import Observing
from evotune.timing.paired import TimingSettings, measure_paired
from evotune.util.files import scratch_folder, whole_file
from evotune.util.processes import describe_status, interruptible, module_command
from evotune.util.words import shorten

__all__ = ["tune_script"]

_ROUNDS = 5
_RUNS = 4 * _ROUNDS
_SETTINGS = TimingSettings(min_rounds=_ROUNDS, max_rounds=_ROUNDS, max_seconds=float("inf"))


def tune_script(
    script: str,
    arguments: Sequence[str],
    folder: Path,
    observing: Observing,
    say: Callable[[str], None],
    *,
    minutes: float | None = None,
    trials: int | None = None,
    misses_only: bool = False,
) -> ModelPackage:
    """`tune_model` for a script. Its calls of attention are timed where it makes them; the whole
    script is timed in fresh processes, from its first line to its last, if 20 runs take no longer
    than the search may.

    Raises UsageError if there is no such file, EvotuneError if the script fails.
    """
    if not Path(script).is_file():
        raise UsageError(f"{script}: no such file")
    most_s = 60.0 * (MINUTES if minutes is None else minutes)
    target = _ScriptTarget(script, arguments, folder, say, most_s)
    return tune_target(
        target, folder, observing, say, minutes=minutes, trials=trials, misses_only=misses_only
    )


class _Job(msgspec.Struct):
    """What a child does: `calls` times the calls of attention, `whole` the script."""

    kind: Literal["calls", "whole"]
    packages: list[str] = []
    fast_path_off: bool = False
    script: str = ""
    arguments: list[str] = []


class _Answer(msgspec.Struct):
    """`ended`: how the script ended, in words; "" for its usual end. `fault`: of a package.
    `script_us`: from the script's first line to its last."""

    ended: str = ""
    fault: str = ""
    calls: list[ModelCall] = []
    device: str = ""
    script_us: float = 0.0


class _ScriptTarget:
    """A script with its arguments. `most_s`: how long all runs of the whole script may take."""

    again = "the same command with --misses-only tunes for them alone"

    def __init__(
        self,
        script: str,
        arguments: Sequence[str],
        folder: Path,
        say: Callable[[str], None],
        most_s: float,
    ) -> None:
        self._script, self._arguments = script, list(arguments)
        self._log, self._say, self._most_s = folder / "script.log", say, most_s
        self.what = shorten(" ".join([os.path.basename(script), *arguments]), 200)

    def recorded(self, *, fast_path_off: bool) -> tuple[list[ModelCall], str]:
        answer = self._run(_Job("calls", fast_path_off=fast_path_off))
        return answer.calls, answer.device

    def measure(self, package: ModelPackage) -> None:
        tuned = package.folders, package.fast_path_off
        answer = self._run(_Job("calls", *tuned))
        if answer.fault:
            raise EvotuneError(answer.fault)
        if not package.set_calls(answer.calls):
            return
        once_us = self._run(_Job("whole")).script_us
        if _RUNS * once_us > 1e6 * self._most_s:
            minutes = _RUNS * once_us / 60e6
            package.skipped["script"] = f"{_RUNS} runs take {minutes:.2g} minutes: see --minutes"
            return
        self._say(f"running the whole script {_RUNS} times, without and with the package in turn")
        candidate, baseline = (
            _Runs(functools.partial(self._run, job))
            for job in (_Job("whole", *tuned), _Job("whole"))
        )
        measured = measure_paired(
            candidate, baseline, case="", baseline_name="", settings=_SETTINGS
        )
        package.gains["script"] = Gain.of(measured)

    def _run(self, job: _Job) -> _Answer:
        """Runs the script in a child, and keeps what it prints in the log."""
        given = msgspec.structs.replace(job, script=self._script, arguments=self._arguments)
        with scratch_folder() as scratch:
            (scratch / "job").write_bytes(msgspec.json.encode(given))
            with self._log.open("wb") as log:
                status = _ended([__name__, str(scratch)], log)
            answer = _Answer(ended=describe_status(status))
            with contextlib.suppress(OSError):
                answer = msgspec.json.decode((scratch / "answer").read_bytes(), type=_Answer)
        if answer.ended:
            raise EvotuneError(f"{self._script} {answer.ended}; see {self._log}")
        return answer


class _Runs:
    """A sampler that runs the whole script."""

    def __init__(self, run: Callable[[], _Answer]) -> None:
        self._run = run

    def run(self) -> None:
        """Each sample is a process of its own, so none needs a run before it."""

    def time_us(self) -> float:
        return self._run().script_us


def _ended(module: Sequence[str], output: IO[bytes]) -> int:
    """The exit status of a child, which ends with this process."""
    with interruptible():
        child = subprocess.Popen(
            module_command(*module), stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            return child.wait()
        except BaseException:
            child.terminate()
            child.wait()
            raise


# The child.


def _main(scratch: Path) -> None:
    import torch

    from evotune.api.loaded_packages import LoadedPackages
    from evotune.api.model_timing import device_request, timed_calls

    job = msgspec.json.decode((scratch / "job").read_bytes(), type=_Job)
    packages = LoadedPackages(job.packages, fast_path_off=job.fast_path_off)
    answer = _Answer()

    def run() -> None:
        begin_s = time.perf_counter()
        code = run_script(job.script, job.arguments, as_program=True)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        answer.script_us = (time.perf_counter() - begin_s) * 1e6
        answer.ended = describe_status(code) if code else ""

    if job.kind == "whole":
        with packages.active():
            run()
    else:
        try:
            packages.check()
            answer.calls = timed_calls(run, packages)
            answer.device = device_request(answer.calls)
        except EvotuneError as error:
            answer.fault = str(error)
    with whole_file(scratch / "answer") as file:
        file.write(msgspec.json.encode(answer))


if __name__ == "__main__":
    try:
        _main(Path(sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit(Interrupted.exit_code)
