"""Python objects for a kernel: its source, its arguments and its launches.

`plain` turns the objects into the plain data of a space file.
"""

from __future__ import annotations

import importlib.machinery
import operator
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path, PurePath
from typing import ClassVar, TypeAlias

from evotune.space.reading.yaml_source import (
    MAX_DEPTH,
    Data,
    DataPath,
    Position,
    check_number,
    check_text,
)
from evotune.trial import Value
from evotune.util.words import describe

Expression: TypeAlias = str | int | float | bool
"""An expression: text in the language of space files, or a number."""


class Described(ABC):
    """An object that stands for a mapping of a space file."""

    @abstractmethod
    def to_data(self) -> Mapping[str, object]:
        """The mapping. A key whose value is None is left out, so the file's default applies."""


def plain(value: object, path: DataPath, place: Callable[[DataPath], str]) -> Data:
    """The value in the form in which YAML would read it. Raises SpaceError for a value that no file
    can have.

    `path` leads to the value from the top of the space, and `place` names it in messages.
    """
    position = Position(place=place(path))
    if len(path) >= MAX_DEPTH:
        raise position.error(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Described):
        value = {key: item for key, item in value.to_data().items() if item is not None}
    if isinstance(value, Mapping):
        return _mapping(value, path, place)
    if isinstance(value, list | tuple | range):
        return [plain(item, (*path, i), place) for i, item in enumerate(value)]
    return _scalar(value, position)


def _scalar(value: object, position: Position) -> Data:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str | PurePath):
        text = str(value) if isinstance(value, str) else value.as_posix()
        check_text(text, position)
        return text
    if isinstance(value, float):
        number: float = float(value)
    else:
        try:
            number = operator.index(value)  # type: ignore[arg-type]  # NumPy's integers have one
        except TypeError:
            expected = "expected a number, text, true, false, a list or a mapping"
            raise position.error(f"{expected}, found {describe(value)}") from None
    check_number(number, position)
    return number


def _mapping(
    value: Mapping[object, object], path: DataPath, place: Callable[[DataPath], str]
) -> dict[str, Data]:
    data: dict[str, Data] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            message = f"expected text as key, found {describe(key)}"
            raise Position(place=place(path)).error(message)
        check_text(key, Position(place=place(path)))
        data[str(key)] = plain(item, (*path, str(key)), place)
    return data


@dataclass(frozen=True, slots=True)
class Argument(Described):
    """A number that the function takes: an expression, passed as the C type `type` (int32, int64,
    float32 or float64). Tensors, workspaces and symbols are passed by their names alone.

    >>> Argument("rows * columns", type="int64").type
    'int64'
    """

    value: Expression
    type: str

    def to_data(self) -> Mapping[str, object]:
        return {"value": self.value, "type": self.type}


@dataclass(frozen=True, slots=True)
class TensorMap(Described):
    """CUDA: a TMA descriptor (CUtensorMap) of a tensor, passed by value.

    `box` is the box of one copy, in elements, outermost dimension first. `swizzle` is the width of
    the swizzle in bytes: 0, 32, 64 or 128. `l2_promotion` is in bytes: 0, 64, 128 or 256.

    >>> TensorMap("q", box=[1, 64, 64], swizzle=128).tensor
    'q'
    """

    tensor: str
    box: Sequence[Expression]
    swizzle: Expression | None = None
    l2_promotion: Expression | None = None

    def to_data(self) -> Mapping[str, object]:
        return {
            "tensor_map": self.tensor,
            "box": self.box,
            "swizzle": self.swizzle,
            "l2_promotion": self.l2_promotion,
        }


@dataclass(frozen=True, slots=True)
class Workspace(Described):
    """A buffer of scratch memory; `bytes` is its size. `init` is `poison` (filled with NaN before
    every launch) or `zero_once` (zeroed once, and every launch must leave it zero).

    >>> Workspace(bytes="4 * rows").bytes
    '4 * rows'
    """

    bytes: Expression
    init: str | None = None

    def to_data(self) -> Mapping[str, object]:
        return {"bytes": self.bytes, "init": self.init}


@dataclass(frozen=True, slots=True)
class Launch(Described):
    """A launch on a GPU: `grid` blocks of `block` threads, each in x, y and z.

    - `shared_bytes`: the dynamic shared memory of a block.
    - `entry`: another function of the same source.
    - `when`: a condition; the launch runs only if it holds.

    Triton decides `block` and `shared_bytes` itself.

    >>> Launch(grid=["ceil_div(n, BLOCK)"], block=["BLOCK"]).block
    ['BLOCK']
    """

    grid: Sequence[Expression]
    block: Sequence[Expression] | None = None
    shared_bytes: Expression | None = None
    entry: str | None = None
    when: Expression | None = None

    def to_data(self) -> Mapping[str, object]:
        return {
            "entry": self.entry,
            "when": self.when,
            "grid": self.grid,
            "block": self.block,
            "shared_bytes": self.shared_bytes,
        }


