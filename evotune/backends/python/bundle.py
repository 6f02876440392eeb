"""The "binary" of a callable: its source, the files that it imports, and the configuration.

Nothing is compiled, and nothing is executed: the worker's host builds the callable. So what is
compiled here is valid Python, and the host executes exactly the bytes that were read here.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from pathlib import Path

import msgspec

from evotune.backends.base.launch import CompileFailure, CompileJob
from evotune.backends.base.python_imports import ModulePlace
from evotune.backends.base.session import LaunchFailure
from evotune.backends.base.sources import fingerprint, read_sources
from evotune.errors import SpaceError
from evotune.trial import Json, OutcomeKind, Value

_VERSION = "callables 1"


class Bundle(msgspec.Struct, frozen=True):
    """`source` is one of the `files`, which have their paths under the space's root."""

    source: str
    entry: str
    files: dict[str, bytes]
    configuration: tuple[tuple[str, Value], ...]

    @property
    def place(self) -> ModulePlace:
        """The module's name, and the folder that must be on the path."""
        return ModulePlace.of(self.source, self.files.__contains__)

    @property
    def module_names(self) -> list[str]:
        """The names by which Python imports the files."""
        return [ModulePlace.of(name, self.files.__contains__).name for name in self.files]

    def write(self, folder: Path) -> None:
        """Writes the files under `folder`."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    @classmethod
    def read(cls, path: Path) -> Bundle:
        try:
            return msgspec.msgpack.decode(path.read_bytes(), type=cls)
        except (OSError, ValueError) as error:
            raise LaunchFailure(f"cannot load the callable: {error}") from error


class BundleCompiler:
    """See `Compiler` of `backends/base/session.py`."""

    def version(self) -> str:
        return _VERSION

    def compile(
        self, job: CompileJob, output: Path, timeout_s: float
    ) -> Mapping[str, Json] | CompileFailure:
        started = time.monotonic()
        try:
            files = read_sources(Path(job.root), job.source)
            reason = ""
            if fingerprint(files) != job.sources_sha256:
                reason = f"{job.source} changed while the run was going on"
        except SpaceError as error:
            files, reason = {}, str(error)
        for name, content in files.items():
            reason = reason or _mistake(name, content)
        if reason:
            seconds = time.monotonic() - started
            return CompileFailure(OutcomeKind.COMPILE_ERROR, reason, "", seconds)
        bundle = Bundle(job.source, job.entry, files, job.values)
        output.write_bytes(msgspec.msgpack.encode(bundle, order="sorted"))
        return {"code_bytes": sum(map(len, files.values()))}


def _mistake(name: str, content: bytes) -> str:
    """Why the file is not valid Python, in one line; "" if it is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(content, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"{name}:{error.lineno or 1}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{name}: {error}"
    return ""
