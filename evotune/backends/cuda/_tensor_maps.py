"""Tensor maps for TMA, encoded by the driver.

CuPy has no call that encodes one. cuda-bindings has one, but it is a further wheel for each CUDA
major version, which must match the other wheels. The encoder is one C function with a fixed
signature, which libcuda exports since CUDA 12.0; torch and CuPy have loaded libcuda, so ctypes
calls it there.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from evotune.backends.base.session import LaunchFailure
from evotune.backends.base.tensor_map import TensorMap

MAP_BYTES = 128
ALIGNMENT = 64
LIBRARY = "libcuda.so.1"

# The driver's enumerations: CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion.
DATA_TYPES = {
    **{"uint8": 0, "float8_e4m3": 0, "float8_e5m2": 0},  # the driver has no type for the latter two
    **{"int32": 3, "int64": 5, "float16": 6, "float32": 7, "bfloat16": 9},
}
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
L2_PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}
_NO_INTERLEAVE = 0
_ZEROS_OUTSIDE = 0


def encode(tensor_map: TensorMap, pointer: int) -> Any:
    """The map of the tensor at `pointer`: 128 bytes, aligned to 64, passed to a kernel by value.

    LaunchFailure when the driver refuses it.
    """
    rank = len(tensor_map.extents)
    # The driver counts dimensions from the innermost one.
    extents = (ctypes.c_uint64 * rank)(*reversed(tensor_map.extents))
    strides = (ctypes.c_uint64 * max(1, rank - 1))(*reversed(tensor_map.strides_bytes()))
    box = (ctypes.c_uint32 * rank)(*reversed(tensor_map.box))
    element_strides = (ctypes.c_uint32 * rank)(*(1 for _ in range(rank)))
    encoded = aligned_bytes(MAP_BYTES, ALIGNMENT)
    status = _encoder()(
        ctypes.addressof(encoded),
        DATA_TYPES[tensor_map.dtype],
        rank,
        pointer,
        extents,
        strides,
        box,
        element_strides,
        _NO_INTERLEAVE,
        SWIZZLES[tensor_map.swizzle_bytes],
        L2_PROMOTIONS[tensor_map.l2_promotion_bytes],
        _ZEROS_OUTSIDE,
    )
    if status:
        raise LaunchFailure(f"the driver refuses {tensor_map}: CUDA error {status}")
    return encoded


def aligned_bytes(size: int, alignment: int) -> Any:
    """`size` zero bytes at a multiple of `alignment`, as a ctypes array."""
    room = (ctypes.c_ubyte * (size + alignment))()
    return (ctypes.c_ubyte * size).from_buffer(room, -ctypes.addressof(room) % alignment)


@functools.cache
def _encoder() -> Any:
    try:
        function = ctypes.CDLL(LIBRARY).cuTensorMapEncodeTiled
    except (OSError, AttributeError) as error:
        message = "the driver has no cuTensorMapEncodeTiled (CUDA 12.0 or later has)"
        raise LaunchFailure(message) from error
    pointer, number = ctypes.c_void_p, ctypes.c_uint32
    numbers = ctypes.POINTER(number)
    longs = ctypes.POINTER(ctypes.c_uint64)
    enumerations = [ctypes.c_int] * 4
    function.argtypes = [
        *(pointer, ctypes.c_int, number, pointer),
        *(longs, longs, numbers, numbers),
        *enumerations,
    ]
    function.restype = ctypes.c_int
    return function
