"""Evidence of launches on a GPU: what is known without it, and how a profiler's figures join."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pytest

from evotune.backends import registry
from evotune.backends.base.backend import Backend
from evotune.backends.base.evidence import (
    BaselineRequest,
    Ceilings,
    Counters,
    Evidence,
    EvidenceRequest,
)
from evotune.backends.base.launch import Launch, LaunchPlan
from evotune.backends.cuda import CudaBackend, discovery, gpu_evidence, gpu_profiles, nsight
from evotune.backends.cuda.tool_messages import PROFILED_BASELINE
from evotune.problems.problem import Case
from evotune.util.channel import decode, encode

CUDA = registry.named("cuda")
H200 = gpu_profiles.named("h200")
HERE = dataclasses.replace(H200, id="GPU-1")
MEASURED = Ceilings(kind="measured", fma_flops=6e13)
COUNTERS = Counters(source="ncu 2025.3", time_us=6.2, pipes={"tensor": 0.2}, stalls={"wait": 1.15})
PLAN = LaunchPlan(
    "attend",
    (),
    (),
    (Launch((16, 8), (128,), 65_536, "attend"), Launch((64,), (256,), 0, "merge")),
)
REQUEST = EvidenceRequest(
    profile=HERE,
    dtype="float16",
    binary="missing.cubin",
    plan=PLAN,
    tensors=(),
    resources={
        "registers": 168,
        "entries": {"attend": {"registers": 168, "static_shared_bytes": 1024}, "merge": {}},
    },
    without=frozenset({"static"}),
)
BASELINE = BaselineRequest(
    profile=HERE,
    problem="attention",
    dtype="float16",
    case=Case("(1,8,512,64) full", {"heads": 8}),
    baseline="cudnn",
)


def seen(kernel: str) -> nsight.ProfiledLaunch:
    return nsight.ProfiledLaunch(kernel, 264, 384, 168, 0, 200_000, COUNTERS)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU is here, with measured ceilings."""
    monkeypatch.setattr(gpu_evidence, "gpus_present", lambda: ["NVIDIA H200"])
    monkeypatch.setattr(discovery, "find_gpus", lambda request, count: [HERE])
    monkeypatch.setattr(gpu_evidence, "measured", lambda *_: MEASURED)


def profiling(monkeypatch: pytest.MonkeyPatch, launches: Sequence[nsight.ProfiledLaunch]) -> None:
    def profile(
        module: str, job: str, environment: Mapping[str, str]
    ) -> list[nsight.ProfiledLaunch]:
        assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-1"
        return list(launches)

    monkeypatch.setattr(nsight, "profile", profile)


def test_without_the_gpu_there_are_occupancy_and_the_models_ceilings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_evidence, "gpus_present", list)
    found = CUDA.gather_evidence(REQUEST)
    attend, merge = found.launches
    assert (attend.kernel, attend.blocks, attend.threads) == ("attend", 128, 128)
    assert attend.shared_bytes == 66_560
    assert attend.occupancy is not None
    assert attend.occupancy.blocks_per_multiprocessor == 3
    assert attend.occupancy.bound_by == "registers"
    assert attend.occupancy.limits["shared memory"] == 3
    assert (attend.occupancy.warps, attend.occupancy.max_warps) == (12, 64)
    assert attend.occupancy.waves == pytest.approx(128 / (132 * 3))
    assert merge.occupancy is None
    assert found.ceilings.kind == "model"
    away = "no NVIDIA H200 is on this machine"
    assert found.unavailable == {
        "ceilings": away,
        "counters": away,
        "occupancy": "the registers of the kernel are not known",
    }
    assert Evidence.from_json(found.to_json()) == found


@pytest.mark.usefixtures("gpu")
def test_counters_belong_to_the_launches_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    profiling(monkeypatch, [seen("attend"), seen("merge")])
    found = CUDA.gather_evidence(REQUEST)
    assert [each.counters for each in found.launches] == [COUNTERS, COUNTERS]
    assert found.ceilings == MEASURED
    assert "counters" not in found.unavailable


@pytest.mark.usefixtures("gpu")
def test_launches_that_the_profiler_missed_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    profiling(monkeypatch, [seen("attend")])
    found = CUDA.gather_evidence(REQUEST)
    assert [each.counters for each in found.launches] == [None, None]
    assert found.unavailable["counters"] == "ncu saw 1 of 2 launches"


@pytest.mark.usefixtures("gpu")
def test_another_gpu_of_the_same_model_serves_and_one_of_another_model_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    profiling(monkeypatch, [seen("attend"), seen("merge")])
    old = dataclasses.replace(HERE, id="GPU-2")
    changed = {"profile": old}
    request = EvidenceRequest(**{**_fields(REQUEST), **changed})
    assert CUDA.gather_evidence(request).launches[0].counters == COUNTERS
    changed = {"profile": gpu_profiles.named("l4")}
    request = EvidenceRequest(**{**_fields(REQUEST), **changed})
    found = CUDA.gather_evidence(request)
    assert found.unavailable["counters"] == "no NVIDIA L4 is on this machine"
    assert found.ceilings.kind == "model"


def _fields(request: EvidenceRequest) -> dict[str, object]:
    return {name: getattr(request, name) for name in request.__struct_fields__}


@pytest.mark.usefixtures("gpu")
def test_a_baselines_kernels_are_known_by_the_profiler_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    profiling(monkeypatch, [seen("cudnn_generated_fort_native_sdpa")])
    found = CUDA.gather_baseline_evidence(BASELINE)
    (launch,) = found.launches
    assert launch.kernel == "cudnn_generated_fort_native_sdpa"
    assert (launch.blocks, launch.threads, launch.shared_bytes) == (264, 384, 200_000)
    assert launch.occupancy is not None
    assert launch.occupancy.waves == pytest.approx(2.0)
    assert launch.counters == COUNTERS
    assert set(found.unavailable) == {"static"}


def test_without_counters_a_baselines_launches_are_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_evidence, "gpus_present", list)
    found = CUDA.gather_baseline_evidence(BASELINE)
    assert found.launches == ()
    assert found.unavailable["launches"] == "no NVIDIA H200 is on this machine"


def test_the_program_that_calls_a_baseline_understands_its_job() -> None:
    assert decode(PROFILED_BASELINE, encode(BASELINE)) == BASELINE


def test_a_backend_that_gathers_nothing_says_so() -> None:
    class Simple(CudaBackend):
        name = "simple"
        gather_evidence = Backend.gather_evidence

    found = Simple().gather_evidence(REQUEST)
    assert set(found.unavailable) >= {"ceilings", "static", "counters", "launches"}
    assert found.unavailable["counters"] == "the backend simple gathers none"
