"""Finds the kernel's source and its arguments.

The source is the script's files unchanged, and a wrapper that fits them to a space. For the
arguments this module finds out which are tensors, which tensors the kernel writes, and their types.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from evotune.backends.base.sources import read_sources
from evotune.errors import SpaceError, UsageError
from evotune.extras.kernel_tuner.messages import Array, Pointer, Scalar, TuneCall
from evotune.extras.kernel_tuner.texts import NAME, ScriptError, harmless
from evotune.util.words import did_you_mean

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
        """Whether the parameter's declaration has the C name of this type."""
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
    - files: the unchanged contents by name
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
        """The definition that the call refers to: the one with as many parameters, and of the
        call's types if several match. None if none is found."""
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
        """The numbers of parameters of the definitions that are found."""
        return sorted({len(each.parameters) for each in self._definitions()})

    @property
    def needs_forwarding(self) -> bool:
        """Whether a separate kernel must call the script's, because neither a template nor
        overloaded functions can have C linkage."""
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
    """The script's kernel source. Raises EvotuneError if it is not CUDA, or cannot be read.

    `folder`: the script's folder, in which it runs. Files in the folders of -I options are copied
    too.
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
    """The file and the files that it includes, from its folder or from those of -I options."""
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

    Like Kernel Tuner, it gives C linkage to the file's kernels only, because templates cannot have
    it. So the file's headers in angle brackets come first. With `forwarding`, the text of a kernel,
    the file's kernels become functions, and that kernel calls one of them.
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
    """The text of a kernel that calls the script's kernel with the arguments of its template."""
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


_FLOATS = ("float16", "float32")
_INTEGERS = {"int32": "int32", "int64": "int64", "uint8": "uint8", "uint32": "int32"}
_INTEGERS |= {"uint64": "int64", "bool": "uint8"}
_TAKEN = ("self", "torch", "dtype", "device", "arch")


@dataclass(frozen=True)
class Tensors:
    """The kernel's tensors.

    - names: the name of each array of the call
    - outputs: the places of those that the kernel writes
    - dtype: the problem's own dtype, which is that of the arrays of floats
    - types: the type of each array
    """

    names: list[str]
    outputs: list[int]
    dtype: str
    types: list[str]

    @property
    def inputs(self) -> list[int]:
        return [place for place in range(len(self.names)) if place not in self.outputs]


def find_tensors(
    call: TuneCall,
    error: ScriptError,
    signature: Sequence[Parameter] | None,
    stated: Sequence[str],
) -> Tensors:
    """The tensors of a call. `stated`: the names of the outputs, if the user gave them. Raises
    EvotuneError, one line, for an array that a problem cannot have."""
    pointed = {
        place: argument.array
        for place, argument in enumerate(call.arguments)
        if isinstance(argument, Pointer) and argument.array >= 0
    }
    if not pointed:
        raise error.at("no argument is an array; a problem needs tensors")
    names = _names(call, pointed, signature)
    types = [_type(error, names[place], array) for place, array in enumerate(call.arrays)]
    outputs = _outputs(
        call, error, names=names, pointed=pointed, signature=signature, stated=stated
    )
    for symbol, place in call.constant_memory.items():
        if place in outputs:
            raise error.at(f"{names[place]} is an output, and {symbol} is filled from it")
    if len(outputs) == len(names):
        raise error.at("the kernel reads no array that it does not write; a problem needs inputs")
    floats = [kind for kind in types if kind in _FLOATS]
    return Tensors(names, outputs, floats[0] if floats else "float32", types)


def _names(
    call: TuneCall, pointed: Mapping[int, int], signature: Sequence[Parameter] | None
) -> list[str]:
    """The script's name of each array, or else the kernel's name for it, or its symbol in constant
    memory. If two have the same name, one of them gets an additional _."""
    theirs = {array: signature[n].name for n, array in pointed.items()} if signature else {}
    theirs |= {array: symbol for symbol, array in call.constant_memory.items()}
    names: list[str] = []
    for place, array in enumerate(call.arrays):
        name = next(
            filter(NAME.fullmatch, (array.name, theirs.get(place, ""))), f"array_{place + 1}"
        )
        while name in (*names, *_TAKEN):
            name += "_"
        names.append(harmless(name))
    return names


