"""The CUDA session: candidates are cubins, launched and timed on one GPU of this process.

Torch owns the context and the memory; CuPy loads the machine code and launches it on torch's
current stream.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import math
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch

from evotune.backends.base.launch import (
    CompileFailure,
    CompileJob,
    DeviceProfile,
    Launch,
    LaunchPlan,
)
from evotune.backends.base.session import (
    Disturb,
    Fault,
    Intervention,
    LaunchFailure,
    Renewal,
    Row,
    Sampler,
    Write,
)
from evotune.backends.cuda.compiler import NvrtcCompiler
from evotune.backends.cuda.cuda_kernel import LIBRARY, CudaKernel, bind
from evotune.errors import EnvironmentProblem
from evotune.trial import DeviceState, Json, OutcomeKind
from evotune.util.files import scratch_folder

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
    """The fault that an error means; None if the error is not CUDA's. `usable`: whether the GPU
    still answers."""
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
    has_rows = False
    calls_once = False

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
        _kernel()  # compiles it now: the first watched run needs it
        self._limits: Mapping[str, int] = {}

    def _open_pool(self) -> None:
        """Opens one memory pool for all graphs. Memory that calls allocate during a capture is free
        again for the next graph, as no two replays overlap. The first graph keeps the pool
        alive."""
        one = torch.zeros(1, device=self.torch_device)
        one = one + one  # an operation must have run once before it is captured
        self._graph_pool = torch.cuda.graph_pool_handle()
        self._keeper = GraphSampler([lambda: one + one], self._stream, self._graph_pool)

    def memory(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self.torch_device)

    def load(self, path: Path, plan: LaunchPlan) -> Callable[..., object]:
        return _with_room(lambda: CudaKernel(path))

    def build(
        self,
        kernel: Callable[..., object],
        plan: LaunchPlan,
        inputs: Mapping[str, torch.Tensor],
        limit_s: float,
    ) -> None:
        """Nothing to do: the compiler has built it."""

    def bind(
        self, kernel: Callable[..., object], plan: LaunchPlan, pointers: Mapping[str, int]
    ) -> Callable[[], object]:
        assert isinstance(kernel, CudaKernel)
        return bind(kernel, plan, pointers, _current_stream)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def settle(self) -> None:
        """Does nothing: torch's work is queued behind the launch, in the same stream."""

    def free(self) -> None:
        """Opens a new pool, because a pool's memory is freed only with the last of its graphs."""
        self._open_pool()
        torch.cuda.empty_cache()

    def sampler(self, calls: Sequence[Callable[[], object]], *, untimed: int = 0) -> GraphSampler:
        assert not untimed
        return _with_room(lambda: GraphSampler(calls, self._stream, self._graph_pool))

    def row(self, calls: Sequence[Callable[[], object]]) -> Row:
        raise NotImplementedError  # the GPU takes the times

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
        """Compares the context's limits with the first reading. A deeper stack comes from the
        driver, so it is reset and not reported."""
        self._limits = self._limits or read_limits()
        now = read_limits()
        if now.get(STACK) != self._limits.get(STACK):
            restore_stack(self._limits)
            now = read_limits()
        return ", ".join(changes(self._limits, now)[:1])

    def left_running(self, run: Callable[[], object] | None = None) -> str:
        """Compares the context's limits, which costs next to nothing. Device code alone starts
        nothing that a synchronization does not wait for."""
        return self.take_stock()

    def perturbations(self) -> Mapping[str, Callable[[], AbstractContextManager[Disturb]]]:
        return Perturber(self._profile).perturbations()

    def undisturbed(self, sampler: Sampler) -> Sampler:
        """Returns the sampler itself, because nothing runs concurrently on the GPU."""
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

    def state(self) -> DeviceState:
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


# Times calls captured into a CUDA graph, so that launch gaps do not count.
# --- Copies small pieces of memory on a stream of their own, many by one launch -------------------
# The copies are made by a kernel, pieces.cu. Asking the driver for as many copies takes ten times
# as long, and a candidate's launches do not wait.

_ENTRY = "copy_pieces"
_THREADS = 256
_PIECE = np.dtype(
    [
        *(("target", "<u8"), ("source", "<u8"), ("bytes", "<u4")),
        *(("step", "<u4"), ("span", "<u4"), ("unused", "<u4")),
    ]
)
_LONGEST_SPAN = 1 << 30


