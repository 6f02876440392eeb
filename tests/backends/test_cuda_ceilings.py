"""Ceilings of a GPU: the model of published figures, and kernels that are made of what they claim.

Times are measured in tests/gpu."""

from __future__ import annotations

import ctypes
import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evotune.backends.base import evidence
from evotune.backends.base.evidence import Ceilings, EvidenceRequest
from evotune.backends.base.launch import CompileFailure, LaunchPlan
from evotune.backends.cuda import ceiling_run, gpu_evidence, gpu_profiles
from evotune.backends.cuda.compiler import NvrtcCompiler
from evotune.backends.cuda.static_view import find_disassembler, static_views
from tests.patience import PATIENCE_S

MEASURED = Ceilings(kind="measured", tensor_flops=9e14, fma_flops=6e13, launch_us=1.1)


@pytest.mark.parametrize(
    ("name", "fma_tflops", "shared_tb_per_s"),
    [
        # NVIDIA's data sheets, float32 without tensor cores; 128 bytes a clock and multiprocessor.
        ("l4", 30.3, 15.1),
        ("a100", 19.5, 19.5),
        ("l40s", 91.6, 45.8),
        ("rtx4090", 82.6, 41.3),
        ("t4", 8.1, 8.1),
        ("h100", 67.0, 33.5),
        ("h20", 39.5, 19.8),
        ("rtx3090", 35.6, 17.8),
        ("rtx5090", 104.8, 52.4),
        ("rtxpro6000", 126.0, 63.0),
    ],
)
def test_the_model_gives_published_figures(
    name: str, fma_tflops: float, shared_tb_per_s: float
) -> None:
    found = gpu_evidence.modelled(gpu_profiles.named(name), "float16")
    assert found.kind == "model"
    assert found.fma_flops == pytest.approx(fma_tflops * 1e12, rel=0.1)
    assert found.shared_bytes_per_s == pytest.approx(shared_tb_per_s * 1e12, rel=0.1)
    assert found.tensor_flops == gpu_profiles.named(name).peak_gflops * 1e9
    assert found.dram_bytes_per_s == float(gpu_profiles.named(name).attributes["memory_gbps"]) * 1e9
    assert found.launch_us is None
    assert any("not measured" in note for note in found.notes)


def test_tensor_cores_have_no_ceiling_in_a_dtype_they_do_not_multiply() -> None:
    assert gpu_evidence.modelled(gpu_profiles.named("h200"), "float32").tensor_flops is None
    assert gpu_evidence.modelled(gpu_profiles.named("t4"), "bfloat16").tensor_flops is None
    assert gpu_evidence.modelled(gpu_profiles.named("a100"), "bfloat16").tensor_flops == 312e12


def test_an_unknown_gpu_has_no_figures_but_a_note() -> None:
    known = gpu_profiles.named("h200")
    unknown = dataclasses.replace(known, attributes={"arch": 210})
    found = gpu_evidence.modelled(unknown, "float16")
    assert (found.fma_flops, found.dram_bytes_per_s) == (None, None)
    assert found.notes == ("no published rates are known for sm_210",)


def test_ceilings_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVOTUNE_STATE_DIR", str(tmp_path))
    calls = []

    def measure(*_: object, bfloat: bool) -> Ceilings:
        calls.append(bfloat)
        return MEASURED

    monkeypatch.setattr(gpu_evidence, "_measure", measure)
    profile = dataclasses.replace(gpu_profiles.named("h200"), id="GPU-1")
    assert gpu_evidence.measured(profile, "float16", {}) == MEASURED
    assert gpu_evidence.measured(profile, "float16", {}) == MEASURED
    assert gpu_evidence.measured(profile, "float32", {}).tensor_flops is None
    assert calls == [False]
    gpu_evidence.measured(profile, "bfloat16", {})
    gpu_evidence.measured(dataclasses.replace(profile, id="GPU-2"), "float16", {})
    assert calls == [False, True, False]


def test_ceilings_measured_beside_other_work_say_so_and_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVOTUNE_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(gpu_evidence, "_measure", lambda *_, bfloat: MEASURED)
    monkeypatch.setattr(gpu_evidence, "busy_gpu", lambda profile: iter(["NVIDIA H200 is 97% busy"]))
    profile = dataclasses.replace(gpu_profiles.named("h200"), id="GPU-1")
    found = gpu_evidence.measured(profile, "float16", {})
    assert found.notes == ("measured while NVIDIA H200 is 97% busy",)
    assert not (tmp_path / "ceilings").exists()


def test_a_damaged_or_unwritable_file_is_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVOTUNE_STATE_DIR", str(tmp_path))
    evidence.keep(("x",), MEASURED)
    assert evidence.kept(("x",)) == MEASURED
    (file,) = (tmp_path / "ceilings").iterdir()
    file.write_text('{"kind": "guess"}')
    assert evidence.kept(("x",)) is None
    monkeypatch.setenv("EVOTUNE_STATE_DIR", str(file))
    evidence.keep(("x",), MEASURED)
    assert evidence.kept(("x",)) is None


