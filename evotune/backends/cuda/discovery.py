"""Finds the GPU that a run uses. A GPU that is here but unusable is an error, never a reason to
fall back to the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from evotune.backends.base.launch import DeviceProfile
from evotune.backends.cuda import gpu_profiles
from evotune.backends.cuda.gpu_probe import GpuState, ask_present_gpus
from evotune.backends.cuda.presence import GpuLock, are_hidden, gpus_present
from evotune.errors import EnvironmentProblem, NoSuchGpu, RunLocked, UsageError
from evotune.util.words import counted

# --- The work of other processes on a GPU, as NVML reports it -------------------------------------

_BUSY_GPU_PERCENT = 5


def busy_gpu(device: DeviceProfile) -> Iterator[str]:
    """Says how busy the GPU is, if it is busy; nothing if NVML is missing or refuses to answer."""
    try:
        import pynvml
    except ImportError:
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(device.id)
        percent = int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        if percent > _BUSY_GPU_PERCENT:
            yield f"{device.name} is {percent}% busy"
    except pynvml.NVMLError:
        return
    finally:
        pynvml.nvmlShutdown()


def find_gpu(request: str) -> DeviceProfile:
    """The live GPU that `auto`, `cuda`, `cuda:N` or a model's name means.

    Raises EnvironmentProblem (exit 3) if it is absent, or if software cannot use it.
    """
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
    if request in gpu_profiles.names():
        for profile in state.profiles:
            if gpu_profiles.matches(request, profile.name):
                return profile
        raise _no_model(request, [profile.name for profile in state.profiles])
    if index >= len(state.profiles):
        raise _too_few(request, len(state.profiles))
    return state.profiles[index]


def find_gpus(request: str, count: int | None) -> list[DeviceProfile]:
    """The first `count` GPUs that `auto`, `cuda` or a model's name allows, or all if `count` is
    None."""
    if ":" in request:
        raise UsageError(
            f"--gpus is for several GPUs and --device {request} names one; leave out one of them"
        )
    find_gpu(request)
    found = list(_ask(os.environ.get("CUDA_VISIBLE_DEVICES")).profiles)
    if request in gpu_profiles.names():
        found = [profile for profile in found if gpu_profiles.matches(request, profile.name)]
    if count is not None and count > len(found):
        names = ", ".join(profile.name for profile in found)
        raise EnvironmentProblem(
            f"--gpus {count}: this machine has {counted(len(found), 'such GPU')} ({names}); "
            "fix: ask for fewer, or --gpus all"
        )
    return found[:count]


_answers: dict[str | None, GpuState] = {}
"""By CUDA_VISIBLE_DEVICES. Each is asked for once in a process, since the child takes seconds to
import torch and CuPy."""


def learn(profiles: Sequence[DeviceProfile]) -> None:
    """Remembers the profiles that a process with torch and CuPy found, so that no other process
    need be asked."""
    _answers[os.environ.get("CUDA_VISIBLE_DEVICES")] = GpuState(
        tuple(gpus_present()), profiles=tuple(profiles)
    )


def _ask(visible: str | None) -> GpuState:
    if visible not in _answers:
        _answers[visible] = ask_present_gpus()
    return _answers[visible]


def _too_few(request: str, count: int) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"--device {request}: this machine has {counted(count, 'GPU')}, numbered from cuda:0"
    )


def _no_gpu(request: str) -> EnvironmentProblem:
    if request in gpu_profiles.names():
        return _no_model(request, [])
    where = "is visible (CUDA_VISIBLE_DEVICES hides all of them)" if are_hidden() else "was found"
    if request == "auto":
        return NoSuchGpu(
            f"CUDA kernels need a GPU and no NVIDIA GPU {where}; fix: run on a machine on which "
            "`nvidia-smi` lists one, or choose a space of C++ kernels"
        )
    return EnvironmentProblem(
        f"--device {request}: no NVIDIA GPU {where}; fix: run on a machine on which "
        "`nvidia-smi` lists one, or tune a space of C++ kernels with --device cpu"
    )


def _no_model(request: str, found: Sequence[str]) -> NoSuchGpu:
    product = gpu_profiles.product(request)
    return NoSuchGpu(
        f"--device {request}: this machine has no {product} (found: {', '.join(found) or 'none'}); "
        "fix: run on one",
        request,
    )


def same_gpu(recorded: DeviceProfile) -> str:
    """The value of `--device` for the GPU of a recorded profile. If this machine lacks that GPU, it
    is the value for one of the same model, else `auto`."""
    find_gpu("auto")
    found = _ask(os.environ.get("CUDA_VISIBLE_DEVICES")).profiles
    for alike in (
        [recorded.id != "" and profile.id == recorded.id for profile in found],
        [profile.name == recorded.name for profile in found],
    ):
        if any(alike):
            return f"cuda:{alike.index(True)}"
    return "auto"


def open_profile(request: str, *, compile_only: bool) -> DeviceProfile:
    """The profile of the GPU that `request` means.

    With `compile_only` a model's name is enough, and the machine need not have such a GPU. Raises
    EnvironmentProblem (exit 3) if the GPU is absent.
    """
    if compile_only and request in gpu_profiles.names():
        return gpu_profiles.named(request)
    if compile_only and request == "auto" and not gpus_present():
        raise EnvironmentProblem(
            "no NVIDIA GPU was found to compile for; fix: name one, "
            f"--device {'|'.join(gpu_profiles.names())}"
        )
    return find_gpu(request)


def take_gpu(stack: ExitStack) -> str:
    """The value of `--device` for the first GPU on which no other run measures. Locks the GPU until
    `stack` closes."""
    taken: RunLocked | None = None
    for index, profile in enumerate(find_gpus("auto", None)):
        try:
            stack.enter_context(GpuLock(profile.id))
        except RunLocked as error:
            taken = error
        else:
            return f"cuda:{index}"
    raise taken or EnvironmentProblem("this worker sees no GPU")
