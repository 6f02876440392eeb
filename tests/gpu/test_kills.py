"""Runs on the GPU, killed at random moments, have the same history and leave nothing behind: no
process, no GPU memory."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest
from runs.crashing import Forker
from runs.killing import kill_again_and_again

pytestmark = pytest.mark.gpu
KILLS = 10


def _used_mib() -> float:
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    return float(pynvml.nvmlDeviceGetMemoryInfo(handle).used) / 2**20


@pytest.mark.parametrize("seed", [0, 1])  # a kill takes half a minute; two tests run separately
def test_killed_ten_times_on_the_gpu(
    seed: int, tmp_path: Path, keep_result: Callable[..., None]
) -> None:
    before_mib = _used_mib()
    arguments = ("run", "attention-mma", "--device", "cuda:0", "--trials", 12, "--champions", 1)
    with Forker(tmp_path / "forker") as forker:
        kill_again_and_again(
            forker,
            (*arguments, "--strategy", "random"),
            tmp_path,
            KILLS,
            functools.partial(keep_result, device="cuda"),
            seed=seed,
        )
    time.sleep(1.0)
    assert _used_mib() - before_mib < 64
