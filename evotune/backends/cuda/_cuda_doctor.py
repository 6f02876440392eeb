"""The findings of `doctor` on CuPy, Triton, NVRTC, the GPUs and compute-sanitizer."""

from __future__ import annotations

from collections.abc import Iterator

from evotune.backends.backend import Finding, Status, optional, version
from evotune.backends.cuda import _profiles
from evotune.backends.cuda import compiler as cuda
from evotune.backends.cuda._probe import GpuState, probe
from evotune.backends.cuda._sanitizer import find_sanitizer
from evotune.device.launch import CompileFailure, CompileJob
from evotune.device.profile import DeviceProfile
from evotune.errors import EnvironmentProblem
from evotune.scratch import scratch_folder

_CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
_TEST_TIMEOUT_S = 60.0
_CUDA_SOURCE = 'extern "C" __global__ void evotune_doctor(int *out) { *out = threadIdx.x; }\n'
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
    """The findings on NVRTC and its headers; none where CuPy is missing, since its own finding says
    so."""
    if not any(version(name) for name in _CUPY):
        return
    try:
        major, minor = cuda.nvrtc_version()
        folders = cuda.include_folders()
        with scratch_folder() as root:
            (root / "doctor.cu").write_text(_CUDA_SOURCE)
            job = CompileJob("cuda", str(root), "doctor.cu", (), (), _profiles.named("l4").arch, "")
            result = cuda.NvrtcCompiler().compile(job, root / "doctor.cubin", _TEST_TIMEOUT_S)
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
