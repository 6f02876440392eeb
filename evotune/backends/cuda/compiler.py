"""Compiles CUDA kernels to machine code by NVRTC, through CuPy. Needs no GPU and no driver."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evotune.backends.base.launch import MBARRIERS, CompileFailure, CompileJob, uses_mbarriers
from evotune.backends.base.source_checks import (
    check_text,
    checked_end,
    errs_in_check,
    mismatch,
    reason_of,
    redefined,
)
from evotune.backends.cuda._include_folders import (
    cuda_folders,
    headers_version,
    missing_header,
    search_folders,
)
from evotune.backends.cuda._ptxas import read_figures
from evotune.errors import EnvironmentProblem
from evotune.trial import Json, OutcomeKind

FLAGS = ("--std=c++17", "--ptxas-options=-v")
_NO_CACHE = "--no-cache"
"""Where NVRTC has a cache (that of the driver), a binary from there comes without the log that
states its registers and spills."""
_CACHES_SINCE = (12, 9)
_SAME_NAMES = "--frandom-seed=evotune"
"""Where a kernel's signature has a type of an anonymous namespace, the names of the namespace's
members have a part that NVRTC draws for each process. Without a seed the same source becomes other
bytes each time."""
_LOG_BYTES = 16_384
_COMPILATION_FAILED = 6  # nvrtcResult for an error in the source; others are the compiler's
_INVALID_OPTION = 5
_ERROR = re.compile(r"^(.*\b(?:error|fatal)\b(?: #[\w-]+)?\s*:.*)$", re.MULTILINE | re.IGNORECASE)
_PTX_KERNEL = re.compile(r"\.entry\s+([\w$]+)")
_MOST_NAMES = 3  # of a source's kernels in a message
_TOO_MUCH = re.compile(r"uses too much (?:shared|local|parameter|constant) data|too many registers")


@functools.cache
def _nvrtc() -> Any:
    """CuPy's binding of NVRTC. EnvironmentProblem with the fix when it does not work."""
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except ImportError as error:
        if error.name and error.name.partition(".")[0] == "cupy":
            what = "CuPy is not installed"
        else:
            what = f"CuPy does not load ({_first_line(error)})"
        raise EnvironmentProblem(_with_fix(what)) from error
    except (OSError, RuntimeError, AttributeError, ValueError, TypeError) as error:
        # A CuPy built against another NumPy fails with one of the latter three.
        raise EnvironmentProblem(
            _with_fix(f"NVRTC does not load ({_first_line(error)})")
        ) from error
    return nvrtc


