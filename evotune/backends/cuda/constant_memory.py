"""A kernel's `__constant__` variables, filled from tensors on the device.

CuPy gives a variable's address but not its size, which decides whether a tensor fits. So this
module asks by ctypes the libcuda that torch and CuPy have loaded.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evotune.backends.cuda.tensor_maps import LIBRARY
from evotune.device.launch import ConstantMemory
from evotune.device.protocol import LaunchFailure

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
                f"constant memory {each.symbol} has {size} bytes, the tensor {each.tensor} "
                f"{each.bytes}"
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
