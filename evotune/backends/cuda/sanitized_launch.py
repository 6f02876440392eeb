"""Launches machine code once on each of a few small cases: a program for compute-sanitizer.

It runs as `python -m evotune.backends.cuda.sanitized_launch JOB`. It uses CuPy's driver calls
alone, since a tool slows every kernel of its process down and PyTorch has many. Each buffer is an
allocation of exactly its size, so that the tool reports the first byte past its end. An alarm ends
the program even if the process that started the tool has gone.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from evotune.backends.base.backend import SanitizedCase
from evotune.backends.base.evidence import normal_values
from evotune.backends.cuda.sanitizer import DONE, LIMIT_S
from evotune.backends.cuda.tool_messages import SANITIZED_LAUNCHES
from evotune.problems.problem import ELEMENT_BYTES
from evotune.util.channel import UnreadableMessage, decode

_POISON_BYTE = 0xFF


def main() -> None:
    signal.alarm(round(LIMIT_S))
    from evotune.backends.cuda.cuda_kernel import CudaKernel

    try:
        job = decode(SANITIZED_LAUNCHES, Path(sys.argv[1]).read_bytes())
    except UnreadableMessage as error:
        sys.exit(f"the job cannot be read: {error}")
    runtime = open_device()
    kernels: dict[str, CudaKernel] = {}
    for case in job.cases:
        if case.binary not in kernels:
            kernels[case.binary] = CudaKernel(Path(case.binary))
        _launch(runtime, kernels[case.binary], case, poison=job.poison)
    print(DONE, flush=True)


def open_device() -> Any:
    """CuPy's runtime calls, with the first visible GPU's context made current."""
    from cupy.cuda import runtime

    runtime.setDevice(0)
    runtime.free(0)
    return runtime


def _launch(runtime: Any, kernel: Any, case: SanitizedCase, *, poison: bool) -> None:
    from evotune.backends.cuda.cuda_kernel import bind

    with buffers(runtime, case, poison=poison) as pointers:
        bind(kernel, case.plan, pointers, lambda: 0)()
        runtime.deviceSynchronize()


@contextlib.contextmanager
def buffers(runtime: Any, case: SanitizedCase, *, poison: bool) -> Iterator[dict[str, int]]:
    """The addresses of the case's tensors and workspaces, by name. With `poison`, outputs and
    scratch memory are filled with NaN; else they stay as they were allocated. Inputs are normal
    values."""
    pointers: dict[str, int] = {}
    for spec in case.tensors:
        count = spec.span  # gaps hold values like any others
        pointer = pointers[spec.name] = runtime.malloc(count * ELEMENT_BYTES[spec.dtype])
        if poison and not spec.is_input:
            runtime.memset(pointer, _POISON_BYTE, count * ELEMENT_BYTES[spec.dtype])
        elif spec.is_input:
            told = case.indices.get(spec.name)
            values = normal_values(count, spec.dtype) if told is None else np.frombuffer(told, "u1")
            kind = runtime.memcpyHostToDevice
            runtime.memcpy(pointer, values.ctypes.data, values.nbytes, kind)
    for workspace in case.plan.workspaces:
        # A workspace may have no bytes, and an allocation of none has no address.
        pointers[workspace.name] = runtime.malloc(max(1, workspace.bytes))
        zero = workspace.init == "zero_once"
        if zero or poison:
            byte = 0 if zero else _POISON_BYTE
            runtime.memset(pointers[workspace.name], byte, workspace.bytes)
    yield pointers
    for pointer in pointers.values():
        runtime.free(pointer)


if __name__ == "__main__":
    main()
