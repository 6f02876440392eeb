"""Which device a run gets: a GPU that is there but unusable is never passed over in silence."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from evotune.backends import registry
from evotune.backends.base.launch import DeviceProfile
from evotune.backends.cuda import discovery, gpu_profiles, presence
from evotune.backends.cuda.discovery import find_gpu, find_gpus, open_profile, same_gpu
from evotune.backends.cuda.gpu_probe import GpuState
from evotune.backends.cuda.presence import cuda_problem, gpus_present
from evotune.backends.registry import work_together
from evotune.errors import EnvironmentProblem, UsageError


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up machine without a GPU."""
    monkeypatch.setattr(presence, "SYSTEM_ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "bin").mkdir()
    return tmp_path


def _driver_lists(machine: Path, *models: str) -> None:
    for index, model in enumerate(models):
        folder = machine / f"proc/driver/nvidia/gpus/0000:0{index}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t {model}\nIRQ:  30\n")


def _nvidia_smi(machine: Path, script: str) -> None:
    path = machine / "bin" / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_machine_without_a_gpu_uses_the_cpu() -> None:
    assert gpus_present() == []
    assert registry.choose("auto").name == "cpu"
    assert registry.choose("cpu").name == "cpu"


def test_the_driver_names_the_gpus(machine: Path) -> None:
    _driver_lists(machine, "NVIDIA L4", "NVIDIA H200")
    assert gpus_present() == ["NVIDIA L4", "NVIDIA H200"]


