"""How a GPU is named, with the driver's part played by this file."""

from __future__ import annotations

from typing import Any

import pytest

from evotune.backends.cuda import gpu_evidence, gpu_probe, gpu_profiles


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
    assert gpu_probe._id(Runtime, 0, nvml) == name


@pytest.mark.parametrize(
    ("name", "clock_mhz"),  # NVIDIA's data sheets, the highest clock
    [("t4", 1590), ("a100", 1410), ("a10", 1695), ("l4", 2040), ("h100", 1980), ("b200", 1965)],
)
def test_the_peak_of_a_gpu_is_that_of_its_model_or_a_little_above(
    name: str, clock_mhz: int
) -> None:
    model = gpu_profiles.named(name)
    major, minor = divmod(int(model.attributes["arch"]), 10)
    values = {13: 1000 * clock_mhz, 16: model.attributes["multiprocessors"], 75: major, 76: minor}

    class Runtime:
        @staticmethod
        def deviceGetAttribute(number: int, index: int) -> Any:
            return values.get(number, 1)

        @staticmethod
        def getDeviceProperties(index: int) -> dict[str, Any]:
            return {"name": model.name.encode(), "totalGlobalMem": 1 << 30}

    found = gpu_probe._profile(Runtime, 0, None)
    assert model.peak_gflops <= found.peak_gflops < 1.2 * model.peak_gflops
    ceilings = gpu_evidence.modelled(found, "float16")
    assert ceilings.tensor_flops == pytest.approx(model.peak_gflops * 1e9, rel=0.15)
