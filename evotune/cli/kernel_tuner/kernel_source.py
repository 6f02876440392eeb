"""The kernel's source: the script's files unchanged, and a wrapper that fits them to a space."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evotune.backends.base.sources import read_sources
from evotune.cli.kernel_tuner.script import TuneCall
from evotune.cli.kernel_tuner.values import Function, Listed, Nothing, Text
from evotune.errors import SpaceError

_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_ANGLE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<[^>\n]+>[^\n]*$")
_CONDITIONAL = re.compile(r"^[ \t]*#[ \t]*(if|endif)")
_WORD = re.compile(r"[A-Za-z_]\w*")
_FILE = re.compile(r"[A-Za-z0-9_./+ -]+")
_CUDA = ("CUDA", "CUPY", "NVCUDA")
_KERNELS_IN_C = '#undef __global__\n#define __global__ extern "C" __attribute__((global))\n'
_HELP = "evotune brings in CUDA kernels"


@dataclass(frozen=True)
class Parameter:
    """A parameter in the kernel's signature."""

    name: str
    is_const: bool


@dataclass(frozen=True)
class KernelSource:
    """The files of the kernel's source.

    - main: the name of the file with the kernel in it
    - files: the contents by name, as the script has them
    - text: the main file's content as text
    """

    main: str
    files: Mapping[str, bytes]
    text: str

    @property
    def words(self) -> frozenset[str]:
        """Every identifier in the files, without those in comments and strings."""
        texts = (_bare(content.decode(errors="replace")) for content in self.files.values())
        return frozenset(word for text in texts for word in _WORD.findall(text))

    def defines(self, name: str) -> bool:
        """Whether a file defines the macro, even if only under `#ifndef`."""
        pattern = re.compile(rf"#\s*define\s+{re.escape(name)}\b")
        return any(
            pattern.search(content.decode(errors="replace")) for content in self.files.values()
        )

    def parameters(self, entry: str) -> list[Parameter] | None:
        """The parameters in the kernel's definition; None when the definition is not found."""
        found = re.search(rf"\b{re.escape(entry)}\s*\(([^()]*)\)\s*\{{", _bare(self.text))
        if found is None:
            return None
        made = []
        for part in found[1].split(","):
            words = _WORD.findall(part)
            if words:
                made.append(Parameter(words[-1], "const" in part.split("*")[0].split()))
        return made


def read_kernel(call: TuneCall, entry: str) -> KernelSource:
    """The script's kernel source. ScriptError when it is not CUDA, or when code makes it."""
    found = call.get("kernel_source")
    if isinstance(found, Listed) and len(found.items) == 1:
        found = found.items[0]
    if isinstance(found, Listed):
        message = "the kernel has several sources; make them one, with #include"
        raise call.error("kernel_source", message)
    if isinstance(found, Function):
        message = "the kernel's source is made by code, which is not run; give its text or file"
        raise call.error("kernel_source", message)
    if not isinstance(found, Text):
        hint = "give its text, or its file's name"
        raise call.cannot_tell("kernel_source", "the kernel's source", found, hint)
    _refuse_other_languages(call, found)
    name = found.file or (found.text if _is_file_name(found.text) else "")
    if not name:
        main = f"{entry}.cu"
        source = KernelSource(main, {main: found.text.encode()}, found.text)
    else:
        try:
            files = read_sources(call.path.parent, name)
        except SpaceError as error:
            raise call.error("kernel_source", error.message) from error
        source = KernelSource(name, files, files[name].decode(errors="replace"))
    if "__global__" not in _bare(
        "".join(c.decode(errors="replace") for c in source.files.values())
    ):
        raise call.error("kernel_source", f"the source has no __global__ function; {_HELP}")
    return source


def _refuse_other_languages(call: TuneCall, source: Text) -> None:
    lang = call.get("lang")
    if isinstance(lang, Text) and lang.text.upper() not in _CUDA:
        raise call.error("lang", f"the kernel is in {lang.text}; {_HELP}")
    if not isinstance(lang, Text | Nothing):
        raise call.cannot_tell("lang", "the language", lang, "write it as text")
    name = source.file or (source.text if _is_file_name(source.text) else "")
    if name and not _FILE.fullmatch(name):
        message = f"{name[:60]!r} has characters that an #include cannot have; rename the file"
        raise call.error("kernel_source", message)
    if name and not name.endswith((".cu", ".cpp", ".c", ".cuh")):
        raise call.error("kernel_source", f"{name} is not a CUDA file; {_HELP}")
    if re.search(r"\b__kernel\b", source.text):
        raise call.error("kernel_source", f"the kernel is in OpenCL; {_HELP}")
    if re.search(r"\b(texture\s*<|cudaTextureObject_t)", source.text):
        why = "the kernel uses textures, which evotune does not support"
        raise call.error("kernel_source", why)


def _is_file_name(text: str) -> bool:
    """Whether the text is a file's name and not code, by Kernel Tuner's own rule."""
    marks = any(mark in text for mark in "();{}\\\n") or "void " in text
    return len(text) <= 250 and not marks and any(m in text for m in (".c", ".opencl", ".F"))


def wrapper(source: KernelSource, lines: Sequence[str], checks: Sequence[str]) -> str:
    """A source that includes the script's file between `lines` and `checks`.

    It gives the file's kernels C linkage, as Kernel Tuner does, and nothing else: templates cannot
    have it. So the file's headers in angle brackets come first.
    """
    head = f"// Fits {source.main}, which is as Kernel Tuner had it, to space.yaml.\n"
    has_linkage = 'extern "C"' in source.text
    include = f'#include "{source.main}"\n'
    if not has_linkage:
        angle = "".join(f"{line}\n" for line in _angle_includes(source.text))
        include = f"{angle}{_KERNELS_IN_C}{include}"
    before, after = ("".join(f"{line}\n" for line in part) for part in (lines, checks))
    return f"{head}{before}{include}{after}"


def needs_no_wrapper(source: KernelSource, lines: Sequence[str]) -> bool:
    return not lines and 'extern "C"' in source.text and source.main.endswith(".cu")


def _angle_includes(text: str) -> list[str]:
    """The includes in angle brackets that are not inside an #if."""
    depth, found = 0, []
    for line in text.splitlines():
        if mark := _CONDITIONAL.match(line):
            depth += 1 if mark[1] == "if" else -1
        elif depth == 0 and _ANGLE.match(line):
            found.append(line.strip())
    return found


def _bare(text: str) -> str:
    """The text without its comments and with empty strings."""
    return _COMMENT.sub(lambda match: '""' if match[0][0] == '"' else " ", text)
