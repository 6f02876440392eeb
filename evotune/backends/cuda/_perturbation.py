"""Disturbs a candidate on a GPU by kernels of perturbation.cu, beside it or just before it."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from evotune.backends.base.launch import CompileFailure, CompileJob, Launch
from evotune.backends.base.profile import DeviceProfile
from evotune.backends.base.session import Disturb, LaunchFailure
from evotune.backends.cuda._kernel import CudaKernel
from evotune.backends.cuda.compiler import NvrtcCompiler
from evotune.util.files import scratch_folder

SOURCE = "perturbation.cu"
_TIME_NS = 200_000  # a block beside the candidate lasts from a quarter of this to all of it
_DIRTY_NS = 3_000
_COMPILE_S = 60.0
_LEAST_WORDS, _MOST_WORDS = 1 << 20, 1 << 24  # of 16 bytes: more than the L2 cache holds
_HEAD_START_CYCLES = 10_000  # the disturbing kernel has begun when the candidate begins
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
        """Disturbs launches by a kernel on a stream of its own. The kernel begins when the earlier
        launches have ended, and it ends by itself."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]

        def disturb(seed: int) -> None:
            side.wait_stream(torch.cuda.current_stream())
            more = (ctypes.c_uint32(_TIME_NS), ctypes.c_uint32(seed & 0xFFFFFFFF))
            self._launch(entry, grid, block, shared_bytes, side.cuda_stream, *arguments, *more)
            torch.cuda._sleep(_HEAD_START_CYCLES)  # type: ignore[no-untyped-call]

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
