"""A portfolio with real searches and real times, killed at random moments (`make soak`)."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from evotune.portfolios.matrix_store import read_matrix
from tests.conftest import KeepResult
from tests.runs.runs import start_killable

CASES = [{"rows": rows, "columns": columns} for rows in (4, 64) for columns in (32, 64, 100)]


@pytest.mark.soak
def test_a_portfolio_survives_being_killed(tmp_path: Path, keep_result: KeepResult) -> None:
    (tmp_path / "cases.json").write_text(json.dumps(CASES))
    words = ["portfolio", "softmax-cpu", "--cases", tmp_path / "cases.json", "-k", "2"]
    words += ["-o", tmp_path / "runs", "--trials", "9", "--trust"]
    rng = random.Random(0)
    kills = 0
    for _ in range(40):
        process = start_killable(*words)
        # Ever later, since a search that is killed while it confirms begins that anew.
        deadline = time.monotonic() + rng.uniform(1, 20 * (kills + 1))
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        if process.poll() is not None:
            break
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    assert process.returncode in (0, 1)  # 1: on so tiny cases perhaps nothing wins
    with read_matrix(tmp_path / "runs") as matrix:
        keys = Counter(trial.configuration.key for trial in matrix.store.trials())
    assert set(keys.values()) == {1}
    assert json.loads((tmp_path / "runs" / "portfolio.json").read_text())["unmeasured"] == 0
    keep_result(kills=kills, cells=len(keys))
