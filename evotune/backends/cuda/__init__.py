"""The CUDA backend: kernels in CUDA C++ and in Triton, for NVIDIA's GPUs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from evotune.backends.base.backend import TOOLS, Backend
from evotune.backends.cuda import gpu_profiles, stated_options
from evotune.languages import Language, Template

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager, ExitStack
    from pathlib import Path

    from evotune.backends.base.backend import Caller, Finding, Limits, SanitizedCase
    from evotune.backends.base.evidence import BaselineRequest, Evidence, EvidenceRequest
    from evotune.backends.base.launch import CompileJob, DeviceProfile
    from evotune.backends.base.session import Compiler, Session
    from evotune.trial import Check, OutcomeKind

_REQUEST = re.compile(r"cuda(?::[0-9]{1,3})?")
_COMPILE = ', "--device", "h200"'

_CUDA = Language(
    name="cuda",
    suffixes=(".cu",),
    stated_suffixes=(".cuh", ".h", ".hpp"),
    needs="an NVIDIA GPU",
    launched=True,
    tensor_maps=True,
    constant_memory=True,
    taken_macros=("T",),  # NVRTC's header has `template <typename T>`
    takes_option=stated_options.is_allowed,
    options_in_words=stated_options.IN_WORDS,
    template=Template(__name__, "kernel.cu", "space_cuda.yaml", _COMPILE),
)
_TRITON = Language(
    name="triton",
    suffixes=(".py",),
    needs="an NVIDIA GPU, triton",
    launched=True,
    block=stated_options.block_size,
    decided=stated_options.DECIDED,
    one_entry=True,
    extra_arguments=stated_options.EXTRA_ARGUMENTS,
    runs_when_compiled=True,
    options_in_words="none in Triton; use the parameters NUM_WARPS, NUM_STAGES and MAXNREG",
    template=Template(
        __name__,
        "kernel_triton.py",
        "space_triton.yaml",
        _COMPILE,
        taken=("problem", "triton", "torch", "evotune"),  # they would hide imported modules
    ),
)


class CudaBackend(Backend):
    """NVIDIA's GPUs. Compilers run while a GPU measures, on other cores than the workers'."""

    name = "cuda"
    languages = (_CUDA, _TRITON)
    requests = ("cuda:N",)
    peak_is = "tensor_flops"
    flagship = "attention-mma"
    preference = 1
    exclusive = False
    several = True
    spare_worker = True
    least_half_width = 0.025
    """Programs differed by at most this much in four figures of `benchmarks/lab/carries_over.py` on
    an H200: 0.5% and 0.7% on a quiet machine, 1.7% and 2.0% with two busy processes."""
    binary_suffix = ".cubin"
    packages = ("cupy-cuda12x", "cupy-cuda13x", "nvidia-ml-py", "triton")

    def understands(self, request: str) -> bool:
        return request in gpu_profiles.names() or _REQUEST.fullmatch(request) is not None

    def models(self) -> tuple[str, ...]:
        return gpu_profiles.names()

    def model(self, name: str) -> DeviceProfile:
        return gpu_profiles.named(name)

    def completions(self) -> tuple[str, ...]:
        """The first two GPUs by number, then the models."""
        return ("cuda:0", "cuda:1", *gpu_profiles.names())

    def is_here(self) -> bool:
        from evotune.backends.cuda.presence import gpus_present

        return bool(gpus_present())

    def profile(self, request: str, *, compile_only: bool = False) -> DeviceProfile:
        from evotune.backends.cuda import discovery

        return discovery.open_profile(request, compile_only=compile_only)

    def profiles(self, request: str, count: int | None) -> list[DeviceProfile]:
        from evotune.backends.cuda import discovery

        return discovery.find_gpus(request, count)

    def same_device(self, profile: DeviceProfile) -> str:
        from evotune.backends.cuda import discovery

        return discovery.same_gpu(profile)

    def measuring_alone(self, profile: DeviceProfile) -> AbstractContextManager[object]:
        from evotune.backends.cuda.presence import GpuLock

        return GpuLock(profile.id)

    def take_device(self, stack: ExitStack) -> str:
        from evotune.backends.cuda import discovery

        return discovery.take_gpu(stack)

    def offered(self) -> DeviceProfile:
        return self.profiles("auto", 1)[0]

    def others_at_work(self, profile: DeviceProfile) -> Iterator[str]:
        from evotune.backends.cuda.discovery import busy_gpu

        return busy_gpu(profile)

    def compiler(self, language: str) -> Compiler:
        if language == _CUDA.name:
            from evotune.backends.cuda.compiler import NvrtcCompiler

            return NvrtcCompiler()
        from evotune.backends.cuda.triton_compiler import TritonCompiler

        return TritonCompiler()

    def limits(self) -> Limits | None:
        from evotune.backends.cuda.gpu_limits import GpuLimits

        return GpuLimits()

    def preload(self) -> None:
        import cupy  # noqa: F401

        import evotune.backends.cuda.cuda_session  # noqa: F401

    def open_device(self, profile: DeviceProfile) -> Session:
        from evotune.backends.cuda.cuda_session import CudaSession

        return CudaSession(profile)

    def caller(self, profile: DeviceProfile) -> Caller:
        from evotune.backends.cuda.cuda_kernel import CudaCaller

        return CudaCaller(profile)

    def exported_files(self, package: str) -> Mapping[str, bytes]:
        from evotune.backends.cuda import exported_launchers

        return exported_launchers.files()

    def exported_slower_because(self) -> str:
        from evotune.backends.cuda import exported_launchers

        return exported_launchers.slower_because()

    def worker_environment(self, profile: DeviceProfile) -> Mapping[str, str]:
        return {"CUDA_VISIBLE_DEVICES": profile.id} if profile.id else {}

    def likely_environment(self) -> Mapping[str, str] | None:
        from evotune.backends.cuda.presence import only_gpu

        return {"CUDA_VISIBLE_DEVICES": found} if (found := only_gpu()) else None

    def devices_here(self) -> tuple[DeviceProfile, ...]:
        from evotune.backends.cuda.gpu_probe import profiles
        from evotune.backends.cuda.presence import cuda_problem

        return () if cuda_problem() else tuple(profiles())

    def learn(self, devices: Sequence[DeviceProfile]) -> None:
        from evotune.backends.cuda import discovery

        discovery.learn(devices)

    def sanitizing(
        self, cases: Sequence[SanitizedCase]
    ) -> AbstractContextManager[Callable[[], list[Check]]]:
        from evotune.backends.cuda.sanitizer import sanitizing

        return sanitizing(cases)

    def sanitizer_limit_s(self) -> float:
        from evotune.backends.cuda.sanitizer import LIMIT_S

        return LIMIT_S * len(TOOLS)

    def disqualification(self, check: Check, *, mbarriers: bool | None) -> OutcomeKind | None:
        from evotune.backends.cuda.sanitizer import disqualification

        return disqualification(check, mbarriers=mbarriers)

    def rebuilt(self, job: CompileJob, folder: Path, limit_s: float) -> Mapping[str, Path | str]:
        from evotune.backends.cuda.perturbed_build import WAYS, build

        return {WAYS[way]: made for way, made in build(job, folder, limit_s).items()}

    def gather_evidence(self, request: EvidenceRequest) -> Evidence:
        from evotune.backends.cuda import gpu_evidence

        return gpu_evidence.gather(request)

    def gather_baseline_evidence(self, request: BaselineRequest) -> Evidence:
        from evotune.backends.cuda import gpu_evidence

        return gpu_evidence.gather_baseline(request)

    def doctor(self) -> tuple[list[Finding], list[Finding]]:
        from evotune.backends.cuda import cuda_doctor

        return cuda_doctor.examine()


ROOM = CudaBackend()
