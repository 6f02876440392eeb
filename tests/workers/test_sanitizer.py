"""Checks are read from compute-sanitizer's output; a stand-in prints it, so no GPU is needed."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest

from evotune.backends.base.backend import TOOLS, SanitizedCase, not_sanitized
from evotune.backends.base.evidence import normal_values
from evotune.backends.base.launch import LaunchPlan
from evotune.backends.cuda import sanitizer
from evotune.backends.cuda.sanitizer import (
    DONE,
    disqualification,
    find_sanitizer,
    read_findings,
    sanitizing,
)
from evotune.problems.problem import TensorSpec
from evotune.trial import Check, OutcomeKind

CASE = SanitizedCase("x.bin", LaunchPlan("f", (), (), ()), (TensorSpec("q", (4,), "float16"),))
MEMCHECK_CLEAN = f"""\
========= COMPUTE-SANITIZER
{DONE}
========= ERROR SUMMARY: 0 errors
"""
MEMCHECK_ERRORS = f"""\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at attention_forward+0x6b0
=========     by thread (31,0,0) in block (0,0,0)
=========     Access at 0x7f6a0a000200 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f6a0a000000 of size 512 bytes
=========
{DONE}
========= ERROR SUMMARY: 2 errors
"""
INITCHECK_ERRORS = f"""\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at attention_forward+0x1f0
=========     by thread (3,0,0) in block (0,0,0)
=========     Address 0x7f2b4a000404
=========
{DONE}
========= ERROR SUMMARY: 12 errors
"""
RACECHECK_CLEAN = f"""\
========= COMPUTE-SANITIZER
{DONE}
========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)
"""
RACECHECK_HAZARDS = f"""\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at attention_forward+0x6190
=========     and Read access at attention_forward+0x7a30 [24576 hazards]
=========
{DONE}
========= RACECHECK SUMMARY: 100 hazards displayed (306 errors, 0 warnings)
"""
RACECHECK_WARNING = f"""\
========= Warning: Race reported between Read access at attention_forward+0x610
=========     and Write access at attention_forward+0x7a0 [8 hazards]
{DONE}
========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)
"""


@pytest.mark.parametrize(
    ("tool", "output", "status", "detail"),
    [
        ("memcheck", MEMCHECK_CLEAN, "passed", ""),
        (
            "memcheck",
            MEMCHECK_ERRORS,
            "failed",
            "2 errors: Invalid __global__ write of size 4 bytes at attention_forward+0x6b0",
        ),
        ("memcheck", "========= ERROR SUMMARY: 1 error", "failed", "1 error: see the tool"),
        ("initcheck", MEMCHECK_CLEAN, "passed", ""),
        (
            "initcheck",
            INITCHECK_ERRORS,
            "failed",
            "12 errors: Uninitialized __global__ memory read of size 4 bytes"
            " at attention_forward+0x1f0",
        ),
        ("racecheck", RACECHECK_CLEAN, "passed", ""),
        (
            "racecheck",
            RACECHECK_HAZARDS,
            "failed",
            "306 errors: Error: Race reported between Write access at attention_forward+0x6190",
        ),
        (
            "racecheck",
            RACECHECK_WARNING,
            "passed",
            "1 warning: Warning: Race reported between Read access at attention_forward+0x610",
        ),
    ],
)
def test_findings_are_read_from_the_tools_words(
    tool: str, output: str, status: str, detail: str
) -> None:
    check = read_findings(tool, output)
    assert (check.status, check.detail) == (status, detail)
    assert (check.case, check.inputs) == ("edge shapes", f"compute-sanitizer {tool}")


@pytest.mark.parametrize(
    ("tool", "output", "last"),
    [
        ("memcheck", "", "it said nothing"),
        ("memcheck", "========= Error: cannot find the driver\n", "cannot find the driver"),
        # The program died before its launches, so that "0 errors" says nothing.
        (
            "memcheck",
            "ImportError: no cupy\n========= ERROR SUMMARY: 0 errors\n",
            "ERROR SUMMARY: 0 errors",
        ),
        ("racecheck", MEMCHECK_CLEAN, "ERROR SUMMARY: 0 errors"),
    ],
)
def test_a_tool_that_did_not_see_the_launches_is_skipped_and_never_passed(
    tool: str, output: str, last: str
) -> None:
    check = read_findings(tool, output)
    assert check.status == "skipped"
    assert check.detail.startswith(f"{tool} did not see the launches: ")
    assert last in check.detail


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> Path:
    """A `compute-sanitizer` in a CUDA toolkit that is not on PATH."""
    tool = folder / "bin" / "compute-sanitizer"
    tool.parent.mkdir()
    tool.write_text(f"#!{sys.executable}\n{program}")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder / "nothing"))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("CUDA_HOME", str(folder))
    return tool


def checks_of_tools() -> list[Check]:
    with sanitizing([CASE]) as tools:
        return tools()


def test_the_tool_is_found_in_a_toolkit_and_without_it_both_checks_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = install(tmp_path, monkeypatch, "")
    assert find_sanitizer() == str(tool)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nothing"))
    if find_sanitizer():
        pytest.skip("compute-sanitizer is installed in /usr/local/cuda")
    assert checks_of_tools() == not_sanitized("compute-sanitizer is not installed")


def test_each_tool_runs_the_launching_program_on_the_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"""
import msgspec, sys
tool = sys.argv[sys.argv.index("--tool") + 1]
module, job = sys.argv[-2:]
assert sys.argv[-3] == "-m"
job = msgspec.msgpack.decode(open(job, "rb").read())
words = ("told", tool, module, job["cases"][0]["binary"], job["poison"])
print(*words, file=open({str(tmp_path / "told")!r}, "a"))
print({RACECHECK_HAZARDS!r} if tool == "racecheck" else {MEMCHECK_CLEAN!r})
"""
    install(tmp_path, monkeypatch, program)
    checks = checks_of_tools()
    assert [check.inputs.split()[-1] for check in checks] == list(TOOLS)
    assert [check.status for check in checks] == ["passed", "passed", "failed"]
    told = sorted((tmp_path / "told").read_text().splitlines())
    cases = "evotune.backends.cuda.sanitized_launch x.bin"
    # For initcheck memory is not filled with poison: it would look like memory that was written.
    assert told == [
        f"told initcheck {cases} False",
        f"told memcheck {cases} True",
        f"told racecheck {cases} True",
    ]


def test_a_tool_that_hangs_or_cannot_start_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = install(tmp_path, monkeypatch, "import time; time.sleep(60)")
    monkeypatch.setattr(sanitizer, "LIMIT_S", 0.3)
    details = [check.detail for check in checks_of_tools()]
    assert details == [f"{name} did not end within 0.3 s" for name in TOOLS]
    tool.write_text("#!/no/such/interpreter\n")
    for check in checks_of_tools():
        assert (check.status, "does not start" in check.detail) == ("skipped", True)


def install_above_a_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tool whose program goes on when the tool is killed, and holds the tool's output. Returns a
    file with the program's process ids, a line for each tool."""
    begun = folder / "begun"
    tool = install(folder, monkeypatch, "")
    program = f"echo $$ >> {begun}; while :; do sleep 1; done"
    tool.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\nsh -c '{program}'\nexit\n")
    return begun


