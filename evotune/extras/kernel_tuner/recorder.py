"""Child process that runs a Kernel Tuner script until it calls `tune_kernel`: see `importing`.

`describe` makes plain data of the recorded call.
"""

from __future__ import annotations

import ast
import itertools
import math
import os
import re
import resource
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import numpy as np

from evotune.extras.kernel_tuner.messages import (
    RECORDER,
    Array,
    NotRecorded,
    Pointer,
    Recorded,
    RunScript,
    Scalar,
    TunableValue,
    TuneCall,
    Variant,
)
from evotune.extras.kernel_tuner.stubs import (
    Finished,
    KernelResult,
    Missing,
    NeedsGpu,
    Overlay,
    TunablePrecision,
    Written,
    install,
    named_calls,
)
from evotune.extras.kernel_tuner.texts import c_text
from evotune.extras.kernel_tuner.traced import (
    Combination,
    FunctionOfTunables,
    Given,
    NotWritten,
    Traced,
    Tunables,
    called,
    drawn,
    read_restrictions,
)
from evotune.user_code import run_content
from evotune.util.processes import lower_limit
from evotune.workers.entry import open_channel

_MOST_WORDS = 300


def main() -> None:
    with open_channel(RECORDER, owns_processes=True) as channel:
        request = channel.receive()
        if request is not None:
            channel.send(_recorded(request))
            channel.receive()  # the parent kills this process, since the script's threads may go on


def _recorded(request: RunScript) -> Recorded:
    lower_limit(resource.RLIMIT_DATA, request.memory_bytes)
    recording = _Recording(request)
    tune_kernel, run_kernel = named_calls(recording.tuned, recording.overlay.begin)
    install({"tune_kernel": tune_kernel, "run_kernel": run_kernel})
    folder = os.path.dirname(request.path)
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.argv = [request.path, *request.arguments]
    try:
        run_content("__main__", request.path, request.content)
    except Finished:
        pass
    except BaseException as error:  # noqa: BLE001 (whatever the script raises is its end)
        if recording.result is None:
            return _failure(error, request)
    return recording.result or recording.none()


class _Recording:
    """Takes the first call of `tune_kernel`, or the first one for the requested kernel."""

    def __init__(self, request: RunScript) -> None:
        self.overlay = Overlay(Path(request.scratch))
        self.result: Recorded | None = None
        self._wanted = request.kernel
        self._passed: list[str] = []

    def tuned(self, given: Mapping[str, Any], frame: FrameType) -> object:
        name = str(given["kernel_name"])
        if self._wanted and self._wanted not in (name, name.partition("<")[0]):
            self._passed.append(name)
            self.overlay.begin()
            first = {key: values[0] for key, values in given["tune_params"].items()}
            return [{**first, "time": 1.0}], {}
        try:
            self.result = describe(given, frame)
        except Unsuitable as reason:
            self.result = NotRecorded(str(reason), frame.f_lineno)
        raise Finished

    def none(self) -> NotRecorded:
        if self._passed:
            names = ", ".join(dict.fromkeys(self._passed))
            return NotRecorded(f"it tunes {names}, not {self._wanted}")
        return NotRecorded("it ended without a call of kernel_tuner's tune_kernel()")


def _failure(  # noqa: PLR0911 (a line for each way to end)
    error: BaseException, request: RunScript
) -> NotRecorded:
    """The script's end, as one line."""
    traceback.print_exception(error)
    line = _line(error, request.path)
    words = " ".join(str(error).split())[:_MOST_WORDS]
    match error:
        case SyntaxError() if error.filename == request.path:
            return NotRecorded(f"not Python: {error.msg}", error.lineno or 1)
        case SystemExit():
            message = (
                f"it ended itself ({words or 0}) before tune_kernel() was called; give it its "
            )
            return NotRecorded(message + "arguments with --args", line)
        case ModuleNotFoundError() if error.name:
            message = f"it needs the package {error.name!r}; fix: pip install it, or what brings it"
            return NotRecorded(message, line, environment=True)
        case NeedsGpu():
            return NotRecorded(words, line, environment=True)
        case MemoryError():
            limit = f"{request.memory_bytes / 1e9:.1f} GB"
            message = f"it needs more than {limit} of memory, which is what is free here"
            return NotRecorded(message, line, environment=True)
        case Written():
            message = f"it would change {words} after run_kernel(), whose result is invented here"
            return NotRecorded(message, line)
    return NotRecorded(": ".join(filter(None, (type(error).__name__, words))), line)


