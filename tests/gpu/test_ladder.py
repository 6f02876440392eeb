"""Every rung of the attention ladder in both types, all head sizes, both masks, grouped heads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
EVOTUNE = [sys.executable, "-m", "evotune"]
SHAPES = [
    {"batch": 1, "heads": 4, "kv_heads": 2, "seq_len": 200, "head_dim": 32},
    {"batch": 2, "heads": 4, "kv_heads": 2, "seq_len": 129, "head_dim": 64},
    {"batch": 1, "heads": 4, "kv_heads": 2, "seq_len_q": 77, "seq_len_k": 300, "head_dim": 96},
    {"batch": 1, "heads": 4, "kv_heads": 2, "seq_len_q": 1, "seq_len_k": 513, "head_dim": 128},
]
_TRIALS = 8


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("rung", ["scalar", "wmma", "mma"])
def test_random_configurations_pass_the_gate(rung: str, dtype: str, tmp_path: Path) -> None:
    space = yaml.safe_load((ROOT / f"search_spaces/attention_{rung}.yaml").read_text())
    space["root"] = str(ROOT)
    space["problem"] |= {"dtype": dtype, "shapes": SHAPES, "held_out": []}
    path = tmp_path / f"{rung}.yaml"
    path.write_text(yaml.safe_dump(space))
    runs = ["--runs-dir", str(tmp_path / "runs")]
    options = ["--strategy", "random", "--trials", str(_TRIALS), "--device", "cuda:0"]
    subprocess.run([*EVOTUNE, "run", str(path), *options, *runs], check=True, timeout=400)
    report = subprocess.run(
        [*EVOTUNE, "report", "latest", "--format", "jsonl", *runs], check=True, capture_output=True
    )
    trials = [json.loads(line) for line in report.stdout.splitlines()]
    assert len(trials) == _TRIALS
    wrong = [t for t in trials if t["outcome"] not in ("ok", "resource_limit")]
    assert not wrong, [(t["outcome"], t["reason"], t["configuration"]) for t in wrong]
    assert sum(t["confirmed"] for t in trials) >= 1
