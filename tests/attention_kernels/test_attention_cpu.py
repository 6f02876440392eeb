"""The shipped CPU kernel in bfloat16, and compiled for instruction sets of other machines."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from evotune.backends.cpu.cpp_compiler import find_compiler
from evotune.runs.setup import load_setup
from evotune.runs.spaces import find_space
from tests.patience import PATIENCE_S


@pytest.mark.soak
def test_the_default_bfloat16_configuration_passes_the_gate(tmp_path: Path) -> None:
    evotune = [sys.executable, "-m", "evotune"]
    runs = ["--runs-dir", str(tmp_path / "runs")]
    shipped = find_space("attention-cpu-bf16")
    space = yaml.safe_load(shipped.read_text())
    small = {"batch": 1, "heads": 2, "seq_len": 260, "head_dim": 64}  # a champion is timed for long
    space["problem"].update(shapes=[small], held_out=[{**small, "seq_len": 250}])
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump({**space, "root": str(shipped.parents[1])}))
    subprocess.run(
        [*evotune, "run", str(path), "--trials", "1", *runs],
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    report = subprocess.run(
        [*evotune, "report", "latest", "--format", "jsonl", *runs], check=True, capture_output=True
    )
    (trial,) = [json.loads(line) for line in report.stdout.splitlines()]
    assert (trial["outcome"], trial["confirmed"]) == ("ok", True)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86 targets")
@pytest.mark.sweep(1)
@pytest.mark.parametrize("target", ["x86-64", "haswell", "skylake-avx512"])
def test_it_compiles_for_every_vector_width(tmp_path: Path, target: str) -> None:
    planner = load_setup(find_space("attention-cpu"), "cpu").planner
    assert planner is not None
    job = planner.compile_jobs(planner.bound.default())[0]
    command = [find_compiler(), "-std=c++17", "-O1", "-fopenmp", f"-march={target}", "-Wall", "-c"]
    command += [f"-D{name}={value}" for name, value in job.defines]
    source = str(Path(job.root) / job.source)
    done = subprocess.run(
        [*command, source, "-o", str(tmp_path / "kernel.o")], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
