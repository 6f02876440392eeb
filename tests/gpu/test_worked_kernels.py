"""The worked kernels on a GPU: those of tests/worked_kernels, as `evotune run` judges them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.red_team.pipeline import CONFIRMATION, Pipeline
from tests.worked_kernels.expected import EXPECTED_ON_A_GPU, RIGHT_ON_A_GPU, SPACES

pytestmark = pytest.mark.gpu
Open = Callable[[str], Pipeline]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """One worker at a time; the tests are in the order of the spaces."""
    known: dict[str, Pipeline] = {}

    def found(name: str) -> Pipeline:
        if name not in known:
            for other in known.values():
                other.close()
            known.clear()
            space = str(SPACES / name / "cuda.yaml")
            known[name] = Pipeline(tmp_path_factory.mktemp(name), space, device="cuda:0")
        return known[name]

    yield found
    for pipeline in known.values():
        pipeline.close()


@pytest.mark.parametrize(
    ("name", "behaviour"),
    [(n, b) for n in EXPECTED_ON_A_GPU for b in (*RIGHT_ON_A_GPU[n], *EXPECTED_ON_A_GPU[n])],
)
def test_right_kernels_pass_and_wrong_ones_are_refused(
    opened: Open, name: str, behaviour: str
) -> None:
    outcome = opened(name).run(behaviour)
    if behaviour in RIGHT_ON_A_GPU[name]:
        assert outcome.ok, outcome.reason
        return
    kinds, reason = EXPECTED_ON_A_GPU[name][behaviour]
    assert outcome.kind in kinds, outcome.reason
    assert re.search(reason, outcome.reason), outcome.reason


@pytest.mark.parametrize("name", ["adamw", "top_k"])
def test_a_right_kernel_is_confirmed(tmp_path: Path, name: str) -> None:
    pipeline = Pipeline(tmp_path, str(SPACES / name / "cuda.yaml"), device="cuda:0")
    stage, outcome = pipeline.judge("right")
    pipeline.close()
    assert (stage, outcome.ok) == (CONFIRMATION, True), outcome.reason
