from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from .faulty import ROOT, FaultyKernels


@pytest.fixture(scope="session", autouse=True)
def _children_find_evotune() -> Iterator[None]:
    """Child processes find evotune even if it is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        patch.setenv("PYTHONPATH", path)
        yield


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyKernels]:
    """One executor for all tests: no trial may be harmed by the trials before it."""
    kernels = FaultyKernels(tmp_path_factory.mktemp("faulty"))
    yield kernels
    kernels.executor.close()
