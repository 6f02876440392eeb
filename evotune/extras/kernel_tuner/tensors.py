"""The kernel's arguments: which of them are tensors, which tensors it writes, and their type."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evotune.extras.kernel_tuner.kernel_source import Parameter
from evotune.extras.kernel_tuner.messages import Array, Pointer, Scalar, TuneCall
from evotune.extras.kernel_tuner.texts import NAME, ScriptError, harmless
from evotune.util.words import did_you_mean

_FLOATS = ("float16", "float32")
_INTEGERS = {"int32": "int32", "int64": "int64", "uint8": "uint8", "uint32": "int32"}
_INTEGERS |= {"uint64": "int64", "bool": "uint8"}
_TAKEN = ("self", "torch", "dtype", "device", "arch")


@dataclass(frozen=True)
class Tensors:
    """The kernel's tensors.

    - names: the name of each array of the call
    - outputs: the places of those that the kernel writes
    - dtype: the problem's own: that of the arrays of floats
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
    """`stated`: the names of the outputs, if the user gives them. An EvotuneError, one line, for an
    array that a problem cannot have."""
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
    """The script's name of each array; else the kernel's, or its symbol in constant memory. Where
    two have the same name, one of them gets a _ more."""
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
# The script's numbers are all that is known, so sizes are found by their values. A size that the
# kernel is told by an argument may vary where every array's shape follows from it; all others keep
# their values.
AXES = "xyz"
_MOST_STEPS = 16  # n + 16 and 16 * n are shapes of n


@dataclass
class Sizes:
    """The problem's sizes.

    - values: each size's value, by its name
    - told: the size's name by the place of the argument that tells it
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
    """`signature`: the kernel's names of its arguments, by place; `taken`: names that no size may
    have, in capitals."""
    sizes = Sizes()
    scalars = {
        place: int(scalar.value)
        for place, scalar in enumerate(call.arguments)
        if isinstance(scalar, Scalar) and "int" in scalar.dtype and scalar.value > 1
    }
    often = Counter(scalars.values())
    numbers = [size for size in call.problem_size if isinstance(size, int)]

    def told(value: int) -> int | None:
        """The argument that tells this value, where only one does."""
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
    """The extent over the sizes, and their names; as a number where none or several fit."""
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
