"""Every kind of fault, many times on one executor, has its outcome; the next trial is sound."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from evotune.backends.base.launch import Workspace
from evotune.runs.setup import load_setup
from evotune.timing.paired import median_interval
from evotune.trial import Measurement, Outcome, OutcomeKind
from tests.patience import assert_cut_short, limited_compiler, limited_trials

from .faulty import SPACE, FaultyKernels, descendants, wait_until_gone
from .test_outcomes import FAULTS

pytestmark = pytest.mark.soak
REPEATS = 20

MORE_FAULTS = {
    "abort": (OutcomeKind.LAUNCH_ERROR, "SIGABRT"),
    "divide_trap": (OutcomeKind.LAUNCH_ERROR, "SIGFPE"),
    "illegal_instruction": (OutcomeKind.LAUNCH_ERROR, "SIGILL"),
    "answers_nonsense": (OutcomeKind.WORKER_LOST, "sent a message that cannot be read"),
    "slow_compile": (OutcomeKind.COMPILE_TIMEOUT, "ran longer than"),
    "compiler_crash": (OutcomeKind.COMPILE_CRASH, "SIGSEGV"),
    "compiler_oom": (OutcomeKind.COMPILE_CRASH, "memory"),
    "infinite_loop": (OutcomeKind.TIMEOUT, "killed"),
    "stop": (OutcomeKind.TIMEOUT, "killed"),
    "device_oom": (OutcomeKind.DEVICE_OOM, ""),
    "corrupt_binary": (OutcomeKind.OK, ""),
}
ENDLESS = ("slow_compile", "infinite_loop")  # they need a core all the time
_COMPILER = """#!/bin/bash
case " $* " in
  *" -DFAULT={crash} "*) kill -SEGV $$ ;;
  *" -DFAULT={oom} "*) ulimit -v 60000 ;;
esac
exec g++ "$@"
"""


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FaultyKernels:
    compiler = tmp_path / "compiler"
    numbers = {name: _number(name) for name in ("crash", "oom")}
    compiler.write_text(_COMPILER.format(**numbers))
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    return FaultyKernels(tmp_path)


def _number(name: str) -> int:
    """The value of FAULT that stands for `compiler_<name>`."""
    (parameter,) = load_setup(SPACE, "cpu").space.parameters
    return 1 + parameter.values.index(f"compiler_{name}")


def _run(kernels: FaultyKernels, fault: str) -> Outcome:
    if fault == "device_oom":
        return kernels.run_proposal(kernels.proposal("none", Workspace("scratch", 1 << 55)))
    if fault == "corrupt_binary":
        for binary in (kernels.folder / "cache" / "objects").glob("*/*.bin"):
            content = bytearray(binary.read_bytes())
            content[len(content) // 2] ^= 1
            binary.write_bytes(content)
        fault = "none"
    if fault in ("infinite_loop", "stop"):
        with limited_trials(kernels.executor, 8.0):
            return kernels.run(fault)
    if fault == "slow_compile":
        with limited_compiler(kernels.executor._pool, 6.0):
            return kernels.run(fault)
    return kernels.run(fault)


def _interval(ratios: Sequence[float]) -> dict[str, float]:
    """The median ratio with its 95% bootstrap interval."""
    if not ratios:
        return {"pairs": 0}
    found = median_interval(ratios)
    figures = {"median": found.median, "low": found.low, "high": found.high}
    return {"pairs": len(ratios), **{name: round(value, 4) for name, value in figures.items()}}


def test_every_fault_ends_in_its_outcome_again_and_again(
    kernels: FaultyKernels, keep_result: Callable[..., None]
) -> None:
    """The sound trial after a fault is compared with the sound trials before the fault and after
    itself. Each of those two followed a sound trial, and drift of the machine cancels out."""
    faults = {**FAULTS, **MORE_FAULTS}
    speedups: list[float] = []
    kept: list[float] = []  # ratios of times when the worker survived the fault
    renewed: list[float] = []  # and when another one took its place
    try:
        before = _sound(kernels)
        for repeat in range(REPEATS):
            for fault, (kind, reason) in faults.items():
                worker = _worker(kernels)
                outcome = _run(kernels, fault)
                if fault in ENDLESS:
                    assert_cut_short(outcome, MORE_FAULTS[fault][0], reason)
                else:
                    kinds = kind if isinstance(kind, tuple) else (kind,)
                    assert outcome.kind in kinds, (repeat, fault, outcome)
                    assert reason in outcome.reason + outcome.log, (repeat, fault, outcome)
                after, later = _sound(kernels), _sound(kernels)
                same = _worker(kernels) == worker
                time_ratio, speedup_ratio = (
                    getattr(after, figure)
                    / math.sqrt(getattr(before, figure) * getattr(later, figure))
                    for figure in ("time_us", "speedup")
                )
                (kept if same else renewed).append(time_ratio)
                speedups.append(speedup_ratio)
                before = later
            keep_result(
                device="cpu",
                kinds=len(faults),
                repeats=repeat + 1,
                wrong_outcomes=0,
                sound_trials_that_failed=0,
                load=round(os.getloadavg()[0], 1),
                time_after_a_fault_to_after_a_sound_trial=_interval(kept + renewed),
                time_ratio_in_the_same_worker=_interval(kept),
                time_ratio_in_a_new_worker=_interval(renewed),
                speedup_after_a_fault_to_after_a_sound_trial=_interval(speedups),
            )
        children = descendants(_worker(kernels))
    finally:
        kernels.executor.close()
    assert not wait_until_gone(children)


def _sound(kernels: FaultyKernels) -> Measurement:
    """The measurement of a sound trial. Its time is a median of samples, which a busy machine
    changes little; the speedup is a median of ratios of rounds, and one pause spoils a ratio."""
    outcome = kernels.run("none")
    assert outcome.ok, outcome
    assert outcome.duplicate_of is None
    return outcome.measurements[0]


def _worker(kernels: FaultyKernels) -> int:
    """The id of the process that the next trial will run in; 0 when that is to be a new one."""
    child = kernels.executor._devices[0]._child
    return child.pid if child is not None else 0
