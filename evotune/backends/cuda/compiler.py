"""Compiles CUDA kernels to machine code by NVRTC, through CuPy. Needs no GPU and no driver."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evotune.backends.base.launch import MBARRIERS, CompileFailure, CompileJob, uses_mbarriers
from evotune.backends.base.sources import (
    check_text,
    checked_end,
    errs_in_check,
    mismatch,
    reason_of,
    redefined,
)
from evotune.errors import EnvironmentProblem
from evotune.trial import Json, OutcomeKind

FLAGS = ("--std=c++17", "--ptxas-options=-v")
_NO_CACHE = "--no-cache"
"""If NVRTC has a cache (the driver's), a binary from there comes without the log that states its
registers and spills."""
_CACHES_SINCE = (12, 9)
_SAME_NAMES = "--frandom-seed=evotune"
"""If a kernel's signature has a type of an anonymous namespace, the names of the namespace's
members contain a part that NVRTC draws for each process. Without a seed the same source compiles to
different bytes each time."""
_LOG_BYTES = 16_384
_COMPILATION_FAILED = 6  # nvrtcResult for an error in the source; others are the compiler's
_INVALID_OPTION = 5
_ERROR = re.compile(r"^(.*\b(?:error|fatal)\b(?: #[\w-]+)?\s*:.*)$", re.MULTILINE | re.IGNORECASE)
_PTX_KERNEL = re.compile(r"\.entry\s+([\w$]+)")
_MOST_NAMES = 3  # of a source's kernels in a message
_TOO_MUCH = re.compile(r"uses too much (?:shared|local|parameter|constant) data|too many registers")


@functools.cache
def _nvrtc() -> Any:
    """CuPy's binding of NVRTC. Raises EnvironmentProblem with the fix when it does not work."""
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
    """NVRTC's major and minor version. Raises EnvironmentProblem if NVRTC cannot be used."""
    major, minor = _nvrtc().getVersion()
    return int(major), int(minor)


def include_folders() -> tuple[Path, ...]:
    """The folders with CUDA's headers of NVRTC's major version; empty if there are none."""
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
        """Returns the worst figures over the kernel's functions; `entries` has the figures of each
        function."""
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
    """The log without this machine's folders and ptxas's NUL. A long log is cut to its beginning
    and end."""
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


# The folders where NVRTC finds headers in angle brackets: CUDA's, CCCL's and C++'s own.
#
# NVRTC brings none. CUDA's headers are in wheels or in an installed toolkit; CCCL (`cuda/`, `cub/`,
# `nv/`) is in both, and CuPy has a copy. The folder `include` beside this module has the C++
# headers that device code uses (<cstdint>, <cmath>, <cstdio>).
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
    """The folders with CUDA's headers of this major version; empty if there are none.

    They are the wheels' folders or one toolkit's: the first place that has all headers (mma.h needs
    crt/, which for CUDA 13 is a separate wheel), else the first place with any. A kernel that
    includes no header needs none.
    """
    sets = list(_header_sets(major))
    complete = (s for s in sets if any((folder / "crt" / "mma.h").is_file() for folder in s))
    return next(complete, sets[0] if sets else ())


@functools.cache
def search_folders(major: int) -> tuple[Path, ...]:
    """All folders in which headers are searched, in that order."""
    return (_OWN, *cuda_folders(major), *_cccl_folders(major))


@functools.cache
def headers_version(major: int) -> str:
    """A text that identifies the headers of a build: the versions of CUDA's and CCCL's headers, and
    a digest of the C++ headers' content."""
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
    """CUDART_VERSION of the headers in the folder (12090 for 12.9); 0 if there are none."""
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
    """The folders, each followed by its folder `cccl`, in which CUDA 13 has CCCL."""
    return tuple(path for each in folders for path in (each, each / "cccl") if path.is_dir())


def _cccl_folders(major: int) -> tuple[Path, ...]:
    """CuPy's copy, if CUDA's folders have none."""
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
    """The number that a header defines; 0 if the header does not define it or is missing."""
    try:
        match = pattern.search(path.read_bytes())
    except OSError:
        return 0
    return int(match.group(1)) if match else 0


# Reads the figures that ptxas prints of each function (`--ptxas-options=-v`).
_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_CONSTANT = re.compile(r"(\d+) bytes cmem\[\d+\]")
_CUMULATIVE = re.compile(r"(\d+) bytes cumulative stack size")
_SERIALIZED = re.compile(r"wgmma\.mma_async instructions are serialized .* function '([^']+)'")
_STACK_FIGURES = ("stack_bytes", "spill_store_bytes", "spill_load_bytes")


def read_figures(log: str) -> dict[str, Json]:
    """The worst of every figure over the entry functions, and the figures of each function under
    `entries`.

    A function that is called and not inlined counts for every entry, since ptxas does not say which
    entry calls it.
    """
    entries: dict[str, dict[str, int]] = {}
    called = dict.fromkeys(_STACK_FIGURES, 0)
    serialized: set[str] = set()
    entry = subject = ""
    for line in log.splitlines():
        if found := _ENTRY.search(line):
            entry = found.group(1)
            entries[entry] = {}
        elif found := _SERIALIZED.search(line):
            serialized.add(found.group(1))
        elif found := _PROPERTIES.search(line):
            subject = found.group(1)
        elif found := _STACK.search(line):
            figures = dict(zip(_STACK_FIGURES, map(int, found.groups()), strict=True))
            _keep_worst(entries[entry] if subject == entry and entry else called, figures)
        elif (found := _REGISTERS.search(line)) and entry:
            _keep_worst(entries[entry], _usage(line, int(found.group(1))))
    called["serialized"] = int(bool(serialized - entries.keys()))
    for name, own in entries.items():
        _keep_worst(own, {**called, "serialized": max(called["serialized"], name in serialized)})
    worst: dict[str, Json] = {}
    for own in entries.values():
        _keep_worst(worst, own)
    return {**worst, "entries": entries}


def _usage(line: str, registers: int) -> dict[str, int]:
    figures = {
        "registers": registers,
        "static_shared_bytes": sum(map(int, _SHARED.findall(line))),
        "constant_bytes": sum(map(int, _CONSTANT.findall(line))),
    }
    cumulative = _CUMULATIVE.search(line)
    return {**figures, "stack_bytes": int(cumulative.group(1))} if cumulative else figures


def _keep_worst(kept: dict[str, Json] | dict[str, int], figures: Mapping[str, int]) -> None:
    for name, value in figures.items():
        kept[name] = max(value, kept.get(name, value))
