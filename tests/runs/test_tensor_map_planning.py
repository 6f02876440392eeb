"""Tensor maps in a space: the plan that follows, and the place of each mistake."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from evotune.backends.base.launch import LaunchPlan, TensorMap
from evotune.errors import SpaceError
from evotune.runs.planning import Planner
from evotune.runs.setup import load_setup
from evotune.workers.executor import Proposal

SPACE = """\
name: mapped
problem:
  name: attention
  dtype: bfloat16
  shapes: [{batch: 2, heads: 4, kv_heads: 2, seq_len: 100, head_dim: 64}]
kernels:
  mapped:
    source: kernels/mapped.cu
    entry: attention_forward
    alternative: attention-mma
    arguments:
      - {tensor_map: k, box: [1, 1, ROWS, head_dim // HALVES], swizzle: SWIZZLE}
      - {tensor_map: q, box: [1, 1, 8, 8], l2_promotion: 256}
      - out
    launches: [{grid: [1], block: [32]}]
parameters: {ROWS: [64, 512], HALVES: [1, 2], SWIZZLE: [128, 64]}
"""


def planner(folder: Path, old: str = "", new: str = "", device: str = "h200") -> Planner:
    assert old in SPACE
    (folder / "kernels").mkdir(exist_ok=True)
    (folder / "kernels" / "mapped.cu").write_text("")
    path = folder / "mapped.yaml"
    path.write_text(SPACE.replace(old, new))
    made = load_setup(path, device, compile_only=True).planner
    assert made is not None
    return made


def proposal(made: Planner, **values: int) -> Proposal:
    defaults = {"ROWS": 64, "HALVES": 1, "SWIZZLE": 128}
    space = made.bound
    wanted = {**defaults, **values}
    found = next(c for c in space.enumerate() if dict(c) == wanted)
    return made.proposal(0, found)


def test_a_plan_has_the_maps_of_its_shape(tmp_path: Path) -> None:
    plan = proposal(planner(tmp_path), HALVES=2).cases[0].plan
    keys, queries, out = plan.arguments
    assert (keys.type, keys.name, out.type) == ("tensor_map", "k", "tensor")
    assert keys.tensor_map == TensorMap("bfloat16", (2, 2, 100, 64), (1, 1, 64, 32), 128, 0)
    assert queries.tensor_map == TensorMap("bfloat16", (2, 4, 100, 64), (1, 1, 8, 8), 0, 256)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=LaunchPlan) == plan


def test_what_the_driver_would_refuse_is_rejected_before_compiling(tmp_path: Path) -> None:
    made = planner(tmp_path)
    label = "(2,4/2,100,64) full: the map of k: "
    assert proposal(made).rejection == ""
    found = proposal(made, ROWS=512).rejection
    assert found == f"{label}a box size of 512; from 1 to 256 are possible"
    found = proposal(made, SWIZZLE=64).rejection
    assert found == f"{label}a box row of 128 bytes, more than the swizzle of 64"


def test_an_older_gpu_takes_no_maps(tmp_path: Path) -> None:
    found = proposal(planner(tmp_path, device="l4")).rejection
    assert found.endswith("the map of k: tensor maps need sm_90 or later, found sm_89")


def test_a_space_can_name_another_one_for_devices_it_does_not_support(tmp_path: Path) -> None:
    with pytest.raises(SpaceError) as caught:
        planner(tmp_path, "    alternative", '    supports: {arch: ">= 90"}\n    alternative', "l4")
    assert caught.value.message == (
        "kernel mapped needs sm_90 or later, found sm_89 (NVIDIA L4); "
        "use the space attention-mma there"
    )


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        (
            "tensor_map: k,",
            "tensor_map: kk,",
            (12, 9),
            "the tensor map names 'kk', which is not a tensor",
        ),
        ("[1, 1, 8, 8]", "[1, 8, 8]", (13, 30), "the box has 3 sizes, but q has 4 dimensions"),
        ("[1, 1, 8, 8]", "[1, 1, 300, 8]", (13, 37), "expected 1 to 256, found 300"),
        ("swizzle: SWIZZLE", "swizzle: 96", (12, 73), "expected one of 0, 32, 64, 128, found 96"),
        (
            "l2_promotion: 256",
            "promotion: 256",
            (13, 44),
            "unknown key 'promotion' in a tensor map",
        ),
        ("box: [1, 1, 8, 8],", "", (13, 9), "missing key 'box'"),
        ("ROWS, head_dim", "ROW, head_dim", (12, 37), "unknown name 'ROW'; did you mean"),
        ("mapped.cu", "mapped.cpp", (12, 9), "a tensor map needs a CUDA kernel"),
        ("[1, 1, 8, 8]", "[1, 1, 1, 1, 1, 1]", (13, 30), "at most 5"),
    ],
)
def test_a_mistake_is_shown_where_it_stands(
    old: str, new: str, place: tuple[int, int], words: str, tmp_path: Path
) -> None:
    with pytest.raises(SpaceError) as caught:
        proposal(planner(tmp_path, old, new))
    assert words in caught.value.message
    assert (caught.value.line, caught.value.column) == place


@pytest.mark.parametrize("command", ["check", "compile"])
@pytest.mark.parametrize(("device", "found"), [("l4", "sm_89"), ("b200", "sm_100")])
def test_the_hopper_space_proposes_another_one_on_other_gpus(
    command: str, device: str, found: str
) -> None:
    from evotune.cli.main import application

    words = [command, "attention-wgmma", "--device", device]
    ran = CliRunner().invoke(application, words, prog_name="evotune")
    assert ran.exit_code == 2
    assert f"needs sm_90, found {found} (NVIDIA {device.upper()})" in ran.output
    assert "use the space attention-mma there" in ran.output