class Pieces:
    """Groups of copies. One kernel launch makes all copies of a group."""

    def __init__(self, groups: Sequence[Sequence[tuple[int, int, int, int, int, int]]]) -> None:
        rows = [piece for group in groups for piece in group]
        table = np.array(rows or [(0,) * 6], dtype=_PIECE)
        self._table = torch.from_numpy(table.view(np.uint8)).cuda()
        ends = np.cumsum([0, *map(len, groups)]).tolist()
        self._parts = [(first, last - first) for first, last in itertools.pairwise(ends)]
        self._base = self._table.data_ptr()
        self._pointer = ctypes.c_void_p()
        self._turn = ctypes.c_uint32()
        self._values = (ctypes.c_void_p * 2)(
            ctypes.addressof(self._pointer), ctypes.addressof(self._turn)
        )

    def copy(self, group: int, stream: int, turn: int = 0) -> None:
        """Queues a group's copies in `stream`. A piece that has several values gets those of
        `turn`."""
        from cupy.cuda import driver

        first, count = self._parts[group]
        if not count:
            return
        self._pointer.value = self._base + first * _PIECE.itemsize
        self._turn.value = turn
        values = ctypes.addressof(self._values)
        driver.launchKernel(_kernel()[1], count, 1, 1, _THREADS, 1, 1, 0, stream, values, 0)


def pieces_of(writes: Sequence[Write]) -> list[tuple[int, int, int, int, int, int]]:
    """The pieces of the writes: one for each row of each write."""
    return [
        (to.data_ptr(), from_.data_ptr(), to.nbytes, 0, 0, 0)
        for target, source in writes
        for to, from_ in zip(target, source, strict=True)
    ]


def renewing(renewals: Sequence[Renewal]) -> list[tuple[int, int, int, int, int, int]]:
    """The pieces of the renewals: one for each row of each target, with values that differ from
    turn to turn."""
    made = []
    for renewal in renewals:
        size, rows = renewal.values.element_size(), len(renewal.target)
        span = min(_LONGEST_SPAN, max(0, renewal.values.nbytes - rows * size))
        for number, row in enumerate(renewal.target):
            source = renewal.values.data_ptr() + (number * size if span else 0)
            made.append((row.data_ptr(), source, size, size, span, 0))
    return made


@functools.cache
def _kernel() -> tuple[CudaKernel, int]:
    """The kernel, loaded into this process's context, and its function's handle. The cache keeps
    the kernel, and so its module, alive."""
    major, minor = torch.cuda.get_device_capability(0)
    folder = Path(__file__).parent
    job = CompileJob("cuda", str(folder), "pieces.cu", (), (), f"sm_{major}{minor}", "")
    with scratch_folder() as scratch:
        output = scratch / "pieces.cubin"
        failure = NvrtcCompiler().compile(job, output, timeout_s=60.0)
        if isinstance(failure, CompileFailure):
            raise EnvironmentProblem(f"NVRTC does not compile pieces.cu: {failure.reason}")
        kernel = CudaKernel(output)
    return kernel, kernel.function(Launch(entry=_ENTRY))


_HEAD_START_CYCLES = 60_000
"""The GPU waits at least this long (some 30 us) before the first event. So the graph is queued
before it starts, and the processor's launch latency does not count."""
_LONGEST_HEAD_START_CYCLES = 16 * _HEAD_START_CYCLES
_HEAD_START_DECAY = 0.998
"""A late sample doubles the head start, and every sample multiplies it by this factor. So if a
sample needs more than the least one, one sample in 350 is late: 0.998^350 is 1/2."""
_MOST_LATE = 4
_COPY_LEAD_US = 8.0  # from the request of a copy until it begins, about
# The begin of a call is computed as if all calls took the same time. These margins allow for the
# error of that.
_MARGIN_US, _MARGIN_OF_CALL, _MARGIN_OF_GRAPH = 1.0, 0.1, 0.02


