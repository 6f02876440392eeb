"""Evidence on an H100 or H200: ceilings near the published figures, counters of a kernel and SDPA.

    pytest -m gpu -x tests/gpu/test_evidence.py

Counters need Nsight Compute and permission; without them their tests are skipped with the reason.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from evotune.backends import registry
from evotune.backends.base.evidence import BaselineRequest, Ceilings, Evidence, EvidenceRequest
from evotune.backends.base.launch import Binary, DeviceProfile
from evotune.backends.cuda import gpu_evidence
from evotune.backends.cuda.discovery import find_gpu
from evotune.runs.setup import KernelSetup, load_kernel_setup
from evotune.trial import Configuration, Json
from evotune.workers.build_cache import BuildCache
from evotune.workers.compile_worker import build
from evotune.workers.executor import TIMED, CaseJob

from .searching import ROOT

pytestmark = pytest.mark.gpu

CUDA = registry.named("cuda")
WITHIN = 0.25
PUBLISHED_DRAM = {"NVIDIA H200": 4.8e12, "NVIDIA H100 80GB HBM3": 3.35e12}
"""Bytes a second, by the vendor's data sheets."""


@pytest.fixture(scope="module")
def gpu() -> DeviceProfile:
    found = find_gpu("auto")
    if found.name not in PUBLISHED_DRAM:
        pytest.skip(f"the figures are of {' and '.join(PUBLISHED_DRAM)}")
    return found


@pytest.fixture(scope="module")
def ceilings(gpu: DeviceProfile) -> Ceilings:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu.id}
    found = gpu_evidence._measure(gpu, environment, bfloat=False)
    print(json.dumps(figures(found), indent=1))
    return found


def figures(ceilings: Ceilings) -> dict[str, Json]:
    return {name: getattr(ceilings, name) for name in ceilings.__struct_fields__}


def first_case(space: str, changes: Mapping[str, Json]) -> tuple[KernelSetup, CaseJob]:
    """The first timed case of a shipped space's default with these values changed."""
    setup = load_kernel_setup(ROOT / "search_spaces" / f"{space}.yaml", "auto")
    values = {**setup.planner.bound.default(), **changes}
    proposal = setup.planner.proposal(0, Configuration(values))
    assert not proposal.rejection
    return setup, next(item for item in proposal.cases if item.role == TIMED)


def gathered(space: str, folder: Path, changes: Mapping[str, Json] = {}) -> Evidence:
    setup, item = first_case(space, changes)
    binary = build(item.compile, BuildCache(folder / "cache"), folder, 120.0)
    assert isinstance(binary, Binary), binary
    request = EvidenceRequest(
        profile=setup.profile,
        dtype=setup.problem_spec.dtype,
        binary=binary.path,
        plan=item.plan.completed(binary.resources),
        tensors=tuple(setup.planner.problem.tensors(item.case)),
        resources=binary.resources,
        compile=item.compile,
    )
    found = CUDA.gather_evidence(request)
    print(json.dumps(found.to_json(), indent=1))
    return found


def mission_champion() -> dict[str, Json]:
    """The champion of the mission shape that `results/profile_h200.json` has counters of."""
    record = json.loads((ROOT / "benchmarks/results/profile_h200.json").read_text())
    (found,) = (each for each in record["champions"] if each["name"] == "mission full")
    configuration: dict[str, Json] = found["configuration"]
    return configuration


def test_ceilings_are_near_the_published_figures(gpu: DeviceProfile, ceilings: Ceilings) -> None:
    published = gpu_evidence.modelled(gpu, "float16")
    assert ceilings.kind == "measured"
    for name in ("fma_flops", "exp2_per_s", "issue_per_s", "shared_bytes_per_s"):
        assert getattr(ceilings, name) == pytest.approx(getattr(published, name), rel=WITHIN), name
    assert ceilings.tensor_flops == pytest.approx(989e12, rel=WITHIN)
    assert ceilings.dram_bytes_per_s == pytest.approx(PUBLISHED_DRAM[gpu.name], rel=WITHIN)
    assert ceilings.l2_bytes_per_s is not None
    assert 3e12 < ceilings.l2_bytes_per_s < 12e12
    assert ceilings.launch_us is not None
    assert 0.2 < ceilings.launch_us < 4  # 0.50 was measured; there is no published figure


def test_measuring_again_gives_the_same(gpu: DeviceProfile, ceilings: Ceilings) -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu.id}
    again = gpu_evidence._measure(gpu, environment, bfloat=True)
    for name, value in figures(ceilings).items():
        if isinstance(value, float):
            assert getattr(again, name) == pytest.approx(value, rel=0.1), name


@pytest.mark.usefixtures("gpu")
def test_counters_of_the_mission_shapes_champion(tmp_path: Path) -> None:
    found = gathered("attention_mma", tmp_path, mission_champion())
    (launch,) = found.launches
    assert launch.static is not None
    assert launch.static.instructions["tensor"] > 0
    assert launch.static.loop_instructions["tensor"] > 0
    if launch.counters is None:
        pytest.skip(found.unavailable["counters"])
    counters = launch.counters
    assert 2 < counters.time_us < 20
    assert 0.05 < counters.pipes["tensor"] < 0.8
    assert set(counters.pipes) >= {"fma", "alu", "mufu", "lsu", "issue", "l2", "dram", "shared"}
    assert counters.stalls["wait"] > 0
    assert counters.registers == launch.static.registers
    assert counters.instructions is not None
    assert counters.instructions > 1e5
    assert counters.shared_wavefronts is not None
    assert counters.shared_conflicts is not None
    assert counters.shared_conflicts < 0.15 * counters.shared_wavefronts  # swizzled
    assert counters.dram_bytes is not None
    assert counters.l2_bytes is not None


@pytest.mark.usefixtures("gpu")
def test_a_wgmma_kernel_shows_its_products_and_copies(tmp_path: Path) -> None:
    found = gathered("attention_wgmma", tmp_path)
    (launch,) = found.launches
    assert launch.static is not None
    assert launch.static.loop_instructions["tensor"] > 0  # HGMMA, or wgmma in PTX
    assert launch.static.loop_instructions["async_copy"] > 0
    assert launch.occupancy is not None
    assert launch.occupancy.blocks_per_multiprocessor == 1
    if launch.counters is None:
        pytest.skip(found.unavailable["counters"])
    assert launch.counters.pipes["tensor"] > 0.3


@pytest.mark.usefixtures("gpu")
def test_counters_of_sdpa() -> None:
    setup, item = first_case("attention_mma", {})
    request = BaselineRequest(
        profile=setup.profile,
        problem=setup.problem_spec.name,
        dtype=setup.problem_spec.dtype,
        case=item.case,
        baseline="sdpa:flash",
    )
    found = CUDA.gather_baseline_evidence(request)
    print(json.dumps(found.to_json(), indent=1))
    if not found.launches:
        assert "application returned" not in found.unavailable["counters"]
        pytest.skip(found.unavailable["counters"])
    longest = max(found.launches, key=lambda each: each.counters.time_us if each.counters else 0)
    assert "flash" in longest.kernel
    assert longest.counters is not None
    assert longest.counters.pipes["tensor"] > 0.02
    assert longest.occupancy is not None
