"""CUDA kernels of the red team, wrong in pages, packed lengths or features, through the real gate.

They are compiled for the CPU, and judged on the shapes of the search. Right ones also pass the
checks that follow the timing. `make test` takes a few, `make soak` all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .cuda_expected import CLASSES
from .cuda_pipeline import CHAMPION
from .emulated_gate import EmulatedInProcess

pytestmark = pytest.mark.filterwarnings("ignore")

NAMES = ("paged", "packed", "features")
SOON = {
    *("last_page_whole", "table_kept", "shared_page_written"),
    *("boundary_one_late", "stops_before_an_empty_one"),
}
"""`make test` takes these; `make soak` takes all."""
WRONG = [(name, each) for name in NAMES for each in CLASSES[name].expected]
RIGHT = [(name, each) for name in NAMES for each in CLASSES[name].right]


class Teams:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, EmulatedInProcess] = {}

    def of(self, name: str) -> EmulatedInProcess:
        if name not in self._open:
            folder = self._folder / name
            folder.mkdir()
            self._open[name] = EmulatedInProcess(folder, CLASSES[name].space)
        return self._open[name]


@pytest.fixture(scope="module")
def teams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Teams]:
    with pytest.MonkeyPatch.context() as patch:
        # Workers of other tests are children of this process too.
        patch.setattr("evotune.backends.cpu.cpu_session.has_children", lambda: False)
        yield Teams(tmp_path_factory.mktemp("gated"))


@pytest.mark.parametrize(
    ("name", "behaviour"),
    [
        pytest.param(name, each, marks=() if each in SOON else pytest.mark.soak)
        for name, each in WRONG
    ],
)
def test_a_wrong_kernel_is_refused_and_the_reason_says_why(
    teams: Teams, name: str, behaviour: str
) -> None:
    expected = CLASSES[name].expected[behaviour]
    verdict = teams.of(name).judge(behaviour)
    if expected.stage == CHAMPION and verdict.passed:
        return
    assert verdict.kind is not None
    assert verdict.kind.value in expected.kinds.split("|"), verdict.reason
    assert any(words in verdict.reason for words in expected.reasons.split("|")), verdict.reason


@pytest.mark.soak
@pytest.mark.parametrize(("name", "behaviour"), RIGHT)
def test_a_right_kernel_passes(teams: Teams, name: str, behaviour: str) -> None:
    verdict = teams.of(name).judge(behaviour, timed=True)
    assert verdict.passed, verdict.reason
