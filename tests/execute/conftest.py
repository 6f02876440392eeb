from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from .faulty import ROOT, FaultyKernels


@pytest.fixture(scope="session", autouse=True)
def _children_find_evotune() -> Iterator[None]:
    """evotune need not be installed to be tested."""
    with pytest.MonkeyPatch.context() as patch:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        patch.setenv("PYTHONPATH", path)
        yield


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyKernels]:
    """One executor for all: a trial must not be harmed by those before it."""
    kernels = FaultyKernels(tmp_path_factory.mktemp("faulty"))
    yield kernels
    kernels.executor.close()


@pytest.fixture(scope="session")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyKernels]:
    """For kernels that never end. A sound one takes a tenth of this limit on an idle machine."""
    kernels = FaultyKernels(tmp_path_factory.mktemp("impatient"), trial_timeout_s=4.0)
    yield kernels
    kernels.executor.close()
