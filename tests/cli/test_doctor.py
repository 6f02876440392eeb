from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from evotune.api import machine
from evotune.backends.base.backend import Finding, Status
from evotune.backends.cuda import cuda_doctor, gpu_profiles, nsight
from evotune.backends.cuda.gpu_probe import GpuState, probe

from .conftest import Invoke


def python(program: str) -> tuple[str, ...]:
    return (sys.executable, "-c", program)


def by_name(found: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in found}


NO_GPU = GpuState(())


def examine(monkeypatch: pytest.MonkeyPatch, state: GpuState) -> list[Finding]:
    """The findings of `doctor` on a machine whose probe answers `state`."""
    monkeypatch.setattr("evotune.backends.cuda.cuda_doctor.probe", lambda: state)
    return machine.examine()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_doctor_ends_with_0_where_the_cpu_path_works(invoke: Invoke) -> None:
    result = invoke("doctor")
    assert result.exit_code == 0
    assert "everything needed is here" in result.output
    for name in ("torch", "C++ compiler", "CPU threads", "SIMD", "GPU", "build cache"):
        assert name in result.output


def test_doctor_lists_its_findings_in_json(invoke: Invoke) -> None:
    found = json.loads(invoke("doctor", "--format", "json").output)
    assert found["usable"] is True
    assert {"name", "status", "detail", "fix"} == set(found["findings"][0])


def test_doctor_without_a_compiler_ends_with_3_and_the_fix(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    result = invoke("doctor")
    assert result.exit_code == 3
    assert "apt-get install g++" in result.output


def test_a_compiler_that_makes_nothing_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "c++"
    fake.write_text(
        "#!/bin/sh\n"
        'case "$1" in --version) echo "fake 1.0";; *) echo "x: error: no omp.h"; exit 1;; esac\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    found = by_name(examine(monkeypatch, NO_GPU))
    assert found["C++ compiler"].detail == f"fake 1.0 ({fake})"
    assert found["C++ with OpenMP"].status is Status.BROKEN
    assert "error: no omp.h" in found["C++ with OpenMP"].detail


def test_a_cache_that_cannot_be_written_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVOTUNE_CACHE_DIR", "/dev/null/cache")
    found = by_name(examine(monkeypatch, NO_GPU))
    assert found["build cache"].status is Status.BROKEN
    assert "EVOTUNE_CACHE_DIR" in found["build cache"].fix


def test_an_unusable_gpu_is_broken_and_says_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    state = GpuState(("NVIDIA L4",), "no usable driver; fix: update the NVIDIA driver")
    found = by_name(examine(monkeypatch, state))
    assert found["GPU"] == Finding(
        "GPU", Status.BROKEN, "NVIDIA L4: no usable driver", "update the NVIDIA driver"
    )
    assert found["cupy"].status in (Status.MISSING, Status.OK)


def test_a_usable_gpu_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert by_name(examine(monkeypatch, GpuState(("NVIDIA L4",))))["GPU"].status is Status.OK


def test_no_gpu_at_all_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert by_name(examine(monkeypatch, NO_GPU))["GPU"].status is Status.ABSENT


def test_a_driver_that_hangs_is_given_up_and_keeps_what_was_said() -> None:
    """The driver never answers: waiting for it would never end."""
    state = probe(2.0, ("sh", "-c", "echo '[\"NVIDIA L4\"]'; exec sleep infinity"))
    assert state.gpus == ("NVIDIA L4",)
    assert "did not answer within 2 s" in state.problem


def test_a_probe_that_dies_is_a_problem_with_its_last_words() -> None:
    state = probe(30.0, python("raise SystemExit('libcuda is broken')"))
    assert state == GpuState((), "asking for GPUs failed (libcuda is broken)")


def test_words_of_libraries_do_not_confuse_the_probe() -> None:
    program = "print('CUDA warning'); print('[\"A\"]'); print('noise'); print('\"no driver\"')"
    assert probe(30.0, python(program)) == GpuState(("A",), "no driver")


def test_the_real_probe_answers_where_gpus_are_hidden() -> None:
    assert probe() == GpuState(())


def test_doctor_tells_whether_counters_are_permitted(monkeypatch: pytest.MonkeyPatch) -> None:
    state = GpuState(("NVIDIA L4",), "", (gpu_profiles.named("l4"),))
    launches: list[str] = []

    def permitted(module: str, *_: object, only: str) -> None:
        launches.append(module)

    def forbidden(*_: object, only: str) -> None:
        raise nsight.NoCounters(nsight.FORBIDDEN)

    def counters() -> tuple[Status, str, str]:
        found = by_name(list(cuda_doctor._counters(state)))["counters"]
        return found.status, found.detail, found.fix

    monkeypatch.setattr(nsight, "find_ncu", lambda: "")
    status, detail, fix = counters()
    assert (status, detail) == (Status.ABSENT, "Nsight Compute (ncu) was not found")
    assert "CUDA toolkit" in fix
    monkeypatch.setattr(nsight, "find_ncu", lambda: "/usr/bin/ncu")
    monkeypatch.setattr(nsight, "ncu_version", lambda path: "ncu 2025.3")
    monkeypatch.setattr(nsight, "profile", permitted)
    assert counters() == (Status.OK, "ncu 2025.3, permitted", "")
    assert launches == ["evotune.backends.cuda.profiled_launch"]
    monkeypatch.setattr(nsight, "profile", forbidden)
    status, detail, fix = counters()
    assert (status, detail[:17]) == (Status.ABSENT, "ERR_NVGPUCTRPERM:")
    assert fix.startswith("run as root")
