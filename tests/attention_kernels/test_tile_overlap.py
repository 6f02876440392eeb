"""TILE_OVERLAP of 5_wgmma.cu on the CPU model: a tile begins under the one before it.

`test_varlen_wgmma.py` has it for packed sequences, `test_machine_code.py` its order in the cubin.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from evotune.trial import Value

from .test_hopper_model import GROUPED, ODD, TWO, complaints

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


AHEAD: dict[str, Value] = {**TWO, "TILE_OVERLAP": True, "QUERY_STAGES": 2}


def _later(*values: object) -> ParameterSet:
    """A case that only `make soak` runs."""
    return pytest.param(*values, marks=pytest.mark.soak)


@pytest.mark.parametrize(
    ("values", "shapes", "problem"),
    [
        ({"SKIP_MASKED": True, "BLOCK_N": 32}, ODD, {"causal": True}),
        _later({}, ODD, {}),
        _later({"STORE": "direct", "CLUSTER": 2}, ODD, {}),
        _later({"CLUSTER": 2, "WALK": "snake", "SKIP_MASKED": True}, ODD, {"causal": True}),
        _later({"SHARE_TAIL": True}, ODD, {}),
        _later({"PACK_GQA": True}, GROUPED, {"causal": True}),
        _later({"Q_IN_REGS": True, "STAGES": 1}, ODD, {"head_dim": 128, "dtype": "bfloat16"}),
    ],
)
def test_a_tile_begins_while_the_last_values_of_the_tile_before_are_added(
    values: Mapping[str, Value],
    shapes: Sequence[Mapping[str, Value]],
    problem: Mapping[str, Value],
    tmp_path: Path,
) -> None:
    assert not list(complaints(tmp_path, {**AHEAD, **values}, shapes, **problem))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (
            "wait_products<1>();\n    pin(scores);\n    give_back_keys();\n    weigh<MASKED",
            "weigh<MASKED",
        ),
        ("wait_products<0>();\n    pin(output);\n    give_back_values();\n    pack_w", "pack_w"),
        ("    softmax = own;", ""),
        ("    query = at;", ""),
        ("first_seen_step(next) == next.first_step", "true"),
        ("if (begun) clear_output();", ""),
    ],
)
def test_a_mistake_between_tiles_shows(right: str, wrong: str, tmp_path: Path) -> None:
    values = {**AHEAD, "SKIP_MASKED": True, "BLOCK_N": 32}
    assert list(complaints(tmp_path, values, mistakes={right: wrong}, causal=True))
