"""The C++ compiler of this machine: kernels become shared libraries."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from evotune.backends.base.launch import CompileFailure, CompileJob
from evotune.backends.base.sources import (
    check_text,
    checked_end,
    errs_in_check,
    mismatch,
    read_sources,
    reason_of,
    redefined,
)
from evotune.backends.base.time_limits import Patience
from evotune.backends.cpu.cpu_profile import cpu_flags
from evotune.errors import EnvironmentProblem, SpaceError
from evotune.trial import TOO_NOISY, Json, OutcomeKind
from evotune.util.files import read_regular
from evotune.util.processes import describe_status

FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
)
# Linking is a separate step without the compiler's options, because linking with -ffast-math adds
# start-up code that makes the whole process flush denormals, the baseline included.
LINK_FLAGS = (
    "-shared",
    "-s",
    "-fopenmp",
    "-Wl,--build-id=none",
    "-Wl,-z,defs",  # a missing function then fails at compile time, not at load time
)

_PREFIX_MAP = "-fmacro-prefix-map="
"""Takes the folder out of a file's name, so that the machine code is the same in every folder."""
_VERSION = re.compile(r"(\d+)\.\d+\.\d+")


class CpuCompiler:
    """Compiles C++ to a shared library by $CXX, g++, clang++ or c++."""

    def __init__(self) -> None:
        self._path = find_compiler()

    def version(self) -> str:
        return _compiler_version(self._path)

    def compile(
        self, job: CompileJob, output: Path, timeout_s: float
    ) -> Mapping[str, Json] | CompileFailure:
        started = time.monotonic()
        check = check_text(job.entries, job.signature, exact=False)
        patience = Patience(timeout_s)
        status, log = self._build(job, output, check, patience)
        if status and errs_in_check(log):
            if reason := mismatch(log):
                seconds = time.monotonic() - started
                return CompileFailure(OutcomeKind.COMPILE_ERROR, reason, log, seconds)
            status, log = self._build(job, output, "", patience)
        seconds = time.monotonic() - started
        if status is None:
            kind = OutcomeKind.COMPILE_TIMEOUT
            reason = f"the compiler ran longer than {timeout_s:g} s"
            if patience.exhausted:
                kind = OutcomeKind.UNDECIDED
                reason = f"{TOO_NOISY}: the compiler had no core for most of {seconds:.0f} s"
            return CompileFailure(kind, reason, "", seconds)
        if status != 0 or not output.is_file():
            return failure(status, log, seconds)
        if foreign := foreign_file(self._path, job, output.parent):
            return CompileFailure(OutcomeKind.COMPILE_ERROR, foreign, log, seconds)
        if absent := _absent_function(job, output):
            return CompileFailure(OutcomeKind.COMPILE_ERROR, absent, log, seconds)
        return {"code_bytes": output.stat().st_size}

    def _build(
        self, job: CompileJob, output: Path, check: str, patience: Patience
    ) -> tuple[int | None, str]:
        """Compiles and links the source followed by `check`. Returns the exit status (None if time
        ran out) and the log."""
        built = output.with_suffix(".o")
        command = [self._path, *FLAGS, *job.options, *LISTING]
        if "clang" in _first_line(self._path):
            command.append("-fno-integrated-as")  # clang's own assembler lists no files it reads
        if _maps_prefixes(self._path):  # in __FILE__ and assert
            command.append(f"{_PREFIX_MAP}{job.root}{os.sep}=")
        command += job.macros
        source = str(Path(job.root) / job.source)
        # The empty first file keeps g++ from using a precompiled header next to the source.
        command += ["-include", os.devnull, "-include", source]
        command += ["-c", "-o", str(built), "-x", "c++", "-"]
        link = [self._path, *LINK_FLAGS, "-o", str(output), str(built)]
        end = checked_end(_text(Path(source)), source, job.defines) + check
        words = output.with_suffix(".log")
        status: int | None = None
        # The log is a file and not a pipe: the compiler's own children may outlive it and hold a
        # pipe open. They belong to this process's group, which the parent kills after a time-out.
        with words.open("wb") as log_file:
            for step, stdin in ((command, end), (link, "")):
                status = _run(step, stdin, log_file, output.parent, patience)
                if status != 0 or not built.is_file():
                    break
        return status, read_log(words).replace(job.root + os.sep, "")


