"""Right CUDA kernels that compute in unusual ways: the gate refuses none of them.

This is test_unusual.py for the methods of the spaces unusual_*_cuda.yaml. `make test-gpu` takes a
few seeds for each; `python -m tests.red_team.unusual_cuda` takes a hundred.
"""

from __future__ import annotations

import pytest

from .unusual_cuda import METHODS, CudaMethods

pytestmark = pytest.mark.gpu

SEEDS = 3


@pytest.fixture(scope="module")
def methods(tmp_path_factory: pytest.TempPathFactory) -> CudaMethods:
    return CudaMethods(tmp_path_factory.mktemp("unusual"))


@pytest.mark.parametrize("method", METHODS)
def test_an_unusual_way_is_no_wrong_way(methods: CudaMethods, method: str) -> None:
    """Edge shapes are tried with the first seed only."""
    for seed in range(SEEDS):
        verdict = methods.judge(method, seed, edges=seed == 0)
        assert verdict.passed, (seed, verdict.reason)
