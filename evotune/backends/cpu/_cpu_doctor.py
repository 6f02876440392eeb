"""The findings of `doctor` on the C++ compiler and the processor."""

from __future__ import annotations

from collections.abc import Iterator

from evotune.backends.base.backend import Finding, Status
from evotune.backends.base.launch import CompileFailure, CompileJob
from evotune.backends.cpu import cpp_compiler, cpu_evidence, cpu_profile
from evotune.errors import EnvironmentProblem
from evotune.util.files import scratch_folder

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


def examine() -> list[Finding]:
    """The findings on the compiler, the processor and the tools of `explain`."""
    return [*_compiler(), *_cpu(), *_counters()]


def _compiler() -> Iterator[Finding]:
    """The compiler, and whether it makes an OpenMP library with evotune's own flags."""
    try:
        path = cpp_compiler.find_compiler()
        compiler = cpp_compiler.CpuCompiler()
        version = compiler.version().partition(" -std=")[0]
    except EnvironmentProblem as error:
        what, _, fix = str(error).partition(";")
        yield Finding("C++ compiler", Status.MISSING, what, fix.strip())
        return
    yield Finding("C++ compiler", Status.OK, f"{version} ({path})")
    with scratch_folder() as root:
        (root / "doctor.cpp").write_text(_TEST_SOURCE)
        job = CompileJob("cpp", str(root), "doctor.cpp", (), (), cpu_profile.profile().arch, "")
        result = compiler.compile(job, root / "doctor.so", _TEST_TIMEOUT_S)
    if isinstance(result, CompileFailure):
        fix = (
            "install the compiler's OpenMP library (g++: libgomp; clang++: libomp-dev), or set CXX"
        )
        yield Finding("C++ with OpenMP", Status.BROKEN, result.reason, fix)
    else:
        yield Finding("C++ with OpenMP", Status.OK, "a test kernel compiles")


def _cpu() -> Iterator[Finding]:
    profile = cpu_profile.profile()
    yield Finding("CPU", Status.OK, f"{profile.name} ({profile.arch})")
    figures = profile.attributes
    yield Finding(
        "CPU threads", Status.OK, f"{figures['threads']} used of {figures['cores']} available"
    )
    caches = ", ".join(f"L{level} {_size(int(figures[f'l{level}_bytes']))}" for level in (1, 2, 3))
    yield Finding("CPU caches", Status.OK, caches)
    yield Finding("SIMD", Status.OK, f"{int(figures['simd_bytes']) * 8} bits")


def _counters() -> Iterator[Finding]:
    name = "CPU counters"
    if not cpu_evidence.find_perf():
        what, _, fix = cpu_evidence.NOT_INSTALLED.partition("; fix: ")
        yield Finding(name, Status.ABSENT, what, fix)
        return
    try:
        version, refusal = cpu_evidence.permission()
    except cpu_evidence.NotCounted as error:
        version, refusal = "perf", str(error)
    what, _, fix = refusal.partition("; fix: ")
    if refusal:
        yield Finding(name, Status.ABSENT, f"{version}: {what}", fix)
    else:
        yield Finding(name, Status.OK, f"{version}, permitted")


def _size(size_bytes: int) -> str:
    return f"{size_bytes >> 20} MiB" if size_bytes >= 1 << 20 else f"{size_bytes >> 10} KiB"