def test_the_program_under_a_tool_that_hangs_has_ended_with_its_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = install_above_a_program(tmp_path, monkeypatch)
    monkeypatch.setattr(sanitizer, "LIMIT_S", 1.0)
    details = [check.detail for check in checks_of_tools()]
    assert details == [f"{name} did not end within 1 s" for name in TOOLS]
    pids = begun.read_text().split() if begun.exists() else []  # late on a busy machine
    assert not any(is_at_work(pid) for pid in pids)


def test_the_program_under_a_tool_ends_with_the_block_that_needs_it_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = install_above_a_program(tmp_path, monkeypatch)
    with sanitizing([CASE]):
        while not begun.exists() or begun.read_text().count("\n") < len(TOOLS):
            time.sleep(0.01)
    assert not any(is_at_work(pid) for pid in begun.read_text().split())


def is_at_work(pid: str) -> bool:
    """Whether the process runs; one that ended may wait to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_tool_at_work_ends_with_the_block_that_needs_it_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins, ends = tmp_path / "begins", tmp_path / "ends"
    program = "import time; open({!r}, 'w').close(); time.sleep(30); open({!r}, 'w').close()"
    install(tmp_path, monkeypatch, program.format(str(begins), str(ends)))
    with sanitizing([CASE]):
        while not begins.exists():
            time.sleep(0.01)
    assert not ends.exists()


def test_inputs_are_the_same_values_in_every_type() -> None:
    exact = normal_values(1000, "float32")
    halves = normal_values(1000, "float16").astype(np.float32)
    cut_off = normal_values(1000, "bfloat16")
    brains = (cut_off.astype(np.uint32) << 16).view(np.float32)
    assert cut_off.nbytes == 2000
    assert np.abs(halves - exact).max() < 2e-3
    assert np.abs(brains - exact).max() < 4e-2
    assert 0.9 < exact.std() < 1.1


@pytest.mark.parametrize(
    ("tool", "output", "mbarriers", "kind"),
    [
        ("memcheck", MEMCHECK_ERRORS, True, OutcomeKind.OUT_OF_BOUNDS),
        ("memcheck", MEMCHECK_CLEAN, False, None),
        ("racecheck", RACECHECK_HAZARDS, False, OutcomeKind.NONDETERMINISTIC),
        ("racecheck", RACECHECK_HAZARDS, True, None),  # racecheck does not follow mbarriers
        ("racecheck", RACECHECK_HAZARDS, None, None),  # compiled before mbarriers were noted
        ("racecheck", RACECHECK_WARNING, False, None),
        ("racecheck", "", False, None),
    ],
)
def test_what_a_tool_found_disqualifies_unless_it_may_be_mistaken(
    tool: str, output: str, mbarriers: bool | None, kind: OutcomeKind | None
) -> None:
    assert disqualification(read_findings(tool, output), mbarriers=mbarriers) is kind
