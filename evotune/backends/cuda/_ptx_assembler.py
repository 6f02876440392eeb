"""Assembles PTX by nvJitLink, NVIDIA's library for linking at run time, without a GPU.

The driver assembles PTX too, but inside the process that loads it, which waits: half a second for
a kernel. nvJitLink comes with PyTorch's CUDA wheels. Where it is absent, the driver does the work.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

from evotune.backends.cuda.compiler import nvrtc_version

_PTX = 2  # nvJitLinkInputType
_NAME = b"kernel.ptx"


def cubin_of(ptx: str, arch: str) -> bytes | None:
    """The machine code of the PTX for an architecture such as `sm_90a`; None without nvJitLink, or
    if it refuses the PTX: then the driver's answer is the one that counts.

    Source: nvJitLink, NVIDIA CUDA documentation, "Basic usage".
    """
    library = _library()
    if library is None:
        return None
    handle = ctypes.c_void_p()
    options = (ctypes.c_char_p * 1)(f"-arch={arch}".encode())
    if library.nvJitLinkCreate(ctypes.byref(handle), ctypes.c_uint32(1), options):
        return None
    try:
        return _linked(library, handle, ptx.encode())
    finally:
        library.nvJitLinkDestroy(ctypes.byref(handle))


def _linked(library: ctypes.CDLL, handle: ctypes.c_void_p, ptx: bytes) -> bytes | None:
    size = ctypes.c_size_t()
    steps: tuple[Callable[[], int], ...] = (
        lambda: library.nvJitLinkAddData(handle, _PTX, ptx, ctypes.c_size_t(len(ptx)), _NAME),
        lambda: library.nvJitLinkComplete(handle),
        lambda: library.nvJitLinkGetLinkedCubinSize(handle, ctypes.byref(size)),
    )
    if any(step() for step in steps):
        return None
    code = ctypes.create_string_buffer(size.value)
    return None if library.nvJitLinkGetLinkedCubin(handle, code) else code.raw


@functools.cache
def _library() -> ctypes.CDLL | None:
    """nvJitLink of NVRTC's major version, which reads its PTX."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib
    except ImportError:
        return None
    try:
        found = load_nvidia_dynamic_lib("nvJitLink")
        library = ctypes.CDLL(found.abs_path or "libnvJitLink.so")
        major, minor = ctypes.c_uint(), ctypes.c_uint()
        if library.nvJitLinkVersion(ctypes.byref(major), ctypes.byref(minor)):
            return None
    except (RuntimeError, OSError, AttributeError):  # it is absent, or too old
        return None
    return library if (major.value, minor.value) >= nvrtc_version() else None
