"""The native launcher of an exported package, seen from Python.

A copy of this module lies in every package. It imports the standard library only.
"""

from __future__ import annotations

import ctypes
import struct
import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ._cuda_driver import encoding, map_strides, primary_context

_MISS, _PYTHON, _PROGRAM = 0, 1, 2
_POINTER, _SCALAR, _MAP = 0, 1, 2
_MOST_ARGUMENTS, _MOST_WORKSPACES, _MOST_MAP_ARGUMENTS = 64, 16, 4  # as in decisions.h
_DLPACK = b"dlpack_exchange_api"
_FORMATS = {"int32": "<i", "int64": "<q", "float32": "<f", "float64": "<d"}


def library_of(files: Mapping[str, Path]) -> Path | None:
    """The package's native library for this system; None if it has none."""
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return files.get(f"_native_{platform}.so")


class Native:
    """The open library. It implements the operators of one namespace for one dispatch key."""

    def __init__(self, path: Path, namespace: str, key: str) -> None:
        """Raises OSError, one line, if it does not load or lacks something of PyTorch or CUDA."""
        self._library = _own_library(path)
        self._library.evotune_native_open.restype = ctypes.c_char_p
        self._library.evotune_native_add.restype = ctypes.c_int64
        self._library.evotune_native_calls.restype = ctypes.c_int64
        self._library.evotune_native_calls.argtypes = [ctypes.c_int64]
        self._library.evotune_native_drop.argtypes = [ctypes.c_int64]
        failure = self._library.evotune_native_open(namespace.encode(), key.encode())
        if failure:
            raise OSError(failure.decode(errors="replace"))

    def function(self, asked: tuple[Any, ...]) -> Callable[..., Any] | None:
        """attempt(q, k, v, mask, dropout, is_causal, scale, enable_gqa): the output; False if no
        kernel serves the call; None if Python must decide. `asked` has the members of Asked in
        python_calls.cpp, without the functions of DLPack. None if PyTorch or Python lacks something
        that it needs."""
        capsule = getattr(asked[0], "__dlpack_c_exchange_api__", None)
        if capsule is None:
            return None
        pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
        pointer_of.restype = ctypes.c_void_p
        pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]
        same = ctypes.PyDLL("", handle=self._library._handle)  # its calls keep Python's lock
        make = same.evotune_native_function
        make.restype = ctypes.py_object
        make.argtypes = [ctypes.py_object]
        try:
            made: Callable[..., Any] = make((*asked, pointer_of(capsule, _DLPACK)))
        except ValueError:  # null
            return None
        return made

    def add_miss(self) -> int:
        """Records in native code that no kernel serves the case of this thread's call. Returns the
        decision's number."""
        return self._add([_MISS])

    def add_python(self, launch: Any, out: Any) -> int:
        """Tells native code to ask Python at each call of the case; Python then makes the output
        and the launch."""
        return self._add([_PYTHON])

    def add(self, launch: Any, out: Any) -> int:
        """Tells native code to serve the case by the kernel bound to `launch`, with an output that
        is laid out like `out`. Returns the decision's number.

        Native code asks Python at each call of a plan that it cannot launch: one with constant
        memory, or with more arguments, workspaces or tensor maps than it has room for.
        """
        bound = launch.__self__
        plan = bound.plan
        maps = sum(argument["type"] == "tensor_map" for argument in plan["arguments"])
        if (
            plan["constant_memory"]
            or len(plan["arguments"]) > _MOST_ARGUMENTS
            or len(plan["workspaces"]) > _MOST_WORKSPACES
            or maps > _MOST_MAP_ARGUMENTS
        ):
            return self._add([_PYTHON])
        launches = bound.prepared(None).launches
        return self._add(
            [
                _PROGRAM,
                primary_context(bound.code.index),
                *(out.dim(), *out.shape, *out.stride()),
                len(plan["workspaces"]),
                *(
                    word
                    for workspace in plan["workspaces"]
                    for word in (workspace["bytes"], workspace["init"] == "zero_once")
                ),
                len(plan["arguments"]),
                *(
                    word
                    for argument in plan["arguments"]
                    for word in _argument(argument, bound.places)
                ),
                len(launches),
                *(word for each in launches for word in each),
            ]
        )

    def calls(self, number: int) -> int:
        """The number of calls of a decision since it was last read; 0 for a decision that was
        dropped."""
        return int(self._library.evotune_native_calls(number))

    def forget(self) -> None:
        """Makes native code ask again about every case."""
        self._library.evotune_native_forget()

    def drop(self, number: int) -> None:
        """Makes native code free a forgotten decision as soon as no call uses it."""
        self._library.evotune_native_drop(number)

    def _add(self, words: list[int]) -> int:
        array = (ctypes.c_int64 * len(words))(*map(int, words))
        return int(self._library.evotune_native_add(array))


def _own_library(path: Path) -> Any:
    """The library, with separate state, because a package may be imported under several names, and
    the loader returns the same library for the same file."""
    library = ctypes.CDLL(str(path))
    if not library.evotune_native_is_open():
        return library
    with tempfile.NamedTemporaryFile(suffix=path.suffix) as copy:
        copy.write(path.read_bytes())
        copy.flush()
        return ctypes.CDLL(copy.name)


def _argument(argument: Mapping[str, Any], places: Mapping[str, int]) -> list[int]:
    kind = argument["type"]
    if kind in ("tensor", "workspace"):
        return [_POINTER, places[argument["name"]]]
    if kind == "tensor_map":
        wanted = argument["tensor_map"]
        dtype, rank, *_, swizzle, promotion, _ = encoding(wanted, 0)
        extents, strides = reversed(wanted["extents"]), reversed(map_strides(wanted))
        place = places[argument["name"]]
        head = [_MAP, place, dtype, swizzle, promotion, rank]
        return [*head, *extents, *strides, *reversed(wanted["box"])]
    bits = struct.pack(_FORMATS[kind], argument["value"]).ljust(8, b"\0")
    return [_SCALAR, int.from_bytes(bits, "little", signed=True)]
