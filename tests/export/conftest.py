from __future__ import annotations

import pytest

from evotune.engine.folder import RunFolder
from tests.export.making import fabricated, tiny_space


@pytest.fixture(scope="session")
def softmax_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A confirmed run of softmax on the CPU, made up but for its machine code."""
    folder = tmp_path_factory.mktemp("softmax")
    return fabricated(tiny_space("softmax-cpu", folder), folder)


@pytest.fixture(scope="session")
def attention_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The same of attention."""
    folder = tmp_path_factory.mktemp("attention")
    return fabricated(tiny_space("attention-cpu", folder), folder)
