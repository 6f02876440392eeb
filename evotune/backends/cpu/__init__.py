"""The CPU backend: C++ kernels, compiled by the machine's compiler and called in the worker."""

from __future__ import annotations

import re
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from evotune.backends.base.backend import Backend
from evotune.languages import Language, Template

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evotune.backends.base.backend import Caller, Finding
    from evotune.backends.base.evidence import BaselineRequest, Evidence, EvidenceRequest
    from evotune.backends.base.launch import DeviceProfile
    from evotune.backends.base.session import Compiler, Session

_SWITCHES = (
    # how exactly arithmetic is done
    *("fast-math", "unsafe-math-optimizations", "associative-math", "reciprocal-math"),
    *("finite-math-only", "signed-zeros", "math-errno", "trapping-math", "rounding-math"),
    # loops and vectors
    *("unroll-loops", "unroll-all-loops", "peel-loops", "split-loops", "tree-vectorize"),
    *("vectorize", "slp-vectorize", "tree-loop-vectorize", "tree-slp-vectorize", "ivopts"),
    *("loop-interchange", "loop-unroll-and-jam", "tree-loop-distribution", "loop-nest-optimize"),
    *("prefetch-loop-arrays", "split-ivs-in-unroller", "variable-expansion-in-unroller"),
    # the rest
    *("semantic-interposition", "inline-functions", "strict-aliasing", "omit-frame-pointer"),
    *("schedule-insns", "schedule-insns2", "rename-registers", "modulo-sched", "gcse-las"),
)
_INSTRUCTIONS = r"sse4\.[12]|avx|avx2|avx512[a-z0-9]+|avxvnni|fma|f16c|bmi2?"
_OPTION = re.compile(
    r"-O(?:[0-3s]|fast)"
    rf"|-f(?:no-)?(?:{'|'.join(_SWITCHES)})"
    r"|-ffp-contract=(?:fast|on|off)"
    r"|-fexcess-precision=(?:fast|standard)"
    r"|-fvect-cost-model=(?:unlimited|dynamic|cheap|very-cheap)"
    r"|-mprefer-vector-width=(?:none|128|256|512)"
    r"|-m(?:arch|tune|cpu)=[A-Za-z0-9][A-Za-z0-9._+-]*"
    rf"|-m(?:no-)?(?:{_INSTRUCTIONS})"
)
_OPTIONS_IN_WORDS = (
    "-O0 to -O3, -Os, -Ofast, -march=NAME, -mtune=NAME, -ffast-math, -funroll-loops, "
    "-ffp-contract=fast and others that name no file (docs/writing-a-kernel.md has the list)"
)


def takes_option(option: str) -> bool:
    """Whether a space may give the option to a C++ compiler in addition to `cpp_compiler.FLAGS`.

    None of these options names a file, loads a plugin or writes anything but the machine code. A
    compiler that does not know an option reports it as its own error.
    """
    return _OPTION.fullmatch(option) is not None


_CPP = Language(
    name="cpp",
    suffixes=(".cpp", ".cc", ".cxx"),
    stated_suffixes=(".c", ".h", ".hpp"),
    needs="a C++ compiler",
    takes_option=takes_option,
    options_in_words=_OPTIONS_IN_WORDS,
    template=Template(__name__, "kernel.cpp", "space_cpp.yaml"),
)

_EXPORTED = ("_cpu_launcher.py",)


class CpuBackend(Backend):
    """This machine's processor. Compiling and measuring take turns, because compilers and kernels
    need the same cores."""

    name = "cpu"
    languages = (_CPP,)
    requests = ("cpu",)  # and cpu:N, with N threads
    flagship = "attention-cpu"
    exponential_flops = 16.0
    """Eight vector instructions: a polynomial of degree 5 (of degree 4 it is off by 22 units in the
    last place of float32, 0.3466^5 / (5! 2^4)), two to reduce the range, one to scale."""
    explain_minutes = 3.0
    first_look = MappingProxyType({"minutes": 3.0, "lookahead": 4})
    """Two cores take 6 to 10 minutes for the space's 120 trials. Because compiling and measuring
    take turns, a short lookahead shows the first trial sooner, and compiles fewer configurations
    that are not measured in the end."""
    binary_suffix = ".so"
    exported_call_us = 6.0  # a call of `attention` without its launch takes 5, in Python
    loads_files = True
    times_user_problems = True
    least_half_width = 0.04
    """Programs differed by 0.7% to 3.6% in six figures of `benchmarks/lab/carries_over.py` on quiet
    machines."""

    def understands(self, request: str) -> bool:
        return request in self.requests or _threads_in(request) > 0

    def profile(self, request: str, *, compile_only: bool = False) -> DeviceProfile:
        from evotune.backends.cpu.cpu_profile import profile

        return profile(_threads_in(request))

    def left_free(self, request: str) -> str:
        from evotune.backends.cpu.cpu_profile import free_cores, wished_threads

        if _threads_in(request) or wished_threads():
            return request
        return f"{self.name}:{free_cores()}"

    def same_device(self, profile: DeviceProfile) -> str:
        threads = profile.attributes.get("threads")
        return f"{self.name}:{threads}" if threads else self.name

    def worker_environment(self, profile: DeviceProfile) -> Mapping[str, str]:
        threads = profile.attributes.get("threads")
        return {"OMP_NUM_THREADS": str(threads)} if threads else {}

    def offered(self) -> DeviceProfile:
        from evotune.backends.cpu.cpp_compiler import find_compiler
        from evotune.backends.cpu.cpu_profile import profile

        find_compiler()
        return profile()

    def compiler(self, language: str) -> Compiler:
        from evotune.backends.cpu.cpp_compiler import CpuCompiler

        return CpuCompiler()

    def open_device(self, profile: DeviceProfile) -> Session:
        from evotune.backends.cpu.cpu_session import CpuSession

        return CpuSession()

    def caller(self, profile: DeviceProfile) -> Caller:
        from evotune.backends.cpu.cpu_session import CpuCaller

        return CpuCaller(profile)

    def exported_files(self, package: str) -> Mapping[str, bytes]:
        return {name: (Path(__file__).parent / name).read_bytes() for name in _EXPORTED}

    def gather_evidence(self, request: EvidenceRequest) -> Evidence:
        from evotune.backends.cpu import cpu_evidence

        return cpu_evidence.gather(request)

    def gather_baseline_evidence(self, request: BaselineRequest) -> Evidence:
        from evotune.backends.cpu import cpu_evidence

        return cpu_evidence.gather_baseline(request)

    def doctor(self) -> tuple[list[Finding], list[Finding]]:
        from evotune.backends.cpu import _cpu_doctor

        return [], _cpu_doctor.examine()


def _threads_in(request: str) -> int:
    """N of the request `cpu:N`; 0 of others."""
    name, _, count = request.partition(":")
    return int(count) if name == CpuBackend.name and count.isdigit() else 0


ROOM = CpuBackend()
