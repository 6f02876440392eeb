"""Runs on several GPUs, by evotune itself and by Dask, have the history of a run on one GPU."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from runs.dask_processes import Dask
from runs.runs import evotune, history
from runs.test_cpu_run import replayed

from evotune.runs.folder import RunFolder, list_runs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]
SEARCH = ("--champions", "1", "--lookahead", "32", "--seed", "0")


def complete(folder: Path, trials: int) -> tuple[RunFolder, Counter[str]]:
    """Checks the history of the only run there. Returns the run, and the number of trials that
    each device measured."""
    (run,) = list_runs(folder / "runs")
    found = history(run)
    assert [t.number for t in found] == list(range(trials))
    assert [t.configuration for t in found] == replayed(run, "cuda:0")
    assert all(t.outcome.ok for t in found), [t.outcome.reason for t in found if not t.outcome.ok]
    measured = [t.outcome.resources for t in found if t.outcome.duplicate_of is None]
    return run, Counter(str(resources["device"].get("id")) for resources in measured)


def test_a_run_on_two_gpus_goes_on_with_one(tmp_path: Path) -> None:
    words = evotune("run", "attention-mma", "--gpus", "2", "--trials", "60", *SEARCH)
    subprocess.run(words, cwd=tmp_path, check=True, timeout=300)
    _, by_device = complete(tmp_path, 60)
    assert len(by_device) == 2
    assert min(by_device.values()) >= 15
    words = evotune("resume", "latest", "--gpus", "1", "--trials", "80")
    subprocess.run(words, cwd=tmp_path, check=True, timeout=300)
    complete(tmp_path, 80)


def test_dask_workers_with_a_gpu_each_one_of_them_killed(
    tmp_path: Path, keep_result: Callable[..., None]
) -> None:
    dask = Dask(tmp_path)
    try:
        first = dask.add_worker(threads=16)
        dask.add_worker(threads=16)
        time.sleep(10.0)  # both are to be there when the run calibrates its devices
        words = evotune("run", "attention-mma", "--cluster", dask.address, "--trials", "150")
        process = subprocess.Popen([*words, *SEARCH], cwd=tmp_path)
        while process.poll() is None:
            runs = list_runs(tmp_path / "runs")
            if runs and len(history(runs[0])) >= 30:
                break
            time.sleep(0.2)
        assert process.poll() is None
        dask.kill(first)
        dask.add_worker(threads=16)
        assert process.wait(timeout=400) == 0
    finally:
        dask.close()
    _, by_device = complete(tmp_path, 150)
    assert len(by_device) == 2
    keep_result(
        device="cuda", workers=2, killed=1, trials=150, by_device=sorted(by_device.values())
    )
