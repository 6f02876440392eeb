"""A candidate on the GPU: its cubin loaded, its launches bound to buffers."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evotune.backends.base.backend import KernelCall
from evotune.backends.base.launch import (
    Argument,
    ConstantMemory,
    DeviceProfile,
    Launch,
    LaunchPlan,
    TensorMap,
)
from evotune.backends.base.session import LaunchFailure, c_value

if TYPE_CHECKING:
    import torch

# --- A kernel's `__constant__` variables, filled from tensors on the device -----------------------
# CuPy gives a variable's address but not its size, which decides whether a tensor fits. So this
# module asks by ctypes the libcuda that torch and CuPy have loaded.

_NOT_FOUND = 500


def copies(
    module: int, wanted: Sequence[ConstantMemory], pointers: Mapping[str, int]
) -> list[Callable[[int], object]]:
    """A function for each variable that, called with a stream, queues the copy of the tensor's
    bytes.

    Raises LaunchFailure for a variable that the module lacks, or that is smaller than the tensor.
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
        """The handle of the launch's function, which may then use the launch's dynamic shared
        memory."""
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


# Tensor maps for TMA, encoded by the driver.
#
# CuPy has no call that encodes one. cuda-bindings has one, but it is a further wheel for each CUDA
# major version, which must match the other wheels. The encoder is one C function with a fixed
# signature, which libcuda exports since CUDA 12.0; torch and CuPy have loaded libcuda, so ctypes
# calls it there.
MAP_BYTES = 128
ALIGNMENT = 64
LIBRARY = "libcuda.so.1"

# The driver's enumerations: CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion.
DATA_TYPES = {
    # Boxes are copied and zeros filled in, so types without a number of their own have another's.
    **{"uint8": 0, "int8": 0, "bool": 0, "float8_e4m3": 0, "float8_e5m2": 0, "int16": 1},
    **{"int32": 3, "int64": 5, "complex64": 5},
    **{"float16": 6, "float32": 7, "float64": 8, "bfloat16": 9},
}
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
L2_PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}
_NO_INTERLEAVE = 0
_ZEROS_OUTSIDE = 0


def encode(tensor_map: TensorMap, pointer: int) -> Any:
    """The encoded map of the tensor at `pointer`: 128 bytes, aligned to 64, passed to a kernel by
    value.

    Raises LaunchFailure if the driver refuses the map.
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


# CUDA kernels called in the user's own process, on PyTorch's current stream.
_ready = threading.local()


class CudaCaller:
    """Calls kernels on the GPUs of one architecture. Only its methods import torch, because the
    programs that run under NVIDIA's tools use this module too, and start much faster without torch.
    """

    def __init__(self, profile: DeviceProfile) -> None:
        self._profile = profile

    def refusal(self, device: torch.device) -> str:
        mine = f"the kernel was compiled for {self._profile.name}"
        if device.type != "cuda":
            return mine
        import torch

        major, minor = torch.cuda.get_device_capability(device)
        wanted = self._profile.attributes["arch"]
        if 10 * major + minor != wanted:
            return f"its architecture is sm_{major}{minor}, but {mine} (sm_{wanted})"
        return ""

    @contextlib.contextmanager
    def current(self, device: torch.device) -> Iterator[None]:
        """Makes the GPU current. The driver's functions need the GPU's context, which PyTorch makes
        current in a thread when it first works there."""
        import torch

        with torch.cuda.device(device):
            if device.index not in _ready.__dict__.setdefault("devices", set()):
                torch.zeros(1, device=device)
                torch.cuda.synchronize()
                _ready.devices.add(device.index)
            yield

    def load(self, binary: Path) -> KernelCall:
        """A function that launches the kernel. It loads the machine code once for each GPU. Code
        that fills constant memory is loaded once for each stream, since a kernel on another stream
        may still read what is there."""
        import torch

        loaded: dict[tuple[int, int | None], CudaKernel] = {}

        def call(plan: LaunchPlan, tensors: Mapping[str, torch.Tensor]) -> None:
            addresses = {name: tensor.data_ptr() for name, tensor in tensors.items()}
            stream = int(torch.cuda.current_stream().cuda_stream)
            key = (torch.cuda.current_device(), stream if plan.constant_memory else None)
            if key not in loaded:
                loaded[key] = CudaKernel(binary)
            bind(loaded[key], plan, addresses, lambda: stream)()

        return call