def test_the_id_of_the_only_gpu_is_known_without_a_library(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = registry.named("cuda")
    assert backend.likely_environment() is None
    _driver_lists(machine, "NVIDIA L4")
    assert backend.likely_environment() is None, "the driver does not tell its id"
    (information,) = machine.rglob("information")
    information.write_text("Model: \t\t NVIDIA L4\nGPU UUID: \t GPU-1-2\n")
    expected = {"CUDA_VISIBLE_DEVICES": "GPU-1-2"}
    assert backend.likely_environment() == expected
    for visible, likely in (("0", expected), ("GPU-1-2", expected), ("MIG-3", None), ("", None)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert backend.likely_environment() == likely
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    second = machine / "proc/driver/nvidia/gpus/0000:01:00.0"
    second.mkdir()
    (second / "information").write_text("GPU UUID: \t GPU-3\n")
    assert backend.likely_environment() is None, "it may be the other one"


def test_a_driver_that_hides_the_model_still_has_a_gpu(machine: Path) -> None:
    (machine / "proc/driver/nvidia/gpus/0000:00:04.0").mkdir(parents=True)
    assert gpus_present() == ["NVIDIA GPU"]


def test_device_files_count_where_the_driver_lists_nothing(machine: Path) -> None:
    (machine / "dev").mkdir()
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        (machine / "dev" / name).touch()
    assert gpus_present() == ["nvidia0"]


def test_nvidia_smi_counts_where_nothing_else_shows(machine: Path) -> None:
    _nvidia_smi(machine, "echo 'GPU 0: NVIDIA L4 (UUID: GPU-1)'; echo 'not a GPU'")
    assert gpus_present() == ["GPU 0: NVIDIA L4 (UUID: GPU-1)"]
    _nvidia_smi(machine, "echo 'NVIDIA-SMI has failed because no driver runs'; exit 9")
    assert gpus_present() == []


def test_an_answer_of_nvidia_smi_need_not_be_utf8(machine: Path) -> None:
    _nvidia_smi(machine, r"printf 'GPU 0: NVIDIA L4 \351\n'")
    assert gpus_present() == ["GPU 0: NVIDIA L4 \ufffd"]


@pytest.mark.parametrize("hidden", ["", "-1", "-1,0", "NoDevFiles"])
def test_gpus_that_the_user_hides_do_not_count(
    machine: Path, monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    _driver_lists(machine, "NVIDIA L4")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert registry.choose("auto").name == "cpu"
    with pytest.raises(EnvironmentProblem, match="CUDA_VISIBLE_DEVICES hides all"):
        registry.choose("cuda")


@pytest.mark.parametrize("request_", ["cuda", "cuda:0"])
def test_asking_for_a_gpu_that_is_not_there_is_an_error_with_the_fix(request_: str) -> None:
    with pytest.raises(EnvironmentProblem, match=r"no NVIDIA GPU was found; fix: .*--device cpu"):
        registry.choose(request_)


@pytest.mark.parametrize("request_", ["gpu", "cuda:", "cuda:x", "cuda:-1", "L4", "l40", "", "CPU"])
def test_an_unknown_device_is_a_usage_error(machine: Path, request_: str) -> None:
    _driver_lists(machine, "NVIDIA L4")
    with pytest.raises(
        UsageError, match="expected auto, cpu, cuda:N or one of l4, a100, h100, h200, b200"
    ):
        registry.choose(request_)


def test_a_gpu_number_beyond_the_last_is_an_error(machine: Path) -> None:
    _driver_lists(machine, "NVIDIA L4")
    with pytest.raises(EnvironmentProblem, match=r"has 1 GPU, numbered from cuda:0"):
        registry.choose("cuda:1")


@pytest.mark.parametrize("request_", ["auto", "cuda"])
def test_a_gpu_that_torch_cannot_use_is_an_error_of_one_line(machine: Path, request_: str) -> None:
    import torch

    if torch.version.cuda is not None and torch.cuda.is_available():
        pytest.skip("this machine's GPU works")
    _driver_lists(machine, "NVIDIA L4")
    with pytest.raises(EnvironmentProblem) as caught:
        registry.choose(request_)
    text = str(caught.value)
    assert caught.value.exit_code == 3
    assert text.startswith("GPU found (NVIDIA L4) but torch ")
    assert "fix: " in text
    assert text.endswith("or tune C++ kernels with --device cpu")
    assert "\n" not in text
    assert cuda_problem() in text


def _gpu(name: str, id: str) -> DeviceProfile:
    return dataclasses.replace(gpu_profiles.named("l4"), name=name, id=id)


@pytest.fixture
def two_gpus(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose probe answers with an H200 and an L4."""
    _driver_lists(machine, "NVIDIA H200", "NVIDIA L4")
    found = (_gpu("NVIDIA H200", "GPU-a"), _gpu("NVIDIA L4", "GPU-b"))
    state = GpuState(("NVIDIA H200", "NVIDIA L4"), "", found)
    monkeypatch.setattr(discovery, "_ask", lambda visible: state)


@pytest.mark.parametrize(
    ("request_", "id"),
    [("auto", "GPU-a"), ("cuda", "GPU-a"), ("cuda:1", "GPU-b"), ("l4", "GPU-b"), ("h200", "GPU-a")],
)
@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_is_found_by_number_and_by_model(request_: str, id: str) -> None:
    assert find_gpu(request_).id == id


@pytest.mark.usefixtures("two_gpus")
def test_a_model_that_is_not_here_is_an_error_that_names_what_is() -> None:
    with pytest.raises(EnvironmentProblem) as caught:
        find_gpu("a100")
    expected = (
        "--device a100: this machine has no NVIDIA A100 (found: NVIDIA H200, NVIDIA L4); "
        "fix: run on one"
    )
    assert str(caught.value) == expected


def test_a_model_on_a_machine_without_a_gpu_is_an_error() -> None:
    for choose in (find_gpu, registry.choose):
        with pytest.raises(EnvironmentProblem) as caught:
            choose("l4")
        assert str(caught.value) == (
            "--device l4: this machine has no NVIDIA L4 (found: none); fix: run on one"
        )


@pytest.mark.usefixtures("two_gpus")
def test_a_run_resumes_on_its_own_gpu_or_on_one_of_its_model() -> None:
    assert same_gpu(_gpu("NVIDIA L4", "GPU-b")) == "cuda:1"
    assert same_gpu(_gpu("NVIDIA L4", "GPU-gone")) == "cuda:1"
    assert same_gpu(_gpu("NVIDIA L4", "")) == "cuda:1"
    assert same_gpu(_gpu("NVIDIA B200", "GPU-gone")) == "auto"


def test_compiling_needs_a_name_and_no_gpu() -> None:
    assert open_profile("l4", compile_only=True) == gpu_profiles.named("l4")
    with pytest.raises(EnvironmentProblem, match=r"fix: name one, --device l4\|a100\|h100\|h200"):
        open_profile("auto", compile_only=True)
    with pytest.raises(EnvironmentProblem, match="CUDA kernels need a GPU and no NVIDIA GPU was"):
        open_profile("auto", compile_only=False)


@pytest.mark.usefixtures("two_gpus")
def test_several_gpus_are_the_first_of_those_that_the_request_allows() -> None:
    assert [gpu.id for gpu in find_gpus("auto", None)] == ["GPU-a", "GPU-b"]
    assert [gpu.id for gpu in find_gpus("cuda", 1)] == ["GPU-a"]
    assert [gpu.id for gpu in find_gpus("l4", None)] == ["GPU-b"]
    with pytest.raises(EnvironmentProblem, match=r"--gpus 2: this machine has 1 such GPU "):
        find_gpus("l4", 2)
    with pytest.raises(UsageError, match="--device cuda:1 names one"):
        find_gpus("cuda:1", 2)


def test_gpus_of_different_models_work_together_only_where_that_is_asked_for() -> None:
    l4, other = _gpu("NVIDIA L4", "GPU-a"), _gpu("NVIDIA L40S", "GPU-b")
    larger = {**other.attributes, "multiprocessors": 142, "shared_bytes_per_block": 1000}
    other = dataclasses.replace(other, attributes=larger)
    with pytest.raises(EnvironmentProblem, match=r"differ \(NVIDIA L4, NVIDIA L40S\).*--allow-m"):
        work_together([l4, other], allow_mixed=False)
    both = work_together([l4, other], allow_mixed=True)
    assert both.attributes["multiprocessors"] == l4.attributes["multiprocessors"]
    assert both.attributes["shared_bytes_per_block"] == 1000
    hopper = dataclasses.replace(gpu_profiles.named("h200"), id="GPU-c")
    with pytest.raises(EnvironmentProblem, match=r"different machine code \(sm_89, sm_90a?\)"):
        work_together([l4, hopper], allow_mixed=True)
    twins = [l4, dataclasses.replace(l4, id="GPU-d")]
    assert work_together(twins, allow_mixed=False) == l4
