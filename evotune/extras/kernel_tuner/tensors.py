"""The kernel's arguments: which of them are tensors, which tensors it writes, and their type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evotune.extras.kernel_tuner.kernel_source import Parameter
from evotune.extras.kernel_tuner.messages import Array, Pointer, TuneCall
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