class GraphSampler:
    """See `Sampler` of `backends/base/session.py`. One replay of the graph is one run of all
    calls."""

    _head_start_cycles: ClassVar[float] = _HEAD_START_CYCLES  # the machine's, for all samplers
    _one_side_stream: ClassVar[torch.cuda.Stream | None] = None

    def __init__(
        self,
        calls: Sequence[Callable[[], object]],
        stream: torch.cuda.Stream,
        pool: Any = None,
    ) -> None:
        self._count = len(calls)
        self._graph = torch.cuda.CUDAGraph()
        self._calls = calls  # they keep the memory alive of which the graph has bare addresses
        self.before_repeating: Callable[[], None] = lambda: None
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                for call in calls:
                    call()
            except BaseException:
                # The first error says more than the error of the capture that it broke.
                with contextlib.suppress(RuntimeError), warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # PyTorch warns of an empty graph
                    self._graph.capture_end()
                raise
            self._graph.capture_end()
        self._start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._stream = torch.cuda.current_stream()  # looking it up takes longer than a record
        self._side = GraphSampler._side_stream()
        self.run()

    @classmethod
    def _side_stream(cls) -> torch.cuda.Stream:
        """The one stream, for all samplers, that copies into memory while a graph runs."""
        if cls._one_side_stream is None:
            # High priority: its blocks need not wait until all of the candidate's are placed.
            cls._one_side_stream = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]
        return cls._one_side_stream

    @property
    def count(self) -> int:
        return self._count

    def run(self) -> None:
        """Queues one replay of the graph. Work that is queued later in the stream sees its
        results."""
        self._graph.replay()

    def time_us(self) -> float:
        """The mean time of a call. If the GPU reached the first event before the graph was queued,
        the sample is repeated with twice the head start, a few times. On a busy machine a graph of
        many kernels takes longer to launch, and one side of a ratio would pay for it."""
        for attempt in range(_MOST_LATE):
            if attempt:
                self.before_repeating()
            self._begin()
            late = bool(self._start.query())  # type: ignore[no-untyped-call]
            run_us = self._finish()
            if not late:
                break
            self._give_head_start(2.0)
        self._give_head_start(_HEAD_START_DECAY)
        return run_us / self._count

    def watch(self, interventions: Sequence[Intervention], call_us: float) -> Sequence[float]:
        """Makes the writes in another stream, so that nothing comes between the graph's launches.
        Events show afterwards when the writes were made."""
        pieces = Pieces([pieces_of(each.writes) for each in interventions])
        written = [_Writing(each, call_us) for each in interventions]
        self._begin()
        if interventions:
            while not self._start.query():  # type: ignore[no-untyped-call]
                pass
        origin_ns = time.perf_counter_ns()
        for group, each in enumerate(written):
            each.wait(origin_ns)
            pieces.copy(group, self._side.cuda_stream)
            each.made.record(self._side)
        self._side.synchronize()
        run_us = self._finish()
        return [each.needed_us(self._start, run_us, self._count) for each in written]

    def time_while_renewing(self, renewals: Sequence[Sequence[Renewal]], turn: int) -> float:
        """Like `time_us`, while a group of renewals is made every few microseconds, which is how
        long the processor takes to launch one."""
        pieces = Pieces([renewing(each) for each in renewals])
        groups = itertools.cycle(range(len(renewals)))
        self._begin()
        while not self._end.query():  # type: ignore[no-untyped-call]
            pieces.copy(next(groups), self._side.cuda_stream, turn)
            turn += 1
        self._side.synchronize()
        return self._finish() / self._count

    def _begin(self) -> None:
        torch.cuda._sleep(int(GraphSampler._head_start_cycles))  # type: ignore[no-untyped-call]
        self._start.record(self._stream)
        self._graph.replay()
        self._end.record(self._stream)

    def _finish(self) -> float:
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1000

    @staticmethod
    def _give_head_start(times: float) -> None:
        wanted = GraphSampler._head_start_cycles * times
        within = max(_HEAD_START_CYCLES, min(_LONGEST_HEAD_START_CYCLES, wanted))
        GraphSampler._head_start_cycles = within


class _Writing:
    """Plans when the writes of one intervention are to be made, and records when they were."""

    _events: ClassVar[list[torch.cuda.Event]] = []
    """Events of earlier interventions, used again: making one takes longer than recording it."""

    def __init__(self, intervention: Intervention, call_us: float) -> None:
        self.made = (
            _Writing._events.pop() if _Writing._events else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        )
        self._last = intervention.last
        calls = intervention.first + intervention.begin * (intervention.last - intervention.first)
        self._begin_us = calls * call_us - _COPY_LEAD_US

    def wait(self, origin_ns: int) -> None:
        """Waits until the writes are to be made; the first call begins at `origin_ns`."""
        until_ns = origin_ns + 1000 * self._begin_us
        while time.perf_counter_ns() < until_ns:
            pass

    def needed_us(self, start: torch.cuda.Event, run_us: float, count: int) -> float:
        """The time of a call from which on the intervention's last call surely began after the
        writes; infinity if it did not. The graph of `count` calls took `run_us` from `start` on.

        A GPU that other processes use too may hold a run up, after its last call as well. So a long
        run does not mean that its last call began late: that call began no earlier than calls of
        the shortest known time put it, and no later than those of this run's mean. Copies slow all
        calls down a little; the margin of the graph allows for so much."""
        made_us = 1000 * float(start.elapsed_time(self.made))
        _Writing._events.append(self.made)
        calls = self._last - 1 - _MARGIN_OF_CALL - _MARGIN_OF_GRAPH * count
        least_us = (made_us + _MARGIN_US) / calls if calls > 0 else math.inf
        return least_us / (1 + _MARGIN_OF_GRAPH) if least_us <= run_us / count else math.inf


