"""A champion's machine code under NVIDIA's compute-sanitizer, where that is installed.

memcheck finds reads and writes outside any allocation, which guard bands cannot all see: what it
finds disqualifies. initcheck finds reads of global memory that nobody has written: outputs and
scratch memory are left for it as they were allocated; that disqualifies too. Of shared memory and
of registers it knows nothing. racecheck finds hazards between threads on shared memory. What it
finds disqualifies too, as a result that is not the same each time, in a kernel that uses no
mbarriers. It knows no hand-over through mbarriers that a kernel drives by hand: producer warps that
fill a buffer and consumer warps that read it are reported although the barrier orders them. So its
findings on such a kernel, or on one compiled before that was noted, are kept as a failed check and
shown as a warning beside the champion, and a reader who knows the kernel judges them.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from evotune.execute.channel import encode
from evotune.execute.messages import SanitizedCase, SanitizedLaunches
from evotune.python_process import module_command
from evotune.scratch import scratch_folder
from evotune.trial import Check, OutcomeKind

TOOLS = ("memcheck", "initcheck", "racecheck")
LIMIT_S = 180.0
"""A tool that runs longer is given up: its check is skipped."""

DONE = "launched every case"
"""The last words of a program under a tool: without them the tool has not seen the kernel."""

_TOOL = "compute-sanitizer"
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
    """Its path: on PATH, or in a CUDA toolkit; "" when it is not installed."""
    roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [f"{root}/bin" for root in roots if root]
    return shutil.which(_TOOL) or shutil.which(_TOOL, path=os.pathsep.join(folders)) or ""


def skipped_checks(detail: str) -> list[Check]:
    """What is recorded where the tools cannot run."""
    return [_check(tool, "skipped", detail) for tool in TOOLS]


def sanitize(cases: Sequence[SanitizedCase]) -> list[Check]:
    """One check a tool, on `cases` of small shapes."""
    path = find_sanitizer()
    if not path:
        return skipped_checks(f"{_TOOL} is not installed")
    if not cases:
        return skipped_checks("the kernel supports no edge shape")
    with scratch_folder() as folder:
        jobs = [folder / tool for tool in TOOLS]
        for tool, job in zip(TOOLS, jobs, strict=True):
            # Filled memory counts as written.
            job.write_bytes(encode(SanitizedLaunches(tuple(cases), poison=tool != "initcheck")))
        with ThreadPoolExecutor(len(TOOLS)) as pool:  # each takes seconds to start
            return list(pool.map(functools.partial(_run, path), TOOLS, jobs))


def disqualification(check: Check, *, mbarriers: bool | None) -> OutcomeKind | None:
    """How a champion of which a tool found that is to end; None when it may pass. Whether it uses
    `mbarriers` is None where nobody noted it."""
    if check.status != "failed":
        return None
    if check.inputs.endswith("racecheck"):
        return OutcomeKind.NONDETERMINISTIC if mbarriers is False else None
    if check.inputs.endswith("initcheck"):
        return OutcomeKind.WRONG_RESULT
    return OutcomeKind.OUT_OF_BOUNDS


def _run(path: str, tool: str, job: Path) -> Check:
    program = module_command("evotune.execute.sanitized_launch", str(job))
    command = [path, "--tool", tool, *_OPTIONS[tool], *program]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _check(tool, "skipped", f"{tool} did not end within {LIMIT_S:g} s")
    except OSError as error:
        return _check(tool, "skipped", f"{tool} does not start: {error.strerror}")
    return read_findings(tool, done.stdout.decode(errors="replace"))


def read_findings(tool: str, output: str) -> Check:
    """The check that a tool's output means: skipped unless it saw every launch to its end."""
    found = _first_finding(output)
    if tool != "racecheck":
        summary = _ERROR_SUMMARY.search(output)
        errors, warnings = (int(summary.group(1)) if summary else 0), 0
    else:
        summary = _RACECHECK_SUMMARY.search(output)
        errors, warnings = map(int, summary.groups()) if summary else (0, 0)
    if errors:
        # Whatever became of the program after: an error is an error.
        return _check(tool, "failed", f"{_counted(errors, 'error')}: {found or 'see the tool'}")
    if summary is None or DONE not in output:
        words = [line for line in map(str.strip, output.splitlines()) if line.strip("= ")]
        last = words[-1][:_WORDS_CHARACTERS] if words else "it said nothing"
        return _check(tool, "skipped", f"{tool} did not see the launches: {last}")
    detail = f"{_counted(warnings, 'warning')}: {found}" if warnings else ""
    return _check(tool, "passed", detail)


def _first_finding(output: str) -> str:
    match = _FINDING.search(output)
    words = match.group(1).replace("=", " ").split() if match else ()
    return " ".join(words)[:_WORDS_CHARACTERS]


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _check(tool: str, status: str, detail: str) -> Check:
    return Check("edge shapes", f"{_TOOL} {tool}", status, detail=detail)
