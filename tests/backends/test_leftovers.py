"""A session finds the leftovers of every cheat in its process, and none of honest kernels.

The kernels are those of data/leftovers.cpp. A process (`leaving.py`) runs many of them, each in a
session like a device worker's, honest ones first.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from evotune.backends.base.launch import CompileFailure, CompileJob
from evotune.backends.cpu.cpp_compiler import CpuCompiler
from tests.patience import PATIENCE_S

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

SPINNING = ["pool_of_two", "pool_that_spins_longer"]
HONEST = [
    *("plain", "pinned_pool", "openmp", "openmp_with_four", "thread_a_call", "large_blocks"),
    *("keeps_memory", "loads_a_library", "keeps_a_file", "thread_local_memory"),
    *("restores_affinity", "restores_rounding_of_openmp", "static_object"),
    "restores_garbage_collection",
]
CHEATS = {
    "interval_timer": "left the interval timer ITIMER_REAL running",
    "profiling_timer": "left the interval timer ITIMER_PROF running",
    "posix_timer": "left a POSIX timer running",
    "timer_file": "left anon_inode:[timerfd] open",
    "alarm_that_is_short": "left the interval timer ITIMER_REAL running",
    "handler": "changed the handler of SIGUSR1",
    "handler_of_a_fault": "changed the handler of SIGSEGV",
    "ignores_signals": "changed the handler of SIGUSR2",
    "blocks_signals": "changed which signals are blocked",
    "affinity": "changed the CPU affinity",
    "threads_of_openmp": "changed PyTorch's number of threads from",
    "rounding_of_openmp": "in PyTorch's threads",
    "dynamic_openmp": "changed OpenMP's settings (omp_get_dynamic is now 1)",
    "priority": "changed the priority of a thread",
    "batch_policy": "changed the priority of a thread",
    "timer_slack": "changed the slack of its timers",
    "limit": "changed the limit RLIMIT_STACK",
    "filled_blocks": "changed how malloc works (fills)",
    "mapped_blocks": "changed how malloc works (maps 31 MiB",
    "returned_memory": "changed how malloc works (returns 31 MiB",
    "variable": "changed the environment variable OMP_NUM_THREADS",
    "working_folder": "changed the working folder",
    "file_modes": "changed the mask of new files' modes",
    "collects_garbage_often": "changed Python's garbage collector",
    "collects_no_garbage": "changed Python's garbage collector",
    "hooks_the_collector": "changed Python's callbacks of its garbage collector",
    "profiler": "changed Python's profiler",
    "profiler_in_c": "changed Python's profiler",
    "profiler_of_threads": "changed Python's profiler",
    "tracer": "changed Python's tracer",
    "audit_hook": "changed Python's audit hooks",
    "switch_interval": "changed Python's switch interval",
    "deterministic_mode": "changed PyTorch's deterministic mode",
    "no_gradients": "changed PyTorch's gradient mode",
    "default_type": "changed PyTorch's default type",
    "default_device": "changed PyTorch's default device",
    "autocast": "changed PyTorch's autocast",
    "fewer_bits": "changed PyTorch's precision",
    # These leave something at work
    "spinner": "busy after it returned",
    "helper_at_half": "busy",
    "helper_at_a_tenth": "busy",
    "follows_launches": "busy",
    "waits_before_it_follows": "busy",
}
_TOO_LATE = {"alarm_that_is_short": "changed the handler of SIGALRM"}
"""The words about a timer that ran out before the session could look, as on a slow machine."""
WORKING = [name for name, words in CHEATS.items() if words.startswith("busy")]
_ONE_CORE = len(os.sched_getaffinity(0)) == 1
_OF_THREADS = {"affinity", "threads_of_openmp", "rounding_of_openmp"}
_ALIKE = _OF_THREADS if _ONE_CORE else set()  # change nothing on one core


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("leftovers")
    job = CompileJob("cpp", str(HERE / "data"), "leftovers.cpp", (), ("-O1",), "native", "")
    made = CpuCompiler().compile(job, folder / "leftovers.so", PATIENCE_S)
    assert not isinstance(made, CompileFailure), made.log
    return folder / "leftovers.so"


_ROOMS = """
import ctypes, json
from evotune.backends.cpu.native_runtime import allocator_behaviour, function, settle_allocator

settle_allocator()
malloc = function("malloc", ctypes.c_void_p)
malloc.argtypes = [ctypes.c_size_t]
found = []
for _ in range(8):
    found.append(allocator_behaviour())
    blocks = [malloc(60_000) for _ in range(7)]
print(json.dumps(found))
"""


@pytest.mark.parametrize("trimmed", [{}, {"MALLOC_TRIM_THRESHOLD_": "65536"}])
def test_ordinary_blocks_leave_the_allocator_s_behaviour_as_it_was(trimmed: dict[str, str]) -> None:
    """Dask starts its workers with that variable, in which an honest kernel was refused."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", _ROOMS],
        check=True,
        capture_output=True,
        cwd=ROOT,
        env={**kept, **trimmed},
        timeout=PATIENCE_S,
    )
    found = json.loads(done.stdout)
    assert len({json.dumps(each) for each in found}) == 1, found


def said(library: Path, repeats: int, kernels: Sequence[str]) -> dict[str, list[str]]:
    program = [sys.executable, str(HERE / "leaving.py"), str(library), str(repeats), *kernels]
    done = subprocess.run(
        program,
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_WAIT_POLICY": "passive"},
    )
    found: dict[str, list[str]] = json.loads(done.stdout.decode().splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def about(library: Path) -> dict[str, list[str]]:
    """What is said of each kernel."""
    once = [*HONEST, *(name for name in CHEATS if name not in WORKING)]
    return said(library, 1, once) | said(library, 3, [*SPINNING, *WORKING])


@pytest.mark.soak
@pytest.mark.parametrize("kernel", [name for name in CHEATS if name not in _ALIKE])
def test_what_a_cheat_changed_or_left_at_work_is_said(
    about: dict[str, list[str]], kernel: str
) -> None:
    words = about[kernel]
    expected = (CHEATS[kernel], _TOO_LATE.get(kernel, CHEATS[kernel]))
    assert any(either in each for each in words for either in expected), words


def test_each_cheat_of_the_source_is_tried() -> None:
    source = (HERE / "data" / "leftovers.cpp").read_text().partition("// Honest")[2]
    names = re.findall(r"^KERNEL\((\w+)", source, re.MULTILINE)
    tried = {*CHEATS, *HONEST, *SPINNING}
    assert set(names) - tried == {"pool_of_four_at_work", "helper_now_and_then"}


@pytest.mark.soak
def test_nothing_is_said_of_honest_kernels(about: dict[str, list[str]]) -> None:
    found = {kernel: about[kernel] for kernel in (*HONEST, *SPINNING)}
    assert not any(found.values()), found


@pytest.mark.soak
def test_a_pool_that_spins_a_while_is_never_refused_on_a_busy_machine(library: Path) -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        found = said(library, 40, [*SPINNING, "pool_of_four_at_work"])
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert not any(found.values()), found
