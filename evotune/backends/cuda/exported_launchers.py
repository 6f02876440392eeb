"""The CUDA backend's own part of an exported package: its launchers."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from evotune.util.files import scratch_folder

_MODULES = ("_cuda_launcher.py", "_cuda_driver.py", "_native_launcher.py")
_FOLDER = "native"
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-shared", "-s", "-pthread")
_LINK_FLAGS = ("-ldl", "-Wl,--build-id=none")
_LIMIT_S = 120


def files() -> Mapping[str, bytes]:
    """The files by name. The native library is missing if it cannot be built (`slower_because` says
    why); packages then call the driver through ctypes."""
    folder = Path(__file__).parent
    found = {name: (folder / name).read_bytes() for name in _MODULES}
    found |= {f"{_FOLDER}/{name}": content for name, content in _sources()}
    if library := build(_sources()).library:
        found[f"_native_{platform()}.so"] = library
    return found


def slower_because() -> str:
    """Why packages that are exported here have no native launcher, in one line; "" if they have."""
    reason = build(_sources()).reason
    return f"calls go through ctypes, which is slower: {reason}" if reason else ""


def _sources() -> tuple[tuple[str, bytes], ...]:
    paths = sorted((Path(__file__).parent / _FOLDER).iterdir())
    return tuple((path.name, path.read_bytes()) for path in paths)


def platform() -> str:
    """An identifier of this system and processor, for which native code is built."""
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


@dataclass(frozen=True, slots=True)
class Built:
    """The library, or the reason why there is none."""

    library: bytes = b""
    reason: str = ""


@functools.cache
def build(sources: tuple[tuple[str, bytes], ...]) -> Built:
    """Builds the native launcher as a shared library. The build needs no headers of PyTorch, Python
    or CUDA, and one compiler makes the same bytes on every machine."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    compiler = next(filter(None, map(shutil.which, names)), None)
    if compiler is None:
        return Built(reason=f"no C++ compiler was found ({', '.join(names)})")
    with scratch_folder() as folder:
        for name, content in sources:
            (folder / name).write_bytes(content)
        units = [name for name, _ in sources if name.endswith(".cpp")]
        command = [compiler, *_FLAGS, *units, "-o", "native.so", *_LINK_FLAGS]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_LIMIT_S,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return Built(reason=f"{compiler} does not run ({error})")
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line]
            said = lines[0].strip() if lines else f"status {done.returncode}"
            return Built(reason=f"{compiler} fails ({said})")
        return Built((folder / "native.so").read_bytes())