def _type(error: ScriptError, name: str, array: Array) -> str:
    kind = _INTEGERS.get(array.dtype, array.dtype)
    if kind not in (*_FLOATS, *_INTEGERS.values()):
        known = "float16, float32, uint8, int32 or int64"
        raise error.at(f"{name} has elements of {array.dtype}; tensors of a problem are {known}")
    if 0 in array.shape or not array.shape:
        raise error.at(f"{name} has no elements; a tensor has at least one")
    return kind


def _outputs(
    call: TuneCall,
    error: ScriptError,
    *,
    names: Sequence[str],
    pointed: Mapping[int, int],
    signature: Sequence[Parameter] | None,
    stated: Sequence[str],
) -> list[int]:
    by_name = {names[array]: array for array in pointed.values()}
    for name in stated:
        if name not in by_name:
            hint = did_you_mean(name, by_name)
            raise error.at(f"--output {name}: no such array among the arguments{hint}")
    arrays = list(dict.fromkeys(pointed.values()))
    answered = [pointed[place] for place in call.answered if place in pointed]
    zeros = [array for array in arrays if call.arrays[array].all_zero]
    written = [a for n, a in pointed.items() if signature and not signature[n].is_const]
    for found in ([by_name[name] for name in stated], answered):
        if found:
            return list(dict.fromkeys(found))
    for found in (zeros, written):
        if found and len(set(found)) < len(arrays):
            return list(dict.fromkeys(found))
    known = ", ".join(by_name)
    raise error.at(f"cannot tell which arguments the kernel writes ({known}); use --output NAME")


def tensor_text(array: Array, kind: str, shape: str, dtype: str, *, is_output: bool) -> str:
    """The tensor as Python text of problem.py."""
    if kind == dtype:
        return shape
    if kind in _FLOATS or is_output:
        return f'Tensor({shape}, "{kind}")'
    if array.is_sorted:
        return f'Tensor({shape}, "{kind}", "indices")'
    return f'Tensor({shape}, "{kind}", range({array.low}, {array.high + 1}))'


# The problem's sizes, and the shapes of its arrays over them.
#
# Only the script's numbers are known, so sizes are recognized by their values. A size that the
# kernel gets as an argument may vary if every array's shape follows from it; all others keep their
# values.
AXES = "xyz"
_MOST_STEPS = 16  # n + 16 and 16 * n are shapes of n


@dataclass
class Sizes:
    """The problem's sizes.

    - values: each size's value, by its name
    - told: the name of a size, by the index of the argument that passes it
    - extents: the problem's dimensions: a size's name, a number, or an expression over tunables
    - shapes: the shape of each array as Python expressions over the sizes
    - free: the sizes that may vary
    """

    values: dict[str, int] = field(default_factory=dict)
    told: dict[int, str] = field(default_factory=dict)
    extents: list[int | str] = field(default_factory=list)
    shapes: list[tuple[str, ...]] = field(default_factory=list)
    free: set[str] = field(default_factory=set)

    @property
    def fixed(self) -> list[str]:
        return [name for name in self.values if name not in self.free]

    def add(self, wanted: str, value: int, taken: set[str]) -> str:
        """Adds a size under a name that nothing else has."""
        name = wanted
        while name.upper() in taken or name in self.values:
            name += "_"
        self.values[name] = value
        return name


