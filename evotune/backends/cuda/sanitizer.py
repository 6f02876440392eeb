"""Runs a champion's machine code under NVIDIA's compute-sanitizer, if that is installed.

- memcheck finds reads and writes outside any allocation, not all of which guard bands can see. Its
  findings disqualify.
- initcheck finds reads of global memory that was never written; for it outputs and scratch memory
  stay as they were allocated. It does not look at shared memory and registers. Its findings
  disqualify.
- racecheck finds hazards between threads on shared memory. Its findings disqualify a kernel that
  uses no mbarriers, as NONDETERMINISTIC.

racecheck does not understand mbarriers that a kernel uses directly: it reports producer warps that
fill a buffer and consumer warps that read it, although the barrier orders them. So its findings on
a kernel that uses mbarriers, or on one compiled before that was recorded, are stored as a failed
check and shown as a warning with the champion. A reader who knows the kernel must judge them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from evotune.backends.base.backend import (
    SANITIZER,
    TOOLS,
    SanitizedCase,
    not_sanitized,
    sanitizer_check,
)
from evotune.backends.base.time_limits import communicate
from evotune.backends.cuda.tool_messages import SanitizedLaunches
from evotune.trial import Check, OutcomeKind
from evotune.util.channel import encode
from evotune.util.files import scratch_folder
from evotune.util.processes import module_command

LIMIT_S = 180.0
"""The time limit on a tool in s. A tool that runs longer is stopped, and its check is skipped."""

_END_S = 20.0
"""The program under a tool that is killed ends within this time. Until then it holds the tool's
output."""

DONE = "launched every case"
"""The last line that the program prints; without it the tool has not seen every launch."""

_OPTIONS = {"memcheck": ("--report-api-errors", "no"), "initcheck": (), "racecheck": ()}
_ERROR_SUMMARY = re.compile(r"^=+ ERROR SUMMARY: (\d+) errors?\b", re.MULTILINE)
_RACECHECK_SUMMARY = re.compile(
    r"^=+ RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, (\d+) warnings?\)",
    re.MULTILINE,
)
_FINDING = re.compile(
    r"^=+ ((?:Error: |Warning: |Invalid |Misaligned |Uninitialized ).+(?:\n=+ +at .+)?)",
    re.MULTILINE,
)
_WORDS_CHARACTERS = 200


def find_sanitizer() -> str:
    """compute-sanitizer's path, on PATH or in a CUDA toolkit; "" if it is not installed."""
    roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [f"{root}/bin" for root in roots if root]
    return shutil.which(SANITIZER) or shutil.which(SANITIZER, path=os.pathsep.join(folders)) or ""


@contextlib.contextmanager
def sanitizing(cases: Sequence[SanitizedCase]) -> Iterator[Callable[[], list[Check]]]:
    """Runs the tools in parallel with the caller, on `cases` of small shapes. Yields a function
    that waits for them and returns one check for each. A tool that still runs when the block ends
    is killed."""
    path = find_sanitizer()
    if not path or not cases:
        why = f"{SANITIZER} is not installed" if not path else "the kernel supports no edge shape"
        yield lambda: not_sanitized(why)
        return
    with scratch_folder() as folder:
        tools = [_Tool(path, tool, folder / tool) for tool in TOOLS]
        for each in tools:
            # No poison for initcheck: it takes filled memory for written.
            poison = each.name != "initcheck"
            each.job.write_bytes(encode(SanitizedLaunches(tuple(cases), poison=poison)))
        with ThreadPoolExecutor(len(tools)) as pool:  # each takes seconds to start
            running = [pool.submit(each.check) for each in tools]
            try:
                yield lambda: [each.result() for each in running]
            finally:
                for each in tools:
                    each.stop()


def disqualification(check: Check, *, mbarriers: bool | None) -> OutcomeKind | None:
    """The outcome of a champion for which a tool reported `check`; None if it may pass.
    `mbarriers`: whether the kernel uses mbarriers, or None if that was not recorded."""
    if check.status != "failed":
        return None
    if check.inputs.endswith("racecheck"):
        return OutcomeKind.NONDETERMINISTIC if mbarriers is False else None
    if check.inputs.endswith("initcheck"):
        return OutcomeKind.WRONG_RESULT
    return OutcomeKind.OUT_OF_BOUNDS


class _Tool:
    """One tool: a separate process, which another thread may stop."""

    def __init__(self, path: str, name: str, job: Path) -> None:
        self.name = name
        self.job = job
        self._path = path
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def check(self) -> Check:
        """Runs the tool to its end."""
        program = module_command("evotune.backends.cuda.sanitized_launch", str(self.job))
        command = [self._path, "--tool", self.name, *_OPTIONS[self.name], *program]
        try:
            process = self._start(command)
        except OSError as error:
            words = f"{self.name} does not start: {error.strerror}"
            return sanitizer_check(self.name, "skipped", words)
        if process is None:
            return sanitizer_check(self.name, "skipped", f"{self.name} was stopped")
        with process:
            try:
                output, _ = communicate(process, LIMIT_S)
            except subprocess.TimeoutExpired:
                _kill(process)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=_END_S)
                words = f"{self.name} did not end within {LIMIT_S:g} s"
                return sanitizer_check(self.name, "skipped", words)
        return read_findings(self.name, output.decode(errors="replace"))

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._stopped:
                return None
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            return self._process

    def stop(self) -> None:
        """Kills the tool if it is at work; it does not start later. `check` returns once the
        program under the tool has ended as well: it must not disturb what is timed next."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                _kill(self._process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a tool and what runs under it: without its tool a program can hang until its alarm.
    Does nothing to a tool that has ended."""
    process.send_signal(signal.SIGSTOP)  # so that it starts nothing, and reaps nothing
    if process.poll() is None:
        for pid in _below(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.kill()


def _below(pid: int) -> list[int]:
    """The processes that this one started, and those that they started."""
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, children.read_text().split()):
                found += [child, *_below(child)]
    return found


def read_findings(tool: str, output: str) -> Check:
    """The check that follows from a tool's output. If the output has no errors, the check passes
    only if the tool saw the end of every launch; else it is skipped."""
    found = _first_finding(output)
    if tool != "racecheck":
        summary = _ERROR_SUMMARY.search(output)
        errors, warnings = (int(summary.group(1)) if summary else 0), 0
    else:
        summary = _RACECHECK_SUMMARY.search(output)
        errors, warnings = map(int, summary.groups()) if summary else (0, 0)
    if errors:
        # An error counts even if the program did not reach its end.
        detail = f"{_counted(errors, 'error')}: {found or 'see the tool'}"
        return sanitizer_check(tool, "failed", detail)
    if summary is None or DONE not in output:
        words = [line for line in map(str.strip, output.splitlines()) if line.strip("= ")]
        last = words[-1][:_WORDS_CHARACTERS] if words else "it said nothing"
        return sanitizer_check(tool, "skipped", f"{tool} did not see the launches: {last}")
    detail = f"{_counted(warnings, 'warning')}: {found}" if warnings else ""
    return sanitizer_check(tool, "passed", detail)


def _first_finding(output: str) -> str:
    match = _FINDING.search(output)
    words = match.group(1).replace("=", " ").split() if match else ()
    return " ".join(words)[:_WORDS_CHARACTERS]


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