# Disturbs a candidate on a GPU by kernels of perturbation.cu, beside it or just before it.
SOURCE = "perturbation.cu"
_TIME_NS = 200_000  # a block beside the candidate lasts from a quarter of this to all of it
_DIRTY_NS = 3_000
_COMPILE_S = 60.0
_LEAST_WORDS, _MOST_WORDS = 1 << 20, 1 << 24  # of 16 bytes: more than the L2 cache holds
_PERTURBATION_HEAD_START_CYCLES = (
    10_000  # the disturbing kernel has begun when the candidate begins
)
_DIRT = (0xFFFFFFFF, 0x7E007E00, 0x7BFF7BFF)  # NaN in every type, NaN in float16, large values


class Perturber:
    """Launches the disturbing kernels; compiles them at the first launch."""

    def __init__(self, profile: DeviceProfile) -> None:
        self._arch = profile.arch
        self._shared_bytes = int(profile.attributes["shared_bytes_per_block"])
        self._multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
        self._kernel: CudaKernel | None = None

    def perturbations(self) -> Mapping[str, Callable[[], AbstractContextManager[Disturb]]]:
        return {
            "beside a kernel that takes bandwidth": self._bandwidth,
            "beside a kernel that takes issue slots": self._issue_slots,
            "with few multiprocessors left": self._room,
            "after NaN in shared memory and registers": self._dirty,
        }

    @contextlib.contextmanager
    def _bandwidth(self) -> Iterator[Disturb]:
        free_bytes, _ = torch.cuda.mem_get_info()
        count = _MOST_WORDS
        while count > _LEAST_WORDS and 16 * count > free_bytes // 4:
            count //= 2
        words = torch.zeros(4 * count, dtype=torch.int32, device="cuda:0")
        arguments = (ctypes.c_void_p(words.data_ptr()), ctypes.c_uint32(count))
        grid = max(1, self._multiprocessors // 2)
        with self._beside("evotune_take_bandwidth", grid, 512, 0, *arguments) as disturb:
            yield disturb

    @contextlib.contextmanager
    def _issue_slots(self) -> Iterator[Disturb]:
        result = torch.zeros(1, device="cuda:0")
        pointer = ctypes.c_void_p(result.data_ptr())
        grid = self._multiprocessors
        with self._beside("evotune_take_issue_slots", grid, 128, 0, pointer) as disturb:
            yield disturb

    @contextlib.contextmanager
    def _room(self) -> Iterator[Disturb]:
        grid = self._multiprocessors - max(1, self._multiprocessors // 16)
        with self._beside("evotune_take_room", max(1, grid), 64, self._shared_bytes) as disturb:
            yield disturb

    @contextlib.contextmanager
    def _dirty(self) -> Iterator[Disturb]:
        def disturb(seed: int) -> None:
            arguments = (self._shared_bytes, _DIRT[seed % len(_DIRT)], _DIRTY_NS, 0)
            stream = torch.cuda.current_stream().cuda_stream
            grid = 2 * self._multiprocessors
            values = map(ctypes.c_uint32, arguments)
            self._launch("evotune_dirty", grid, 256, self._shared_bytes, stream, *values)

        yield disturb

    @contextlib.contextmanager
    def _beside(
        self, entry: str, grid: int, block: int, shared_bytes: int, *arguments: Any
    ) -> Iterator[Disturb]:
        """Disturbs launches by a kernel on a separate stream. The kernel begins when the earlier
        launches have ended, and it ends by itself."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]

        def disturb(seed: int) -> None:
            side.wait_stream(torch.cuda.current_stream())
            more = (ctypes.c_uint32(_TIME_NS), ctypes.c_uint32(seed & 0xFFFFFFFF))
            self._launch(entry, grid, block, shared_bytes, side.cuda_stream, *arguments, *more)
            torch.cuda._sleep(_PERTURBATION_HEAD_START_CYCLES)  # type: ignore[no-untyped-call]

        side.wait_stream(torch.cuda.current_stream())  # until the kernel's memory is initialized
        try:
            yield disturb
        finally:
            side.synchronize()

    def _launch(
        self, entry: str, grid: int, block: int, shared_bytes: int, stream: int, *values: Any
    ) -> None:
        from cupy.cuda import driver

        if self._kernel is None:
            self._kernel = self._compile()
        function = self._kernel.function(Launch((grid,), (block,), shared_bytes, entry))
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        place = ctypes.addressof(addresses)
        driver.launchKernel(function, grid, 1, 1, block, 1, 1, shared_bytes, stream, place, 0)

    def _compile(self) -> CudaKernel:
        with scratch_folder() as folder:
            output = folder / "perturbation.cubin"
            made = NvrtcCompiler().compile(perturbation_job(self._arch), output, _COMPILE_S)
            if isinstance(made, CompileFailure):
                raise LaunchFailure(f"{SOURCE} does not compile: {made.reason}")
            return CudaKernel(output)


def perturbation_job(arch: str) -> CompileJob:
    return CompileJob("cuda", str(Path(__file__).parent), SOURCE, (), (), arch, "")