def test_a_failed_measurement_has_a_reason() -> None:
    profile = dataclasses.replace(gpu_profiles.named("h200"), arch="sm_0")
    environment = {"PATH": "/usr/bin", "PYTHONPATH": "/nowhere"}
    with pytest.raises(gpu_evidence.NotMeasured, match="the ceilings could not be measured: "):
        gpu_evidence._measure(profile, environment, bfloat=False)


def test_the_reason_of_a_failed_measurement_need_not_be_utf8(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing = ("sh", "-c", r"printf 'cannot open \351t\351\n' >&2; exit 1")
    monkeypatch.setattr(gpu_evidence, "module_command", lambda *_: failing)
    with pytest.raises(gpu_evidence.NotMeasured, match="measured: cannot open \ufffdt\ufffd"):
        gpu_evidence._measure(gpu_profiles.named("h200"), os.environ, bfloat=False)


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("arch", "bfloat"),
    [
        *(("sm_75", False), ("sm_75", True), ("sm_80", False), ("sm_89", True)),
        *(("sm_90a", False), ("sm_90a", True)),
    ],
)
def test_the_kernels_compile_and_their_loops_are_what_they_measure(
    tmp_path: Path, arch: str, *, bfloat: bool
) -> None:
    job = ceiling_run.job(arch, bfloat=bfloat)
    resources = NvrtcCompiler().compile(job, tmp_path / "ceilings.cubin", PATIENCE_S)
    assert not isinstance(resources, CompileFailure), resources
    assert resources["spill_load_bytes"] == resources["serialized"] == 0
    if not find_disassembler():
        return  # then the kernels were compiled, at least
    request = EvidenceRequest(
        profile=gpu_profiles.named("h200"),
        dtype="float16",
        binary=str(tmp_path / "ceilings.cubin"),
        plan=LaunchPlan("", (), (), ()),
        tensors=(),
        resources=resources,
    )
    views = static_views(request)
    kinds = {"fma_peak": "fma", "exp2_peak": "mufu", "shared_peak": "shared_load"}
    for entry, kind in kinds.items():
        loop = views[entry].loop_instructions
        assert loop[kind] >= 0.75 * sum(loop.values()), (entry, loop)
    if arch != "sm_75":
        assert views["tensor_peak"].loop_instructions["tensor"] in (16, 128)
    loop = views["issue_peak"].loop_instructions
    # The FMA pipes of these take as few instructions as their ALUs do.
    parts = {"sm_75": 2, "sm_80": 2}.get(arch, 4)
    assert loop["alu"] == pytest.approx(128 / parts, abs=3)
    assert loop["fma"] == pytest.approx(128 - 128 / parts, abs=3)
    assert {peak.entry for peak in ceiling_run.peaks(80)} < set(views)


class FakeGpu:
    """A GPU of 10 multiprocessors at 1 GHz on which a block's round takes ROUND_US, a pass through
    L2 or memory a microsecond, and an empty kernel a microsecond."""

    ROUND_US = 2.0
    multiprocessors = 10
    l2_bytes = 1 << 20
    runtime = SimpleNamespace(free=lambda pointer: None, memGetInfo=lambda: (1 << 30, 1 << 30))

    def zeros(self, size: int) -> int:
        return size

    def launch(
        self, entry: str, blocks: int, threads: int, arguments: Sequence[Any]
    ) -> Callable[[], float]:
        last = arguments[-1] if arguments else None
        rounds = last.value if isinstance(last, ctypes.c_int) else 1
        each_us = 1.0 if entry in ("l2_peak", "dram_peak", "empty") else self.ROUND_US
        return lambda: rounds * each_us

    def graph(self, call: Callable[[], float], count: int) -> Callable[[], float]:
        return lambda: count * call()

    def time_us(self, call: Callable[[], float], runs: int) -> float:
        return call()


def test_rates_are_work_over_time() -> None:
    found = ceiling_run.measure(FakeGpu(), 90)  # type: ignore[arg-type]
    rounds_per_s = 10 / (FakeGpu.ROUND_US * 1e-6)  # on ten multiprocessors
    threads = 1024 * 8 * 16
    assert found == pytest.approx(
        {
            "fma_flops": 2 * threads * rounds_per_s,
            "exp2_per_s": threads * rounds_per_s,
            "issue_per_s": threads / 32 * rounds_per_s,
            "shared_bytes_per_s": 1024 * 16 * 16 * rounds_per_s,
            "tensor_flops": 2 * 16 * 2 * 64 * 128 * 16 * rounds_per_s,
            "l2_bytes_per_s": (1 << 18) * 1e6,
            "dram_bytes_per_s": 2 * (8 << 20) * 1e6,
            "launch_us": 1.0,
        }
    )
    assert "tensor_flops" not in ceiling_run.measure(FakeGpu(), 100)  # type: ignore[arg-type]
