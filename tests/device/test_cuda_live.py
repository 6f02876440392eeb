"""How a GPU is named, with the driver's part played by this file."""

from __future__ import annotations

from typing import Any

import pytest

from evotune.backends.cuda import _live_profile


class Runtime:
    @staticmethod
    def deviceGetPCIBusId(index: int) -> str:
        return f"0000:0{index}:00.0"


class Nvml:
    class NVMLError(Exception):
        pass

    @staticmethod
    def nvmlDeviceGetHandleByPciBusId(address: str) -> str:
        return address

    @staticmethod
    def nvmlDeviceGetUUID(handle: str) -> str:
        return f"GPU-at-{handle}"


@pytest.mark.parametrize(
    ("visible", "nvml", "name"),
    [
        ("", Nvml, "GPU-at-0000:00:00.0"),
        ("2,3", Nvml, "GPU-at-0000:00:00.0"),
        ("2,3", None, "2"),
        ("", None, "0"),
        # A slice of a GPU: with the GPU's own name a worker would see another slice, or none.
        ("MIG-5c1f", Nvml, "MIG-5c1f"),
    ],
)
def test_a_gpu_is_named_so_that_a_worker_sees_that_one(
    monkeypatch: pytest.MonkeyPatch, visible: str, nvml: Any, name: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert _live_profile._id(Runtime, 0, nvml) == name
