"""A GPU's memory that two processes share, by CUDA's inter-process handles.

The worker allocates the buffers of calls, and exports them to the hosts. A host exports the results
that its graphs leave at fixed addresses. Only memory of cudaMalloc has such handles.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from evotune.backends.python.host_process import SharedBlock

if TYPE_CHECKING:
    import torch

DEVICE = "cuda:0"
"""The one GPU that the worker and its hosts see."""
_LIBRARY = "libcuda.so.1"
_HANDLE_BYTES = 64  # CU_IPC_HANDLE_SIZE
_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
_GRAIN_BYTES = 2 << 20
"""Smaller allocations share a block with others, and a handle exports the whole block."""


class DriverError(RuntimeError):
    """An error of the driver, in words like those of PyTorch's CUDA errors."""


class Driver(Protocol):
    """What the driver does with shared memory. A context must be current in this thread."""

    def allocate(self, nbytes: int) -> int:
        """The address of new memory. Raises DriverError, as all methods do."""

    def free(self, address: int) -> None:
        """Frees what was allocated. No process may have it open."""

    def export(self, address: int) -> bytes:
        """The handle of the allocation that begins at this address."""

    def open(self, handle: bytes) -> int:
        """Maps another process's allocation; its address here."""

    def close(self, address: int) -> None:
        """Unmaps what was opened."""

    def allocation(self, address: int) -> tuple[int, int]:
        """The first byte and the size of the allocation that holds the address."""

    def read(self, address: int, nbytes: int) -> bytes:
        """Memory as it is now. A copy engine reads: it waits for no kernel of another process."""

    def synchronize(self) -> None:
        """Waits for all work of this process, in all streams."""

    def tensor(self, address: int, nbytes: int, at_end: Callable[[], object] = int) -> torch.Tensor:
        """The memory as bytes. `at_end` is called when no tensor has it any more."""


class _Handle(ctypes.Structure):
    """CUipcMemHandle."""

    _fields_ = (("reserved", ctypes.c_ubyte * _HANDLE_BYTES),)


