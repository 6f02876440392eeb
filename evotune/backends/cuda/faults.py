"""Classifies a CUDA error of a candidate.

Codes: CUDA Driver API, CUresult. An error is sticky when every later call in the process
fails as well: then only a new process can use the GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from evotune.device.protocol import Fault
from evotune.trial import OutcomeKind

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
