"""Each wrong kernel of the third red team is wrong on a case of its class, and right next to it.

No gate is asked: a launch is compared with the problem's reference, as a share of its tolerances.
C++ kernels run as they are, CUDA kernels by the model of `emulated`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from _pytest.mark import ParameterSet

from .cuda_expected import RIGHT
from .emulated.running import EmulatedSpace, NativeSpace
from .pipeline import SPACES
from .third_cases import Point, spaces

pytestmark = pytest.mark.filterwarnings("ignore")
FOUND = spaces()
SOON = {
    ("third_cpu_sizes.yaml", "keys_63_mod_64_with_groups_of_4"),
    ("third_cpu_values.yaml", "maximum_from_1000"),
    ("third_cpu_values.yaml", "mask_adds_400"),
    ("third_cpu_arg_max.yaml", "negative_zero_below_zero"),
    ("third_cpu_row_maximum.yaml", "reads_past_the_end"),
    ("third_values_fp32_cuda.yaml", "equal_maxima_count_once"),
}
MOST_EMULATED = 1 << 21
"""Elements of a matrix that the model takes on; it runs fibers, not a GPU."""


class Opened:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, NativeSpace] = {}

    def of(self, space: str) -> NativeSpace:
        if space not in self._open:
            folder = self._folder / space
            folder.mkdir()
            kind = NativeSpace if "_cpu_" in space else EmulatedSpace
            self._open[space] = kind(folder, SPACES / space)
        return self._open[space]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    return Opened(tmp_path_factory.mktemp("third"))


def share(space: NativeSpace, behaviour: str, point: Point) -> float:
    """The largest error as a share of the tolerance; infinite if an output is not finite."""
    sizes: dict[str, int] = {} if "rows" in point.shape else {"head_dim": space.head_dim}
    job = space.job(behaviour, {**point.shape, **sizes}, **_variant(point.variant))
    inputs = space.problem.make_inputs(job.case, "normal", 0)
    point.change(inputs)
    bound = space.bind(job, inputs)
    if not math.isnan(point.behind):
        x = bound.memory["x"]
        x.as_strided((1,), (1,), x.numel()).fill_(point.behind)
    bound.launch()
    reference = space.problem.reference(job.case, inputs)
    limits = space.problem.tolerances(job.case, inputs, reference)
    worst = 0.0
    for name, found in bound.outputs.items():
        if not found.is_floating_point():
            worst = max(worst, 0.0 if torch.equal(found.long(), reference[name].long()) else 9e9)
            continue
        shares = (found.double() - reference[name]).abs() / limits[name]
        worst = max(worst, float(shares.nan_to_num(math.inf).max()))
    return worst


def _variant(variant: Mapping[str, object]) -> dict[str, object]:
    return {"causal": None, **variant}


def _rows() -> list[ParameterSet]:
    return [
        pytest.param(
            space,
            behaviour,
            id=f"{space.removesuffix('.yaml')}-{behaviour}",
            marks=() if (space, behaviour) in SOON else pytest.mark.soak,
        )
        for space, (_, cases) in FOUND.items()
        for behaviour, both in cases.items()
        if "_cpu_" in space or _elements(both.wrong) <= MOST_EMULATED
    ]


def _elements(point: Point) -> int:
    return int(point.shape.get("rows", 1)) * int(point.shape.get("columns", 1))


@pytest.mark.parametrize(("space", "behaviour"), _rows())
def test_a_kernel_is_wrong_on_its_class_and_right_next_to_it(
    opened: Opened, space: str, behaviour: str
) -> None:
    both = FOUND[space][1][behaviour]
    team = opened.of(space)
    assert share(team, RIGHT, both.wrong) <= 1.0
    assert share(team, behaviour, both.right) <= 1.0
    assert share(team, behaviour, both.wrong) > 1.0


def test_every_kernel_of_the_spaces_has_its_cases(opened: Opened) -> None:
    assert {path.name for path in SPACES.glob("third_*.yaml")} == set(FOUND)
    for space, (_, cases) in FOUND.items():
        assert set(opened.of(space).behaviours) == {RIGHT, *cases}, space
