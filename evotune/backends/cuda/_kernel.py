"""A candidate on the GPU: its cubin loaded, its launches bound to buffers."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evotune.backends.base.launch import Argument, ConstantMemory, Launch, LaunchPlan
from evotune.backends.base.session import LaunchFailure, c_value
from evotune.backends.cuda._tensor_maps import LIBRARY, encode

# --- A kernel's `__constant__` variables, filled from tensors on the device -----------------------
# CuPy gives a variable's address but not its size, which decides whether a tensor fits. So this
# module asks by ctypes the libcuda that torch and CuPy have loaded.

_NOT_FOUND = 500


def copies(
    module: int, wanted: Sequence[ConstantMemory], pointers: Mapping[str, int]
) -> list[Callable[[int], object]]:
    """A function for each variable. Called with a stream, it queues the copy of the tensor's bytes.

    LaunchFailure for a variable that the module lacks, or that is smaller than the tensor.
    """
    from cupy.cuda import runtime

    made: list[Callable[[int], object]] = []
    for each in wanted:
        address, size = variable(module, each.symbol)
        if size < each.bytes:
            raise LaunchFailure(
                f"constant memory {each.symbol} has {size} bytes, but the tensor {each.tensor} "
                f"has {each.bytes}"
            )
        source, kind = pointers[each.tensor], runtime.memcpyDeviceToDevice
        made.append(functools.partial(runtime.memcpyAsync, address, source, each.bytes, kind))
    return made


def variable(module: int, symbol: str) -> tuple[int, int]:
    """The address and the size in bytes of a variable of the module."""
    address, size = ctypes.c_uint64(), ctypes.c_size_t()
    status = _finder()(ctypes.byref(address), ctypes.byref(size), module, symbol.encode())
    if status == _NOT_FOUND:
        raise LaunchFailure(f"the kernel has no variable {symbol} in constant memory")
    if status:  # the device's error, or an earlier one; worded like CuPy's, so `faults` knows it
        raise RuntimeError(f"CUDA driver error {status} while looking for the variable {symbol}")
    return address.value, size.value


@functools.cache
def _finder() -> Any:
    function = ctypes.CDLL(LIBRARY).cuModuleGetGlobal_v2
    function.argtypes = [
        ctypes.POINTER(ctypes.c_uint64),
        ctypes.POINTER(ctypes.c_size_t),
        ctypes.c_void_p,
        ctypes.c_char_p,
    ]
    function.restype = ctypes.c_int
    return function


_FREE_SHARED_BYTES = 48 << 10  # a block that needs more, static or dynamic, must ask for it
_CANDIDATES_FAULT = (
    *("INVALID_IMAGE", "NO_BINARY_FOR_GPU", "INVALID_PTX", "UNSUPPORTED_PTX", "INVALID_SOURCE"),
    *("NOT_FOUND", "INVALID_VALUE", "SHARED_OBJECT"),
)


class CudaKernel:
    """The functions of one cubin, by entry. Unloads its module when nothing refers to it."""

    def __init__(self, path: Path) -> None:
        from cupy.cuda import driver

        self._driver = driver
        self._functions: dict[str, int] = {}
        self._shared_bytes: dict[str, int] = {}
        try:
            self._module = driver.moduleLoadData(path.read_bytes())
        except driver.CUDADriverError as error:
            if not _blames_the_candidate(error):
                raise
            raise LaunchFailure(f"the machine code cannot be loaded: {error}") from error
        # The interpreter's exit ends the context, and its modules with it.
        weakref.finalize(self, _unload, self._module).atexit = False

    def __call__(self) -> None:
        raise TypeError("a CUDA kernel is launched through Session.bind")

    def function(self, launch: Launch) -> int:
        """The entry's handle, allowed to use the launch's dynamic shared memory."""
        entry = launch.entry
        try:
            if entry not in self._functions:
                self._functions[entry] = self._driver.moduleGetFunction(self._module, entry)
            function = self._functions[entry]
            asked_for = self._shared_bytes.get(entry, 0)
            if launch.shared_bytes > max(self._free_bytes(function), asked_for):
                attribute = self._driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                self._driver.funcSetAttribute(function, attribute, launch.shared_bytes)
                self._shared_bytes[entry] = launch.shared_bytes
        except self._driver.CUDADriverError as error:
            if not _blames_the_candidate(error):
                raise
            what = f"entry {entry} with {launch.shared_bytes} bytes of dynamic shared memory"
            raise LaunchFailure(f"{what}: {error}") from error
        return function

    def constant_copies(
        self, plan: LaunchPlan, pointers: Mapping[str, int]
    ) -> list[Callable[[int], object]]:
        """Functions that fill the plan's constant memory from the tensors, in a given stream."""
        return copies(self._module, plan.constant_memory, pointers)

    def _free_bytes(self, function: int) -> int:
        """The dynamic shared memory that the function's launches get without asking."""
        static = self._driver.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
        return _FREE_SHARED_BYTES - int(self._driver.funcGetAttribute(static, function))


def _unload(module: int) -> None:
    from cupy.cuda import driver

    # After a fault no context is left to unload from.
    with contextlib.suppress(driver.CUDADriverError):
        driver.moduleUnload(module)


def _blames_the_candidate(error: Exception) -> bool:
    """Whether the code or the request is at fault. If not, the device is, or an earlier fault."""
    return any(word in str(error) for word in _CANDIDATES_FAULT)


def bind(
    kernel: CudaKernel,
    plan: LaunchPlan,
    pointers: Mapping[str, int],
    current_stream: Callable[[], int],
) -> Callable[[], None]:
    """A function that makes all launches of the plan, one after the other, on the stream current at
    each call. It fills constant memory first, since inputs may differ from call to call."""
    from cupy.cuda import driver

    # At each launch the driver reads the values through an array of pointers to them.
    values = [_value(argument, pointers) for argument in plan.arguments]
    addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    calls = [
        functools.partial(
            driver.launchKernel,
            kernel.function(launch),
            *_three(launch.grid),
            *_three(launch.block),
            launch.shared_bytes,
        )
        for launch in plan.launches
    ]

    fill = kernel.constant_copies(plan, pointers) if plan.constant_memory else []

    def run() -> None:
        stream = current_stream()
        for copy in fill:
            copy(stream)
        for call in calls:
            call(stream, ctypes.addressof(addresses), 0)

    # The values that the pointers point to, and the module, must live as long as the function.
    run.keeps = (values, kernel)  # type: ignore[attr-defined]
    return run


def _value(argument: Argument, pointers: Mapping[str, int]) -> Any:
    if argument.type in ("tensor", "workspace"):
        return ctypes.c_void_p(pointers[argument.name])
    if argument.tensor_map is not None:
        return encode(argument.tensor_map, pointers[argument.name])
    return c_value(argument)


def _three(extents: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z
