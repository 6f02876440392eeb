"""The Hopper kernel on a Hopper GPU, from the smallest configuration up: a hang is found early.

    pytest -m gpu -x tests/gpu/test_wgmma.py

Each test is an `evotune run` of one configuration in processes of its own: the gate checks every
shape, its edge shapes, held-out and adversarial inputs. A kernel that hangs ends as `timeout` after
`timeouts.trial_s`, and `-x` ends the row there.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
EVOTUNE = [sys.executable, "-m", "evotune"]
SPACE = yaml.safe_load((ROOT / "search_spaces" / "attention_wgmma.yaml").read_text())
_TRIAL_S = 20.0
_RUN_S = 120.0

SMALLEST: dict[str, Any] = {
    "CONSUMER_WARPGROUPS": 1,
    "BLOCK_N": 64,
    "STAGES": 1,
    "QUERY_STAGES": 1,
    "PRODUCER_WARPS": 1,
    "PRODUCER_REGISTERS": 24,
    "OVERLAP": False,
    "PING_PONG": False,
    "Q_IN_REGS": False,
    "EXP2_FMA_SHARE": 0,
    "RESCALE_LOG2": 0,
    "STORE": "direct",
    "L2_PROMOTION": 128,
    "PERSISTENT": 0,
    "WALK": "straight",
    "HEAD_SECTION": 1,
    "ROW_ORDER": "ascending",
    "MIN_CTAS": 1,
}
PLAIN = [{"batch": 1, "heads": 1, "seq_len": 64}]
ODD = [
    {"batch": 2, "heads": 4, "kv_heads": 2, "seq_len": 129},
    {"batch": 1, "heads": 4, "seq_len_q": 77, "seq_len_k": 300},
    {"batch": 1, "heads": 4, "kv_heads": 1, "seq_len_q": 1, "seq_len_k": 513},
    {"batch": 3, "heads": 16, "seq_len": 1000},  # more tiles than multiprocessors
]
BOTH = [{"causal": False}, {"causal": True}]


@pytest.fixture(scope="module", autouse=True)
def _a_hopper_gpu() -> None:
    import torch

    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("wgmma needs a GPU of compute capability 9.0")


def outcomes(
    folder: Path,
    values: Mapping[str, Any],
    shapes: Sequence[Mapping[str, int]],
    *,
    head_dim: int = 64,
    dtype: str = "float16",
    variants: Sequence[Mapping[str, bool]] = BOTH,
) -> list[dict[str, Any]]:
    """What becomes of this one configuration on these shapes."""
    space = {**SPACE, "root": str(ROOT), "after_compile": [], "default": dict(values)}
    space["parameters"] = {name: [value] for name, value in values.items()}
    space["problem"] = {
        "name": "attention",
        "dtype": dtype,
        "shapes": [{**shape, "head_dim": head_dim} for shape in shapes],
        "variants": list(variants),
    }
    space["timeouts"] = {"compile_s": 60.0, "trial_s": _TRIAL_S}
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump(space))
    runs = ["--runs-dir", str(folder / "runs")]
    options = ["--strategy", "exhaustive", "--trials", "1", "--device", "cuda:0"]
    # Exit code 1, no valid candidate, is what the assertion below tells more of.
    subprocess.run([*EVOTUNE, "run", str(path), *options, *runs], check=False, timeout=_RUN_S)
    report = subprocess.run(
        [*EVOTUNE, "report", "latest", "--format", "jsonl", *runs], check=True, capture_output=True
    )
    return [json.loads(line) for line in report.stdout.splitlines()]


def check(
    folder: Path, values: Mapping[str, Any], shapes: Sequence[Mapping[str, int]], **more: Any
) -> None:
    trials = outcomes(folder, {**SMALLEST, **values}, shapes, **more)
    assert trials
    found = [(trial["outcome"], trial["reason"], trial["configuration"]) for trial in trials]
    assert all(outcome == "ok" for outcome, _, _ in found), found


# What each one adds: see attention_wgmma.md, "What to measure first".
STEPS: list[tuple[str, dict[str, Any]]] = [
    ("smallest", {}),
    ("bulk store", {"STORE": "bulk"}),
    ("two stages", {"STORE": "bulk", "STAGES": 2}),
    ("overlap", {"STAGES": 2, "OVERLAP": True}),
    ("producer warpgroup", {"STAGES": 2, "PRODUCER_WARPS": 4}),
    ("two warpgroups", {"CONSUMER_WARPGROUPS": 2, "STAGES": 2}),
    ("registers move", {"CONSUMER_WARPGROUPS": 2, "STAGES": 2, "PRODUCER_WARPS": 4}),
    ("ping-pong", {"CONSUMER_WARPGROUPS": 2, "STAGES": 2, "PING_PONG": True}),
    ("persistent", {"CONSUMER_WARPGROUPS": 2, "STAGES": 2, "STORE": "bulk", "PERSISTENT": 1}),
    ("lazy rescale", {"STAGES": 2, "RESCALE_LOG2": 8}),
    ("polynomial", {"STAGES": 2, "EXP2_FMA_SHARE": 8}),
    ("queries in registers", {"STAGES": 2, "Q_IN_REGS": True}),
    ("all at once", SPACE["default"]),
]


@pytest.mark.parametrize("mask", BOTH, ids=["full", "causal"])
def test_one_tile_in_the_smallest_configuration(mask: dict[str, bool], tmp_path: Path) -> None:
    check(tmp_path, {}, PLAIN, variants=[mask])


@pytest.mark.parametrize("step", STEPS, ids=[name for name, _ in STEPS])
def test_one_part_after_the_other_passes_the_gate(
    step: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    check(tmp_path, step[1], ODD)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128])
def test_head_dimensions_and_types(head_dim: int, dtype: str, tmp_path: Path) -> None:
    values = {"CONSUMER_WARPGROUPS": 2, "BLOCK_N": 96, "STAGES": 2, "OVERLAP": True}
    values |= {"PRODUCER_WARPS": 4, "PING_PONG": True, "STORE": "bulk", "RESCALE_LOG2": 8}
    check(tmp_path, values, ODD, head_dim=head_dim, dtype=dtype)


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 6])
def test_every_pipeline_depth(stages: int, groups: int, tmp_path: Path) -> None:
    for number, (overlap, ping_pong) in enumerate(itertools.product((False, True), repeat=2)):
        if ping_pong and groups == 1:
            continue
        values = {"CONSUMER_WARPGROUPS": groups, "STAGES": stages, "BLOCK_N": 64}
        values |= {"OVERLAP": overlap, "PING_PONG": ping_pong, "PRODUCER_WARPS": 4}
        values |= {"STORE": "bulk", "PERSISTENT": 1, "QUERY_STAGES": 2, "PRODUCER_REGISTERS": 32}
        folder = tmp_path / str(number)
        folder.mkdir()
        check(folder, values, ODD)


def test_random_configurations_pass_the_gate(tmp_path: Path) -> None:
    space = {**SPACE, "root": str(ROOT)}
    space["problem"] = {**SPACE["problem"], "shapes": [{**s, "head_dim": 64} for s in ODD]}
    space["problem"]["held_out"] = []
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(space))
    runs = ["--runs-dir", str(tmp_path / "runs")]
    options = ["--strategy", "random", "--trials", "24", "--device", "cuda:0"]
    subprocess.run([*EVOTUNE, "run", str(path), *options, *runs], check=True, timeout=400)
    report = subprocess.run(
        [*EVOTUNE, "report", "latest", "--format", "jsonl", *runs], check=True, capture_output=True
    )
    trials = [json.loads(line) for line in report.stdout.splitlines()]
    wrong = [t for t in trials if t["outcome"] not in ("ok", "resource_limit")]
    assert not wrong, [(t["outcome"], t["reason"], t["configuration"]) for t in wrong]
    assert sum(t["outcome"] == "ok" for t in trials) >= 0.95 * len(trials)
