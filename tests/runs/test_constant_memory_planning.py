"""Constant memory in a space: the plan that follows, and the place of each mistake."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from evotune.backends.base.launch import ConstantMemory, LaunchPlan
from evotune.errors import SpaceError
from evotune.runs.setup import load_setup

SPACE = """\
name: filled
problem:
  name: attention
  dtype: float16
  shapes: [{batch: 2, heads: 4, seq_len: 100, head_dim: 64}]
kernels:
  filled:
    source: kernels/filled.cu
    entry: attention_forward
    constant_memory: {c_keys: k}
    arguments: [q, out]
    launches: [{grid: [1], block: [32]}]
parameters: {ROWS: [1, 2]}
"""


def plan(folder: Path, old: str = "", new: str = "") -> LaunchPlan:
    assert old in SPACE
    (folder / "kernels").mkdir()
    for suffix in ("cu", "cpp"):
        (folder / "kernels" / f"filled.{suffix}").write_text("")
    path = folder / "filled.yaml"
    path.write_text(SPACE.replace(old, new))
    planner = load_setup(path, "h200", compile_only=True).planner
    assert planner is not None
    return planner.proposal(0, next(iter(planner.bound.enumerate()))).cases[0].plan


def test_a_plan_says_how_many_bytes_go_where(tmp_path: Path) -> None:
    found = plan(tmp_path)
    assert found.constant_memory == (ConstantMemory("c_keys", "k", 2 * 4 * 100 * 64 * 2),)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=LaunchPlan) == found


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        (
            "c_keys: k",
            "c_keys: kk",
            (10, 31),
            "constant memory c_keys: 'kk' is not an input tensor; did",
        ),
        (
            "c_keys: k",
            "c_keys: out",
            (10, 31),
            "constant memory c_keys: 'out' is not an input tensor",
        ),
        ("filled.cu", "filled.cpp", (10, 5), "'constant_memory' needs a CUDA kernel"),
    ],
)
def test_a_mistake_is_shown_where_it_stands(
    old: str, new: str, place: tuple[int, int], words: str, tmp_path: Path
) -> None:
    with pytest.raises(SpaceError) as caught:
        plan(tmp_path, old, new)
    assert words in str(caught.value)
    assert (caught.value.line, caught.value.column) == place
