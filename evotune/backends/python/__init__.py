"""Python callables on the CPU: `make(configuration, case)` returns the function to be timed.

Any way of writing kernels in Python fits: torch.compile, numba, a Triton kernel with its own
launcher. A callable runs in a process of its own (docs/design.md, "Python callables").
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from evotune.backends.base.backend import Backend
from evotune.backends.cpu import ROOM as CPU
from evotune.languages import Language

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
    """This machine's processor, for kernels that are Python functions."""

    name = "python"
    languages = (_PYTHON,)
    requests = CPU.requests
    builds_in_worker = True
    times_user_problems = True
    least_half_width = CPU.least_half_width
    packages = ("numba", "triton", "helion", "tilelang", "nvidia-cutlass-dsl")

    def understands(self, request: str) -> bool:
        return CPU.understands(request)

    def profile(self, request: str, *, compile_only: bool = False) -> DeviceProfile:
        found = CPU.profile(self._with_threads(request), compile_only=compile_only)
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
        return CPU.same_device(profile)

    def left_free(self, request: str) -> str:
        from evotune.backends.cpu.cpu_profile import free_cores, wished_threads

        if request not in (*CPU.requests, AUTO) or wished_threads():
            return request
        return f"{CPU.name}:{max(1, free_cores() - 1)}"

    def worker_environment(self, profile: DeviceProfile) -> Mapping[str, str]:
        return CPU.worker_environment(profile)

    def offered(self) -> DeviceProfile:
        return self.profile(CPU.requests[0])

    def others_at_work(self, profile: DeviceProfile) -> Iterator[str]:
        return CPU.others_at_work(profile)

    def compiler(self, language: str) -> Compiler:
        from evotune.backends.python.bundle import BundleCompiler

        return BundleCompiler()

    def caller(self, profile: DeviceProfile) -> Caller:
        from evotune.backends.python.callable_caller import CallableCaller

        return CallableCaller(profile)

    def open_device(self, profile: DeviceProfile) -> Session:
        from evotune.backends.python.callable_session import CallableSession

        return CallableSession()


ROOM = PythonBackend()
