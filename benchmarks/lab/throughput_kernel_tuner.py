"""Measures the same configurations with Kernel Tuner's own `tune_kernel` and its NVRTC backend.

Used by `throughput.py`. Kernel Tuner walks one parameter, the number of a configuration. Source,
grid, block and shared memory are functions of it, which Kernel Tuner's interface allows. The
driver's cache of machine code compiled from PTX is off, as evotune's compile cache starts empty.
"""

from __future__ import annotations

import importlib.metadata
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from evotune.backends.base.launch import LaunchPlan
from evotune.backends.cuda.compiler import include_folders
from evotune.runs.setup import load_kernel_setup
from evotune.workers.executor import TIMED, CaseJob

_SHIPPED = yaml.safe_load(
    (Path(__file__).parents[2] / "search_spaces" / "attention_mma.yaml").read_text()
)
LIMITS = {
    "parameters": {**_SHIPPED["parameters"], "SPLIT_KV": [1], "PERSISTENT": [0]},
    "constraints": [*_SHIPPED["constraints"], "shared_bytes <= 49152"],
    "default": {**_SHIPPED.get("default", {}), "SPLIT_KV": 1, "PERSISTENT": 0},
}
"""The limits of Kernel Tuner's launcher: it launches once and never raises the limit on shared
memory."""
_MAPPED = {"int32": np.int32, "int64": np.int64, "float32": np.float32, "float64": np.float64}


def measure(space: Path, device: str, count: int, iterations: int) -> dict[str, Any]:
    """Measures `count` random configurations. Their wall time is without Kernel Tuner's set-up."""
    os.environ["CUDA_CACHE_DISABLE"] = "1"
    import kernel_tuner

    setup = load_kernel_setup(space, device)
    rng = random.Random(0)
    bound = setup.planner.bound
    jobs: list[CaseJob] = []
    while len(jobs) < count:
        proposal = setup.planner.proposal(len(jobs), bound.sample(rng))
        jobs += [case for case in proposal.cases if case.role == TIMED][:1]
    sources = {job.compile.source for job in jobs}
    assert len(sources) == 1, sources
    root = Path(jobs[0].compile.root)
    (source,) = sources
    text = (root / source).read_text()

    def code(values: Any) -> str:
        defines = jobs[int(values["NUMBER"])].compile.defines
        return "".join(f"#define {name} {value}\n" for name, value in defines) + text

    def launch(values: Any) -> Any:
        return jobs[int(values["NUMBER"])].plan.launches[0]

    def is_launched(values: Any) -> bool:
        return bool(values["block_size_x"] == launch(values).threads)

    threads = sorted({job.plan.launches[0].threads for job in jobs})
    folders = [(root / source).parent, *include_folders()]
    arch = setup.profile.arch
    began = time.perf_counter()
    results, _ = kernel_tuner.tune_kernel(
        jobs[0].plan.entry,
        code,
        lambda values: (*launch(values).grid, 1, 1)[:3],
        _arguments(jobs[0].plan, setup, jobs),
        {"NUMBER": list(range(count)), "block_size_x": threads},
        restrictions=is_launched,  # no lambda: Kernel Tuner would take its source apart
        grid_div_x=[],
        grid_div_y=[],
        grid_div_z=[],
        lang="nvcuda",
        device=int(device.partition(":")[2] or 0),
        smem_args={"size": lambda values: launch(values).shared_bytes},
        compiler_options=[
            f"--gpu-architecture={arch.replace('sm_', 'compute_')}",
            "--std=c++17",
            *(f"-I{folder}" for folder in folders),
        ],
        defines={},
        iterations=iterations,
        quiet=True,
    )
    wall_s = time.perf_counter() - began
    return {
        "version": importlib.metadata.version("kernel_tuner"),
        "candidates": len(results),
        "valid": sum(isinstance(result.get("time"), float) for result in results),
        "iterations": iterations,
        "wall_s": wall_s,
        "candidates_per_minute": 60 * len(results) / wall_s,
    }


def _arguments(plan: LaunchPlan, setup: Any, jobs: list[CaseJob]) -> list[Any]:
    """The kernel's arguments: random tensors, scalars, and workspaces of the largest size that any
    configuration asks for."""
    rng = np.random.default_rng(0)
    problem = setup.planner.problem
    tensors = {spec.name: spec for spec in problem.tensors(jobs[0].case)}
    made: list[Any] = []
    for argument in plan.arguments:
        if argument.type == "tensor":
            spec = tensors[argument.name]
            made.append(rng.standard_normal(spec.shape).astype(np.dtype(spec.dtype)))
        elif argument.type == "workspace":
            sizes = (
                w.bytes for job in jobs for w in job.plan.workspaces if w.name == argument.name
            )
            made.append(np.zeros(max(sizes), dtype=np.uint8))
        else:
            made.append(_MAPPED[argument.type](argument.value))
    return made
