"""Launches the CUDA kernels of an exported package, which carries a copy of this module.

It imports torch and the standard library only. It reaches the driver through native code
(`_native_launcher.py`) if the package has it and it loads, and otherwise through the ctypes calls
here.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ._cuda_driver import (
    Module,
    call,
    capture_of,
    driver,
    driver_version,
    failure,
    in_context,
    is_current,
    outside_of_captures,
    primary_context,
    tensor_map,
    zeros,
)
from ._native_launcher import Native, library_of

DEVICE_TYPE = "cuda"
_MOST_MAPS = 256
_ARENA_BYTES = 1 << 20
_SLICE_BYTES = 256
_C_TYPES: Mapping[str, Any] = {
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}


class Launcher:
    """Launches on PyTorch's current stream.

    `device` is the device's description in `dispatch.json`.
    """

    momentary_refusal = None

    def __init__(self, device: Mapping[str, Any], files: Mapping[str, Path]) -> None:
        self._device = device
        self._arenas: dict[int, Arena] = {}
        self._files = files
        self.words = "ctypes: Python calls the driver"

    def open_native(self, namespace: str, key: str) -> Native | None:
        """The native launcher, which implements the operators; None if it does not load."""
        path = library_of(self._files)
        if path is None:
            self.words += ", since the package has no native launcher for this system"
            return None
        try:
            native = Native(path, namespace, key)
        except OSError as error:
            self.words += f", since {path.name} does not load: {' '.join(str(error).split())}"
            return None
        self.words = f"native: {path.name} calls the driver"
        return native

    def refusal(self, index: int) -> str:
        """Why this GPU differs from the measured one; "" if it does not."""
        found = torch.cuda.get_device_properties(index)
        mine = f"the kernels are for {self._device['name']}"
        if found.name != self._device["name"]:
            return f"this is {found.name}, {mine}"
        wanted = self._device.get("multiprocessors", found.multi_processor_count)
        if found.multi_processor_count != wanted:
            here = f"this GPU has {found.multi_processor_count} multiprocessors"
            return f"{here}, {mine} with {wanted}"
        return ""

    def current_index(self) -> int:
        return torch.cuda.current_device()

    def driver_version(self) -> str:
        """The version of this machine's driver; "" if it is unknown."""
        return driver_version()

    def load(self, path: Path, content: bytes, index: int) -> Code:
        """The machine code, on one device. Raises OSError if it does not load."""
        return Code(content, index)

    def bind(
        self, code: Code, plan: Mapping[str, Any], names: Sequence[str], index: int
    ) -> Callable[..., None]:
        """A function that launches on the tensors `names`, given in this order."""
        if index not in self._arenas:
            self._arenas[index] = Arena(index)
        return Bound(code, plan, names, self._arenas[index]).launch


def current_stream(index: int) -> int:
    """The handle of PyTorch's current stream on the device."""
    return int(torch._C._cuda_getCurrentRawStream(index))


class Code:
    """One cubin on one device. It is loaded once, or once for each stream if it has constant
    memory, because one stream would change that memory while a kernel of another stream reads it.
    """

    def __init__(self, content: bytes, index: int) -> None:
        self.index = index
        self._content = content
        self._modules: dict[Any, Module] = {}
        self._lock = threading.Lock()

    def module(self, key: Any) -> Module:
        with self._lock:
            if key not in self._modules:
                with in_context(self.index), outside_of_captures():
                    self._modules[key] = Module(self._content)
            return self._modules[key]


