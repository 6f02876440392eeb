"""Every kind of fault again and again on one executor: its outcome, and a sound trial after it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from evotune.device.launch import Workspace
from evotune.engine.setup import load_setup
from evotune.trial import Outcome, OutcomeKind

from .faulty import SPACE, FaultyKernels, descendants, wait_until_gone
from .test_outcomes import FAULTS

pytestmark = pytest.mark.soak
REPEATS = 20

MORE_FAULTS = {
    "slow_compile": (OutcomeKind.COMPILE_TIMEOUT, "ran longer than"),
    "compiler_crash": (OutcomeKind.COMPILE_CRASH, "SIGSEGV"),
    "compiler_oom": (OutcomeKind.COMPILE_CRASH, "memory"),
    "infinite_loop": (OutcomeKind.TIMEOUT, "killed"),
    "stop": (OutcomeKind.TIMEOUT, "killed"),
    "device_oom": (OutcomeKind.DEVICE_OOM, ""),
    "corrupt_binary": (OutcomeKind.OK, ""),
}
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
    return FaultyKernels(tmp_path, trial_timeout_s=8.0, compile_timeout_s=6.0)


def _number(name: str) -> int:
    """What the compiler is told for `compiler_<name>`."""
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
    return kernels.run(fault)


def test_every_fault_ends_in_its_outcome_again_and_again(
    kernels: FaultyKernels, keep_result: Callable[..., None]
) -> None:
    faults = {**FAULTS, **MORE_FAULTS}
    speedups: dict[str, list[float]] = defaultdict(list)
    try:
        for repeat in range(REPEATS):
            for fault, (kind, reason) in faults.items():
                clean = kernels.run("none")
                outcome = _run(kernels, fault)
                assert outcome.kind is kind, (repeat, fault, outcome)
                assert reason in outcome.reason + outcome.log, (repeat, fault, outcome)
                after = kernels.run("none")
                assert after.ok, (repeat, fault, after)
                assert after.duplicate_of is None
                ratio = after.measurements[0].speedup / clean.measurements[0].speedup
                speedups[fault].append(ratio)
            medians = [statistics.median(ratios) for ratios in speedups.values()]
            keep_result(
                device="cpu",
                kinds=len(faults),
                repeats=repeat + 1,
                wrong_outcomes=0,
                sound_trials_that_failed=0,
                speedup_after_a_fault_to_before_median=round(statistics.median(medians), 4),
                speedup_after_a_fault_to_before_by_fault={
                    fault: round(statistics.median(ratios), 3) for fault, ratios in speedups.items()
                },
            )
        children = descendants(kernels.executor._devices[0]._child.pid)  # type: ignore[union-attr]
    finally:
        kernels.executor.close()
    assert not wait_until_gone(children)
