"""Calls the C++ kernels of an exported package, which carries a copy of this module.

It imports torch and the standard library only.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

DEVICE_TYPE = "cpu"
NAME = "ctypes"
_C_TYPES: Mapping[str, Any] = {
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}


class Launcher:
    """Calls kernels in PyTorch's threads, with at most as many threads as in the measurements.

    `device` is the device's description in `dispatch.json`.
    """

    def __init__(self, device: Mapping[str, Any], files: Mapping[str, Path]) -> None:
        self._device = device
        self.words = f"{NAME}: Python calls the kernels"

    def open_native(self, namespace: str, key: str) -> None:
        """Returns None: there is no native launcher for the CPU, because kernels take much longer
        than a call."""

    def refusal(self, index: int) -> str:
        """Why this processor differs from the measured one; "" if it does not."""
        return _processor_refusal(str(self._device["name"]), str(self._device.get("arch", "")))

    def current_index(self) -> int:
        return 0

    def momentary_refusal(self, any_more: bool = False) -> str:
        """Why a call made now would not run as measured; "" if it would. With `any_more`, more
        threads than measured are accepted: the kernel does not use the additional ones, although
        PyTorch would."""
        wanted, found = int(self._device["threads"]), torch.get_num_threads()
        if found == wanted or (any_more and found > wanted):
            return ""
        return (
            f"PyTorch has {found} threads here, the kernels were measured with {wanted}: "
            f"`torch.set_num_threads({wanted})`, or tune with `--device cpu:{found}`"
        )

    def load(self, path: Path, content: bytes, index: int) -> Any:
        """The kernel's library. Raises OSError if it does not load."""
        _openmp()  # kernels that are loaded from now on find PyTorch's runtime first
        return ctypes.CDLL(str(path))

    def bind(
        self, library: Any, plan: Mapping[str, Any], names: Sequence[str], index: int
    ) -> Callable[..., None]:
        """A function that calls the kernel with the tensors `names`, given in this order."""
        function = getattr(library, plan["entry"])
        function.restype = None
        workspaces = {each["name"]: each for each in plan["workspaces"]}
        places = {name: place for place, name in enumerate((*names, *workspaces))}
        function.argtypes = None
        arguments: list[Any] = [
            places[argument["name"]]
            if argument["type"] in ("tensor", "workspace")
            else _C_TYPES[argument["type"]](argument["value"])
            for argument in plan["arguments"]
        ]
        kept = threading.local()  # a call in another thread needs its own workspaces
        threads = int(self._device["threads"])

        def scratch(name: str, size: int, init: str) -> torch.Tensor:
            if init != "zero_once":
                return torch.empty(size, dtype=torch.uint8, device=DEVICE_TYPE)
            found = kept.__dict__.get(name)
            if found is None:
                found = torch.zeros(size, dtype=torch.uint8, device=DEVICE_TYPE)
                kept.__dict__[name] = found
            return found

        def launch(*tensors: torch.Tensor) -> None:
            extra = [scratch(n, w["bytes"], w["init"]) for n, w in workspaces.items()]
            pointers = [tensor.data_ptr() for tensor in (*tensors, *extra)]
            values = [
                ctypes.c_void_p(pointers[each]) if isinstance(each, int) else each
                for each in arguments
            ]
            before = torch.get_num_threads()
            if before == threads:
                function(*values)
                return
            # The workspaces are for so many threads. PyTorch's own setting would change for other
            # threads of the program too, the runtime's changes for this one.
            _set_threads(threads)
            try:
                function(*values)
            finally:
                _set_threads(before)

        return launch


@functools.cache
def _processor_refusal(name: str, arch: str) -> str:
    found = _cpuinfo("model name")
    if not found and (part := _cpuinfo("CPU part")):
        found = f"CPU implementer {_cpuinfo('CPU implementer')} part {part}"
    found = found or platform.processor() or platform.machine()
    if found != name:
        return f"this is {found}, the kernels are for {name}"
    flags = (_cpuinfo("flags") or _cpuinfo("Features")).split()
    levels = {"sve": "sve", "avx512f": "avx512", "avx2": "avx2"}
    level = next((levels[flag] for flag in levels if flag in flags), "simd128")
    here = f"{platform.machine()}-{level}"
    if arch not in ("", here):
        return f"this machine is {here}, the kernels are for {arch}"
    return ""


def _cpuinfo(field: str) -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == field:
                return value.strip()
    except OSError:
        pass
    return ""


def _set_threads(count: int) -> None:
    runtime = _openmp()
    if runtime is None:
        torch.set_num_threads(count)
    else:
        runtime.omp_set_num_threads(count)


class _Symbol(ctypes.Structure):
    """Dl_info of the C library's dladdr."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


@functools.cache
def _openmp() -> Any:
    """PyTorch's OpenMP runtime, visible to kernels, so that both share one pool of threads; None if
    PyTorch has none."""
    own = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    symbol = _Symbol()
    try:
        torch_cpu = ctypes.CDLL(str(own), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        address = ctypes.cast(torch_cpu.omp_get_max_threads, ctypes.c_void_p)
        if not ctypes.CDLL(None).dladdr(address, ctypes.byref(symbol)):
            return None
        return ctypes.CDLL(os.fsdecode(symbol.file), mode=ctypes.RTLD_GLOBAL)
    except (OSError, AttributeError):
        return None
