"""The kernel's source: the script's files unchanged, and a wrapper that fits them to a space."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evotune.backends.base.sources import read_sources
from evotune.errors import SpaceError, UsageError
from evotune.extras.kernel_tuner.messages import Pointer, Scalar, TuneCall
from evotune.extras.kernel_tuner.texts import NAME, ScriptError

_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_ANGLE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<[^>\n]+>[^\n]*$")
_CONDITIONAL = re.compile(r"^[ \t]*#[ \t]*(if|endif)")
_WORD = re.compile(r"[A-Za-z_]\w*")
_FILE = re.compile(r"[A-Za-z0-9_./+ -]+")
_CUDA = ("CUDA", "CUPY", "NVCUDA")
_QUOTED = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\r\n]+)"', re.MULTILINE)
_TEMPLATE = r"\btemplate\s*<([^<>]*)>\s*"
_BOUNDS = r"__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)"
_C_TYPES = {"float64": "double", "float32": "float", "float16": "half", "int32": "int"}
_KERNELS_IN_C = '#undef __global__\n#define __global__ extern "C" __attribute__((global))\n'
_HELP = "evotune brings in CUDA kernels"


_AS_FUNCTIONS = """\
#undef __global__
#define __global__ __device__ __forceinline__
#undef __launch_bounds__
#define __launch_bounds__(...)
"""
_AS_KERNELS = """\
#undef __global__
#define __global__ __attribute__((global))
#undef __launch_bounds__
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
"""


@dataclass(frozen=True)
class Parameter:
    """A parameter in the kernel's signature; `text` is its declaration."""

    name: str
    is_const: bool
    text: str

    def takes(self, kind: str) -> bool:
        """Whether it is written with C's name of this type."""
        return _C_TYPES.get(kind, kind) in _WORD.findall(self.text)


@dataclass(frozen=True)
class Definition:
    """A definition of the kernel: its template's parameters, bounds and parameters."""

    template: str
    bounds: str
    parameters: list[Parameter]


@dataclass(frozen=True)
class KernelSource:
    """The files of the kernel's source.

    - main: the name of the file with the kernel in it
    - files: the contents by name, as the script has them
    - text: the main file's content as text
    - entry: the kernel's name
    - template: its template's arguments as text; "" if it is no template
    """

    main: str
    files: Mapping[str, bytes]
    text: str
    entry: str
    template: str

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

    def definition(self, call: TuneCall) -> Definition | None:
        """The definition that the call means: with as many parameters, of the call's types where
        several have. None when none is found."""
        found = [each for each in self._definitions() if self._fits(each, call)]
        kinds = [
            call.arrays[each.array].dtype if isinstance(each, Pointer) else each.dtype
            for each in call.arguments
            if isinstance(each, Scalar) or each.array >= 0
        ]
        exact = (
            each
            for each in found
            if len(kinds) == len(each.parameters)
            and all(p.takes(kind) for p, kind in zip(each.parameters, kinds, strict=True))
        )
        return next(exact, found[0] if found else None)

    def _fits(self, found: Definition, call: TuneCall) -> bool:
        is_template = bool(self.template) == bool(found.template)
        return is_template and len(found.parameters) == len(call.arguments)

    def _definitions(self) -> list[Definition]:
        plain = r"[^;{}()]*"
        head = rf"({plain}(?:{_BOUNDS}{plain})?)"
        pattern = rf"{head}\b{self.entry}\s*\(([^()]*)\)\s*\{{"
        made = []
        for found in re.finditer(pattern, _bare(self.text)):
            template = re.search(_TEMPLATE, found[1])
            bounds = re.search(_BOUNDS, found[1])
            made.append(
                Definition(
                    template[1].strip() if template else "",
                    bounds[0] if bounds else "",
                    _parameters(found[2]),
                )
            )
        return made

    @property
    def parameter_counts(self) -> list[int]:
        """How many parameters the definitions have that are found."""
        return sorted({len(each.parameters) for each in self._definitions()})

    @property
    def needs_forwarding(self) -> bool:
        """Whether a kernel of its own must call the script's: C linkage is for no template, nor for
        several functions of one name."""
        bare = _bare(self.text)
        is_beside = re.search(_TEMPLATE + r"[^;{}()]*\b__global__", bare) is not None
        return bool(self.template) or is_beside or len(self._definitions()) > 1


def _parameters(text: str) -> list[Parameter]:
    made = []
    for part in text.split(","):
        words = _WORD.findall(part)
        if words and words != ["void"]:
            plain = " ".join(part.partition("=")[0].split())
            made.append(Parameter(words[-1], "const" in part.split("*")[0].split(), plain))
    return made


