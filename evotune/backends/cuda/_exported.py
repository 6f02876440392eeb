"""The CUDA backend's own part of an exported package: its launchers."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from evotune.scratch import scratch_folder

_MODULES = ("_cuda_launcher.py", "_cuda_driver.py", "_native_launcher.py")
_FOLDER = "native"
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-shared", "-s", "-pthread")
_LINK_FLAGS = ("-ldl", "-Wl,--build-id=none")
_LIMIT_S = 120


def files() -> Mapping[str, bytes]:
    """By name. Without the native library where no C++ compiler is, or where it fails: packages
    then call the driver through ctypes."""
    folder = Path(__file__).parent
    found = {name: (folder / name).read_bytes() for name in _MODULES}
    sources = {path.name: path.read_bytes() for path in sorted((folder / _FOLDER).iterdir())}
    found |= {f"{_FOLDER}/{name}": content for name, content in sources.items()}
    built = build(tuple(sources.items()))
    if built:
        found[f"_native_{platform()}.so"] = built
    return found


def platform() -> str:
    """The system and processor that native code is for, as an identifier."""
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


@functools.cache
def build(sources: tuple[tuple[str, bytes], ...]) -> bytes:
    """The native launcher as a shared library; empty where it cannot be built. It needs no headers
    of PyTorch, Python or CUDA, and gives the same bytes wherever it is built by one compiler."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    compiler = next(filter(None, map(shutil.which, names)), None)
    if compiler is None:
        return b""
    with scratch_folder() as folder:
        for name, content in sources:
            (folder / name).write_bytes(content)
        units = [name for name, _ in sources if name.endswith(".cpp")]
        command = [compiler, *_FLAGS, *units, "-o", "native.so", *_LINK_FLAGS]
        try:
            subprocess.run(command, cwd=folder, capture_output=True, timeout=_LIMIT_S, check=True)
        except (OSError, subprocess.SubprocessError):
            return b""
        return (folder / "native.so").read_bytes()
