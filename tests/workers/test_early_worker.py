"""A worker that starts before its device is known finds it, and becomes the device's if it fits."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from evotune.backends import registry
from evotune.backends.base.launch import DeviceProfile
from evotune.backends.cuda import discovery, gpu_profiles
from evotune.problems import create_problem
from evotune.workers.device_slot import DeviceSlot, ProblemSource
from evotune.workers.early_worker import EarlyWorker
from evotune.workers.messages import BaselinesRequest, BaselinesTimed
from tests.patience import PATIENCE_S

from .faulty import wait_until_gone

TEXT = """
import sys
from evotune import Problem
class Doubled(Problem):
    sizes = ("columns",)
    def inputs(self, columns):
        return {"x": (columns,)}
    def outputs(self, columns):
        return {"out": (columns,)}
    def operations(self, columns):
        return columns
    def compute(self, x):
        print("computing", file=sys.stderr)
        return {"out": 2.0 * x}
"""
PROFILE = DeviceProfile("cpu", "cpu", "", {"threads": 1})


@pytest.fixture
def likely(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment that the CPU's backend guesses."""
    backend = registry.named("cpu")
    environment = dict(backend.worker_environment(PROFILE))
    monkeypatch.setattr(backend, "likely_environment", lambda: environment)
    return environment


def _started() -> tuple[EarlyWorker, int]:
    early = EarlyWorker()
    early.start(registry.named("cpu"))
    assert early._worker is not None
    return early, early._worker.pid


@pytest.mark.usefixtures("likely")
def test_it_serves_requests_and_writes_into_the_device_s_log(tmp_path: Path) -> None:
    early, pid = _started()
    (tmp_path / "problem.py").write_text(TEXT)
    name = "problem.py:Doubled"
    source = ProblemSource(name, "float32", tmp_path)
    slot = DeviceSlot(tmp_path, PROFILE, source, deterministic=True, early=early)
    until_s = time.monotonic() + PATIENCE_S
    try:
        case = create_problem(name, "float32", tmp_path).case({"columns": 8}, {})
        slot.start(BaselinesRequest(cases=(case,)))
        while (answer := slot.handle() if slot.child is not None else None) is None:
            assert time.monotonic() < until_s
            time.sleep(0.01)
        assert isinstance(answer, BaselinesTimed)
        assert slot._child is not None
        assert slot._child.pid == pid
        assert "computing" in (tmp_path / "device.log").read_text()
        assert "computing" in slot._child.log_tail()
        early.close()
        os.kill(pid, 0)  # it is the slot's now
    finally:
        slot.close()
    assert not wait_until_gone({pid})


def test_one_that_does_not_fit_the_device_ends(likely: Mapping[str, str]) -> None:
    early, pid = _started()
    assert early.take({**likely, "CUDA_VISIBLE_DEVICES": "another"}) is None
    early.close()
    assert not wait_until_gone({pid})
    assert early.take(likely) is None


@pytest.mark.usefixtures("likely")
def test_the_backend_learns_which_devices_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker answers for the CPU, whose `devices_here` finds none, and for a GPU's backend."""
    learnt: list[Sequence[DeviceProfile]] = []
    monkeypatch.setattr(registry.named("cpu"), "learn", learnt.append)
    early, _ = _started()
    early.close()
    assert not learnt
    monkeypatch.setattr(EarlyWorker, "_devices", lambda self: (PROFILE,))
    early, _ = _started()
    early.close()
    assert learnt == [(PROFILE,)]


def test_what_a_worker_found_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask() -> NoReturn:
        raise AssertionError("another process was asked")

    gpu = gpu_profiles.named("l4")
    monkeypatch.setattr(discovery, "ask_present_gpus", ask)
    monkeypatch.setattr(discovery, "gpus_present", lambda: [gpu.name])
    monkeypatch.setattr(discovery, "_answers", {})
    registry.named("cuda").learn([gpu])
    assert registry.named("cuda").profile("auto") == gpu


def test_one_that_dies_leaves_the_search_to_the_backend(likely: dict[str, str]) -> None:
    likely["PYTHONHOME"] = "/nonexistent"
    early = EarlyWorker()
    early.start(registry.named("cpu"))
    assert early.take(likely) is None


def test_none_starts_where_its_environment_is_not_known() -> None:
    """On the CPU, whose free cores are counted meanwhile."""
    early = EarlyWorker()
    early.start(registry.named("cpu"))
    assert early.take({}) is None
    early.close()
