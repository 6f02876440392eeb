"""The CUDA driver's functions that an exported package calls, by ctypes.

A copy of this module lies in every package. It imports the standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

LIBRARY = "libcuda.so.1"
MAP_BYTES = 128
_VERSION_FILE = "/proc/driver/nvidia/version"
_VERSION_BYTES = 96
_MAP_ALIGNMENT = 64
_FREE_SHARED_BYTES = 48 << 10  # a block that needs more must ask for it
_STATIC_SHARED, _MOST_DYNAMIC_SHARED = 1, 8  # CUfunction_attribute
_RELAXED = 2  # CUstreamCaptureMode
_NON_BLOCKING = 1  # CUstream_flags
_CAPTURING = 1  # CUstreamCaptureStatus
_ELEMENT_BYTES = {
    **{"bool": 1, "uint8": 1, "int8": 1, "float8_e4m3": 1, "float8_e5m2": 1},
    **{"float16": 2, "bfloat16": 2, "int16": 2, "float32": 4, "int32": 4},
    **{"float64": 8, "complex64": 8, "int64": 8},
}
# CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion
_DATA_TYPES = {
    # Boxes are copied and zeros filled in, so types without a number of their own have another's.
    **{"uint8": 0, "int8": 0, "bool": 0, "float8_e4m3": 0, "float8_e5m2": 0, "int16": 1},
    **{"int32": 3, "int64": 5, "complex64": 5},
    **{"float16": 6, "float32": 7, "float64": 8, "bfloat16": 9},
}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_L2_PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}


def driver_version() -> str:
    """The version of NVIDIA's driver, such as 580.95.05; "" if it is unknown."""
    try:
        words = Path(_VERSION_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _version_by_nvml()
    found = re.search(r"\b\d{3,}\.\d[\d.]*", words)
    return found[0] if found else _version_by_nvml()


def _version_by_nvml() -> str:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        text = ctypes.create_string_buffer(_VERSION_BYTES)
        if nvml.nvmlInit_v2() or nvml.nvmlSystemGetDriverVersion(text, _VERSION_BYTES):
            return ""
    except (OSError, AttributeError):
        return ""
    return text.value.decode(errors="replace")


class DriverError(OSError, RuntimeError):
    """An error of the driver. It is a RuntimeError, as are PyTorch's own CUDA errors."""


def failure(call: str, status: int, library: Any) -> DriverError:
    """The error of a call that returned `status`, with the driver's description of it."""
    words = ctypes.c_char_p()
    library.cuGetErrorString(status, ctypes.byref(words))
    said = f" ({words.value.decode(errors='replace')})" if words.value else ""
    return DriverError(f"{call} gives CUDA error {status}{said}")


@functools.cache
def driver() -> Any:
    """The driver's library, initialised. Raises OSError if there is none."""
    library = ctypes.CDLL(LIBRARY)
    launch = library.cuLaunchKernel
    launch.argtypes = [
        ctypes.c_void_p,
        *[ctypes.c_uint] * 7,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
    ]
    library.cuMemcpyDtoDAsync_v2.argtypes = [
        *[ctypes.c_uint64] * 2,
        ctypes.c_size_t,
        ctypes.c_void_p,
    ]
    if status := library.cuInit(0):
        raise failure("cuInit", status, library)
    return library


def call(name: str, *arguments: Any) -> None:
    """Calls a function of the driver. Raises DriverError if it fails."""
    if status := getattr(driver(), name)(*arguments):
        raise failure(name, status, driver())


@functools.cache
def primary_context(index: int) -> int:
    """The primary context of a device, which PyTorch uses too. It is kept until the process
    ends."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuDeviceGet", ctypes.byref(device), index)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    assert context.value is not None
    return context.value


@contextlib.contextmanager
def in_context(index: int) -> Iterator[None]:
    """Makes the device's context current in this thread."""
    call("cuCtxPushCurrent_v2", ctypes.c_void_p(primary_context(index)))
    try:
        yield
    finally:
        call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


@contextlib.contextmanager
def outside_of_captures() -> Iterator[None]:
    """Lets this thread load code and allocate while it captures a stream, without effect on the
    capture."""
    mode = ctypes.c_int(_RELAXED)
    call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    try:
        yield
    finally:
        call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))


def zeros(size: int) -> int:
    """The address of `size` new bytes of zeros in the current context. They are never freed.

    They are not PyTorch's memory, because memory that PyTorch's allocator hands out during a
    capture belongs to the graph.
    """
    address, own = ctypes.c_uint64(), ctypes.c_void_p()
    with outside_of_captures():
        call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        call("cuStreamCreate", ctypes.byref(own), _NON_BLOCKING)
        call("cuMemsetD8Async", address, 0, ctypes.c_size_t(size), own)
        call("cuStreamSynchronize", own)
        call("cuStreamDestroy_v2", own)
    return address.value


