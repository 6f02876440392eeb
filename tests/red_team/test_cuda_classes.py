"""The red team on the GPU by class: kernels that rest or remember when they are timed, fail on
numbers or shapes that are seldom tried, race, or get a user's problem wrong.

Unlike in test_cuda.py, each kernel goes through the search and, if it passes there, through a
champion's confirmation. The kernels are in data/kernels/cuda, and cuda_expected.py says why each
must be refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .cuda_expected import CLASSES, PASSES
from .cuda_pipeline import CudaPipeline, Judgement

pytestmark = pytest.mark.gpu

CHEATS = [(name, each) for name, found in CLASSES.items() for each in found.expected]


class Judged:
    """Judgements by class. A class is judged as a whole when one of its kernels is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: dict[str, dict[str, Judgement]] = {}

    def of(self, cheat_class: str) -> dict[str, Judgement]:
        if cheat_class not in self._found:
            folder = self._folder / cheat_class
            pipeline = CudaPipeline(folder, CLASSES[cheat_class].space)
            try:
                judged = pipeline.judge(pipeline.behaviours, seed=0)
                self._found[cheat_class] = {each.behaviour: each for each in judged}
            finally:
                pipeline.close()
        return self._found[cheat_class]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    return Judged(tmp_path_factory.mktemp("classes"))


@pytest.mark.parametrize(("cheat_class", "behaviour"), CHEATS)
def test_a_cheat_is_refused_and_the_reason_says_why(
    judged: Judged, cheat_class: str, behaviour: str
) -> None:
    found = judged.of(cheat_class)[behaviour]
    expected = CLASSES[cheat_class].expected[behaviour]
    assert expected.fits(found), (found.stage or "passed both", found.outcome.reason)


@pytest.mark.parametrize(
    ("cheat_class", "behaviour"),
    [(name, each) for name, found in CLASSES.items() for each in found.right],
)
def test_the_same_code_without_a_fault_is_confirmed(
    judged: Judged, cheat_class: str, behaviour: str
) -> None:
    found = judged.of(cheat_class)
    assert found[behaviour].outcome.ok, found[behaviour].outcome.reason
    right, wrong = CLASSES[cheat_class].right, CLASSES[cheat_class].expected
    assert found.keys() - PASSES == {*right, *wrong}
