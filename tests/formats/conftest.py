from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.formats.judging import Judge


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    made = Judge(tmp_path_factory.mktemp("judged"))
    yield made
    made.close()