def _line(error: BaseException, path: str) -> int:
    """The last line of the script itself in the error's traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((f.lineno or 0 for f in reversed(frames) if f.filename == path), 0)


_IGNORED = ("device", "platform", "strategy", "strategy_options", "log", "compiler", "cache")
_LEFT_OUT = ("verify", "atol", "metrics", "observers", "objective", "objectives")


class Unsuitable(Exception):
    """Raised if the call has something that a space cannot have. The message names it."""


def describe(given: Mapping[str, Any], frame: FrameType) -> TuneCall:
    """The call as plain data. `frame`: the caller's frame. Raises Unsuitable, one line, for the
    first argument that is no data."""
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
        """The variable that holds the array, in the calling scope or an enclosing one."""
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


# Finds how a script's `answer` follows from the kernel's arguments, by their values.
#
# Simple expressions over the arrays and the scalars are tried one after the other. One that gives
# the answer's values on the script's own data is the reference, however the script computed them.
_Array: TypeAlias = np.ndarray[Any, Any]

_MOST_ELEMENTS = 4096
_FEWEST_VALUES = 8  # different ones: fewer are not conclusive
_ROWS = 4
_UNARY: dict[str, Any] = {
    "{}": lambda x: x,
    "{}.square()": np.square,
    "{}.sqrt()": np.sqrt,
    "{}.exp()": np.exp,
    "{}.log()": np.log,
    "{}.sin()": np.sin,
    "{}.cos()": np.cos,
    "{}.tanh()": np.tanh,
    "{}.abs()": np.abs,
    "{}.relu()": lambda x: np.maximum(x, 0),
    "-{}": np.negative,
}
_BINARY: dict[str, Any] = {
    "{} + {}": np.add,
    "{} - {}": np.subtract,
    "{} * {}": np.multiply,
    "{} / {}": np.divide,
    "{}.maximum({})": np.maximum,
    "{}.minimum({})": np.minimum,
}
_WITH_CONSTANT: dict[str, Any] = {
    "{1!r} * {0}": np.multiply,
    "{0} + {1!r}": np.add,
    "{0} - {1!r}": np.subtract,
    "{0} / {1!r}": np.divide,
    "{0} ** {1!r}": np.power,
}


def torch_expression(
    expected: _Array, inputs: Mapping[str, _Array], constants: Mapping[str, float]
) -> str:
    """The expected result as a torch expression over the inputs' names; "" if none is found."""
    if expected.dtype.kind != "f" or not np.isfinite(expected).all():
        return ""
    named = {name: array for name, array in inputs.items() if array.dtype.kind in "fiu"}
    known = np.array(expected)
    with np.errstate(all="ignore"):
        for tried in (_elementwise(known, named, constants), _products(known, named)):
            for text, values, wanted in tried:
                if _agree(values, wanted, expected.dtype):
                    return text
    return ""


def _agree(values: _Array, wanted: _Array, dtype: np.dtype[Any]) -> bool:
    if values.shape != wanted.shape or len(np.unique(wanted)) < _FEWEST_VALUES:
        return False
    tolerance = 2e-2 if dtype.itemsize == 2 else 1e-4
    scale = float(np.abs(wanted).max())
    return np.allclose(values, wanted, rtol=tolerance, atol=tolerance * scale * 1e-2)


def _elementwise(
    expected: _Array, inputs: Mapping[str, _Array], constants: Mapping[str, float]
) -> Iterator[tuple[str, _Array, _Array]]:
    """Expressions with the values of some elements: theirs and the answer's."""
    places = np.random.default_rng(0).integers(0, expected.size, _MOST_ELEMENTS)
    wanted = expected.reshape(-1)[places].astype(np.float64)
    parts = {
        name: array.reshape(-1)[places].astype(np.float64)
        for name, array in inputs.items()
        if array.shape == expected.shape
    }
    for name, part in parts.items():
        for words, unary in _UNARY.items():
            yield words.format(name), unary(part), wanted
    for first, second in itertools.permutations(parts, 2):
        for words, binary in _BINARY.items():
            yield words.format(first, second), binary(parts[first], parts[second]), wanted
    numbers = dict.fromkeys([*constants.values(), 1.0, 2.0])
    for name, number in itertools.product(parts, numbers):
        for words, binary in _WITH_CONSTANT.items():
            yield words.format(name, number), binary(parts[name], number), wanted
    for (first, second), number in itertools.product(itertools.permutations(parts, 2), numbers):
        yield f"{number!r} * {first} + {second}", number * parts[first] + parts[second], wanted


