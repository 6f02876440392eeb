"""The work of other processes on a GPU, as NVML reports it."""

from __future__ import annotations

from collections.abc import Iterator

from evotune.device.profile import DeviceProfile

_BUSY_GPU_PERCENT = 5


def busy_gpu(device: DeviceProfile) -> Iterator[str]:
    """Says how busy the GPU is, when it is; nothing where NVML is missing or refuses to answer."""
    try:
        import pynvml
    except ImportError:
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(device.id)
        percent = int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        if percent > _BUSY_GPU_PERCENT:
            yield f"{device.name} is {percent}% busy"
    except pynvml.NVMLError:
        return
    finally:
        pynvml.nvmlShutdown()
