"""Which device a run gets: a GPU that is there but unusable is never passed over in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from evotune.device import discover
from evotune.device.discover import choose_backend, cuda_problem, gpus_present
from evotune.errors import EnvironmentProblem, UsageError


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up machine without a GPU."""
    monkeypatch.setattr(discover, "SYSTEM_ROOT", tmp_path)
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
    assert choose_backend("auto") == "cpu"
    assert choose_backend("cpu") == "cpu"


def test_the_driver_names_the_gpus(machine: Path) -> None:
    _driver_lists(machine, "NVIDIA L4", "NVIDIA H200")
    assert gpus_present() == ["NVIDIA L4", "NVIDIA H200"]


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


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_gpus_that_the_user_hides_do_not_count(
    machine: Path, monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    _driver_lists(machine, "NVIDIA L4")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert choose_backend("auto") == "cpu"
    with pytest.raises(EnvironmentProblem, match="CUDA_VISIBLE_DEVICES hides all"):
        choose_backend("cuda")


@pytest.mark.parametrize("request_", ["cuda", "cuda:0"])
def test_asking_for_a_gpu_that_is_not_there_is_an_error_with_the_fix(request_: str) -> None:
    with pytest.raises(EnvironmentProblem, match=r"no NVIDIA GPU was found; fix: .*--device cpu"):
        choose_backend(request_)


@pytest.mark.parametrize("request_", ["gpu", "cuda:", "cuda:x", "cuda:-1", "l4", "", "CPU"])
def test_an_unknown_device_is_a_usage_error(machine: Path, request_: str) -> None:
    _driver_lists(machine, "NVIDIA L4")
    with pytest.raises(UsageError, match="expected auto, cpu or cuda:N"):
        choose_backend(request_)


def test_a_gpu_number_beyond_the_last_is_an_error(machine: Path) -> None:
    _driver_lists(machine, "NVIDIA L4")
    with pytest.raises(EnvironmentProblem, match=r"has 1 GPU\(s\), counted from cuda:0"):
        choose_backend("cuda:1")


@pytest.mark.parametrize("request_", ["auto", "cuda"])
def test_a_gpu_that_torch_cannot_use_is_an_error_of_one_line(machine: Path, request_: str) -> None:
    import torch

    if torch.version.cuda is not None and torch.cuda.is_available():
        pytest.skip("this machine's GPU works")
    _driver_lists(machine, "NVIDIA L4")
    with pytest.raises(EnvironmentProblem) as caught:
        choose_backend(request_)
    text = str(caught.value)
    assert caught.value.exit_code == 3
    assert text.startswith("GPU found (NVIDIA L4) but torch ")
    assert "fix: " in text
    assert text.endswith("or choose --device cpu")
    assert "\n" not in text
    assert cuda_problem() in text