def _absent_function(job: CompileJob, library: Path) -> str:
    """The first of the job's functions whose name the library lacks, in a sentence; "" when it has
    all. Without this the mistake would show only when a worker loads the library."""
    code = library.read_bytes()
    absent = next((entry for entry in job.entries if f"{entry}\0".encode() not in code), "")
    return f'{job.source} has no function {absent}; it needs extern "C"' if absent else ""


def _text(source: Path) -> str:
    """The source's text; empty if the file cannot be read, since the compiler will say why."""
    try:
        return read_regular(source).decode(errors="replace")
    except OSError:
        return ""


def _run(
    command: Sequence[str], text: str, log: IO[bytes], folder: Path, patience: Patience
) -> int | None:
    """Runs a compiler that reads `text`. Returns its exit status, or None if it took too long."""
    with tempfile.TemporaryFile(dir=folder) as stdin:
        stdin.write(text.encode())
        stdin.seek(0)
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C", "TMPDIR": "."},
        )
    return patience.status(process)


def find_compiler() -> str:
    """The path of the C++ compiler. Raises EnvironmentProblem, with the fix, if there is none."""
    wanted = os.environ.get("CXX", "")
    for name in (wanted,) if wanted else ("g++", "clang++", "c++"):
        path = shutil.which(name)
        if path:
            return path
    missing = f"the compiler named by CXX ({wanted})" if wanted else "a C++ compiler"
    raise EnvironmentProblem(
        f"{missing} was not found; install one (Debian/Ubuntu: apt-get install g++) "
        "or set CXX to its path"
    )


@functools.cache
def _compiler_version(path: str) -> str:
    """All that a build depends on: the first line of --version, the flags, the processor's features
    (the meaning of -march=native here) and environment variables with more header folders."""
    headers = (f"{name}={os.environ[name]}" for name in SEARCH_VARIABLES if os.environ.get(name))
    return " ".join((_first_line(path), *FLAGS, *LINK_FLAGS, *sorted(cpu_flags()), *headers))


def _maps_prefixes(path: str) -> bool:
    """Whether the compiler has `_PREFIX_MAP`, as g++ 8, clang 10 and later ones do."""
    line = _first_line(path)
    found = _VERSION.search(line)
    return found is not None and int(found[1]) >= (10 if "clang" in line else 8)


@functools.cache
def _first_line(path: str) -> str:
    """The first line of --version, with the compiler's name."""
    try:
        return subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=30, check=True
        ).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        raise EnvironmentProblem(
            f"the C++ compiler {path} does not run ({error}); set CXX to one that does"
        ) from error


# Reads the log of a C++ compiler and turns a failure into an outcome.

_LOG_BYTES = 8192
_CRASH_MARKS = (
    "internal compiler error",
    "signal terminated program",  # g++ says this of cc1plus, the compiler that it runs
    "out of memory allocating",
    "virtual memory exhausted",
    "clang frontend command failed due to signal",
)
_ERROR_MARKS = ("error:", "undefined reference")


def read_log(path: Path) -> str:
    """The text of a log. A long log is cut to its beginning, which has the cause, and its end."""
    with path.open("rb") as file:
        head = file.read(_LOG_BYTES)
        rest = path.stat().st_size - len(head)
        if rest > 0:
            file.seek(max(len(head), len(head) + rest - _LOG_BYTES))
            head += b"\n[...]\n" + file.read(_LOG_BYTES)
    return head.decode(errors="replace")


def failure(status: int, log: str, seconds: float) -> CompileFailure:
    """The failure of a compiler that wrote no binary and ended with `status`."""
    if status < 0:
        reason = f"the compiler {describe_status(status)}"
        return CompileFailure(OutcomeKind.COMPILE_CRASH, reason, log, seconds)
    lines = [line.strip() for line in log.splitlines()]
    crash = next((line for line in lines if any(mark in line for mark in _CRASH_MARKS)), "")
    if crash:
        return CompileFailure(OutcomeKind.COMPILE_CRASH, crash, log, seconds)
    name = redefined(log)
    error = next((line for line in lines if any(mark in line for mark in _ERROR_MARKS)), "")
    reason = (reason_of(name) if name else error) or f"the compiler {describe_status(status)}"
    return CompileFailure(OutcomeKind.COMPILE_ERROR, reason, log, seconds)


