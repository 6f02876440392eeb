"""A cache of compiled kernels on disk, keyed by compile job and checked at each read.

    objects/ab/abcdef….bin   machine code, named by its SHA-256
    jobs/12/1234….json       which object a compile job made, and the compiler's figures

The checksum in a job's file covers the job's key, because a file of another job in its place would
also name an intact object. Files are written under another name and then renamed, so several
processes may share a cache. Failures are not cached: a time-out or a crash may not happen again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import re
import tempfile
import time
from pathlib import Path
from typing import IO

from evotune.backends.base.launch import Binary
from evotune.backends.base.sources import told_folder
from evotune.errors import EnvironmentProblem
from evotune.trial import NamedFigures
from evotune.util.files import default_cache_dir

_SHA256 = re.compile(r"[0-9a-f]{64}")
_ASIDE = ".writing-"
_LEFT_BEHIND_S = 86400.0


def writable_cache_dir(*, executable: bool = False) -> Path:
    """The `default_cache_dir`, created if missing. Raises EnvironmentProblem if it is not writable
    or, with `executable`, if a process cannot load code from it. Raises UsageError if compilers
    cannot use its name."""
    path = default_cache_dir()
    if path.parts[0] == "~":
        raise EnvironmentProblem(
            "this user has no home folder for the cache; set EVOTUNE_CACHE_DIR to a folder that "
            "you may write into"
        )
    told_folder(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            can_load = not executable or _can_be_loaded(file)
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot write into the cache {path}: {error.strerror}; "
            "set EVOTUNE_CACHE_DIR to a folder that you may write into"
        ) from error
    if not can_load:
        raise EnvironmentProblem(
            f"code cannot be loaded from the cache {path}: its file system is mounted noexec; "
            "set EVOTUNE_CACHE_DIR to a folder on another one"
        )
    return path


def _can_be_loaded(file: IO[bytes]) -> bool:
    """Whether the system maps the file as code."""
    file.write(b"\0")
    file.flush()
    try:
        mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
    except PermissionError:
        return False
    return True


class BuildCache:
    """A cache in one folder. `key` is a hash of a CompileJob's key and the compiler's version."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()

    def get(self, key: str) -> Binary | None:
        """The cached binary; None if there is none, or if its files have changed since they were
        written."""
        try:
            entry = json.loads(self._job_path(key).read_bytes())
            sha256, resources, seconds = entry["sha256"], entry["resources"], entry["seconds"]
            if not (_SHA256.fullmatch(sha256) and isinstance(resources, dict)):
                return None
            if entry["checksum"] != _checksum(key, sha256, resources, seconds):
                return None
            path = self._object_path(sha256)
            content = path.read_bytes()
            binary = Binary(sha256, str(path), resources, float(seconds), cached=True)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        if hashlib.sha256(content).hexdigest() != binary.sha256:
            with contextlib.suppress(OSError):  # another user's, in a folder that several share
                path.unlink()
            return None
        return binary

    def put(self, key: str, code: bytes, resources: NamedFigures, seconds: float) -> Binary:
        sha256 = hashlib.sha256(code).hexdigest()
        path = self._object_path(sha256)
        _write_whole(path, code)
        entry = {
            "sha256": sha256,
            "resources": dict(resources),
            "seconds": seconds,
            "checksum": _checksum(key, sha256, resources, seconds),
        }
        _write_whole(self._job_path(key), json.dumps(entry).encode())
        return Binary(sha256, str(path), resources, seconds)

    def _object_path(self, sha256: str) -> Path:
        return self._folder / "objects" / sha256[:2] / f"{sha256}.bin"

    def _job_path(self, key: str) -> Path:
        return self._folder / "jobs" / key[:2] / f"{key}.json"


def _checksum(key: str, sha256: str, resources: NamedFigures, seconds: float) -> str:
    facts = json.dumps([key, sha256, dict(resources), seconds], sort_keys=True)
    return hashlib.sha256(facts.encode()).hexdigest()


def _write_whole(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_left_behind(path.parent)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_ASIDE)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _remove_left_behind(folder: Path) -> None:
    """Removes unfinished files, over a day old, of processes that were killed while writing."""
    for path in folder.glob(f"{_ASIDE}*"):
        with contextlib.suppress(OSError):  # it is gone, or another user's
            if path.stat().st_mtime < time.time() - _LEFT_BEHIND_S:
                path.unlink()