@dataclass(frozen=True)
class Kernel(Described):
    """A function that is compiled for each configuration: `CudaKernel`, `CppKernel`, ….

    - `source`: the file, relative to the space's `root`, which is the current directory unless it
      is given. With `source_text`, the name that messages call that text.
    - `entry`: the function to call.
    - `arguments`: the function's arguments, in order: names of tensors, workspaces and symbols,
      `Argument` and `TensorMap`.
    - `launches`: `Launch` objects, one after the other, all with the same arguments.
    - `name`: the kernel's name in reports and in the parameter KERNEL; `entry` if not given.
    - `source_text`: the source itself, instead of a file. It includes files relative to the root.
    - `supports`: symbol -> the values it may have, or the condition that it must meet (`">= 80"`).
    - `define`: symbols that are compiled in instead of passed; also a `let` of symbols alone.
    - `specialise`: `let`s that are compiled in for measured cases only, and 0 for all others.
    - `further_arguments`: `{"when": …, "names": […]}`, arguments that follow in some cases.
    - `workspace`: scratch buffers by name.
    - `constant_memory`: for CUDA, by `__constant__` variable the input tensor of which it is a
      copy.
    - `options`: compiler options; `-O{LEVEL}` contains a parameter's value.
    - `deterministic`: False if two launches may differ in bits.
    - `alternative`: the name of a space for devices that this kernel does not support.
    """

    language: ClassVar[str] = ""
    suffix: ClassVar[str] = ""

    source: str | Path | None = None
    entry: str | None = None
    arguments: Sequence[str | Argument | TensorMap | Mapping[str, object]] = ()
    launches: Sequence[Launch | Mapping[str, object]] = ()
    _: KW_ONLY
    name: str | None = None
    source_text: str | None = None
    supports: Mapping[str, str | Sequence[Value]] | None = None
    define: Sequence[str] = ()
    specialise: Sequence[str] = ()
    further_arguments: Mapping[str, object] | None = None
    workspace: Mapping[str, Workspace | Mapping[str, object]] | None = None
    constant_memory: Mapping[str, str] | None = None
    options: Sequence[str] = ()
    deterministic: bool | None = None
    alternative: str | None = None

    def to_data(self) -> Mapping[str, object]:
        """The kernel's mapping. `source` is unchanged; the space makes it relative to its root."""
        source = self.source
        if source is None and self.source_text is not None:
            source = f"{self.name or self.entry}{self.suffix}"
        data: dict[str, object] = {"source": source, "language": self.language}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("source", "name", "source_text") and value != ():
                data[field.name] = value
        return data


@dataclass(frozen=True)
class CppKernel(Kernel):
    """A C++ function for the CPU, declared `extern "C"`.

    >>> kernel = CppKernel("softmax.cpp", "softmax", ["x", "out", "rows", "columns"])
    >>> kernel.language
    'cpp'
    """

    language: ClassVar[str] = "cpp"
    suffix: ClassVar[str] = ".cpp"


@dataclass(frozen=True)
class CudaKernel(Kernel):
    """A CUDA function, declared `extern "C" __global__`.

    >>> kernel = CudaKernel(
    ...     "k.cu",
    ...     entry="scale",
    ...     arguments=["x", "out", "n"],
    ...     launches=[Launch(grid=["ceil_div(n, BLOCK)"], block=["BLOCK"])],
    ... )
    >>> kernel.language
    'cuda'
    """

    language: ClassVar[str] = "cuda"
    suffix: ClassVar[str] = ".cu"


@dataclass(frozen=True)
class TritonKernel(Kernel):
    """A Triton function, `@triton.jit`. The parameters NUM_WARPS, NUM_STAGES and MAXNREG are
    Triton's own options.

    >>> kernel = TritonKernel("k.py", "scale", ["x", "out", "n"], [Launch(grid=["n // BLOCK"])])
    >>> kernel.language
    'triton'
    """

    language: ClassVar[str] = "triton"
    suffix: ClassVar[str] = ".py"


