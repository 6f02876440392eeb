"""On a machine with a working GPU (`make test-gpu`): it is found, and its software works."""

from __future__ import annotations

import pytest

from evotune.backends.cuda.presence import cuda_problem, gpus_present

pytestmark = pytest.mark.gpu


def test_the_gpu_is_found() -> None:
    assert gpus_present(), "no NVIDIA GPU on this machine"


def test_torch_and_cupy_can_use_it() -> None:
    assert cuda_problem() == ""
