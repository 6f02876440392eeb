"""The folders where NVRTC finds headers in angle brackets: CUDA's, CCCL's and C++'s own.

NVRTC brings none. CUDA's headers are in wheels or in an installed toolkit; CCCL (`cuda/`, `cub/`,
`nv/`) is in both, and CuPy has a copy. The folder `include` beside this module has the C++ headers
that device code uses (<cstdint>, <cmath>, <cstdio>).
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path

_OWN = Path(__file__).parent / "include"
_VERSION = re.compile(rb"^#define\s+CUDART_VERSION\s+(\d+)", re.MULTILINE)
_CCCL_VERSION = re.compile(rb"^#define\s+CCCL_VERSION\s+(\d+)", re.MULTILINE)
_MISSING = re.compile(r'cannot open source file "([^"\n]+)"')
_PACKAGES = (  # the beginning of a header's name, and the wheel that holds it for CUDA 12 and 13
    (("nv/", "cuda/", "cub/", "thrust/"), ("nvidia-cuda-cccl-cu12", "nvidia-cuda-cccl")),
    (("curand",), ("nvidia-curand-cu12", "nvidia-curand")),
    (("crt/",), ("nvidia-cuda-nvcc-cu12", "nvidia-cuda-crt")),
    (
        ("cuda", "cooperative_groups", "mma.h", "vector_", "math_constants.h", "device_"),
        ("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime"),
    ),
)


@functools.cache
def cuda_folders(major: int) -> tuple[Path, ...]:
    """The folders with CUDA's headers of this major version; empty when there are none.

    They are the wheels' folders or one toolkit's: the first place that has all headers (mma.h
    needs crt/, which for CUDA 13 is a wheel of its own), else the first place with any. A kernel
    that includes no header needs none.
    """
    sets = list(_header_sets(major))
    complete = (s for s in sets if any((folder / "crt" / "mma.h").is_file() for folder in s))
    return next(complete, sets[0] if sets else ())


@functools.cache
def search_folders(major: int) -> tuple[Path, ...]:
    """All folders, in the order of the search."""
    return (_OWN, *cuda_folders(major), *_cccl_folders(major))


@functools.cache
def headers_version(major: int) -> str:
    """The headers that a build depends on: the versions of CUDA's and CCCL's, and a digest of the
    C++ headers' content."""
    cuda = max((header_version(folder) for folder in cuda_folders(major)), default=0)
    versions = (
        _number(f / "cuda/std/__cccl/version.h", _CCCL_VERSION) for f in search_folders(major)
    )
    digest = hashlib.sha256()
    for path in sorted(_OWN.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(_OWN)}\0".encode() + path.read_bytes())
    return f"headers {cuda}, CCCL {max(versions, default=0)}, {digest.hexdigest()[:16]}"


def header_version(folder: Path) -> int:
    """CUDART_VERSION of the headers there (12090 for 12.9); 0 when there are none."""
    return _number(folder / "cuda_runtime_api.h", _VERSION)


def missing_header(log: str, major: int) -> str:
    """Advice on a header that the compiler did not find; "" when its log names none."""
    found = _MISSING.search(log)
    if found is None:
        return ""
    name = found[1]
    for beginnings, wheels in _PACKAGES:
        if name.startswith(beginnings):
            return f"fix: pip install {wheels[major >= 13]}"
    return "NVRTC has none of a host's headers; a kernel's own file is included in quotes"


def _header_sets(major: int) -> Iterator[tuple[Path, ...]]:
    wheels = [
        root / package / "include"
        for root in _nvidia_wheels()
        for package in (f"cu{major}", "cuda_runtime", "cuda_nvcc", "cuda_cccl", "curand")
    ]
    found = [folder for folder in wheels if folder.is_dir()]
    if any(header_version(folder) // 1000 == major for folder in found):
        yield _with_cccl(found)
    toolkit = os.environ.get("CUDA_PATH") or os.environ.get("CUDA_HOME")
    for root in filter(None, (toolkit, "/usr/local/cuda", f"/usr/local/cuda-{major}")):
        folder = Path(root) / "include"
        if header_version(folder) // 1000 == major:
            yield _with_cccl([folder])


def _with_cccl(folders: list[Path]) -> tuple[Path, ...]:
    """The folders, each followed by its folder `cccl`, where CUDA 13 has CCCL."""
    return tuple(path for each in folders for path in (each, each / "cccl") if path.is_dir())


def _cccl_folders(major: int) -> tuple[Path, ...]:
    """CuPy's copy, where CUDA's folders have none."""
    if any((folder / "nv" / "target").is_file() for folder in cuda_folders(major)):
        return ()
    found = importlib.util.find_spec("cupy")
    places = (found.submodule_search_locations or ()) if found else ()
    root = Path(next(iter(places), ".")) / "_core" / "include" / "cupy" / "_cccl"
    folders = (root / name for name in ("libcudacxx", "cub", "thrust"))
    return tuple(folder for folder in folders if folder.is_dir())


def _nvidia_wheels() -> list[Path]:
    found = importlib.util.find_spec("nvidia")
    return [Path(path) for path in (found.submodule_search_locations or ())] if found else []


def _number(path: Path, pattern: re.Pattern[bytes]) -> int:
    """The number that a header defines; 0 when the header does not define it or is missing."""
    try:
        match = pattern.search(path.read_bytes())
    except OSError:
        return 0
    return int(match.group(1)) if match else 0
