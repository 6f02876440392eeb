from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import cpu_kernels


@pytest.fixture
def one_thread() -> Iterator[None]:
    with cpu_kernels.one_thread():
        yield
