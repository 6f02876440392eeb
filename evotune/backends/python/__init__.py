"""Python callables: `make(configuration, case)` returns the function to be timed.

Any way of writing kernels in Python fits: torch.compile, numba, a Triton kernel with its own
launcher. A callable runs in a process of its own, on the CPU or on an NVIDIA GPU (docs/design.md,
"Python callables").
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from evotune.backends.base.backend import Backend
from evotune.backends.cpu import ROOM as CPU
from evotune.backends.cuda import ROOM as CUDA
from evotune.languages import Language

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from evotune.backends.base.backend import Caller
    from evotune.backends.base.launch import DeviceProfile
    from evotune.backends.base.session import Compiler, Session

AUTO = "auto"

_PYTHON = Language(
    name="python",
    suffixes=(),
    stated_suffixes=(".py",),
    needs="Python",
    builds_each_case=True,
    options_in_words="none; a callable gets the configuration",
)


class PythonBackend(Backend):
    """This machine's processor or a GPU of it, for kernels that are Python functions."""

    name = "python"
    languages = (_PYTHON,)
    requests = (*CPU.requests, *CUDA.requests)
    builds_in_worker = True
    times_user_problems = True
    least_half_width = CPU.least_half_width
    packages = ("numba", "triton", "helion", "tilelang", "nvidia-cutlass-dsl")

    def understands(self, request: str) -> bool:
        return CPU.understands(request) or _is_gpu(request)

    def profile(self, request: str, *, compile_only: bool = False) -> DeviceProfile:
        of, wanted = (CUDA, request) if _is_gpu(request) else (CPU, self._with_threads(request))
        found = of.profile(wanted, compile_only=compile_only)
        return dataclasses.replace(found, backend=self.name)

    @staticmethod
    def _with_threads(request: str) -> str:
        """The request with a number of threads: all cores but one, on which the worker waits for
        the callable, unless the user states a number."""
        from evotune.backends.cpu.cpu_profile import threads, wished_threads

        if request not in (*CPU.requests, AUTO) or wished_threads():
            return request
        return f"{CPU.name}:{max(1, threads() - 1)}"

    def same_device(self, profile: DeviceProfile) -> str:
        return _of(profile).same_device(profile)

    def left_free(self, request: str) -> str:
        from evotune.backends.cpu.cpu_profile import free_cores, wished_threads

        if request not in (*CPU.requests, AUTO) or wished_threads():
            return request
        return f"{CPU.name}:{max(1, free_cores() - 1)}"

    def measuring_alone(self, profile: DeviceProfile) -> AbstractContextManager[object]:
        return _of(profile).measuring_alone(profile)

    def worker_environment(self, profile: DeviceProfile) -> Mapping[str, str]:
        return _of(profile).worker_environment(profile)

    def offered(self) -> DeviceProfile:
        return self.profile(CPU.requests[0])

    def others_at_work(self, profile: DeviceProfile) -> Iterator[str]:
        return _of(profile).others_at_work(profile)

    def compiler(self, language: str) -> Compiler:
        from evotune.backends.python.bundle import BundleCompiler

        return BundleCompiler()

    def caller(self, profile: DeviceProfile) -> Caller:
        from evotune.backends.python.callable_caller import CallableCaller

        return CallableCaller(profile)

    def open_device(self, profile: DeviceProfile) -> Session:
        if _of(profile) is CUDA:
            from evotune.backends.python.device_session import open_gpu_session

            return open_gpu_session(profile)
        from evotune.backends.python.callable_session import CallableSession

        return CallableSession()


def _is_gpu(request: str) -> bool:
    """Whether the value of `--device` means a GPU of this machine by its number."""
    return CUDA.understands(request) and request not in CUDA.models()


def _of(profile: DeviceProfile) -> Backend:
    """The backend that knows the device; only a GPU has an id."""
    return CUDA if profile.id else CPU


ROOM = PythonBackend()
