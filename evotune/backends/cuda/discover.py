"""Which device a run uses. A GPU that is there but unusable is an error, never a fall-back."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Sequence
from pathlib import Path

from evotune.backends.cpu import device as cpu
from evotune.backends.cuda import profiles
from evotune.backends.cuda.probe import GpuState, ask_present_gpus
from evotune.counted import counted
from evotune.device.profile import DeviceProfile
from evotune.errors import EnvironmentProblem, NoSuchGpu, UsageError

_REQUEST = re.compile(r"auto|cpu|cuda(?::[0-9]{1,3})?")
SYSTEM_ROOT = Path("/")
"""Where /proc and /dev are looked up; tests point it at a made-up machine."""


def gpus_present() -> list[str]:
    """Names of the NVIDIA GPUs this machine has, whether or not software can use them.

    The kernel driver's own list comes first, since it needs no library; then the device
    files, then nvidia-smi (containers and WSL may show only that). Hidden GPUs
    (CUDA_VISIBLE_DEVICES empty or -1) do not count: the user said so.
    """
    if _hidden():
        return []
    listed = [
        _model(info / "information")
        for info in sorted((SYSTEM_ROOT / "proc/driver/nvidia/gpus").glob("*"))
    ]
    if listed:
        return listed
    files = [
        path.name for path in sorted((SYSTEM_ROOT / "dev").glob("nvidia[0-9]*")) if path.exists()
    ]
    return files or _nvidia_smi()


def _hidden() -> bool:
    return os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")


def _model(information: Path) -> str:
    try:
        for line in information.read_text(errors="replace").splitlines():
            if line.startswith("Model:"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return "NVIDIA GPU"


def _nvidia_smi() -> list[str]:
    path = shutil.which("nvidia-smi")
    if not path:
        return []
    try:
        listing = subprocess.run(
            [path, "-L"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line for line in listing.stdout.splitlines() if line.startswith("GPU ")]


def cuda_problem() -> str:
    """Why torch or CuPy cannot use the GPU, with the fix, in one line; "" when they can."""
    import torch

    if torch.version.cuda is None:
        return (
            f"torch {torch.__version__} has no CUDA support; "
            "fix: pip install --force-reinstall torch (a CUDA build)"
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if not available:
        words = str(caught[0].message).splitlines()[0] if caught else "no usable driver"
        return (
            f"torch {torch.__version__} (CUDA {torch.version.cuda}) cannot use it ({words}); "
            "fix: update the NVIDIA driver, or install a torch built for an older CUDA"
        )
    major = torch.version.cuda.split(".")[0]
    extra = "cuda13" if int(major) >= 13 else "cuda12"
    if importlib.util.find_spec("cupy") is None:
        return f"CuPy is not installed; fix: pip install 'evotune[{extra}]'"
    return _cupy_problem(extra)


def _cupy_problem(extra: str) -> str:
    try:
        import cupy

        count = int(cupy.cuda.runtime.getDeviceCount())
    except (ImportError, OSError, RuntimeError, AttributeError, ValueError, TypeError) as error:
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return f"CuPy cannot use it ({line}); fix: pip install --force-reinstall 'evotune[{extra}]'"
    return "" if count else "CuPy finds no device; fix: check CUDA_VISIBLE_DEVICES"


def choose_backend(request: str) -> str:
    """The backend for a `--device` request that names no kernel: cpu or cuda.

    `auto` is the GPU when the machine has one, else the CPU. EnvironmentProblem (exit 3)
    when a GPU is there, or asked for, and cannot be used.
    """
    if request == "cpu" or (request == "auto" and not gpus_present()):
        return "cpu"
    find_gpu(request)
    return "cuda"


def backend_of(request: str) -> str | None:
    """cpu or cuda; None for auto, which leaves it open. UsageError for an unknown request."""
    if request in profiles.names():
        return "cuda"
    if not _REQUEST.fullmatch(request):
        known = ", ".join(profiles.names())
        raise UsageError(
            f"unknown device {request!r}; expected auto, cpu, cuda:N or one of {known}"
        )
    return None if request == "auto" else request.partition(":")[0]


def find_gpu(request: str) -> DeviceProfile:
    """The live GPU that `auto`, `cuda`, `cuda:N` or a model's name asks for.

    EnvironmentProblem (exit 3) when it is not there, or when software cannot use it.
    """
    backend_of(request)
    gpus = gpus_present()
    if not gpus:
        raise _no_gpu(request)
    index = int(request.partition(":")[2] or 0)
    if index >= len(gpus):
        raise _too_few(request, len(gpus))
    state = _ask(os.environ.get("CUDA_VISIBLE_DEVICES"))
    if state.problem:
        raise EnvironmentProblem(
            f"GPU found ({gpus[0]}) but {state.problem}; or tune C++ kernels with --device cpu"
        )
    if request in profiles.names():
        for profile in state.profiles:
            if profiles.matches(request, profile.name):
                return profile
        raise _no_model(request, [profile.name for profile in state.profiles])
    if index >= len(state.profiles):
        raise _too_few(request, len(state.profiles))
    return state.profiles[index]


def find_gpus(request: str, count: int | None) -> list[DeviceProfile]:
    """The first `count` GPUs that `auto`, `cuda` or a model's name allows; None: all of them."""
    if ":" in request:
        raise UsageError(
            f"--gpus takes the first GPUs there are and --device {request} names one; leave one out"
        )
    find_gpu(request)
    found = list(_ask(os.environ.get("CUDA_VISIBLE_DEVICES")).profiles)
    if request in profiles.names():
        found = [profile for profile in found if profiles.matches(request, profile.name)]
    if count is not None and count > len(found):
        names = ", ".join(profile.name for profile in found)
        raise EnvironmentProblem(
            f"--gpus {count}: this machine has {counted(len(found), 'such GPU')} ({names}); "
            "fix: ask for fewer, or --gpus all"
        )
    return found[:count]


