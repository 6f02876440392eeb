"""What `evotune doctor` looks at. Each finding that is not fine says how to make it so."""

from __future__ import annotations

import enum
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from evotune.cli import packages
from evotune.device import cpu
from evotune.device.cuda import compiler as cuda
from evotune.device.cuda import profiles
from evotune.device.launch import CompileFailure, CompileJob
from evotune.device.probe import GpuState, probe
from evotune.device.profile import DeviceProfile
from evotune.engine.stop_signal import interruptible
from evotune.errors import EnvironmentProblem
from evotune.execute.build_cache import default_cache_dir
from evotune.execute.sanitizer import find_sanitizer
from evotune.scratch import scratch_folder
from evotune.version import __version__

_CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
_TEST_TIMEOUT_S = 60.0
_TEST_SOURCE = """#include <omp.h>
extern "C" int evotune_doctor(void) {
    int threads = 0;
#pragma omp parallel
#pragma omp atomic
    ++threads;
    return threads + omp_get_max_threads();
}
"""


_CUDA_SOURCE = 'extern "C" __global__ void evotune_doctor(int *out) { *out = threadIdx.x; }\n'
_CUDA_FIX = "pip install --force-reinstall 'evotune[cuda12]' (or cuda13, as torch's CUDA)"


class Status(enum.StrEnum):
    """MISSING and BROKEN need the user; ABSENT is fine as things are."""

    OK = "ok"
    ABSENT = "absent"
    MISSING = "missing"
    BROKEN = "broken"

    @property
    def fine(self) -> bool:
        return self in (Status.OK, Status.ABSENT)


@dataclass(frozen=True, slots=True)
class Finding:
    """`fix` is a command or a setting, "" when nothing is to be done."""

    name: str
    status: Status
    detail: str
    fix: str = ""

    def to_json(self) -> dict[str, str]:
        return {name: str(getattr(self, name)) for name in self.__slots__}


def examine(ask_gpus: Callable[[], GpuState] = probe) -> list[Finding]:
    """All findings, in the order they are shown. Does not import torch."""
    state = ask_gpus()
    return [
        Finding("python", Status.OK, f"{platform.python_version()} ({sys.executable})"),
        Finding("evotune", Status.OK, __version__),
        *(_package(name) for name in packages.REQUIRED),
        _optional("pyarrow", "parquet", "only `report --format parquet` needs it"),
        _optional("triton", "triton", "only Triton kernels need it"),
        *_gpu_packages(needed=bool(state.gpus)),
        *_compiler(),
        *_cpu(),
        *_cuda_compiler(needed=bool(state.gpus)),
        *_gpus(state),
        *(_sanitizer() if state.gpus else ()),
        _cache(),
    ]


def _package(name: str) -> Finding:
    version = packages.version(name)
    if version:
        return Finding(name, Status.OK, version)
    return Finding(name, Status.MISSING, "not installed", packages.fix(name))


def _optional(name: str, extra: str, use: str) -> Finding:
    if version := packages.version(name):
        return Finding(name, Status.OK, version)
    fix = f"pip install 'evotune[{extra}]'"
    return Finding(name, Status.ABSENT, f"not installed; {use}", fix)


def _gpu_packages(*, needed: bool) -> Iterator[Finding]:
    cupy = next(((name, packages.version(name)) for name in _CUPY if packages.version(name)), None)
    management = packages.version("nvidia-ml-py")
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


def _compiler() -> Iterator[Finding]:
    """The compiler, and whether it makes an OpenMP library with evotune's own flags."""
    try:
        path = cpu.find_compiler()
        compiler = cpu.CpuCompiler()
        version = compiler.version().partition(" -std=")[0]
    except EnvironmentProblem as error:
        what, _, fix = str(error).partition(";")
        yield Finding("C++ compiler", Status.MISSING, what, fix.strip())
        return
    yield Finding("C++ compiler", Status.OK, f"{version} ({path})")
    with interruptible(), scratch_folder() as root:
        (root / "doctor.cpp").write_text(_TEST_SOURCE)
        job = CompileJob("cpp", str(root), "doctor.cpp", (), (), cpu.profile().arch, "")
        result = compiler.compile(job, root / "doctor.so", _TEST_TIMEOUT_S)
    if isinstance(result, CompileFailure):
        fix = (
            "install the compiler's OpenMP library (g++: libgomp; clang++: libomp-dev), or set CXX"
        )
        yield Finding("C++ with OpenMP", Status.BROKEN, result.reason, fix)
    else:
        yield Finding("C++ with OpenMP", Status.OK, "a test kernel compiles")


def _cuda_compiler(*, needed: bool) -> Iterator[Finding]:
    """NVRTC and the headers it finds; nothing where CuPy is missing, which is told already."""
    if not any(packages.version(name) for name in _CUPY):
        return
    try:
        major, minor = cuda.nvrtc_version()
        folders = cuda.include_folders()
        with interruptible(), scratch_folder() as root:
            (root / "doctor.cu").write_text(_CUDA_SOURCE)
            job = CompileJob("cuda", str(root), "doctor.cu", (), (), profiles.named("l4").arch, "")
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


def _cpu() -> Iterator[Finding]:
    profile = cpu.profile()
    yield Finding("CPU", Status.OK, f"{profile.name} ({profile.arch})")
    figures = profile.attributes
    yield Finding(
        "CPU threads", Status.OK, f"{figures['threads']} used of {figures['cores']} available"
    )
    caches = ", ".join(f"L{level} {_size(int(figures[f'l{level}_bytes']))}" for level in (1, 2, 3))
    yield Finding("CPU caches", Status.OK, caches)
    yield Finding("SIMD", Status.OK, f"{int(figures['simd_bytes']) * 8} bits")


def _size(size_bytes: int) -> str:
    return f"{size_bytes >> 20} MiB" if size_bytes >= 1 << 20 else f"{size_bytes >> 10} KiB"


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


def _cache() -> Finding:
    folder = default_cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-"):
            pass
    except OSError as error:
        fix = "make it writable, or set EVOTUNE_CACHE_DIR to a folder that is"
        return Finding("build cache", Status.BROKEN, f"{folder}: {error.strerror}", fix)
    return Finding("build cache", Status.OK, f"{folder} (writable)")
