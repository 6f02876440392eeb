"""The files that a C++ compiler and its assembler read, according to the lists that they write.

Machine code may depend on the kernel's sources and the compiler's headers, which the cache's key
covers. The scan of the sources (`sources.py`) misses some other files: a macro or an escape can
make an `.incbin` that does not stand in the text. So a binary that depends on any other file is
refused.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
from pathlib import Path

from evotune.backends.base.launch import CompileJob
from evotune.backends.base.sources import read_sources
from evotune.errors import EnvironmentProblem, SpaceError

_COMPILER_LIST = "compiler.d"
_ASSEMBLER_LIST = "assembler.d"
_SEARCHED = re.compile(r"^#include <\.\.\.>.*\n((?: .*\n)*)", re.MULTILINE)
_WORD = re.compile(r"(?:\\.|[^\s\\])+")
_TEMPORARY = re.compile(r"\./[^/]+\.s")
_TIMEOUT_S = 30.0

LISTING = ("-MD", "-MF", _COMPILER_LIST, f"-Wa,--MD,{_ASSEMBLER_LIST}")
"""Options that write both lists into the compiler's working folder; its TMPDIR must be `.`."""
SEARCH_VARIABLES = ("CPATH", "CPLUS_INCLUDE_PATH")
"""Environment variables that name more folders of headers."""


def foreign_file(compiler: str, job: CompileJob, folder: Path) -> str:
    """One line that names a file that went into the machine code and is neither a source nor a
    header of the compiler; "" when there is none. EnvironmentProblem when the lists are not in
    `folder`."""
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