class _Span:
    """Memory of a GPU, as PyTorch takes it from other libraries."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


class CudaDriver:
    """See `Driver`; by ctypes."""

    def __init__(self, library: str = _LIBRARY) -> None:
        self._library: Any = ctypes.CDLL(library)
        pointer, size = ctypes.c_uint64, ctypes.c_size_t
        types: dict[str, list[Any]] = {
            "cuMemAlloc_v2": [ctypes.POINTER(pointer), size],
            "cuMemFree_v2": [pointer],
            "cuIpcGetMemHandle": [ctypes.POINTER(_Handle), pointer],
            "cuIpcOpenMemHandle_v2": [ctypes.POINTER(pointer), _Handle, ctypes.c_uint],
            "cuIpcCloseMemHandle": [pointer],
            "cuMemGetAddressRange_v2": [ctypes.POINTER(pointer), ctypes.POINTER(size), pointer],
            "cuMemcpyDtoH_v2": [ctypes.c_void_p, pointer, size],
            "cuCtxSynchronize": [],
        }
        # Taken now: a candidate's process may change the library's attributes later.
        self._functions: dict[str, Any] = {}
        for name, arguments in types.items():
            function = self._functions[name] = getattr(self._library, name)
            function.argtypes, function.restype = arguments, ctypes.c_int

    def _call(self, name: str, *arguments: Any) -> None:
        if status := self._functions[name](*arguments):
            words = ctypes.c_char_p()
            self._library.cuGetErrorString(ctypes.c_int(status), ctypes.byref(words))
            told = words.value.decode() if words.value else f"status {status}"
            raise DriverError(f"CUDA driver error: {told} ({name})")

    def allocate(self, nbytes: int) -> int:
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), nbytes)
        return address.value

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", address)

    def export(self, address: int) -> bytes:
        handle = _Handle()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), address)
        return bytes(handle.reserved)

    def open(self, handle: bytes) -> int:
        if len(handle) != _HANDLE_BYTES:
            raise DriverError("CUDA driver error: not a handle")
        address = ctypes.c_uint64()
        given = _Handle.from_buffer_copy(handle)
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(address), given, _PEER_ACCESS)
        return address.value

    def close(self, address: int) -> None:
        self._call("cuIpcCloseMemHandle", address)

    def allocation(self, address: int) -> tuple[int, int]:
        first, nbytes = ctypes.c_uint64(), ctypes.c_size_t()
        places = ctypes.byref(first), ctypes.byref(nbytes)
        self._call("cuMemGetAddressRange_v2", *places, address)
        return first.value, nbytes.value

    def read(self, address: int, nbytes: int) -> bytes:
        found = ctypes.create_string_buffer(nbytes)
        self._call("cuMemcpyDtoH_v2", found, address, nbytes)
        return found.raw

    def synchronize(self) -> None:
        self._call("cuCtxSynchronize")

    def tensor(self, address: int, nbytes: int, at_end: Callable[[], object] = int) -> torch.Tensor:
        import torch

        span = _Span(address, nbytes)  # the tensor's storage keeps it
        weakref.finalize(span, at_end).atexit = False
        return torch.as_tensor(span, device=DEVICE)


@functools.cache
def cuda_driver() -> Driver:
    """The driver. PyTorch must have made a context."""
    return CudaDriver()


class _Block(NamedTuple):
    number: int
    address: int
    nbytes: int


class DeviceMemory:
    """Allocates tensors that hosts can map. Memory whose tensor is gone serves later tensors: hosts
    may have it open, so it is freed by `trim` only."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._count = 0
        self._used: dict[int, _Block] = {}
        self._free: list[_Block] = []
        self._handles: dict[int, bytes] = {}
        self.dropped: list[int] = []
        """Blocks that are gone: none, as long as there are hosts."""

    def allocate(self, nbytes: int) -> torch.Tensor:
        """So many bytes. Raises DriverError if there is no memory."""
        wanted = _rounded(nbytes)
        fitting = next((block for block in self._free if block.nbytes == wanted), None)
        if fitting is None:
            self._count += 1
            fitting = _Block(self._count, self._driver.allocate(wanted), wanted)
        else:
            self._free.remove(fitting)
        self._used[fitting.number] = fitting
        at_end = functools.partial(self._release, fitting)
        return self._driver.tensor(fitting.address, wanted, at_end)[:nbytes]

    def _release(self, block: _Block) -> None:
        del self._used[block.number]
        self._free.append(block)

    def find(self, address: int) -> tuple[SharedBlock, int]:
        """The block that holds the address, and the offset in it."""
        for block in self._used.values():
            if block.address <= address < block.address + block.nbytes:
                handle = self._handles.get(block.number) or self._driver.export(block.address)
                self._handles[block.number] = handle
                found = SharedBlock(block.number, -1, block.address, block.nbytes, handle)
                return found, address - block.address
        raise KeyError(address)

    def trim(self) -> None:
        """Frees memory that no tensor has. There must be no host."""
        for block in self._free:
            self._driver.free(block.address)
            self._handles.pop(block.number, None)
        self._free.clear()


def _rounded(nbytes: int) -> int:
    """The bytes to allocate: one of few sizes, each at most a half more than the last one."""
    size = _GRAIN_BYTES
    while size < nbytes:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


class OpenedMemory:
    """Results of a host, by its handles; `close` unmaps them."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._opened: dict[bytes, tuple[int, int]] = {}

    def address(self, handle: bytes, offset: int, nbytes: int) -> int:
        """The address of so many bytes in an allocation of the host. Raises DriverError if it has
        no such bytes."""
        if handle not in self._opened:
            first = self._driver.open(handle)
            self._opened[handle] = first, self._driver.allocation(first)[1]
        first, size = self._opened[handle]
        if not 0 <= offset <= offset + nbytes <= size:
            raise DriverError("CUDA driver error: a result lies outside its memory")
        return first + offset

    def close(self) -> None:
        for first, _ in self._opened.values():
            self._driver.close(first)
        self._opened.clear()


Capture = Callable[[list[Callable[[], object]]], Callable[[], object]]
"""Captures calls into a graph; returns what replays it."""
