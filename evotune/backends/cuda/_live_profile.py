"""The profiles of this machine's GPUs, read from the CUDA runtime and from NVML.

Reading them creates no CUDA context but loads the driver, so `probe` does it in a process of its
own.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from evotune.backends.base.profile import DeviceProfile
from evotune.backends.cuda._profiles import target
from evotune.trial import Value

# cudaDeviceAttr by number: CuPy does not name them all, and the numbers are part of CUDA's ABI.
_ATTRIBUTES = {
    "threads_per_block": 1,
    "warp_size": 10,
    "registers_per_block": 12,
    "multiprocessors": 16,
    "l2_bytes": 38,
    "threads_per_multiprocessor": 39,
    "shared_bytes_per_multiprocessor": 81,
    "registers_per_multiprocessor": 82,
    "shared_bytes_per_block": 97,  # opt-in
    "blocks_per_multiprocessor": 106,
    "reserved_shared_bytes_per_block": 111,
}
_CLOCK_KHZ = 13
_MEMORY_CLOCK_KHZ = 36
_BUS_BITS = 37
_MAJOR, _MINOR = 75, 76

_TENSOR_FLOPS_PER_CLOCK = {75: 1024, 80: 2048, 86: 1024, 89: 1024, 90: 4096, 100: 8192}
"""By architecture, FLOPs of a multiprocessor: dense FP16 with float32 sums. From NVIDIA's
architecture white papers."""
_CLOCK_HEADROOM = 1.02  # a GPU may run a little above the clock that it reports
_DDR = 2  # transfers per clock


def profiles() -> list[DeviceProfile]:
    """The profile of every visible GPU, in CUDA's order. ImportError, OSError or RuntimeError when
    there is none."""
    runtime = importlib.import_module("cupy").cuda.runtime
    with _management() as nvml:
        return [_profile(runtime, index, nvml) for index in range(int(runtime.getDeviceCount()))]


@contextlib.contextmanager
def _management() -> Iterator[Any]:
    """The driver's management library (NVML); None where it is missing or does not answer."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        yield None
        return
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _profile(runtime: Any, index: int, nvml: Any) -> DeviceProfile:
    def attribute(number: int) -> int:
        return int(runtime.deviceGetAttribute(number, index))

    properties: Mapping[str, Any] = runtime.getDeviceProperties(index)
    attributes: dict[str, Value] = {name: attribute(number) for name, number in _ATTRIBUTES.items()}
    arch = 10 * attribute(_MAJOR) + attribute(_MINOR)
    memory_gbps = _DDR * attribute(_MEMORY_CLOCK_KHZ) * attribute(_BUS_BITS) / 8 / 1e6
    attributes |= {
        "arch": arch,
        "memory_bytes": int(properties["totalGlobalMem"]),
        "memory_gbps": round(memory_gbps, 1),
    }
    flops_per_clock = _TENSOR_FLOPS_PER_CLOCK.get(arch, 0) * int(attributes["multiprocessors"])
    return DeviceProfile(
        name=_text(properties["name"]),
        backend="cuda",
        arch=target(arch),
        attributes=attributes,
        peak_gflops=round(flops_per_clock * attribute(_CLOCK_KHZ) / 1e6 * _CLOCK_HEADROOM),
        id=_id(runtime, index, nvml),
        driver=_text(nvml.nvmlSystemGetDriverVersion()) if nvml else "",
    )


def _text(name: bytes | str) -> str:
    text = name.decode(errors="replace") if isinstance(name, bytes) else name
    return text.rstrip("\0")


def _id(runtime: Any, index: int, nvml: Any) -> str:
    """The GPU's name for CUDA_VISIBLE_DEVICES: GPU-… or MIG-…, or its number there when NVML does
    not tell.

    NVML is asked by the PCI address, since it counts GPUs in another order. CuPy's `uuid` may be
    cut short.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    number = visible[index].strip() if index < len(visible) and visible[index] else str(index)
    if nvml is None or number.startswith("MIG"):  # a MIG slice has the whole GPU's address
        return number
    try:
        address = runtime.deviceGetPCIBusId(index)
        handle = nvml.nvmlDeviceGetHandleByPciBusId(address)
        return _text(nvml.nvmlDeviceGetUUID(handle))
    except (nvml.NVMLError, AttributeError, RuntimeError):
        return number
