"""The CUDA kernels of `data`, compiled for the CPU: the gate tells right ones from wrong ones.

tests/gpu/test_worked_kernels.py has them on a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from tests.red_team.emulated_gate import EmulatedInProcess

from .expected import EXPECTED_ON_A_GPU, RIGHT_ON_A_GPU, SPACES

pytestmark = pytest.mark.filterwarnings("ignore")
RACES = ("without_atomics",)
"""Here threads run one after the other, so these are right."""
Open = Callable[[str], EmulatedInProcess]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    known: dict[str, EmulatedInProcess] = {}

    def found(name: str) -> EmulatedInProcess:
        if name not in known:
            space = str(SPACES / name / "cuda.yaml")
            known[name] = EmulatedInProcess(tmp_path_factory.mktemp(name), space)
        return known[name]

    with pytest.MonkeyPatch.context() as patch:
        # Workers of other tests are children of this process too.
        patch.setattr("evotune.backends.cpu.cpu_session.has_children", lambda: False)
        yield found


@pytest.mark.parametrize("name", EXPECTED_ON_A_GPU)
def test_every_kernel_is_expected_to_be_right_or_wrong(opened: Open, name: str) -> None:
    assert {*opened(name).choices} == {*RIGHT_ON_A_GPU[name], *EXPECTED_ON_A_GPU[name]}


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("name", "behaviour"), [(n, b) for n in RIGHT_ON_A_GPU for b in RIGHT_ON_A_GPU[n]]
)
def test_a_right_kernel_passes(opened: Open, name: str, behaviour: str) -> None:
    verdict = opened(name).judge(behaviour, timed=True)
    assert verdict.passed, verdict.reason


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("name", "behaviour"),
    [(n, b) for n in EXPECTED_ON_A_GPU for b in EXPECTED_ON_A_GPU[n] if b not in RACES],
)
def test_a_wrong_kernel_is_refused(opened: Open, name: str, behaviour: str) -> None:
    kinds, reason = EXPECTED_ON_A_GPU[name][behaviour]
    verdict = opened(name).judge(behaviour)
    assert verdict.kind in kinds, verdict.reason
    assert re.search(reason, verdict.reason), verdict.reason