def _products(
    expected: _Array, inputs: Mapping[str, _Array]
) -> Iterator[tuple[str, _Array, _Array]]:
    """Products of two matrices, by some rows of the answer."""
    if expected.ndim != 2:
        return
    matrices = {name: array for name, array in inputs.items() if array.ndim == 2}
    rows = np.linspace(0, len(expected) - 1, _ROWS).astype(int)
    wanted = expected[rows].astype(np.float64)
    for (first, a), (second, b) in itertools.product(matrices.items(), repeat=2):
        for words, left, right in (
            ("{} @ {}", a, b), ("{} @ {}.T", a, b.T), ("{}.T @ {}", a.T, b)
        ):  # fmt: skip
            if (left.shape[0], right.shape[1]) == expected.shape and left.shape[1] == len(right):
                product = left[rows].astype(np.float64) @ right.astype(np.float64)
                yield words.format(first, second), product, wanted


# The source of a kernel that a function of the tunables writes, as text with their names in it.
#
# The function gets values that leave a mark in the text. The text between the marks must be the
# same for all values of a tunable; a tunable that changes it gets a text for each value.
_MOST_TEXTS = 512
_MOST_CHARACTERS = 4 << 20
_DRAWN = 20
_MARK = re.compile("\x01([^\x01\x02]*)\x02([^\x01\x02]*)\x01")


class _Marked(Traced):
    """Written, it leaves its expression and its value; asked, it is its value."""

    def __str__(self) -> str:
        return f"\x01{self.text}\x02{self.value}\x01"

    def __format__(self, spec: str) -> str:
        return format(self.value, spec) if spec else str(self)

    __repr__ = __str__


_GLUED = re.compile(
    '[A-Za-z0-9_\x01]\x01[^\x01\x02]*\x02|\x02[^\x01\x02]*\x01[A-Za-z0-9_\x01]|"[^"\n]*\x01'
)
"""A mark that is a part of a word, or in a string: no macro is replaced there."""


def variants_of(function: Callable[..., Any], tunables: Tunables) -> tuple[Variant, ...]:
    """The texts that the function writes. Raises NotWritten if these are too many or too long."""
    call = called(function, tunables)

    def text(values: Combination, marked: Combination) -> str:
        given = {n: _Marked(marked[n], n, []) if n in marked else v for n, v in values.items()}
        found = call(Given(given, set()))
        if not isinstance(found, str):
            raise NotWritten(f"it returns a {type(found).__name__}")
        return found

    def pattern(values: Combination, free: list[str]) -> str:
        """The text with the expressions of the free tunables; "" if they change more than these."""
        try:
            found = text(values, {name: values[name] for name in free})
        except (TypeError, ValueError, AttributeError, NotWritten):
            return ""
        plain = _MARK.sub(lambda mark: mark[2], found)
        whole = plain == text(values, {}) and not _GLUED.search(found)
        return _MARK.sub(_in_c, found) if whole else ""

    first = {name: values[0] for name, values in tunables.items()}
    text(first, {})
    free = []
    for name, values in tunables.items():
        patterns = {pattern({**first, name: value}, [name]) for value in values}
        if len(patterns) == 1 and "" not in patterns:
            free.append(name)
    chosen = [name for name in tunables if name not in free]
    count = math.prod(len(tunables[name]) for name in chosen)
    if count > _MOST_TEXTS:
        words = f"its text differs in {count} ways with {', '.join(chosen)}"
        raise NotWritten(f"{words}; evotune takes {_MOST_TEXTS}")
    made = []
    for values in itertools.product(*(tunables[name] for name in chosen)):
        own = dict(zip(chosen, values, strict=True))
        others = [{**each, **own} for each in ({**first}, *drawn(tunables, _DRAWN))]
        found = {pattern(each, free) for each in others}
        if len(found) > 1 or "" in found:
            raise NotWritten(f"its text depends on {', '.join(free)} in a way that is not seen")
        made.append(Variant({name: own[name] for name in chosen if len(tunables[name]) > 1},
                            found.pop()))  # fmt: skip
    if sum(len(variant.text) for variant in made) > _MOST_CHARACTERS:
        raise NotWritten("its texts are longer than 4 MiB together")
    return tuple(made)


def _in_c(mark: re.Match[str]) -> str:
    return c_text(ast.parse(mark[1], mode="eval").body)


if __name__ == "__main__":
    main()
