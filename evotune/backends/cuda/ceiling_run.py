"""Measures a GPU's ceilings with the kernels of `ceilings.cu`. Runs as a separate process.

It runs as `python -m evotune.backends.cuda.ceiling_run ARCH BFLOAT`, on the first visible GPU, and
prints the figures of `Ceilings` as one line of JSON. A figure is the best of a few runs, each long
enough that launching does not count.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evotune.backends.base.launch import CompileFailure, CompileJob, Launch
from evotune.backends.cuda.compiler import NvrtcCompiler
from evotune.backends.cuda.cuda_kernel import CudaKernel
from evotune.errors import EnvironmentProblem
from evotune.util.files import scratch_folder

LIMIT_S = 60.0

SOURCE = "ceilings.cu"
_CHAINS = 8  # as in the source
_STEPS = 16
_WARP = 32
_RUN_US = 1500.0
_WARM_UP_US = 50_000.0  # an idle GPU takes so long to raise its clocks
_RUNS = 5
_FIRST_ROUNDS = 16
_L2_SHARE = 4  # a quarter of L2: on some GPUs each half of it keeps a copy
_COPY_L2S = 8  # the copied bytes, in sizes of L2
_EMPTY_LAUNCHES = 1000
_NO_TENSOR_KERNEL = 100
"""From this architecture on `tensor_peak` does nothing, as before 80."""


@dataclass(frozen=True, slots=True)
class Peak:
    """A kernel that reaches one ceiling.

    - `figure`: the field of `Ceilings`.
    - `threads`: the threads of a block.
    - `blocks`: the blocks on each multiprocessor.
    - `work`: the work of one block in a round, in the figure's unit.
    """

    figure: str
    entry: str
    threads: int
    blocks: int
    work: float


def peaks(arch: int) -> tuple[Peak, ...]:
    """The kernels that compute without memory beyond the multiprocessor."""
    operations = 1024.0 * _CHAINS * _STEPS
    found = (
        Peak("fma_flops", "fma_peak", 1024, 1, 2 * operations),
        Peak("issue_per_s", "issue_peak", 1024, 1, operations / _WARP),
        Peak("exp2_per_s", "exp2_peak", 1024, 1, operations),
        Peak("shared_bytes_per_s", "shared_peak", 1024, 1, 1024.0 * _STEPS * 16),
    )
    if arch == 90:
        products = 2 * _STEPS * 2.0 * 64 * 128 * 16
        return (*found, Peak("tensor_flops", "tensor_peak", 256, 1, products))
    if 80 <= arch < _NO_TENSOR_KERNEL:
        products = 16 * _STEPS * _CHAINS * 2.0 * 16 * 8 * 16
        return (*found, Peak("tensor_flops", "tensor_peak", 512, 1, products))
    return found


def job(arch: str, *, bfloat: bool) -> CompileJob:
    """The compilation of the kernels."""
    folder = str(Path(__file__).parent)
    return CompileJob("cuda", folder, SOURCE, (("BFLOAT", int(bfloat)),), (), arch, "")


class Gpu:
    """Launches the kernels on the first visible GPU, on buffers of zeros."""

    def __init__(self, binary: Path) -> None:
        from cupy.cuda import Event as CudaEvent
        from cupy.cuda import Stream, driver, get_elapsed_time, runtime

        runtime.setDevice(0)
        runtime.free(0)
        self._driver, self.runtime, self._elapsed_ms = driver, runtime, get_elapsed_time
        self._stream = Stream(non_blocking=True)
        self._start, self._end = CudaEvent(), CudaEvent()
        self._kernel = CudaKernel(binary)
        self.multiprocessors = int(runtime.deviceGetAttribute(16, 0))
        self.l2_bytes = int(runtime.deviceGetAttribute(38, 0))

    def zeros(self, size: int) -> int:
        pointer = int(self.runtime.malloc(size))
        self.runtime.memset(pointer, 0, size)
        self.runtime.deviceSynchronize()  # the stream of the kernels does not wait for it
        return pointer

    def launch(
        self, entry: str, blocks: int, threads: int, arguments: Sequence[Any]
    ) -> Callable[[], None]:
        """A function that launches the kernel with these arguments, which are C values."""
        function = self._kernel.function(Launch(entry=entry))
        addresses = (ctypes.c_void_p * max(1, len(arguments)))(*map(ctypes.addressof, arguments))

        def run() -> None:
            # The values must live as long as their addresses are used.
            run.keeps = arguments  # type: ignore[attr-defined]
            self._driver.launchKernel(
                *(function, blocks, 1, 1, threads, 1, 1, 0, self._stream.ptr),
                *(ctypes.addressof(addresses) if arguments else 0, 0),
            )

        return run

    def graph(self, call: Callable[[], None], count: int) -> Callable[[], None]:
        """A function that launches a graph of `count` calls."""
        self._stream.begin_capture()
        for _ in range(count):
            call()
        made = self._stream.end_capture()
        return lambda: made.launch(self._stream)

    def time_us(self, call: Callable[[], None], runs: int) -> float:
        """The time of the shortest of `runs` runs, in µs."""
        times = []
        for _ in range(runs):
            self._start.record(self._stream)
            call()
            self._end.record(self._stream)
            self._end.synchronize()
            times.append(float(self._elapsed_ms(self._start, self._end)) * 1000)
        return min(times)


def _rounds(gpu: Gpu, launch: Callable[[ctypes.c_int], Callable[[], None]], run_us: float) -> int:
    """The number of rounds that take about `run_us`."""
    call = launch(ctypes.c_int(_FIRST_ROUNDS))
    first_us = max(1.0, gpu.time_us(call, 3))
    return max(_FIRST_ROUNDS, min(1 << 24, round(_FIRST_ROUNDS * run_us / first_us)))


def _rate(gpu: Gpu, peak: Peak, memory: ctypes.c_void_p, run_us: float = _RUN_US) -> float:
    """The work a second that the kernel reaches on the whole GPU."""
    blocks = peak.blocks * gpu.multiprocessors

    def launch(rounds: ctypes.c_int) -> Callable[[], None]:
        return gpu.launch(peak.entry, blocks, peak.threads, (memory, rounds))

    rounds = _rounds(gpu, launch, run_us)
    time_us = gpu.time_us(launch(ctypes.c_int(rounds)), _RUNS)
    return peak.work * blocks * rounds / time_us * 1e6


def _l2_rate(gpu: Gpu, memory: ctypes.c_void_p) -> float:
    size = gpu.l2_bytes // _L2_SHARE // 16 * 16
    data, count = ctypes.c_void_p(gpu.zeros(size)), ctypes.c_int(size // 16)

    def launch(rounds: ctypes.c_int) -> Callable[[], None]:
        blocks = 2 * gpu.multiprocessors
        return gpu.launch("l2_peak", blocks, 1024, (data, memory, count, rounds))

    rounds = _rounds(gpu, launch, _RUN_US)
    time_us = gpu.time_us(launch(ctypes.c_int(rounds)), _RUNS)
    gpu.runtime.free(data.value)
    return size * rounds / time_us * 1e6


def _dram_rate(gpu: Gpu) -> float:
    free_bytes = int(gpu.runtime.memGetInfo()[0])
    size = min(_COPY_L2S * gpu.l2_bytes, free_bytes // 4) // 16 * 16
    source, target = ctypes.c_void_p(gpu.zeros(size)), ctypes.c_void_p(gpu.zeros(size))
    arguments = (source, target, ctypes.c_longlong(size // 16))
    copy = gpu.launch("dram_peak", 2 * gpu.multiprocessors, 1024, arguments)
    time_us = gpu.time_us(copy, 2 * _RUNS)
    for pointer in (source, target):
        gpu.runtime.free(pointer.value)
    return 2 * size / time_us * 1e6


def measure(gpu: Gpu, arch: int) -> dict[str, float]:
    """The figures, by the fields of `Ceilings`."""
    memory = ctypes.c_void_p(gpu.zeros(64 << 10))
    kernels = peaks(arch)
    _rate(gpu, kernels[0], memory, _WARM_UP_US / _RUNS)
    found = {peak.figure: _rate(gpu, peak, memory) for peak in kernels}
    found["l2_bytes_per_s"] = _l2_rate(gpu, memory)
    found["dram_bytes_per_s"] = _dram_rate(gpu)
    launch = gpu.launch("empty", 1, 32, ())
    launch()  # loads the kernel, which a capture must not do
    empty = gpu.graph(launch, _EMPTY_LAUNCHES)
    found["launch_us"] = gpu.time_us(empty, _RUNS) / _EMPTY_LAUNCHES
    return found


def main() -> None:
    signal.alarm(round(LIMIT_S))
    arch, bfloat = sys.argv[1], sys.argv[2] == "1"
    with scratch_folder() as folder:
        binary = folder / "ceilings.cubin"
        try:
            built = NvrtcCompiler().compile(job(arch, bfloat=bfloat), binary, LIMIT_S)
        except EnvironmentProblem as error:
            sys.exit(str(error))
        if isinstance(built, CompileFailure):
            sys.exit(f"NVRTC does not compile {SOURCE}: {built.reason}")
        number = int("".join(filter(str.isdigit, arch)))
        print(json.dumps(measure(Gpu(binary), number)), flush=True)


if __name__ == "__main__":
    main()
