"""A recorded call of `tune_kernel` as plain data: `describe` runs in the script's process."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import numpy as np

from evotune.extras.kernel_tuner.answers import torch_expression
from evotune.extras.kernel_tuner.generated_source import variants_of
from evotune.extras.kernel_tuner.messages import (
    Array,
    Pointer,
    Scalar,
    TunableValue,
    TuneCall,
    Variant,
)
from evotune.extras.kernel_tuner.restrictions import read_restrictions
from evotune.extras.kernel_tuner.stubs import KernelResult, Missing, TunablePrecision
from evotune.extras.kernel_tuner.traced import FunctionOfTunables, NotWritten, Tunables

_IGNORED = ("device", "platform", "strategy", "strategy_options", "log", "compiler", "cache")
_LEFT_OUT = ("verify", "atol", "metrics", "observers", "objective", "objectives")


class Unsuitable(Exception):
    """The call has something that a space cannot have. The message names it."""


def describe(given: Mapping[str, Any], frame: FrameType) -> TuneCall:
    """The call, made from `frame`. Unsuitable, one line, for the first thing that is no data."""
    for name, value in given.items():
        if isinstance(value, Missing) and name not in _IGNORED:
            raise Unsuitable(f"{name} is {value}, which is not computed here")
    if given["texmem_args"]:
        raise Unsuitable(
            "texmem_args: textures are not supported; read the array through a pointer"
        )
    tunables = _tunables(given["tune_params"])
    arrays = _Arrays(frame)
    arguments = _arguments(given["arguments"], arrays)
    memory = given["cmem_args"] or {}
    if not isinstance(memory, Mapping):
        raise Unsuitable("cmem_args is not a dict, symbol -> array")
    constant_memory = {str(s): arrays.place(v, f"what {s} gets") for s, v in memory.items()}
    # A script may compute `answer` and not pass it on. It still says the correct result.
    answer = given["answer"] if given["answer"] is not None else frame.f_locals.get("answer")
    answered = _answered(answer, arguments)
    files, variants = _source(given["kernel_source"], tunables)
    return TuneCall(
        line=frame.f_lineno,
        kernel_name=str(given["kernel_name"]),
        files=files,
        variants=variants,
        lang=str(given["lang"] or ""),
        problem_size=_problem_size(given["problem_size"], tunables),
        grid_div=tuple(_divisors(f"grid_div_{x}", given[f"grid_div_{x}"], tunables) for x in "xyz"),
        block_size_names=_names(given["block_size_names"]),
        tunables={name: tuple(values) for name, values in tunables.items()},
        restrictions=_restrictions(given["restrictions"], tunables),
        arrays=tuple(arrays.described()),
        arguments=tuple(arguments),
        constant_memory=constant_memory,
        shared_bytes=_shared_bytes(given["smem_args"], tunables),
        answered=tuple(answered),
        computed={} if given["verify"] else _computed(answered, arguments, arrays.values),
        defines=_defines(given["defines"], tunables),
        compiler_options=_options(given["compiler_options"]),
        left_out=tuple(name for name in _LEFT_OUT if given.get(name)),
    )


def _tunables(found: object) -> Tunables:
    if not isinstance(found, Mapping):
        raise Unsuitable("tune_params is not a dict of lists")
    made: dict[str, list[TunableValue]] = {}
    for name, values in found.items():
        if isinstance(values, str | Missing) or not np.iterable(values):
            raise Unsuitable(f"the values of {name} are not a list")
        made[str(name)] = list(dict.fromkeys(_tunable_value(str(name), each) for each in values))
        if not made[str(name)]:
            raise Unsuitable(f"{name} has no values; make it a list of integers")
        if len({type(value) for value in made[str(name)]}) > 1:
            raise Unsuitable(f"{name} has values of several types; make them one")
    if not made:
        raise Unsuitable("tune_params is empty; a space has parameters")
    return made


def _tunable_value(name: str, value: Any) -> TunableValue:
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool | int) or (isinstance(value, str) and value.isidentifier()):
        return value
    shown = str(value) if isinstance(value, int | float) else repr(value)[:40]
    raise Unsuitable(f"{name} has the value {shown}; a parameter has integers or plain words")


class _Arrays:
    """The arrays among the arguments, each once."""

    def __init__(self, frame: FrameType) -> None:
        self.values: list[np.ndarray[Any, Any]] = []
        self._frame = frame

    def place(self, value: object, what: str) -> int:
        if isinstance(value, Missing):
            raise Unsuitable(f"{what} is {value}, which is not computed here")
        if not isinstance(value, np.ndarray):
            raise Unsuitable(f"{what} is a {type(value).__name__}; make it an array")
        for number, known in enumerate(self.values):
            if known is value:
                return number
        self.values.append(value)
        return len(self.values) - 1

    def described(self) -> Iterator[Array]:
        for value in self.values:
            low, high, is_sorted = 0, 0, False
            if value.dtype.kind in "iu" and value.size:
                flat = value.reshape(-1)
                low, high = int(flat.min()), int(flat.max())
                is_sorted = bool((flat[:-1] <= flat[1:]).all()) and low < high
            all_zero = not value.any()
            name = self._name(value)
            yield Array(name, value.shape, value.dtype.name, all_zero, low, high, is_sorted)

    def _name(self, value: object) -> str:
        """The variable that has the array, where the call is made or above."""
        frame: FrameType | None = self._frame
        while frame is not None and "__file__" in frame.f_globals:
            for name, found in frame.f_locals.items():
                if found is value:
                    return name
            frame = frame.f_back
        return ""


def _arguments(found: object, arrays: _Arrays) -> list[Pointer | Scalar]:
    if not isinstance(found, list | tuple):
        raise Unsuitable("the kernel's arguments are not a list of arrays and NumPy scalars")
    made: list[Pointer | Scalar] = []
    for number, value in enumerate(found, start=1):
        if value is None:
            made.append(Pointer(-1))
        elif isinstance(value, np.generic):
            made.append(Scalar(value.item(), value.dtype.name))
        elif isinstance(value, TunablePrecision):
            raise Unsuitable(f"a tunable chooses the type of argument {number}; give it one type")
        elif isinstance(value, bool | int | float):
            hint = "make it numpy.int32(...) or numpy.float32(...)"
            raise Unsuitable(f"argument {number} is a plain number; {hint}")
        elif isinstance(value, np.ndarray) and value.ndim == 0:
            made.append(Scalar(value.item(), value.dtype.name))
        else:
            made.append(Pointer(arrays.place(value, f"argument {number}")))
    return made


def _answered(answer: object, arguments: Sequence[Pointer | Scalar]) -> dict[int, Any]:
    if isinstance(answer, np.ndarray) and len(arguments) == 1:
        answer = [answer]
    if not isinstance(answer, list | tuple) or len(answer) != len(arguments):
        return {}
    return {number: value for number, value in enumerate(answer) if value is not None}


def _computed(
    answered: Mapping[int, Any],
    arguments: Sequence[Pointer | Scalar],
    arrays: Sequence[np.ndarray[Any, Any]],
) -> dict[int, str]:
    outputs = [each.array for n in answered if isinstance(each := arguments[n], Pointer)]
    inputs = {f"a{n}": array for n, array in enumerate(arrays) if n not in outputs}
    constants = {
        str(number): float(each.value)
        for number, each in enumerate(arguments)
        if isinstance(each, Scalar) and each.dtype.startswith("float")
    }
    made = {}
    for number, expected in answered.items():
        argument = arguments[number]
        if not isinstance(argument, Pointer) or not isinstance(expected, np.ndarray):
            continue
        known = not isinstance(expected, KernelResult)
        if known and expected.shape == arrays[argument.array].shape:
            made[number] = torch_expression(expected, inputs, constants)
    return {number: text for number, text in made.items() if text}


def _source(found: object, tunables: Tunables) -> tuple[tuple[str, ...], tuple[Variant, ...]]:
    if isinstance(found, list | tuple) and found:
        if len(found) > 1 or _is_file_name(str(found[0])):
            return tuple(map(str, found)), ()
        found = found[0]
    if isinstance(found, os.PathLike):
        return (os.fspath(found),), ()
    if isinstance(found, str):
        return ((found,), ()) if _is_file_name(found) else ((), (Variant({}, found),))
    if callable(found):
        try:
            return (), variants_of(found, tunables)
        except NotWritten as reason:
            message = f"the function that makes the source cannot be taken over: {reason}"
            raise Unsuitable(message) from reason
    raise Unsuitable(f"the kernel's source is a {type(found).__name__}; give its text or its file")


def _is_file_name(text: str) -> bool:
    """Whether the text is a file's name and not code, by Kernel Tuner's own rule."""
    marks = any(mark in text for mark in "();{}\\\n") or "void " in text
    return len(text) <= 250 and not marks and any(m in text for m in (".c", ".opencl", ".F"))


def _number(what: str, found: object, tunables: Tunables) -> int | str:
    if isinstance(found, np.generic):
        found = found.item()
    if isinstance(found, str):
        return found
    if isinstance(found, float) and found.is_integer():
        found = int(found)
    if isinstance(found, int):
        return found
    if callable(found):
        return _function(what, found, tunables)
    raise Unsuitable(f"{what} is a {type(found).__name__}; write it as a number")


def _function(
    what: str, found: Callable[..., Any], tunables: Tunables, place: int | None = None
) -> str:
    try:
        return FunctionOfTunables(found, tunables).expression(place)
    except NotWritten as reason:
        raise Unsuitable(f"{what} cannot be written as an expression: {reason}") from reason


def _problem_size(found: object, tunables: Tunables) -> tuple[int | str, ...]:
    if callable(found):
        first = {name: values[0] for name, values in tunables.items()}
        count = np.size(found(first))
        sizes: Sequence[int | str] = [
            _function("problem_size", found, tunables, place) for place in range(count)
        ]
    else:
        items = found if isinstance(found, list | tuple | np.ndarray) else [found]
        sizes = [_number("problem_size", item, tunables) for item in items]
    if not 1 <= len(sizes) <= 3:
        raise Unsuitable(f"problem_size has {len(sizes)} sizes; give 1 to 3")
    return tuple(sizes)


def _divisors(what: str, found: object, tunables: Tunables) -> tuple[int | str, ...] | None:
    if found is None:
        return None
    items = found if isinstance(found, list | tuple) else [found]
    return tuple(_number(what, item, tunables) for item in items)


def _names(found: object) -> tuple[str, ...] | None:
    if found is None:
        return None
    if not isinstance(found, list | tuple) or len(found) > 3:
        raise Unsuitable("block_size_names is not a list of up to three names")
    return tuple(map(str, found))


def _restrictions(found: object, tunables: Tunables) -> tuple[str, ...]:
    if found is None:
        return ()
    try:
        return tuple(read_restrictions(found, tunables))
    except NotWritten as reason:
        raise Unsuitable(str(reason)) from reason


def _shared_bytes(found: object, tunables: Tunables) -> int | str:
    if not found:
        return 0
    size = found.get("size") if isinstance(found, Mapping) else found
    if size is None:
        raise Unsuitable('smem_args has no size; make it {"size": expression}')
    return _number("the size in smem_args", size, tunables)


def _defines(found: object, tunables: Tunables) -> dict[str, str] | None:
    if found is None:
        return None
    if not isinstance(found, Mapping):
        raise Unsuitable("defines is not a dict")
    made = {}
    for name, value in found.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", str(name)):
            raise Unsuitable(f"defines has {name!r}, which cannot be a macro's name")
        text = _function(f"the macro {name}", value, tunables) if callable(value) else str(value)
        if "\n" in text:
            raise Unsuitable(f"the macro {name} has several lines")
        made[str(name)] = text
    return made


def _options(found: object) -> tuple[str, ...]:
    items = found if isinstance(found, list | tuple) else [] if found is None else [found]
    for item in items:
        if not isinstance(item, str):
            raise Unsuitable(f"a compiler option is a {type(item).__name__}; make it a text")
    return tuple(items)
