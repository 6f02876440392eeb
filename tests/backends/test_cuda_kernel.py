"""How much shared memory is asked for, with the driver's part played by this file."""

from __future__ import annotations

import subprocess
import sys

import pytest

from evotune.backends.base.launch import Launch
from evotune.backends.cuda.cuda_kernel import CudaKernel

KIB = 1 << 10
FUNCTION = 7


class Driver:
    """One function with `static_bytes` of shared memory of its own."""

    CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8

    class CUDADriverError(RuntimeError):
        pass

    def __init__(self, static_bytes: int) -> None:
        self._static_bytes = static_bytes
        self.allowed_bytes = 48 * KIB - static_bytes

    def moduleGetFunction(self, module: int, entry: str) -> int:
        return FUNCTION

    def moduleUnload(self, module: int) -> None: ...

    def funcGetAttribute(self, attribute: int, function: int) -> int:
        assert (attribute, function) == (self.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, FUNCTION)
        return self._static_bytes

    def funcSetAttribute(self, function: int, attribute: int, value: int) -> None:
        assert (function, attribute) == (
            FUNCTION,
            self.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
        )
        self.allowed_bytes = value


@pytest.mark.parametrize("static_bytes", [0, 20 * KIB])
def test_static_and_dynamic_shared_memory_together_pass_the_limit(static_bytes: int) -> None:
    driver = Driver(static_bytes)
    kernel = CudaKernel.__new__(CudaKernel)
    kernel._driver, kernel._module = driver, 1
    kernel._functions, kernel._shared_bytes = {}, {}
    for shared_bytes in (0, 8 * KIB, 40 * KIB, 100 * KIB, 40 * KIB):
        assert kernel.function(Launch((1,), (32,), shared_bytes, "add")) == FUNCTION
        assert driver.allowed_bytes >= shared_bytes


@pytest.mark.parametrize("program", ["sanitized_launch", "profiled_launch"])
def test_programs_that_run_under_a_tool_load_kernels_without_torch(program: str) -> None:
    """Under compute-sanitizer PyTorch takes five seconds to import, and a champion waits for it."""
    modules = f"evotune.backends.cuda.{program}, evotune.backends.cuda.cuda_kernel"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
