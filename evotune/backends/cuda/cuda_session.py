"""The CUDA session: candidates are cubins, launched and timed on one GPU of this process.

Torch owns the context and the memory; CuPy loads the machine code and launches it on torch's
current stream.
"""

from __future__ import annotations

import ctypes
import functools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import torch

from evotune.backends.base.launch import LaunchPlan
from evotune.backends.base.profile import DeviceProfile
from evotune.backends.base.session import Disturb, Fault, Sampler
from evotune.backends.cuda._graphs import GraphSampler
from evotune.backends.cuda._kernel import CudaKernel, bind
from evotune.backends.cuda._perturbation import Perturber
from evotune.backends.cuda._tensor_maps import LIBRARY
from evotune.trial import Json, OutcomeKind

# --- Classifies a CUDA error of a candidate -------------------------------------------------------
# Codes: CUDA Driver API, CUresult. An error is sticky when every later call in the process
# fails as well: then only a new process can use the GPU.
_KINDS: tuple[tuple[str, OutcomeKind], ...] = (
    (r"out of memory|OUT_OF_MEMORY|MemoryAllocation", OutcomeKind.DEVICE_OOM),
    (
        r"illegal memory access|ILLEGAL_ADDRESS|misaligned address|MISALIGNED_ADDRESS"
        r"|invalid program counter|INVALID_PC|address space|INVALID_ADDRESS_SPACE",
        OutcomeKind.ILLEGAL_ACCESS,
    ),
    (
        r"too many resources|LAUNCH_OUT_OF_RESOURCES|LaunchOutOfResources",
        OutcomeKind.RESOURCE_LIMIT,
    ),
    (r"timed out|LAUNCH_TIMEOUT", OutcomeKind.TIMEOUT),
    (
        r"ECC|uncorrectable|DEVICE_UNAVAILABLE|GPU is lost|fallen off|NVLINK"
        r"|EXTERNAL_DEVICE|SYSTEM_NOT_READY",
        OutcomeKind.DEVICE_LOST,
    ),
)
_CUDA_ERROR = re.compile(
    r"CUDA (?:driver )?error|CUDA_ERROR|cudaError|CUDA out of memory|CUBLAS_STATUS|CUDNN_STATUS"
    r"|cuDNN error"
)
_CAPTURE = re.compile(r"captur", re.IGNORECASE)
"""A failed capture is fatal though CUDA recovers: PyTorch's allocator still takes it for open."""


def classify(error: RuntimeError, usable: Callable[[], bool]) -> Fault | None:
    """The fault that an error means; None when the error is not CUDA's. `usable` tells whether the
    GPU still answers."""
    words = str(error)
    if not _CUDA_ERROR.search(words):
        return None
    kind = OutcomeKind.LAUNCH_ERROR  # invalid values, traps, assertions, illegal instructions
    for pattern, found in _KINDS:
        if re.search(pattern, words):
            kind = found
            break
    fatal = not usable() or _CAPTURE.search(words) is not None
    return Fault(kind, words.splitlines()[0], fatal=fatal)


# --- Times calls that Python issues one by one, as a PyTorch user's program does ------------------
class EagerSampler:
    """See `evotune.backends.base.session.Sampler`. Its time per call is the larger of two: the
    processor's time to issue a call and the GPU's time to run it. One synchronization ends the row.

    A candidate's call is its bare launches through CuPy; a baseline's is a call of PyTorch's API.
    """

    def __init__(self, calls: Sequence[Callable[[], object]]) -> None:
        self._calls = calls

    def run(self) -> None:
        for call in self._calls:
            call()
        torch.cuda.synchronize()

    def time_us(self) -> float:
        torch.cuda.synchronize()
        started = time.perf_counter_ns()
        self.run()
        return (time.perf_counter_ns() - started) / 1000 / len(self._calls)


_T = TypeVar("_T")
_COPY_BYTES = 2 << 30
_COPY_ROUNDS = 12
# A third of the memory. All input sets of one trial on a long sequence must fit: if one does not,
# the least recently used set is always the next one needed, and every check computes its set again,
# in float64.
_POOL_SHARE = 3


