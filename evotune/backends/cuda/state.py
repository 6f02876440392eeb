"""The GPU's clocks, power, temperature and throttle reasons, from NVML (nvidia-ml-py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from evotune.trial import Json

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
