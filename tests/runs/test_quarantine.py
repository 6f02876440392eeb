"""A configuration that ended two workers leaves a script that tries it alone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from workers.faulty import run_of, space_text

from evotune.runs.folder import RunFolder, create_folder, quarantine
from evotune.trial import QUARANTINED, Configuration, Outcome, OutcomeKind, Trial
from tests.patience import PATIENCE_S

from .runs import run_here
from .test_cpu_run import ROOT

SPACE = space_text(
    "deadly", "parameters:\n  FAULT: {choices: [none, exit]}\nsearch: {strategy: exhaustive}\n"
)


def test_nothing_but_json_gets_into_the_script(tmp_path: Path) -> None:
    run = create_folder(tmp_path, "x")
    outcome = Outcome(
        OutcomeKind.WORKER_LOST, reason="said\ntouch pwned", log="$(x)", flags=(QUARANTINED,)
    )
    quarantine(run.quarantine, Trial(3, Configuration({"A": "'; touch pwned; '"}), outcome))
    script = (run.quarantine / "trial-3.sh").read_text()
    assert "said" not in script
    lines = [line for line in script.splitlines() if line and not line.startswith("#")]
    assert len(lines) == 1
    said = subprocess.run(
        ["sh", "-c", script.replace("exec ", "echo ")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.rstrip().endswith("""verify . --config {"A":"'; touch pwned; '"}""")
    assert not list(tmp_path.rglob("pwned"))


def quarantined(space: Path, runs_dir: Path) -> RunFolder:
    """A run with a configuration in quarantine, made without running anything."""
    run = run_of(space, runs_dir, {"FAULT": "exit"})
    outcome = Outcome(OutcomeKind.WORKER_LOST, flags=(QUARANTINED,))
    quarantine(run.quarantine, Trial(0, Configuration({"FAULT": "exit"}), outcome))
    return run


def quarantines(space: Path, runs_dir: Path) -> RunFolder:
    return run_here(space, runs_dir, trials=2, champions=0)


@pytest.mark.soak
@pytest.mark.parametrize("make", [quarantined, pytest.param(quarantines, marks=pytest.mark.soak)])
def test_a_quarantined_configuration_is_reproduced_by_its_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path, Path], RunFolder]
) -> None:
    monkeypatch.setenv("EVOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))))
    space = tmp_path / "deadly.yaml"
    space.write_text(SPACE)
    make(space, tmp_path / "runs")
    (script,) = tmp_path.glob("runs/*/quarantine/trial-*.sh")
    alone = subprocess.run(
        ["sh", script], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert alone.returncode == 1, alone.stderr
    assert "worker_lost" in alone.stdout
    assert "ended with status 7" in alone.stdout
