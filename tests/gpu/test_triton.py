"""Triton kernels on a GPU: launched by the harness, through the same gate as CUDA ones."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("triton")

from .searching import EVOTUNE, failures, random_trials, shipped

pytestmark = pytest.mark.gpu

SHAPES = [
    {"batch": 1, "heads": 4, "kv_heads": 2, "seq_len": 200, "head_dim": 32},
    {"batch": 2, "heads": 4, "kv_heads": 2, "seq_len": 129, "head_dim": 64},
    {"batch": 1, "heads": 4, "kv_heads": 2, "seq_len_q": 77, "seq_len_k": 300, "head_dim": 128},
    {"batch": 1, "heads": 4, "kv_heads": 2, "seq_len_q": 1, "seq_len_k": 513, "head_dim": 16},
]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_random_configurations_pass_the_gate(dtype: str, tmp_path: Path) -> None:
    """The shapes have four head sizes, grouped heads and both masks; some configurations take more
    than 48 KiB of shared memory."""
    space = shipped("attention_triton")
    space["problem"] |= {"dtype": dtype, "shapes": SHAPES, "held_out": []}
    trials = random_trials(space, tmp_path, 8)
    assert len(trials) == 8
    assert not failures(trials, ("ok", "resource_limit"))
    assert any(t["resources"].get("shared_bytes_total", 0) > 48 << 10 for t in trials)
    assert sum(t["confirmed"] for t in trials) == 1


def test_the_leader_passes_the_whole_gate_again_under_the_sanitizer(tmp_path: Path) -> None:
    """`verify` binds the same machine code in a process without PyTorch as well."""
    random_trials(shipped("attention_triton"), tmp_path, 2)
    runs = ["--runs-dir", str(tmp_path / "runs")]
    command = [*EVOTUNE, "verify", "latest", "--format", "json", *runs]
    (record,) = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert record["passed"], [c for c in record["checks"] if c["status"] == "failed"]


def test_triton_and_cuda_kernels_compete_in_one_space(tmp_path: Path) -> None:
    space = shipped("attention_triton")
    scalar = shipped("attention_scalar")
    space["kernels"] |= scalar["kernels"]
    own = {name: values for name, values in scalar["parameters"].items()}
    space["parameters"] |= {n: v for n, v in own.items() if n not in space["parameters"]}
    space["let"] |= scalar.get("let", {})
    space["parameters"]["BLOCK_N"] = [32, 64, 128]  # values that both kernels take
    space["default"] = {}
    trials = random_trials(space, tmp_path, 12)
    kernels = {t["configuration"]["KERNEL"] for t in trials if t["outcome"] == "ok"}
    assert kernels == {"triton", *scalar["kernels"]}, [t["reason"] for t in trials]