class Arena:
    """An allocator of zeroed memory on one device, for counters."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._address = 0
        self._left = 0
        self._spare: dict[tuple[int, int], list[int]] = {}

    def give_back(self, address: int, size: int, stream: int) -> None:
        """Takes back a counter of this stream that belongs to no graph. Holds no lock, because
        garbage collection may call it at any time."""
        self._spare.setdefault((size, stream), []).append(address)

    def part(self, size: int, stream: int, capture: int) -> int:
        """The address of zeros for this use alone. Zeros that a capture uses are never used again,
        because a graph may be replayed at any time.
        """
        if not capture and (spare := self._spare.get((size, stream))):
            with contextlib.suppress(IndexError):  # another thread took it
                return spare.pop()
        size = -(-size // _SLICE_BYTES) * _SLICE_BYTES
        with self._lock:
            if self._left < size:
                whole = max(size, _ARENA_BYTES)
                with in_context(self._index):
                    self._address, self._left = zeros(whole), whole
            address = self._address
            self._address += size
            self._left -= size
            return address


class Bound:
    """A plan's launches, bound to a device. `launch` may run in several threads at once, because
    each call has its own block of arguments."""

    def __init__(
        self, code: Code, plan: Mapping[str, Any], names: Sequence[str], arena: Arena
    ) -> None:
        self.code = code
        self.plan = plan
        self._arena = arena
        self._device = torch.device(DEVICE_TYPE, code.index)
        self._context = primary_context(code.index)
        self._workspaces = plan["workspaces"]
        places = [*names, *(workspace["name"] for workspace in self._workspaces)]
        self.places = {name: place for place, name in enumerate(places)}
        self._maps: dict[tuple[int, int], Any] = {}
        self._blocks: list[_Block] = []
        self._prepared: dict[Any, Prepared] = {}
        self._counters: dict[Any, int] = {}
        somewhere = torch.empty(_SLICE_BYTES, dtype=torch.uint8, device=self._device)
        with in_context(code.index):
            for argument in plan["arguments"]:
                if argument["type"] == "tensor_map":  # the driver may refuse it
                    tensor_map(argument["tensor_map"], somewhere.data_ptr())
        if not plan["constant_memory"]:
            self.prepared(None)

    def launch(self, *tensors: torch.Tensor) -> None:
        if is_current(self._context):
            self._launch(tensors)
        else:  # a thread that has not worked on the device yet, or works on another one
            with in_context(self.code.index):
                self._launch(tensors)

    def _launch(self, tensors: Sequence[torch.Tensor]) -> None:
        """Launches on tensors of the device whose context is current."""
        stream = current_stream(self.code.index)
        pointers = [tensor.data_ptr() for tensor in tensors]
        scratch = []  # kept until the launches are made
        for workspace in self._workspaces:
            if workspace["init"] == "zero_once":
                pointers.append(self._counter(workspace, stream))
                continue
            made = torch.empty(workspace["bytes"], dtype=torch.uint8, device=self._device)
            scratch.append(made)
            pointers.append(made.data_ptr())
        try:
            block = self._blocks.pop()
        except IndexError:
            block = _Block(self)
        block.fill(pointers)
        if self.plan["constant_memory"]:
            prepared = self.prepared((stream, capture_of(stream)))
            with prepared.lock:
                for address, place, size in prepared.copies:
                    call("cuMemcpyDtoDAsync_v2", address, pointers[place], size, stream)
                prepared.start(stream, block)
        else:
            self._prepared[None].start(stream, block)
        self._blocks.append(block)

    def prepared(self, key: Any) -> Prepared:
        """The prepared launches, with the functions of the code that is loaded for the stream."""
        if key not in self._prepared:
            module = self.code.module(key)
            with in_context(self.code.index), outside_of_captures():
                self._prepared[key] = Prepared(module, self.plan, self.places)
        return self._prepared[key]

    def tensor_map(self, number: int, wanted: Mapping[str, Any], pointer: int) -> Any:
        """The encoded map of argument `number`."""
        found = self._maps.get((number, pointer))
        if found is None:
            found = tensor_map(wanted, pointer)
            if len(self._maps) >= _MOST_MAPS:
                self._maps.clear()
            self._maps[number, pointer] = found
        return found

    def _counter(self, workspace: Mapping[str, Any], stream: int) -> int:
        """The address of a workspace that the kernels leave zero. Each stream has its own, and so
        has each stream of a capture, because a graph may run concurrently with everything else."""
        key = (workspace["bytes"], workspace["name"], stream, capture_of(stream))
        found = self._counters.get(key)
        if found is None:
            made = self._arena.part(workspace["bytes"], *key[2:])
            found = self._counters.setdefault(key, made)
        return found

    def __del__(self) -> None:
        for (size, _, stream, capture), address in getattr(self, "_counters", {}).items():
            if not capture:
                self._arena.give_back(address, size, stream)


class Prepared:
    """Handles and sizes of a plan's launches, and the copies that fill constant memory."""

    def __init__(self, module: Module, plan: Mapping[str, Any], places: Mapping[str, int]) -> None:
        self.copies = [
            (module.variable(each["symbol"], each["bytes"]), places[each["tensor"]], each["bytes"])
            for each in plan["constant_memory"]
        ]
        self.launches = [
            (
                module.function(launch["entry"], launch["shared_bytes"]),
                *_three(launch["grid"]),
                *_three(launch["block"]),
                launch["shared_bytes"],
            )
            for launch in plan["launches"]
        ]
        self.lock = module.lock

    def start(self, stream: int, block: _Block) -> None:
        launch_kernel = driver().cuLaunchKernel
        for launch in self.launches:
            if status := launch_kernel(*launch, stream, block.addresses, None):
                raise failure("cuLaunchKernel", status, driver())


class _Block:
    """The values of one call's arguments, and the array of pointers to them that the driver
    reads."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        arguments = bound.plan["arguments"]
        self._pointers: list[tuple[Any, int]] = []
        self._maps: list[tuple[int, int, Mapping[str, Any]]] = []
        self._values: list[Any] = []
        for number, argument in enumerate(arguments):
            place = bound.places.get(argument.get("name", ""), -1)
            if argument["type"] in ("tensor", "workspace"):
                value = ctypes.c_void_p()
                self._pointers.append((value, place))
            elif argument["type"] == "tensor_map":
                value = ctypes.c_void_p()
                self._maps.append((number, place, argument["tensor_map"]))
            else:
                value = _C_TYPES[argument["type"]](argument["value"])
            self._values.append(value)
        self.addresses = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, self._values))

    def fill(self, pointers: Sequence[int]) -> None:
        for value, place in self._pointers:
            value.value = pointers[place]
        for number, place, wanted in self._maps:
            encoded = self._bound.tensor_map(number, wanted, pointers[place])
            self._values[number] = encoded  # kept: another call may clear the maps
            self.addresses[number] = ctypes.addressof(encoded)


def _three(extents: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z
