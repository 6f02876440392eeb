"""CUDA's errors, as torch and CuPy word them, give the outcome and say if the worker must end."""

from __future__ import annotations

import pytest

from evotune.backends.cuda.cuda_session import classify
from evotune.trial import OutcomeKind


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("CUDA error: an illegal memory access was encountered\nmore", OutcomeKind.ILLEGAL_ACCESS),
        ("CUDA_ERROR_MISALIGNED_ADDRESS: misaligned address", OutcomeKind.ILLEGAL_ACCESS),
        ("CUDA error: unspecified launch failure", OutcomeKind.LAUNCH_ERROR),
        ("CUDA_ERROR_INVALID_VALUE: invalid argument", OutcomeKind.LAUNCH_ERROR),
        ("CUDA error: device-side assert triggered", OutcomeKind.LAUNCH_ERROR),
        (
            "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources requested for launch",
            OutcomeKind.RESOURCE_LIMIT,
        ),
        ("CUDA error: the launch timed out and was terminated", OutcomeKind.TIMEOUT),
        ("CUDA out of memory. Tried to allocate 80.00 GiB", OutcomeKind.DEVICE_OOM),
        ("cudaErrorMemoryAllocation: out of memory", OutcomeKind.DEVICE_OOM),
        ("CUDA error: uncorrectable ECC error encountered", OutcomeKind.DEVICE_LOST),
    ],
)
@pytest.mark.parametrize("usable", [True, False])
def test_an_error_of_cudas_is_the_candidates_outcome(
    words: str, kind: OutcomeKind, usable: bool
) -> None:
    fault = classify(RuntimeError(words), lambda: usable)
    assert fault is not None
    assert (fault.kind, fault.reason) == (kind, words.splitlines()[0])
    assert fault.fatal != usable


def test_a_broken_capture_ends_the_worker_although_the_gpu_answers() -> None:
    fault = classify(
        RuntimeError("CUDA error: operation not permitted when stream is capturing"), lambda: True
    )
    assert fault is not None
    assert (fault.kind, fault.fatal) == (OutcomeKind.LAUNCH_ERROR, True)


def test_an_error_that_is_not_cudas_is_ours() -> None:
    assert classify(RuntimeError("shape mismatch"), lambda: True) is None