def find_sizes(
    call: TuneCall, error: ScriptError, signature: Mapping[int, str], taken: set[str]
) -> Sizes:
    """The sizes of a call. `signature`: the names of the kernel's arguments, by index. `taken`:
    names that no size may have, in capitals."""
    sizes = Sizes()
    scalars = {
        place: int(scalar.value)
        for place, scalar in enumerate(call.arguments)
        if isinstance(scalar, Scalar) and "int" in scalar.dtype and scalar.value > 1
    }
    often = Counter(scalars.values())
    numbers = [size for size in call.problem_size if isinstance(size, int)]

    def told(value: int) -> int | None:
        """The argument that has this value, if there is exactly one."""
        places = [place for place, known in scalars.items() if known == value]
        return places[0] if often[value] == 1 and numbers.count(value) <= 1 else None

    for axis, size in zip(AXES, call.problem_size, strict=False):
        if isinstance(size, str) or (size == 1 and len(call.problem_size) > 1):
            sizes.extents.append(size)
            continue
        if size < 1:
            message = f"problem_size_{axis} is {size}; expected a whole number of at least 1"
            raise error.at(message)
        place = told(size)
        wanted = (
            signature.get(place, f"size_{axis}") if place is not None else f"problem_size_{axis}"
        )
        name = sizes.add(wanted, size, taken)
        sizes.extents.append(name)
        if place is not None:
            sizes.told[place] = name
    for extent in dict.fromkeys(each for array in call.arrays for each in array.shape):
        place = told(extent)
        if place is not None and place not in sizes.told:
            sizes.told[place] = sizes.add(signature.get(place, f"size_{place}"), extent, taken)
    if not sizes.values:
        sizes.add("problem_size_x", 1, taken)
    _find_shapes(call, sizes)
    return sizes


def _find_shapes(call: TuneCall, sizes: Sizes) -> None:
    may_vary = set(sizes.told.values())
    used: set[str] = set()
    unexplained = 0
    for array in call.arrays:
        shape = []
        for extent in array.shape:
            text, names = _explained(extent, sizes.values, may_vary)
            used.update(names)
            unexplained = max(unexplained, 0 if names else extent)
            shape.append(text)
        sizes.shapes.append(tuple(shape))
    least = min((sizes.values[name] for name in may_vary), default=0)
    if unexplained < least:  # what is larger may depend on a size in a way that is not seen
        sizes.free = may_vary & used


def _explained(
    extent: int, values: Mapping[str, int], may_vary: set[str]
) -> tuple[str, Sequence[str]]:
    """The extent over the sizes, and their names; a number if no size or several match."""
    fits: list[tuple[str, tuple[str, ...]]] = [
        (name, (name,)) for name, value in values.items() if value == extent
    ]
    if not fits:
        fits = [
            (f"{first} * {second}", (first, second))
            for first, second in itertools.combinations_with_replacement(values, 2)
            if values[first] * values[second] == extent and extent > 1
        ]
    for name in sorted(may_vary) if not fits else ():
        times, rest = divmod(extent, values[name])
        if rest == 0 and 1 < times <= _MOST_STEPS:
            fits.append((f"{times} * {name}", (name,)))
        elif 0 < abs(more := extent - values[name]) <= _MOST_STEPS:
            fits.append((f"{name} {'+' if more > 0 else '-'} {abs(more)}", (name,)))
    if len(fits) > 1 and all(may_vary.isdisjoint(names) for _, names in fits):
        fits = [(text, names) for text, names in fits if len(set(names)) > 1]  # any is right
    return fits[0] if len(fits) == 1 else (str(extent), ())


def fixed_tunables(call: TuneCall, block_names: Sequence[str]) -> dict[str, int]:
    """The largest value of each tunable that an array's size depends on: an array has as many
    elements as it, or as the product with another one. What the kernel computes depends on it."""
    largest = {
        name: max(values)
        for name, values in call.tunables.items()
        if name not in block_names and len(values) > 1 and type(values[0]) is int
    }
    known = {size for size in call.problem_size if isinstance(size, int)}
    known |= {int(each.value) for each in call.arguments if isinstance(each, Scalar)}
    made: dict[str, int] = {}
    for extent in {each for array in call.arrays for each in array.shape if each > 1} - known:
        groups: list[tuple[str, ...]] = [(name,) for name in largest if largest[name] == extent]
        groups = groups or [
            (first, second)
            for first, second in itertools.combinations(largest, 2)
            if int(largest[first]) * int(largest[second]) == extent
        ]
        if len(groups) == 1:
            made |= {name: int(largest[name]) for name in groups[0]}
    return made
