"""Copies small pieces of memory on a stream of their own, many by one launch.

The copies are made by a kernel, pieces.cu. Asking the driver for as many copies takes ten times as
long, and a candidate's launches do not wait.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from evotune.backends.cuda.compiler import NvrtcCompiler
from evotune.backends.cuda.kernel import CudaKernel
from evotune.device.launch import CompileFailure, CompileJob, Launch
from evotune.device.protocol import Renewal, Write
from evotune.errors import EnvironmentProblem
from evotune.scratch import scratch_folder

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
    """Groups of copies; one launch makes all copies of a group."""

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
    """A piece for each row of each write."""
    return [
        (to.data_ptr(), from_.data_ptr(), to.nbytes, 0, 0, 0)
        for target, source in writes
        for to, from_ in zip(target, source, strict=True)
    ]


def renewing(renewals: Sequence[Renewal]) -> list[tuple[int, int, int, int, int, int]]:
    """A piece for each row of each target. Its values differ from turn to turn."""
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
