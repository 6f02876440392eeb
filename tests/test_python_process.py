"""The end of a process that has executed a candidate's code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evotune.backends.base.launch import CompileFailure, CompileJob
from evotune.backends.cpu.cpp_compiler import CpuCompiler
from tests.patience import PATIENCE_S

HOOKS = """
#include <cstdio>
#include <cstdlib>

struct Last {
  ~Last() { std::puts("a destructor"); std::fflush(stdout); std::abort(); }
};
static void forge() { std::puts("{\\"time_us\\": 0.1}"); std::fflush(stdout); _Exit(0); }

extern "C" void kernel() {
  static Last last;
  std::atexit(forge);
  std::at_quick_exit(forge);
  std::puts("in a buffer");
}
"""
PROGRAM = """
import atexit, ctypes, sys
from evotune.util.processes import end_without_hooks

def main():
    ctypes.CDLL(sys.argv[1]).kernel()
    atexit.register(print, "a hook of Python")
    print("the answer")
    {ending}

{call}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hooks")
    (folder / "k.cpp").write_text(HOOKS)
    job = CompileJob("cpp", str(folder), "k.cpp", (), (), "native", "")
    made = CpuCompiler().compile(job, folder / "k.so", PATIENCE_S)
    assert not isinstance(made, CompileFailure), made
    return folder / "k.so"


def ended(library: Path, ending: str, call: str) -> tuple[int, list[str], str]:
    program = PROGRAM.format(ending=ending, call=call)
    done = subprocess.run(
        [sys.executable, "-c", program, str(library)],
        cwd=Path(__file__).parents[1],
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize(
    ("ending", "status", "errors"),
    [
        ("", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('no room')", 1, "no room\n"),
        ("raise ValueError('broken')", 1, "ValueError: broken\n"),
    ],
)
def test_what_a_kernel_registered_for_the_end_does_not_run(
    library: Path, ending: str, status: int, errors: str
) -> None:
    found, lines, said = ended(library, ending, "end_without_hooks(main)")
    assert (found, lines) == (status, ["the answer"])
    assert said.endswith(errors)


def test_it_would_run_in_a_process_that_ends_by_itself(library: Path) -> None:
    _, lines, _ = ended(library, "", "main()")
    assert lines[-1] != "the answer"