def work_together(found: Sequence[DeviceProfile], *, allow_mixed: bool) -> DeviceProfile:
    """What holds on each of the GPUs: the least of every figure.

    EnvironmentProblem when their models differ (and that was not allowed) or their machine code.
    """
    first = found[0]
    models = list(dict.fromkeys(profile.name for profile in found))
    if len(models) > 1 and not allow_mixed:
        raise EnvironmentProblem(
            f"the GPUs differ ({', '.join(models)}): times of one say nothing of the other; fix: "
            "choose a model with --device, or use --allow-mixed, which ranks them apart"
        )
    architectures = list(dict.fromkeys(profile.arch for profile in found))
    if len(architectures) > 1:
        raise EnvironmentProblem(
            f"the GPUs differ ({', '.join(models)}) and run different machine code "
            f"({', '.join(architectures)}); fix: a run for each, with --device"
        )
    least = {
        name: min(profile.attributes.get(name, value) for profile in found)
        for name, value in first.attributes.items()
    }
    return dataclasses.replace(first, attributes=least)


@functools.cache
def _ask(visible: str | None) -> GpuState:
    """Asked once in a process: importing torch and CuPy takes the child seconds."""
    return ask_present_gpus()


def _too_few(request: str, count: int) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"--device {request}: this machine has {counted(count, 'GPU')}, counted from cuda:0"
    )


def _no_gpu(request: str) -> EnvironmentProblem:
    if request in profiles.names():
        return _no_model(request, [])
    where = "is visible (CUDA_VISIBLE_DEVICES hides all)" if _hidden() else "was found"
    if request == "auto":
        return NoSuchGpu(
            f"CUDA kernels need a GPU and no NVIDIA GPU {where}; fix: run where `nvidia-smi` lists "
            "one, or choose a space of C++ kernels"
        )
    return EnvironmentProblem(
        f"--device {request}: no NVIDIA GPU {where}; fix: run where `nvidia-smi` lists one, "
        "or tune a space of C++ kernels with --device cpu"
    )


def _no_model(request: str, found: Sequence[str]) -> NoSuchGpu:
    product = profiles.product(request)
    return NoSuchGpu(
        f"--device {request}: this machine has no {product} (found: {', '.join(found) or 'none'}); "
        "fix: run on one",
        request,
    )


def same_gpu(recorded: DeviceProfile) -> str:
    """The request for the GPU that a profile was made of; of its model, if it is not here."""
    find_gpu("auto")
    found = _ask(os.environ.get("CUDA_VISIBLE_DEVICES")).profiles
    for alike in (
        [recorded.id != "" and profile.id == recorded.id for profile in found],
        [profile.name == recorded.name for profile in found],
    ):
        if any(alike):
            return f"cuda:{alike.index(True)}"
    return "auto"


def open_profile(request: str, backend: str, *, compile_only: bool) -> DeviceProfile:
    """The profile of the device that `request` means for kernels of `backend`.

    With `compile_only` a model's name needs no such GPU. EnvironmentProblem (exit 3) when what
    is asked for is not here.
    """
    if backend == "cpu":
        return cpu.profile()
    if compile_only and request in profiles.names():
        return profiles.named(request)
    if compile_only and request == "auto" and not gpus_present():
        raise EnvironmentProblem(
            "no NVIDIA GPU was found to compile for; fix: name one, "
            f"--device {'|'.join(profiles.names())}"
        )
    return find_gpu(request)