def _with_fix(what: str) -> str:
    return (
        f"cannot compile CUDA kernels: {what}; fix: pip install 'evotune[cuda12]' "
        "(or 'evotune[cuda13]', as torch's CUDA)"
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def nvrtc_version() -> tuple[int, int]:
    """NVRTC's major and minor version; EnvironmentProblem when NVRTC cannot be used."""
    major, minor = _nvrtc().getVersion()
    return int(major), int(minor)


def include_folders() -> tuple[Path, ...]:
    """The folders with CUDA's headers of NVRTC's major version; empty when there are none."""
    return cuda_folders(nvrtc_version()[0])


def _wheel_version() -> str:
    """The version of NVRTC's wheel, with its patch level; "" when no wheel brought NVRTC."""
    major, _ = nvrtc_version()
    for name in (f"nvidia-cuda-nvrtc-cu{major}", "nvidia-cuda-nvrtc"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return ""


@functools.cache
def _flags() -> tuple[str, ...]:
    no_cache = (_NO_CACHE,) if nvrtc_version() >= _CACHES_SINCE else ()
    same_names = (_SAME_NAMES,) if _is_known(_SAME_NAMES) else ()
    return (*FLAGS, *no_cache, *same_names)


def _is_known(flag: str) -> bool:
    """Whether this NVRTC takes the flag. Another mistake shows when a kernel is compiled."""
    nvrtc = _nvrtc()
    with _program(nvrtc, "", "empty.cu") as program:
        try:
            nvrtc.compileProgram(program, [flag])
        except nvrtc.NVRTCError as error:
            return bool(getattr(error, "status", _INVALID_OPTION) != _INVALID_OPTION)
    return True


@functools.cache
def _version() -> str:
    major, minor = nvrtc_version()
    patch = _wheel_version()
    release = f"NVRTC {major}.{minor}{f' ({patch})' if patch else ''}"
    return " ".join((f"{release} ({headers_version(major)})", *_flags()))


class NvrtcCompiler:
    """See `evotune.backends.base.session.Compiler`. Writes a cubin for the job's `arch`.

    NVRTC cannot be stopped from within: the caller kills this process when compiling takes too
    long.
    """

    def version(self) -> str:
        return _version()

    def compile(
        self, job: CompileJob, output: Path, timeout_s: float
    ) -> Mapping[str, Json] | CompileFailure:
        """Returns the worst figures over the kernel's functions; `entries` has each function's."""
        nvrtc = _nvrtc()
        started = time.monotonic()
        with _compiled(job) as program:
            if isinstance(program, CompileFailure):
                return program
            code = nvrtc.getCUBIN(program) + b"\0"  # CuPy takes the last byte for a terminator
            log = nvrtc.getProgramLog(program)
            figures = read_figures(log)
            ptx = _text(nvrtc.getPTX(program))
            mbarriers = {MBARRIERS: uses_mbarriers(ptx)}
        if reason := _absent_kernel(job, ptx):
            seconds = time.monotonic() - started
            return CompileFailure(
                OutcomeKind.COMPILE_ERROR, reason, _legible(log, job.root), seconds
            )
        output.write_bytes(code)
        return {**figures, **mbarriers, "code_bytes": len(code)}

    def ptx(self, job: CompileJob) -> str | CompileFailure:
        """The job's PTX, before it is assembled."""
        with _compiled(job) as program:
            if isinstance(program, CompileFailure):
                return program
            return _text(_nvrtc().getPTX(program))


@contextlib.contextmanager
def _compiled(job: CompileJob) -> Iterator[Any]:
    """NVRTC's program, or a CompileFailure."""
    nvrtc = _nvrtc()
    started = time.monotonic()
    try:
        source = (Path(job.root) / job.source).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        reason = f"{job.source} is not UTF-8 text ({error.reason} at byte {error.start})"
        yield CompileFailure(OutcomeKind.COMPILE_ERROR, reason, "", 0.0)
        return
    options = [f"--gpu-architecture={job.arch}", *_flags(), *job.options]
    # No folder is added for quoted includes, which are found only beside the including file: the
    # scan of the sources, and so the cache's key, knows no other place.
    options += [f"-I{folder}" for folder in search_folders(nvrtc_version()[0])]
    options += job.macros
    source += checked_end(source, job.source, job.defines)
    for check in (check_text(job.entries, job.signature, exact=True), ""):
        with _program(nvrtc, source + check, job.source) as program:
            try:
                # From the root, names in messages and in the machine code are the same wherever a
                # run's sources lie.
                with contextlib.chdir(job.root):
                    nvrtc.compileProgram(program, options)
            except nvrtc.NVRTCError as error:
                log = _legible(nvrtc.getProgramLog(program), job.root)
                seconds = time.monotonic() - started
                if not (check and errs_in_check(log)):
                    yield _failure(error, log, job.arch, seconds)
                    return
                if reason := mismatch(log):
                    yield CompileFailure(OutcomeKind.COMPILE_ERROR, reason, log, seconds)
                    return
            else:
                yield program
                return


def _absent_kernel(job: CompileJob, ptx: str) -> str:
    """The first of the job's kernels that the PTX lacks, in a sentence; "" when it has all. Without
    this the mistake would show only when a GPU loads the code."""
    found = dict.fromkeys(_PTX_KERNEL.findall(ptx))
    absent = next((entry for entry in job.entries if entry not in found), "")
    if not absent:
        return ""
    others = f", it has {', '.join(list(found)[:_MOST_NAMES])}" if found else ""
    return f'{job.source} has no kernel {absent}{others}; it needs extern "C" and __global__'


def _text(ptx: bytes | str) -> str:
    """PTX as text; CuPy returns bytes or text."""
    return (ptx.decode() if isinstance(ptx, bytes) else ptx).rstrip("\0")


@contextlib.contextmanager
def _program(nvrtc: Any, source: str, name: str) -> Iterator[Any]:
    program = nvrtc.createProgram(source, name, [], [])
    try:
        yield program
    finally:
        nvrtc.destroyProgram(program)


def _legible(log: str, root: str) -> str:
    """The log without this machine's folders and ptxas's NUL. Of a long log only the beginning and
    the end."""
    log = log.replace("\0", "").replace(root.rstrip(os.sep) + os.sep, "")
    for folder in search_folders(nvrtc_version()[0]):
        log = log.replace(f"{folder}{os.sep}", "")
    if len(log) > 2 * _LOG_BYTES:
        log = f"{log[:_LOG_BYTES]}\n[...]\n{log[-_LOG_BYTES:]}"
    return log.strip()


def _failure(error: Any, log: str, arch: str, seconds: float) -> CompileFailure:
    status = getattr(error, "status", _COMPILATION_FAILED)
    errors = _ERROR.search(log)
    words = " ".join(errors.group(1).split()) if errors else ""
    name = redefined(log)
    if name:
        return CompileFailure(OutcomeKind.COMPILE_ERROR, reason_of(name), log, seconds)
    if status == _INVALID_OPTION and "gpu-architecture" in log:
        major, minor = nvrtc_version()
        raise EnvironmentProblem(f"NVRTC {major}.{minor} does not compile for {arch}; {_NEWER}")
    if status != _COMPILATION_FAILED:
        reason = f"NVRTC failed: {words or error}"
        return CompileFailure(OutcomeKind.COMPILE_CRASH, reason, log, seconds)
    if fix := missing_header(log, nvrtc_version()[0]):
        return CompileFailure(OutcomeKind.COMPILE_ERROR, f"{words}; {fix}", log, seconds)
    kind = OutcomeKind.RESOURCE_LIMIT if _TOO_MUCH.search(words) else OutcomeKind.COMPILE_ERROR
    return CompileFailure(kind, words or str(error), log, seconds)


_NEWER = "fix: install the CUDA wheels of a version that knows it (evotune[cuda12] or [cuda13])"
