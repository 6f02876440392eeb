"""Each configuration in the kept figures of the benchmarks is one of today's space."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from evotune.runs.setup import KernelSetup, load_kernel_setup
from evotune.trial import Configuration

BenchmarkModule = Callable[[str], ModuleType]
Record = Mapping[str, Any]

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "benchmarks" / "results"
FILES = {
    "attention_cuda": "attention_[hb]*00.json",
    "attention_features": "attention_features_*.json",
    "attention_ragged": "attention_ragged_*.json",
    "showcases": "showcases_*.json",
}
"""Files with configurations, by the benchmark that wrote them."""
GPUS = {"NVIDIA H200": "h200", "NVIDIA H100 80GB HBM3": "h100"}
"""What --device calls a GPU, by its name in the figures."""


@pytest.mark.sweep(2)
@pytest.mark.parametrize("benchmark", FILES)
def test_kept_configurations_are_of_todays_space(
    benchmark_module: BenchmarkModule, tmp_path: Path, benchmark: str
) -> None:
    module = benchmark_module(benchmark)
    refused, count = {}, 0
    setups: dict[str, KernelSetup] = {}
    for told, record in records(FILES[benchmark]):
        space, problem = asked(module, record)
        device = GPUS[record["environment"]["device"]["name"]]
        key = json.dumps([space, problem, device])
        if key not in setups:
            path = tmp_path / f"{len(setups)}.yaml"
            setups[key] = load_kernel_setup(write(space, problem, path), device, compile_only=True)
        why = fault(setups[key], record["configuration"])
        if why:
            refused[told] = why
        count += 1
    assert count > 15
    assert refused == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"LANES": 4}, "unknown: LANES"),
        ({"SWIZZLE": "zigzag"}, "no value it may have: SWIZZLE=zigzag"),
        ({"WARPS_Q": 4}, "BLOCK_M % (16 * WARPS_Q) == 0"),
        ({"STAGES": 1, "V_WAIT": "early"}, "not in canonical form"),
    ],
)
def test_a_configuration_of_another_space_is_told(
    benchmark_module: BenchmarkModule, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    record = next(each for told, each in records("attention_h200.json") if "mission full" in told)
    space, problem = asked(benchmark_module("attention_cuda"), record)
    setup = load_kernel_setup(write(space, problem, tmp_path / "a.yaml"), "h200", compile_only=True)
    assert words in fault(setup, {**record["configuration"], **change})


def records(pattern: str) -> Iterator[tuple[str, Record]]:
    """The records of these files, each with the words that name it."""
    for path in sorted(FIGURES.glob(pattern)):
        data = json.loads(path.read_text())
        for record in data["examples"] if "examples" in data else data["jobs"]:
            names = [record[key] for key in ("rung", "name", "dtype") if key in record]
            yield f"{path.name}: {', '.join(names)}", record


def asked(module: ModuleType, record: Record) -> tuple[str, dict[str, Any]]:
    """The space of a record's job, and what its problem has in place of the space's own."""
    jobs = module.SHOWCASES if "SHOWCASES" in vars(module) else module.JOBS
    job = next(each for each in jobs if each.name == record["name"])
    match module.__name__:
        case "attention_cuda":
            return job.space, {**job.problem(), "dtype": record.get("dtype", "float16")}
        case "showcases":
            return job.space, dict(job.changes.get("problem", {}))
    problem = {"dtype": record["dtype"], "shapes": [job.shape], "held_out": []}
    if "rung" in record:
        return f"attention_{record['rung']}_features", {**problem, "variants": [job.variant]}
    return job.space, {**problem, "variants": [{"causal": job.causal}]}


def write(space: str, problem: Mapping[str, Any], path: Path) -> Path:
    document = shipped(space)
    changed = {**document, "problem": {**document["problem"], **problem}, "root": str(ROOT)}
    path.write_text(json.dumps(changed))  # YAML too, and faster
    return path


@functools.cache
def shipped(space: str) -> dict[str, Any]:
    text = (ROOT / "search_spaces" / f"{space}.yaml").read_text()
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def fault(setup: KernelSetup, kept: Mapping[str, Any]) -> str:
    """Why the space has no such configuration; "" if it has. A parameter that is newer than the
    record has the default, as where a champion is confirmed again."""
    space = setup.space
    names = [parameter.name for parameter in space.parameters]
    unknown = [name for name in kept if name not in names]
    if unknown:
        return f"unknown: {', '.join(unknown)}"
    values = dict(kept) if len(kept) == len(names) else {**space.default(), **kept}
    if space.is_valid(values):
        return setup.planner.proposal(0, Configuration(values)).rejection
    outside = [
        f"{parameter.name}={values[parameter.name]}"
        for parameter in space.parameters
        if values[parameter.name] not in parameter
    ]
    if outside:
        return f"no value it may have: {', '.join(outside)}"
    return "; ".join(space.violations(values)) or "not in canonical form"