class CudaSession:
    """The first GPU visible to this process; see `evotune.backends.base.session.Session`."""

    torch_device = "cuda:0"
    sample_us = 250.0  # an event is exact to half a microsecond
    champion_sample_us = 500.0
    untimed_calls = 0  # a graph has hundreds of calls
    step_bytes = 0
    allocates = False  # a graph's outputs stay where they were when it was captured
    in_order = True

    def __init__(self, profile: DeviceProfile) -> None:
        torch.zeros(1, device=self.torch_device)  # makes the context current, for CuPy too
        properties = torch.cuda.get_device_properties(0)
        self.pool_bytes = properties.total_memory // _POOL_SHARE
        self.warm_bytes = int(profile.attributes["l2_bytes"]) // 2
        self.cold_bytes = 2 * int(profile.attributes["l2_bytes"])
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._open_pool()
        self._state = GpuState(profile.id)
        self._profile = profile
        self._limits: Mapping[str, int] = {}

    def _open_pool(self) -> None:
        """Opens one memory pool for all graphs. Memory that calls allocate during a capture is free
        again for the next graph, as no two replays overlap. The first graph keeps the pool
        alive."""
        one = torch.zeros(1, device=self.torch_device)
        one = one + one  # an operation must have run once before it is captured
        self._graph_pool = torch.cuda.graph_pool_handle()
        self._keeper = GraphSampler([lambda: one + one], self._stream, self._graph_pool)

    def load(self, path: Path, plan: LaunchPlan) -> Callable[..., object]:
        return _with_room(lambda: CudaKernel(path))

    def bind(
        self, kernel: Callable[..., object], plan: LaunchPlan, pointers: Mapping[str, int]
    ) -> Callable[[], object]:
        assert isinstance(kernel, CudaKernel)
        return bind(kernel, plan, pointers, _current_stream)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def settle(self) -> None:
        """Nothing to do: torch's work is queued behind the launch, in the same stream."""

    def free(self) -> None:
        """Opens a new pool, since a pool's memory is only given back with the last of its
        graphs."""
        self._open_pool()
        torch.cuda.empty_cache()

    def sampler(self, calls: Sequence[Callable[[], object]], *, untimed: int = 0) -> GraphSampler:
        assert not untimed
        return _with_room(lambda: GraphSampler(calls, self._stream, self._graph_pool))

    def eager_sampler(self, calls: Sequence[Callable[[], object]]) -> EagerSampler:
        return EagerSampler(calls)

    def copy_gbps(self) -> float:
        free_bytes, _ = torch.cuda.mem_get_info()
        words = min(_COPY_BYTES, free_bytes // 4) // 8
        source = torch.randint(1 << 60, (words,), device=self.torch_device)
        target = torch.empty_like(source)

        def copy() -> object:
            # A kernel copies: a plain copy in a graph would run on the slower copy engines.
            return torch.bitwise_not(source, out=target)

        copy()
        sampler = self.sampler([copy])
        time_us = min(sampler.time_us() for _ in range(_COPY_ROUNDS))
        return 2 * 8 * words / time_us / 1000

    def take_stock(self) -> str:
        """Compares the context's limits with the first reading. A deeper stack is the driver's
        doing, so it is set back and not told."""
        self._limits = self._limits or read_limits()
        now = read_limits()
        if now.get(STACK) != self._limits.get(STACK):
            restore_stack(self._limits)
            now = read_limits()
        return ", ".join(changes(self._limits, now)[:1])

    def left_running(self, run: Callable[[], object] | None = None) -> str:
        """Device code alone starts nothing that a synchronization does not wait for. The context's
        limits are compared anyway, since that costs next to nothing."""
        return self.take_stock()

    def perturbations(self) -> Mapping[str, Callable[[], AbstractContextManager[Disturb]]]:
        return Perturber(self._profile).perturbations()

    def undisturbed(self, sampler: Sampler) -> Sampler:
        """The sampler itself: nothing runs beside it."""
        return sampler

    def fault(self, error: RuntimeError) -> Fault | None:
        return classify(error, self._usable)

    @staticmethod
    def _usable() -> bool:
        try:
            torch.cuda.synchronize()
            torch.zeros(1, device=CudaSession.torch_device).item()
        except RuntimeError:
            return False
        return True

    def state(self) -> Mapping[str, Json]:
        return self._state.read()


def _current_stream() -> int:
    """The same as `torch.cuda.current_stream().cuda_stream`, which takes longer than a launch."""
    return int(torch._C._cuda_getCurrentRawStream(0))


def _with_room(attempt: Callable[[], _T]) -> _T:
    """Tries again, with the memory given back that PyTorch keeps for later calls, when memory ran
    out. A capture's own memory, and the driver's for code and graphs, cannot come from it."""
    try:
        return attempt()
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
    # Outside the handler, since the error keeps alive the memory that the calls had allocated.
    torch.cuda.empty_cache()
    return attempt()


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