# The files that a C++ compiler and its assembler read, according to the lists that they write.
#
# Machine code may depend on the kernel's sources and the compiler's headers, which the cache's key
# covers. The scan of the sources (`sources.py`) misses some other files: a macro or an escape can
# make an `.incbin` that does not stand in the text. So a binary that depends on any other file is
# refused.
_COMPILER_LIST = "compiler.d"
_ASSEMBLER_LIST = "assembler.d"
_SEARCHED = re.compile(r"^#include <\.\.\.>.*\n((?: .*\n)*)", re.MULTILINE)
_WORD = re.compile(r"(?:\\.|[^\s\\])+")
_TEMPORARY = re.compile(r"\./[^/]+\.s")
_TIMEOUT_S = 30.0

LISTING = ("-MD", "-MF", _COMPILER_LIST, f"-Wa,--MD,{_ASSEMBLER_LIST}")
"""Options that make the compiler write both lists of files into its working folder. Its TMPDIR must
be `.`."""
SEARCH_VARIABLES = ("CPATH", "CPLUS_INCLUDE_PATH")
"""Environment variables that name more folders of headers."""


def foreign_file(compiler: str, job: CompileJob, folder: Path) -> str:
    """A line that names a file that the compiler read although it is neither a source nor one of
    the compiler's headers; "" if there is none. Raises EnvironmentProblem if the compiler's lists
    of files are not in `folder`."""
    try:
        included = _listed(folder / _COMPILER_LIST)
        assembled = _listed(folder / _ASSEMBLER_LIST)
    except OSError as error:
        raise EnvironmentProblem(
            f"{compiler} does not list the files that it reads (-MD; for the assembler -Wa,--MD); "
            "fix: install binutils, and set CXX to a g++ or clang++"
        ) from error
    try:
        own = {
            os.path.realpath(Path(job.root) / name)
            for name in read_sources(Path(job.root), job.source)
        }
    except SpaceError as error:  # the sources were edited since
        return str(error)
    headers = header_folders(compiler)
    for name in included:
        if (
            name != os.devnull
            and not _lies_in(headers, name)
            and os.path.realpath(folder / name) not in own
        ):
            return _refusal("compiler", name)
    for name in assembled:
        # The list also has the name in the compiler's first `.file` directive.
        if name != "<stdin>" and not _TEMPORARY.fullmatch(name):
            return _refusal("assembler", name)
    return ""


def _refusal(who: str, name: str) -> str:
    return (
        f"the {who} read {name}, which is neither a source of the kernel nor a header of the "
        "compiler"
    )


@functools.cache
def header_folders(compiler: str) -> tuple[str, ...]:
    """The folders that the compiler searches for headers in angle brackets."""
    try:
        words = subprocess.run(
            [compiler, "-E", "-v", "-x", "c++", os.devnull],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            timeout=_TIMEOUT_S,
            check=True,
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentProblem(
            f"{compiler} does not list its folders of headers: {error}"
        ) from error
    found = _SEARCHED.search(os.fsdecode(words))
    return tuple(line.strip() for line in found.group(1).splitlines()) if found else ()


def _lies_in(folders: tuple[str, ...], name: str) -> bool:
    if any(name.startswith(f"{folder}/") and ".." not in name[len(folder) :] for folder in folders):
        return True
    real = os.path.realpath(name)  # GCC lists a header under its shortest name
    return any(real.startswith(f"{os.path.realpath(folder)}/") for folder in folders)


def _listed(path: Path) -> list[str]:
    """The file names right of the colon in a Make rule."""
    rule = os.fsdecode(path.read_bytes()).replace("\\\n", " ").rstrip("\n")
    names = rule.partition(": ")[2]
    if "\n" in names:  # a file's name has a line break, which Make cannot express
        return [names]
    return [_unescaped(word) for word in _WORD.findall(names)]


def _unescaped(word: str) -> str:
    return re.sub(r"\\([ \t#])", r"\1", word).replace("$$", "$")