@dataclass(frozen=True)
class PythonCallable(Kernel):
    """`make(configuration, case)` in Python, which returns the function to be timed. Offered as
    `evotune.Callable`.

    `source` is `"module:make"`, found as `import` finds modules, or a file with `entry="make"`.
    `configuration` and `case` are dicts: a value for each parameter, and for each symbol of the
    case. The function gets all inputs by name. It gets the outputs too if it has parameters of
    their names; else it returns them: a tensor, a list, or a dict. Each case is built separately,
    within `timeouts: {compile_s}`.

    >>> kernel = PythonCallable("softmax.py", entry="make")
    >>> kernel.language
    'python'
    """

    language: ClassVar[str] = "python"
    suffix: ClassVar[str] = ".py"

    def __post_init__(self) -> None:
        if isinstance(self.source, str) and self.entry is None and ":" in self.source:
            module, _, entry = self.source.rpartition(":")
            object.__setattr__(self, "entry", entry)
            object.__setattr__(self, "source", module_file(module))


def module_file(module: str) -> Path:
    """The file that `import` would read, without importing anything. Raises SpaceError if there is
    none."""
    path: Sequence[str] = [*sys.path, os.getcwd()]
    found, name = None, ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        found = importlib.machinery.PathFinder.find_spec(name, path)
        path = [] if found is None else list(found.submodule_search_locations or ())
    if found is None or not (found.origin or "").endswith(".py"):
        raise Position(place="Callable").error(f"there is no module {module!r} in Python")
    return Path(str(found.origin))


# The values that a parameter may have, and the constraints on them, as Python objects.
#
# parameters = {
#     "BLOCK": [64, 128],                         # a list of integers, booleans or words
#     "STAGES": ints(1, 4),                       # 1, 2, 3, 4
#     "WARPS": powers_of_two(1, 8),               # 1, 2, 4, 8
#     "ORDER": choices("rows", "columns"),        # words without an order
#     "UNROLL": booleans(when="STAGES > 1"),      # it matters only where the condition holds
# }
@dataclass(frozen=True, slots=True)
class Domain(Described):
    """A parameter's values, made by `ints`, `powers_of_two`, `choices`, `booleans` or `values`.

    - `form`: the key of the space file: range, pow2, choices, bool or values.
    - `given`: that key's value.
    - `when`: the condition under which the parameter matters.
    - `otherwise`: its value if `when` does not hold; its first value if None.
    - `default`: its value in the configuration that the search starts from.
    """

    form: str
    given: object
    when: Expression | None = None
    otherwise: Value | None = None
    default: Value | None = None

    def to_data(self) -> Mapping[str, object]:
        return {
            self.form: self.given,
            "when": self.when,
            "otherwise": self.otherwise,
            "default": self.default,
        }


def ints(
    low: int,
    high: int,
    step: int = 1,
    *,
    when: Expression | None = None,
    otherwise: int | None = None,
    default: int | None = None,
) -> Domain:
    """The integers from `low` to `high`, both included.

    >>> ints(1, 4).given
    (1, 4)
    >>> ints(0, 32, 8, default=16).default
    16
    """
    given = (low, high) if step == 1 else (low, high, step)
    return Domain("range", given, when, otherwise, default)


def powers_of_two(
    low: int,
    high: int,
    *,
    when: Expression | None = None,
    otherwise: int | None = None,
    default: int | None = None,
) -> Domain:
    """The powers of two from `low` to `high`, both included and powers of two themselves.

    >>> powers_of_two(1, 8).form
    'pow2'
    """
    return Domain("pow2", (low, high), when, otherwise, default)


def choices(
    *words: str | int,
    when: Expression | None = None,
    otherwise: str | int | None = None,
    default: str | int | None = None,
) -> Domain:
    """Words (or integers) without an order. In a C++ or CUDA source `NAME` is a number and
    `NAME_WORD` are its constants.

    >>> choices("rows", "columns").given
    ('rows', 'columns')
    """
    return Domain("choices", words, when, otherwise, default)


def booleans(
    *,
    when: Expression | None = None,
    otherwise: bool | None = None,
    default: bool | None = None,
) -> Domain:
    """False and true.

    >>> booleans(when="STAGES > 1").when
    'STAGES > 1'
    """
    return Domain("bool", True, when, otherwise, default)


def values(
    listed: Sequence[Value],
    *,
    when: Expression | None = None,
    otherwise: Value | None = None,
    default: Value | None = None,
) -> Domain:
    """A list of integers, of booleans or of words. Without `when`, `otherwise` or `default`, pass
    the list itself to the space instead.

    >>> values([64, 128], default=128).given
    [64, 128]
    """
    return Domain("values", listed, when, otherwise, default)


@dataclass(frozen=True, slots=True)
class Constraint(Described):
    """An expression that must hold, and the reason, in words for reports. Without a reason, pass
    the text itself.

    >>> Constraint("BLOCK * STAGES <= 512", reason="shared memory").reason
    'shared memory'
    """

    expr: Expression
    reason: str | None = None

    def to_data(self) -> Mapping[str, object]:
        return {"expr": self.expr, "reason": self.reason}
