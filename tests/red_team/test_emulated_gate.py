"""CUDA kernels of the red team, wrong in pages, lengths, features or masks, through the real gate.

They are compiled for the CPU, and judged on the shapes of the search. Right ones also pass the
checks that follow the timing. `make test` takes a few, `make soak` all.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sweeps import swept

from .cuda_expected import CLASSES
from .cuda_pipeline import CHAMPION
from .emulated_gate import EmulatedInProcess
from .in_process import Teams, childless

pytestmark = pytest.mark.filterwarnings("ignore")

NAMES = ("paged", "packed", "features", "masks")
SOON = {
    *("last_page_whole", "table_kept", "shared_page_written"),
    *("boundary_one_late", "stops_before_an_empty_one"),
    *("tile_by_its_ends", "lowest_overflows"),
}
"""`make test` takes these; `make soak` takes all."""
WRONG = [(name, each) for name in NAMES for each in CLASSES[name].expected]
RIGHT = [(name, each) for name in NAMES for each in CLASSES[name].right]


@pytest.fixture(scope="module")
def teams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Teams]:
    with childless():
        yield Teams(tmp_path_factory.mktemp("gated"), EmulatedInProcess)


@pytest.mark.parametrize(
    ("name", "behaviour"),
    swept(WRONG, lambda row: row[1] in SOON),
)
def test_a_wrong_kernel_is_refused_and_the_reason_says_why(
    teams: Teams, name: str, behaviour: str
) -> None:
    expected = CLASSES[name].expected[behaviour]
    verdict = teams.of(CLASSES[name].space).judge(behaviour)
    if expected.stage == CHAMPION and verdict.passed:
        return
    assert verdict.kind is not None
    assert verdict.kind.value in expected.kinds.split("|"), verdict.reason
    assert any(words in verdict.reason for words in expected.reasons.split("|")), verdict.reason


@pytest.mark.soak
@pytest.mark.parametrize(("name", "behaviour"), RIGHT)
def test_a_right_kernel_passes(teams: Teams, name: str, behaviour: str) -> None:
    verdict = teams.of(CLASSES[name].space).judge(behaviour, timed=True)
    assert verdict.passed, verdict.reason