def read_kernel(call: TuneCall, error: ScriptError, folder: Path) -> KernelSource:
    """The script's kernel source. An EvotuneError when it is not CUDA, or cannot be read.

    `folder`: the script's, in which it runs. Files in the folders of -I options are brought in too.
    """
    if call.lang and call.lang.upper() not in _CUDA:
        raise error.at(f"the kernel is in {call.lang}; {_HELP}")
    entry, _, template = call.kernel_name.partition("<")
    entry = entry.strip()
    if not NAME.fullmatch(entry):
        raise error.at(f"{call.kernel_name[:60]!r} is no kernel's name")
    searched = [
        folder / option[2:].strip() for option in call.compiler_options if option[:2] == "-I"
    ]
    try:
        if call.files:
            main, files = _files(call.files, folder, searched)
        else:
            main = f"{entry}.cu"
            text = "\n".join(variant.text for variant in call.variants)
            files = _with_includes(folder, main, {main: text.encode()}, searched)
    except (SpaceError, UsageError) as reason:
        raise error.at(str(reason)) from reason
    text = files[main].decode(errors="replace")
    whole = _bare("".join(content.decode(errors="replace") for content in files.values()))
    if re.search(r"\b__kernel\b", whole) and "__global__" not in whole:
        raise error.at(f"the kernel is in OpenCL; {_HELP}")
    if "__global__" not in whole:
        raise error.at(f"the source has no __global__ function; {_HELP}")
    if re.search(r"\b(texture\s*<|cudaTextureObject_t)", whole):
        raise error.at("the kernel uses textures, which evotune does not support")
    return KernelSource(main, files, text, entry, template.rpartition(">")[0])


def _files(
    names: Sequence[str], folder: Path, searched: Sequence[Path]
) -> tuple[str, dict[str, bytes]]:
    """The kernel's file, which the script names first, and all files of its source."""
    for name in names:
        if not _FILE.fullmatch(name):
            shown = name[:60]
            raise UsageError(
                f"{shown!r} has characters that an #include cannot have; rename the file"
            )
    if not names[0].endswith((".cu", ".cpp", ".c", ".cuh")):
        raise UsageError(f"{names[0]} is not a CUDA file; {_HELP}")
    first = folder / names[0]
    root = first.parent if Path(names[0]).is_absolute() else folder
    files: dict[str, bytes] = {}
    for name in names:
        relative = Path(name).name if Path(name).is_absolute() else name
        files |= _with_includes(root, relative, {}, searched)
    return first.name if root == first.parent else names[0], files


def _with_includes(
    root: Path, main: str, written: Mapping[str, bytes], searched: Sequence[Path]
) -> dict[str, bytes]:
    """The file and what it includes, from its folder or from those of -I options."""
    known = dict(written)
    while True:
        files = read_sources(root, main, known)
        missing = {
            name.decode(errors="replace")
            for content in files.values()
            for name in _QUOTED.findall(content)
        } - files.keys()
        found = {
            name: place.read_bytes()
            for name in missing
            for place in (each / name for each in searched)
            if place.is_file() and ".." not in name
        }
        if not found:
            return files
        known |= found


def wrapper(
    source: KernelSource, lines: Sequence[str], checks: Sequence[str], forwarding: str = ""
) -> str:
    """A source that includes the script's file between `lines` and `checks`.

    It gives the file's kernels C linkage, as Kernel Tuner does, and nothing else: templates cannot
    have it. So the file's headers in angle brackets come first. With `forwarding`, the text of a
    kernel, the file's kernels become functions, one of which it calls.
    """
    head = f"// Fits {source.main}, which is as Kernel Tuner had it, to space.yaml.\n"
    include = f'#include "{source.main}"\n'
    angle = "".join(f"{line}\n" for line in _angle_includes(source.text))
    if forwarding:
        include = f"{angle}{_AS_FUNCTIONS}{include}{_AS_KERNELS}"
    elif 'extern "C"' not in source.text:
        include = f"{angle}{_KERNELS_IN_C}{include}"
    before, after = ("".join(f"{line}\n" for line in part) for part in (lines, checks))
    return f"{head}{before}{include}{after}{forwarding}"


def forwarding_kernel(source: KernelSource, found: Definition, name: str) -> str:
    """A kernel that calls the script's, with the arguments of its template."""
    names = [
        part.partition("=")[0].split()[-1] for part in found.template.split(",") if part.strip()
    ]
    values = [part.strip() for part in source.template.split(",")] if source.template else []
    given = dict(zip(names, values, strict=False))

    def filled(text: str) -> str:
        return _WORD.sub(lambda word: given.get(word[0], word[0]), text)

    declared = ", ".join(filled(each.text) for each in found.parameters)
    passed = ", ".join(each.name for each in found.parameters)
    template = f"<{source.template}>" if source.template else ""
    bounds = f"{filled(found.bounds)} " if found.bounds else ""
    return (
        f'extern "C" __global__ void {bounds}{name}({declared}) {{\n'
        f"  {source.entry}{template}({passed});\n}}\n"
    )


def needs_no_wrapper(source: KernelSource, lines: Sequence[str]) -> bool:
    return (
        not lines
        and not source.needs_forwarding
        and 'extern "C"' in source.text
        and source.main.endswith(".cu")
    )


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