class _Thread(threading.local):
    """One thread's questions to the driver, made once, since every call of a kernel asks."""

    def __init__(self) -> None:
        library = driver()
        self.context, self.status, self.number = (
            ctypes.c_void_p(),
            ctypes.c_int(),
            ctypes.c_uint64(),
        )
        self.ask_context = functools.partial(library.cuCtxGetCurrent, ctypes.byref(self.context))
        self.ask_capture = library.cuStreamGetCaptureInfo_v2
        self.capture = ctypes.byref(self.status), ctypes.byref(self.number), None, None, None


@functools.cache
def _threads() -> _Thread:
    return _Thread()


def is_current(context: int) -> bool:
    """Whether the context is current in this thread. A new thread has none."""
    thread = _threads()
    if error := thread.ask_context():
        raise failure("cuCtxGetCurrent", error, driver())
    return thread.context.value == context


def capture_of(stream: int) -> int:
    """The number of the capture to which the stream belongs; 0 outside of captures. The stream's
    context must be current."""
    thread = _threads()
    if error := thread.ask_capture(ctypes.c_void_p(stream), *thread.capture):
        raise failure("cuStreamGetCaptureInfo_v2", error, driver())
    return int(thread.number.value) if thread.status.value == _CAPTURING else 0


class Module:
    """The functions and variables of one cubin on one device, whose context must be current."""

    def __init__(self, content: bytes) -> None:
        self._handle = ctypes.c_void_p()
        call("cuModuleLoadData", ctypes.byref(self._handle), content)
        self.lock = threading.Lock()
        """Held from filling constant memory to the launches that read it, since several threads may
        work on one stream."""
        self._functions: dict[str, int] = {}
        self._shared_bytes: dict[str, int] = {}

    def function(self, entry: str, shared_bytes: int) -> int:
        """The handle of the function `entry`, which may then use so many bytes of dynamic shared
        memory."""
        if entry not in self._functions:
            found = ctypes.c_void_p()
            call("cuModuleGetFunction", ctypes.byref(found), self._handle, entry.encode())
            static = ctypes.c_int()
            call("cuFuncGetAttribute", ctypes.byref(static), _STATIC_SHARED, found)
            assert found.value is not None
            self._functions[entry] = found.value
            self._shared_bytes[entry] = _FREE_SHARED_BYTES - static.value
        function = self._functions[entry]
        if shared_bytes > self._shared_bytes[entry]:  # never lower: other cases use the function
            attribute = (_MOST_DYNAMIC_SHARED, shared_bytes)
            call("cuFuncSetAttribute", ctypes.c_void_p(function), *attribute)
            self._shared_bytes[entry] = shared_bytes
        return function

    def variable(self, symbol: str, size: int) -> int:
        """The address of a variable that has room for `size` bytes."""
        address, found = ctypes.c_uint64(), ctypes.c_size_t()
        places = ctypes.byref(address), ctypes.byref(found)
        call("cuModuleGetGlobal_v2", *places, self._handle, symbol.encode())
        if found.value < size:
            raise DriverError(f"{symbol} has {found.value} bytes, its tensor has {size}")
        return address.value


def tensor_map(wanted: Mapping[str, Any], pointer: int) -> Any:
    """The encoded tensor map, 128 bytes at a multiple of 64, for the tensor at `pointer`. A context
    must be current."""
    encoded = aligned_bytes(MAP_BYTES, _MAP_ALIGNMENT)
    call("cuTensorMapEncodeTiled", ctypes.byref(encoded), *encoding(wanted, pointer))
    return encoded


def encoding(wanted: Mapping[str, Any], pointer: int) -> tuple[Any, ...]:
    """The arguments of cuTensorMapEncodeTiled after the first. The driver counts dimensions from
    the innermost one."""
    extents, strides = wanted["extents"], map_strides(wanted)
    rank = len(extents)
    return (
        _DATA_TYPES[wanted["dtype"]],
        rank,
        ctypes.c_void_p(pointer),
        (ctypes.c_uint64 * rank)(*reversed(extents)),
        (ctypes.c_uint64 * max(1, rank - 1))(*reversed(strides)),
        (ctypes.c_uint32 * rank)(*reversed(wanted["box"])),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        0,
        _SWIZZLES[wanted["swizzle_bytes"]],
        _L2_PROMOTIONS[wanted["l2_promotion_bytes"]],
        0,
    )


def map_strides(wanted: Mapping[str, Any]) -> list[int]:
    """The strides in bytes of every dimension but the last, outermost first."""
    size, extents = _ELEMENT_BYTES[wanted["dtype"]], wanted["extents"]
    if wanted["strides"]:
        return [size * stride for stride in wanted["strides"][: len(extents) - 1]]
    return [size * math.prod(extents[i + 1 :]) for i in range(len(extents) - 1)]


def aligned_bytes(size: int, alignment: int) -> Any:
    room = (ctypes.c_ubyte * (size + alignment))()
    return (ctypes.c_ubyte * size).from_buffer(room, -ctypes.addressof(room) % alignment)
