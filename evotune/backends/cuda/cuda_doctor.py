"""The findings of `doctor` on CuPy, Triton, NVRTC, the GPUs and NVIDIA's tools."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from evotune.backends.base.backend import Finding, SanitizedCase, Status, optional, version
from evotune.backends.base.launch import (
    Argument,
    CompileFailure,
    CompileJob,
    DeviceProfile,
    Launch,
    LaunchPlan,
)
from evotune.backends.cuda import compiler as cuda
from evotune.backends.cuda import gpu_profiles, nsight
from evotune.backends.cuda.gpu_probe import GpuState, probe
from evotune.backends.cuda.sanitizer import find_sanitizer
from evotune.backends.cuda.static_view import (
    DISASSEMBLER,
    INSTALL,
    disassembler_version,
    find_disassembler,
)
from evotune.errors import EnvironmentProblem
from evotune.problems.problem import TensorSpec
from evotune.trial import Json
from evotune.util.channel import encode
from evotune.util.files import scratch_folder

_CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
_TEST_TIMEOUT_S = 60.0
_TEST_ENTRY, _TEST_BINARY = "evotune_doctor", "doctor.cubin"
_CUDA_SOURCE = f'extern "C" __global__ void {_TEST_ENTRY}(int *out) {{ *out = threadIdx.x; }}\n'
_CUDA_FIX = "pip install --force-reinstall 'evotune[cuda12]' (or cuda13, as torch's CUDA)"


def examine() -> tuple[list[Finding], list[Finding]]:
    """The findings on the packages, then those on the compiler, the GPUs and the tools. Does not
    import torch."""
    state = probe()
    packages = [
        optional("triton", "triton", "only Triton kernels need it"),
        *_gpu_packages(needed=bool(state.gpus)),
    ]
    rest = [
        *_cuda_compiler(needed=bool(state.gpus)),
        *_gpus(state),
        *(_sanitizer() if state.gpus else ()),
        *(_counters(state) if state.gpus else ()),
        *_disassembler(),
    ]
    return packages, rest


def _gpu_packages(*, needed: bool) -> Iterator[Finding]:
    cupy = next(((name, version(name)) for name in _CUPY if version(name)), None)
    management = version("nvidia-ml-py")
    status = Status.MISSING if needed else Status.ABSENT
    why = "not installed" if needed else "not installed; only GPUs need it"
    fix = "pip install 'evotune[cuda12]' (or cuda13, as torch's CUDA)" if needed else ""
    if cupy:
        yield Finding("cupy", Status.OK, f"{cupy[1]} ({cupy[0]})")
    else:
        yield Finding("cupy", status, why, fix)
    if management:
        yield Finding("nvidia-ml-py", Status.OK, management)
    else:
        yield Finding("nvidia-ml-py", status, why, fix)


def _cuda_compiler(*, needed: bool) -> Iterator[Finding]:
    """The findings on NVRTC and its headers; none if CuPy is missing, because its own finding says
    so."""
    if not any(version(name) for name in _CUPY):
        return
    try:
        major, minor = cuda.nvrtc_version()
        folders = cuda.include_folders()
        with scratch_folder() as root:
            result = _compiled(root, gpu_profiles.named("l4").arch)
    except EnvironmentProblem as error:
        what, _, fix = str(error).partition("; fix: ")
        yield Finding("NVRTC", Status.BROKEN, what, fix)
        return
    if isinstance(result, CompileFailure):
        yield Finding("NVRTC", Status.BROKEN, f"{major}.{minor}: {result.reason}", _CUDA_FIX)
    else:
        yield Finding("NVRTC", Status.OK, f"{major}.{minor}: a test kernel compiles")
    if folders:
        yield Finding("CUDA headers", Status.OK, ", ".join(map(str, folders)))
    else:
        status = Status.MISSING if needed else Status.ABSENT
        what = "not found; kernels that include mma.h or cuda_fp16.h need them"
        yield Finding("CUDA headers", status, what, _CUDA_FIX)


def _gpus(state: GpuState) -> Iterator[Finding]:
    what, _, fix = state.problem.partition("; fix: ")
    if not state.gpus:
        if what:
            yield Finding("GPU", Status.BROKEN, what, fix)
        else:
            yield Finding("GPU", Status.ABSENT, "none found; evotune tunes for the CPU")
        return
    if not what and state.profiles:
        for index, profile in enumerate(state.profiles):
            yield Finding("GPU", Status.OK, f"cuda:{index} {_gpu_text(profile)}")
        return
    for name in state.gpus:
        if what:
            yield Finding("GPU", Status.BROKEN, f"{name}: {what}", fix)
        else:
            yield Finding("GPU", Status.OK, f"{name}: usable from torch and CuPy")


def _sanitizer() -> Iterator[Finding]:
    if path := find_sanitizer():
        yield Finding("compute-sanitizer", Status.OK, path)
    else:
        what = "not found; champions are not checked with it"
        fix = "install the CUDA toolkit's compute-sanitizer, or put its folder on PATH"
        yield Finding("compute-sanitizer", Status.ABSENT, what, fix)


def _counters(state: GpuState) -> Iterator[Finding]:
    """Whether `explain` can count events of a kernel. Counts one in a test kernel, because nothing
    else shows whether this user may."""
    if not (path := nsight.find_ncu()):
        what, _, fix = nsight.NOT_INSTALLED.partition("; fix: ")
        yield Finding("counters", Status.ABSENT, what, fix)
        return
    if not state.profiles:  # its own finding says why
        return
    try:
        version = nsight.ncu_version(path)
        _count_in_a_test_kernel(state.profiles[0])
    except nsight.NoCounters as error:
        what, _, fix = str(error).partition("; fix: ")
        yield Finding("counters", Status.ABSENT, what, fix)
    else:
        yield Finding("counters", Status.OK, f"{version}, permitted")


def _count_in_a_test_kernel(profile: DeviceProfile) -> None:
    """Raises NoCounters if ncu cannot count."""
    launch = Launch((1,), (32,), entry=_TEST_ENTRY)
    plan = LaunchPlan(_TEST_ENTRY, (Argument("tensor", "out"),), (), (launch,))
    tensors = (TensorSpec("out", (32,), "float32", is_output=True),)
    with scratch_folder() as root:
        try:
            built = _compiled(root, profile.arch)
        except EnvironmentProblem as error:
            raise nsight.NoCounters(str(error)) from error
        if isinstance(built, CompileFailure):
            raise nsight.NoCounters(f"a test kernel does not compile: {built.reason}")
        job = root / "job"
        job.write_bytes(encode(SanitizedCase(str(root / _TEST_BINARY), plan, tensors)))
        module = "evotune.backends.cuda.profiled_launch"
        nsight.profile(module, str(job), os.environ, only="smsp__inst_executed.sum")


def _compiled(root: Path, arch: str) -> Mapping[str, Json] | CompileFailure:
    """Compiles the test kernel in the folder."""
    (root / "doctor.cu").write_text(_CUDA_SOURCE)
    job = CompileJob("cuda", str(root), "doctor.cu", (), (), arch, "")
    return cuda.NvrtcCompiler().compile(job, root / _TEST_BINARY, _TEST_TIMEOUT_S)


def _disassembler() -> Iterator[Finding]:
    if path := find_disassembler():
        yield Finding(DISASSEMBLER, Status.OK, f"{disassembler_version(path)} ({path})")
    else:
        what = "not found; explanations read PTX instead of machine code"
        yield Finding(DISASSEMBLER, Status.ABSENT, what, INSTALL)


def _gpu_text(profile: DeviceProfile) -> str:
    device = profile.attributes
    driver = f", driver {profile.driver}" if profile.driver else ""
    return (
        f"{profile.name}: {profile.arch}, {device['multiprocessors']} multiprocessors, "
        f"{int(device['shared_bytes_per_block']) >> 10} KiB shared memory a block, "
        f"L2 {int(device['l2_bytes']) >> 20} MiB, "
        f"{int(device['memory_bytes']) / (1 << 30):.0f} GiB at {device['memory_gbps']:.0f} GB/s"
        f"{driver}; usable from torch and CuPy"
    )
