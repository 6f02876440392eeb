"""The GPU's clocks, power, temperature and throttle reasons by NVML; limits of its CUDA context."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping
from typing import Any

from evotune.backends.cuda._tensor_maps import LIBRARY
from evotune.trial import Json

# --------------------------------------------------------------------------------------------------
# Limits and preferences of the CUDA context, which decide its kernels' stack, heap and caches.

STACK = "stack of a thread"
_STACK_NUMBER = 0
# CUlimit, CUDA Driver API. A limit that the driver or the device does not have is left out.
_LIMITS = {
    STACK: _STACK_NUMBER,
    "buffer of printf": 1,
    "heap of malloc": 2,
    "depth of synchronization": 3,
    "launches that wait": 4,
    "granularity of L2 fetches": 5,
    "L2 cache that is set aside": 6,
}


@functools.cache
def _driver() -> Any:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError:
        return None


def read_limits() -> dict[str, int]:
    """The limits and preferences of the current context, by name; empty without a driver."""
    driver = _driver()
    found: dict[str, int] = {}
    if driver is None:
        return found
    value = ctypes.c_size_t()
    for words, number in _LIMITS.items():
        if driver.cuCtxGetLimit(ctypes.byref(value), number) == 0:
            found[words] = value.value
    preference = ctypes.c_int()
    for words, name in (
        ("preference between L1 and shared memory", "cuCtxGetCacheConfig"),
        ("width of shared memory's banks", "cuCtxGetSharedMemConfig"),
    ):
        ask = getattr(driver, name, None)
        if ask is not None and ask(ctypes.byref(preference)) == 0:
            found[words] = preference.value
    return found


def changes(before: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """The changes between two readings, in words that follow "the kernel"."""
    return [
        f"changed the device's {words} from {before.get(words)} to {now.get(words)}"
        for words in {**before, **now}
        if before.get(words) != now.get(words)
    ]


def restore_stack(before: Mapping[str, int]) -> None:
    """Sets the stack limit back. For a kernel that needs a deeper stack the driver raises it, and
    does not lower it afterwards."""
    driver = _driver()
    if driver is not None and STACK in before:
        driver.cuCtxSetLimit(_STACK_NUMBER, ctypes.c_size_t(before[STACK]))


_REASONS = {
    "sw_power_cap": "nvmlClocksThrottleReasonSwPowerCap",
    "hw_slowdown": "nvmlClocksThrottleReasonHwSlowdown",
    "hw_thermal": "nvmlClocksThrottleReasonHwThermalSlowdown",
    "hw_power_brake": "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
    "sw_thermal": "nvmlClocksThrottleReasonSwThermalSlowdown",
    "sync_boost": "nvmlClocksThrottleReasonSyncBoost",
    "user_clocks": "nvmlClocksThrottleReasonApplicationsClocksSetting",
}


class GpuState:
    """Reads one GPU, named by its UUID ("" means the first). Without NVML it reads nothing."""

    def __init__(self, uuid: str) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = (
                pynvml.nvmlDeviceGetHandleByUUID(uuid)
                if uuid
                else pynvml.nvmlDeviceGetHandleByIndex(0)
            )
            self._nvml = pynvml
        except ImportError:
            pass
        except pynvml.NVMLError:
            pass

    def read(self) -> Mapping[str, Json]:
        """Readings by name, in MHz, watts and degrees Celsius, and the throttle reasons. A reading
        that this GPU does not offer is left out."""
        nvml, handle = self._nvml, self._handle
        if nvml is None:
            return {}
        readings: dict[str, Callable[[], Json]] = {
            "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "power_w": lambda: round(nvml.nvmlDeviceGetPowerUsage(handle) / 1000, 1),
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(
                handle, nvml.NVML_TEMPERATURE_GPU
            ),
            "throttled_by": self._throttle_reasons,
        }
        state: dict[str, Json] = {}
        for name, read in readings.items():
            try:
                state[name] = read()
            except nvml.NVMLError:
                continue
        return state

    def _throttle_reasons(self) -> list[str]:
        bits = self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)
        return [name for name, flag in _REASONS.items() if bits & getattr(self._nvml, flag)]
