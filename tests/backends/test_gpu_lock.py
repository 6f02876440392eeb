"""Only one run at a time measures on a GPU."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evotune.backends.cuda import gpu_profiles, presence
from evotune.backends.cuda.presence import GpuLock
from evotune.backends.registry import measuring_alone
from evotune.errors import RunLocked


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "FOLDER", tmp_path)


def test_a_gpu_is_locked_once_and_free_again_afterwards() -> None:
    with GpuLock("GPU-1"), GpuLock("GPU-2"):
        with pytest.raises(RunLocked, match=f"process {os.getpid()}") as refused, GpuLock("GPU-1"):
            pass
        assert refused.value.exit_code == 5
    with GpuLock("GPU-1"):
        pass


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import os, pathlib; from evotune.backends.cuda import presence\n"
        "presence.FOLDER = pathlib.Path(os.environ['FOLDER'])\n"
        "presence.GpuLock('GPU-1').__enter__(); os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "FOLDER": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", code], check=False, env=environment)
    assert ended.returncode == -9
    with GpuLock("GPU-1"):
        pass


def test_all_gpus_of_a_run_are_locked_or_none() -> None:
    gpus = [dataclasses.replace(gpu_profiles.named("l4"), id=id) for id in ("GPU-1", "GPU-2")]
    with GpuLock("GPU-2"):
        with pytest.raises(RunLocked, match="GPU-2"), measuring_alone(gpus):
            pass
        with GpuLock("GPU-1"):
            pass
    with measuring_alone(gpus), pytest.raises(RunLocked, match="GPU-1"), GpuLock("GPU-1"):
        pass


def test_other_users_may_lock_what_a_careful_user_has_locked(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with GpuLock("GPU-1"):
            pass
    finally:
        os.umask(before)
    (lock,) = tmp_path.iterdir()
    assert lock.stat().st_mode & 0o777 == 0o644
