"""Work of others on a GPU, as NVML has it."""

from __future__ import annotations

from collections.abc import Iterator

from evotune.device.profile import DeviceProfile

_BUSY_GPU_PERCENT = 5


def busy_gpu(device: DeviceProfile) -> Iterator[str]:
    """As NVML has it, where it is here and may be asked."""
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
