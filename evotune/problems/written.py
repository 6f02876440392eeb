"""Calls the methods that a user wrote and checks what they return (`Written`).

`ProblemFile` finds the line of the user's file that has a mistake.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import math
import numbers
import opcode
import operator
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import CodeType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from evotune.errors import EvotuneError, ProblemMistake
from evotune.problems.problem import (
    ELEMENT_BYTES,
    INTEGERS,
    Case,
    Tensors,
    TensorSpec,
    element_type,
    is_rounded,
    torch_dtype,
)
from evotune.trial import Value
from evotune.util.words import shorten

if TYPE_CHECKING:
    import torch


Shapes = dict[str, tuple[int, ...]]
Dtypes: TypeAlias = "Mapping[str, torch.dtype]"


class Written:
    """Calls a problem's own methods. An exception becomes a ProblemMistake at the line that raised
    it; an answer of a wrong type becomes one at the line of the method's `def`."""

    def __init__(self, problem: object, file: ProblemFile) -> None:
        self._problem = problem
        self._file = file
        self._lines: dict[str, int] = {}
        self._named: dict[str, frozenset[str]] = {}

    @property
    def _has_same(self) -> bool:
        return bool(getattr(self._problem, "has_same", False))

    def same(
        self, outputs: Tensors, answer: Tensors, inputs: Tensors, symbols: Mapping[str, Any]
    ) -> bool:
        """What the method `same` says."""
        with self.unchanged("same", {**inputs, **answer}):
            found = self.call(
                "same", outputs=outputs, reference=answer, inputs={**inputs, **symbols}
            )
        kind = getattr(found, "dtype", None)
        if isinstance(found, bool) or (str(kind) == "torch.bool" and found.numel() == 1):
            return bool(found)
        raise self._wrong("same", found, "True or False")

    def call(self, method: str, **arguments: Any) -> Any:
        """The method's answer, unchecked."""
        hint = f"; it is called with {', '.join(arguments)}"
        with self.unchanged(method, arguments), self._file.running(self._line(method), hint):
            return getattr(self._problem, method)(**arguments)

    def named(self, method: str) -> frozenset[str]:
        """The names of the arguments that the method lists; with `**`, those of `compute` too."""
        if method not in self._named:
            found = inspect.signature(getattr(self._problem, method)).parameters
            is_open = any(each.kind is each.VAR_KEYWORD for each in found.values())
            more = self.named("compute") if is_open and method != "compute" else ()
            self._named[method] = frozenset((*found, *more))
        return self._named[method]

    @contextlib.contextmanager
    def unchanged(self, method: str, inputs: Mapping[str, Any], *, of: str = "") -> Iterator[None]:
        """A context in which the method must not write to its inputs: the other methods and every
        launch read the same tensors. Raises ProblemMistake if it does. `of` names a baseline."""
        versions = {name: _writes_to(value) for name, value in inputs.items()}
        yield
        for name, version in versions.items():
            if _writes_to(inputs[name]) != version:
                raise self.mistake(method, f"{of or method} changed its input {name} in place")

    def check(self, sizes: Mapping[str, int]) -> str:
        """Why the sizes are invalid, from the ValueError that `check` raises; "" if they are
        valid."""
        try:
            found = self.call("check", **sizes)
        except ProblemMistake as mistake:
            if isinstance(mistake.__cause__, ValueError):
                return shorten(str(mistake.__cause__), 300) or "check refuses these sizes"
            raise
        if found is not None:
            raise self._wrong("check", found, "nothing: it raises ValueError for wrong sizes")
        return ""

    def shapes(self, method: str, sizes: Mapping[str, int]) -> Shapes:
        """The shapes by name that `inputs` or `outputs` returns."""
        return {name: each.shape for name, each in self.described(method, sizes).items()}

    def described(self, method: str, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """The tensors by name that `inputs` or `outputs` returns."""
        found = self.call(method, **sizes)
        if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
            raise self._wrong(method, found, "a dict, name -> shape")
        if not found and method == "inputs":
            raise self.mistake(method, f"{method} names no tensor, a kernel needs at least one")
        return {name: self._described(method, name, each) for name, each in found.items()}

    def check_names(self, specs: Sequence[TensorSpec], symbols: Collection[str]) -> None:
        """Raises ProblemMistake for an output named like an input, and for a tensor named like a
        size, a flag or a constant: a name in the space could mean either."""
        taken = dict.fromkeys(symbols, "a symbol of the problem")
        for spec in specs:
            method = "inputs" if spec.is_input else "outputs"
            if spec.name in taken:
                message = f"{method} names {spec.name}, which is also {taken[spec.name]}"
                raise self.mistake(method, f"{message}: rename the tensor")
            taken[spec.name] = "an input"

    def count(self, method: str, sizes: Mapping[str, int]) -> int:
        """The number that `operations` or `exponentials` returns."""
        found = self.call(method, **sizes)
        number = isinstance(found, numbers.Real) and not isinstance(found, bool)
        if not number or not math.isfinite(found) or found < 0:
            raise self._wrong(method, found, "a number")
        return int(found)

    def indices(
        self,
        wanted: Mapping[str, TensorSpec],
        kind: str,
        generator: torch.Generator,
        sizes: Mapping[str, int],
    ) -> Tensors:
        """The tensors of lengths and indices that `make_indices` makes."""
        found = self.call("make_indices", kind=kind, generator=generator, **sizes)
        shapes = {name: spec.shape for name, spec in wanted.items()}
        dtypes = {name: torch_dtype(spec.dtype) for name, spec in wanted.items()}
        return self.outputs("make_indices", found, shapes, dtypes)

    def input(
        self,
        name: str,
        shape: tuple[int, ...],
        kind: str,
        generator: torch.Generator,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """What `make_input` makes for a tensor of that type: numbers of any precision. Complex
        numbers may come as such, or as their parts in two calls."""

        def made() -> torch.Tensor:
            found = self.call("make_input", name=name, shape=shape, kind=kind, generator=generator)
            return self._tensor("make_input", "make_input", name, found, shape=shape)

        import torch

        found = made()
        is_exact = not is_rounded(dtype)
        if (found.is_complex() and not dtype.is_complex) or (is_exact and is_rounded(found.dtype)):
            given, expected = element_type(found.dtype), element_type(dtype)
            message = f"make_input gave {name} as {given}, expected {expected}"
            raise self.mistake("make_input", message)
        if dtype.is_complex and not found.is_complex():
            return torch.complex(found.float(), made().float())
        return found

    def tensors(
        self,
        method: str,
        arguments: Mapping[str, Any],
        wanted: Mapping[str, tuple[int, ...]],
        dtypes: Dtypes,
    ) -> Tensors:
        """The outputs by name as `compute` or `yardstick_of` gives them."""
        return self.outputs(method, self.call(method, **arguments), wanted, dtypes)

    def outputs(
        self,
        method: str,
        found: Any,
        wanted: Mapping[str, tuple[int, ...]],
        dtypes: Dtypes,
        of: str = "",
    ) -> Tensors:
        """The tensors in `found`, the method's result. Raises ProblemMistake unless they are the
        wanted ones. A tensor that is not in `dtypes` may have any dtype. `of` names a baseline."""
        teller = of or method
        if not isinstance(found, Mapping):
            raise self._wrong(method, found, "a dict, name -> tensor", of)
        if found.keys() != wanted.keys():
            names = ", ".join(map(str, found)) or "nothing"
            expected = ", ".join(wanted)
            wanted_are = "inputs names" if method == "make_indices" else "the outputs are"
            raise self.mistake(method, f"{teller} gave {names}; {wanted_are} {expected}")
        return {
            name: self._tensor(
                method, teller, name, found[name], shape=shape, dtype=dtypes.get(name)
            )
            for name, shape in wanted.items()
        }

    def check_finite(self, method: str, found: Tensors, case: str) -> None:
        """Raises ProblemMistake for NaN and infinities in the reference, because no kernel could
        agree with them."""
        for name, value in found.items():
            if not value.isfinite().all():
                given = f"{method} gave NaN or infinity in {name} for normal inputs of {case}"
                raise self.mistake(method, f"{given}: outputs must be finite")

    def baselines(self, arguments: Mapping[str, Any]) -> dict[str, Callable[[], Tensors]]:
        found = self.call("baselines_of", **arguments)
        if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
            raise self._wrong("baselines_of", found, "a dict, name -> function")
        if not found:
            raise self.mistake(
                "baselines_of", "baselines_of names no baseline, expected at least one"
            )
        for name, function in found.items():
            if not callable(function):
                message = f"{name} of baselines_of is {_kind(function)}"
                raise self.mistake(
                    "baselines_of", f"{message}, expected a function without arguments"
                )
        return dict(found)

    def baseline_outputs(
        self,
        name: str,
        function: Callable[[], Tensors],
        inputs: Tensors,
        wanted: Mapping[str, tuple[int, ...]],
        dtypes: Dtypes,
    ) -> Tensors:
        """The outputs of one call of a baseline with these inputs, of which it may update those
        that are outputs."""
        line, teller = self._line("baselines_of"), f"{name} of baselines_of"
        kept = {name: value for name, value in inputs.items() if name not in wanted}
        with (
            self.unchanged("baselines_of", kept, of=teller),
            self._file.running(line, f"; {name} is called without any"),
        ):
            found = function()
        return self.outputs("baselines_of", found, wanted, dtypes, of=teller)

    def _tensor(
        self,
        method: str,
        teller: str,
        name: str,
        found: Any,
        *,
        shape: tuple[int, ...],
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        import torch

        if not isinstance(found, torch.Tensor):
            raise self.mistake(
                method, f"{teller} gave {_kind(found)} for {name}, expected a tensor"
            )
        if tuple(found.shape) != shape:
            given = f"{name} of shape {tuple(found.shape)}"
            raise self.mistake(method, f"{teller} gave {given}, expected {shape}")
        if dtype is not None and found.dtype != dtype:
            given, expected = (element_type(each) for each in (found.dtype, dtype))
            why = f"{teller} gave {name} as {given}, expected {expected}"
            if dtype in (torch.float64, torch.complex128):  # of a reference, in most cases
                why = f"{teller} gave {name} as {given} for inputs of {expected}: keep the dtype"
            raise self.mistake(method, why)
        return found.contiguous()

    def _described(self, method: str, name: str, found: Any) -> Tensor:
        tensor = tensor_of(found)
        if tensor is None:
            shape = found.shape if isinstance(found, Tensor) else found
            expected = "expected a tuple of integers"
            raise self.mistake(method, f"{method} gave {_kind(shape)} for {name}, {expected}")
        if method == "inputs" and tensor.dtype == "bool" and tensor.values is None:
            tensor = replace(tensor, values=_BOOLS)
        why = tensor.wrong(is_output=method == "outputs")
        if not why and method == "outputs" and tensor.values is not None and not self._has_same:
            why = "is an output, whose range only `same` needs"
        if why:
            raise self.mistake(method, f"{name} of {method} {why}")
        return tensor

    def _wrong(self, method: str, found: object, expected: str, of: str = "") -> ProblemMistake:
        return self.mistake(method, f"{of or method} gave {_kind(found)}, expected {expected}")

    def mistake(self, method: str, message: str) -> ProblemMistake:
        """A mistake at the line of the method's `def`."""
        return self._file.at(self._line(method), message)

    def _line(self, method: str) -> int:
        if method not in self._lines:
            self._lines[method] = self._file.line_of(type(self._problem), method)
        return self._lines[method]


def _kind(found: object) -> str:
    """An unexpected value, in a few words."""
    if found is None or isinstance(found, bool | int | float):
        return str(found)
    if isinstance(found, str):
        return f"the text {shorten(repr(found))}"
    if isinstance(found, tuple) and len(found) <= 8:
        return shorten(repr(found))
    return f"a {type(found).__name__}"


def _writes_to(value: Any) -> int:
    """PyTorch's count of writes to a tensor; 0 for a number, and in inference mode, which has no
    such count."""
    is_inference = getattr(value, "is_inference", None)
    return 0 if is_inference is None or is_inference() else int(value._version)


# Finds the sizes of a user's problem with which its inputs have given shapes.
GivenShapes: TypeAlias = Mapping[str, tuple[int, ...]]
_STEPS = (1, 2, 3)


class WrittenProblem(Protocol):
    """The part of a user's problem that its tensor side needs."""

    dtype: str

    @property
    def sizes(self) -> Sequence[str]: ...

    @property
    def flags(self) -> Sequence[str]: ...

    @property
    def tolerance(self) -> Tolerance | None: ...

    @property
    def written(self) -> Written: ...

    def case(self, shape: Mapping[str, Value], variant: Mapping[str, Value]) -> Case: ...

    def tensors(self, case: Case) -> Sequence[TensorSpec]: ...

    def reference(self, case: Case, inputs: Tensors) -> Tensors: ...

    def output_shapes(self, case: Case) -> dict[str, tuple[int, ...]]: ...

    def sizes_of(self, case: Case) -> dict[str, int]: ...

    def given(self, case: Case, method: str) -> dict[str, Any]: ...

    def symbols_of(self, case: Case) -> dict[str, Any]: ...

    def output_ranges(self, case: Case) -> dict[str, range]: ...

    def make_inputs(self, case: Case, kind: str, seed: int, device: str) -> Tensors: ...

    def checked_reference(self, case: Case, inputs: Tensors) -> Tensors: ...


def solved_case(
    problem: WrittenProblem,
    shapes: GivenShapes,
    options: Mapping[str, Value],
    tuned: Sequence[Case],
) -> Case:
    """The case whose inputs have these shapes. `options` give some of its sizes and constants.
    Sizes that neither shapes nor options give are as in the cases `tuned`. Raises ValueError, one
    line, if no case fits, or several do."""

    fits: dict[str, Case] = {}
    unknown = [name for name in problem.sizes if name not in options]
    for like in tuned:
        flags = {name: bool(options.get(name, like.symbols[name])) for name in problem.flags}
        shapes_of = functools.partial(_shapes, problem, flags)
        start = {name: int(options.get(name, like.symbols[name])) for name in problem.sizes}
        sizes = solve_sizes(shapes_of, shapes, unknown, start)
        own = {name: value for name, value in options.items() if name not in flags}
        case = problem.case({**sizes, **own}, flags)
        if shapes_of({name: int(case.symbols[name]) for name in problem.sizes}) == dict(shapes):
            fits[case.label] = case
    if len(fits) == 1:
        return next(iter(fits.values()))
    names = ", ".join(problem.sizes)
    found = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    if fits:
        raise ValueError(
            f"the inputs' shapes ({found}) leave open which of {', '.join(fits)} is meant: pass "
            f"the sizes by name ({names})"
        )
    raise ValueError(f"no {names} fit the inputs' shapes: {found}")


def _shapes(
    problem: WrittenProblem, flags: Mapping[str, bool], sizes: Mapping[str, int]
) -> GivenShapes:
    return problem.written.shapes("inputs", {**sizes, **flags})


def solve_sizes(
    shapes_of: Callable[[dict[str, int]], GivenShapes],
    wanted: GivenShapes,
    names: Iterable[str],
    start: Mapping[str, int],
) -> dict[str, int]:
    """Solves for the sizes `names`, beginning with the values in `start`.

    An extent that depends linearly on a single unknown size determines that size. Then other
    extents may depend on a single unknown size. Sizes that the shapes do not determine keep their
    value in `start`. The caller must check the solution.
    """
    sizes, unknown = dict(start), set(names)
    while unknown:
        found = _one_known(shapes_of, wanted, sizes, unknown)
        if found is None:
            break
        name, value = found
        sizes[name] = value
        unknown.discard(name)
    return sizes


def _one_known(
    shapes_of: Callable[[dict[str, int]], GivenShapes],
    wanted: GivenShapes,
    sizes: dict[str, int],
    unknown: set[str],
) -> tuple[str, int] | None:
    """A size that one extent determines, and its value; None if there is none."""
    before = _extents(shapes_of(sizes))
    lines = {
        name: [_extents(shapes_of({**sizes, name: sizes[name] + step})) for step in _STEPS]
        for name in sorted(unknown)
    }
    for place, extent in _extents(wanted).items():
        moving = [
            name
            for name, after in lines.items()
            if any(some.get(place) != before.get(place) for some in after)
        ]
        if len(moving) != 1 or place not in before:
            continue
        (name,) = moving
        slope = lines[name][0].get(place, 0) - before[place]
        straight = all(
            some.get(place) == before[place] + slope * step
            for step, some in zip(_STEPS, lines[name], strict=True)
        )
        if straight and slope and not (extent - before[place]) % slope:
            value = sizes[name] + (extent - before[place]) // slope
            if value >= 1:
                return name, value
    return None


def _extents(shapes: GivenShapes) -> dict[tuple[str, int], int]:
    return {
        (name, axis): extent for name, shape in shapes.items() for axis, extent in enumerate(shape)
    }


# How a user's problem describes a tensor that is not of the problem's own dtype: `Tensor`.
INDICES, STRUCTURED = "indices", "structured"
_LIMITS = {"bool": (0, 1), "uint8": (0, 255)} | {
    f"int{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)
}
_BOOLS = range(2)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in the result of `inputs` or `outputs`, if a shape alone is not enough.

    - `dtype`: float16, bfloat16, float32, float64, float8_e4m3, float8_e5m2, complex64, bool,
      uint8, int8, int16, int32 or int64; defaults to the problem's own.
    - `values` of an input. None: what `make_input` returns. `range(0, columns)`: integers of that
      range; any of them may occur anywhere. `(0.01, 10.0)`: numbers between these, uniform in the
      logarithm, such as scales. `"structured"`: what `make_input` returns, of any type; it changes
      only as a whole, between launches. `"indices"`: lengths and indices that must fit together;
      `make_indices` makes them, and they change only together, between launches.
    """

    shape: tuple[int, ...]
    dtype: str = ""
    values: range | tuple[float, float] | str | None = None

    @property
    def has_indices(self) -> bool:
        """Whether its values are lengths and indices that must fit together."""
        return self.values == INDICES

    def wrong(self, *, is_output: bool) -> str:  # noqa: C901, PLR0911
        """Why the description is invalid, in one line; "" if it is valid."""
        is_updated = isinstance(self, InOut)
        if is_updated and is_output:
            return "is an InOut: name it in inputs alone"
        if is_updated and self.values in (INDICES, STRUCTURED):
            return f'is an InOut, whose values cannot be "{self.values}"'
        if is_output and self.values is not None and not isinstance(self.values, range):
            return "is an output, which has no values of its own"
        if self.dtype and self.dtype not in ELEMENT_BYTES:
            return f"has the dtype {self.dtype!r}, expected one of {', '.join(ELEMENT_BYTES)}"
        if isinstance(self.values, range):
            if not self.values or self.dtype not in INTEGERS:
                return f"has the values {self.values}, expected some integers of an integer type"
            ends = sorted((self.values[0], self.values[-1]))  # min() would walk through all
            least, most = _LIMITS[self.dtype]
            if ends[0] < least or ends[1] > most:
                return f"has the values {self.values}, which do not fit {self.dtype}"
            number = (ends[1] - ends[0]) // abs(self.values.step) + 1
            if sys.maxsize < number <= most - least:
                return f"has the values {self.values}, expected fewer than 2**63 of them, or all"
        elif isinstance(self.values, tuple) and self.dtype == "complex64":
            return f"has the values {self.values}, which complex numbers cannot lie between"
        elif self.values not in (None, INDICES, STRUCTURED) and not _is_range(self.values):
            expected = "a range, two positive numbers, 'indices' or 'structured'"
            return f"has the values {self.values!r}, expected {expected}"
        elif self.values is None and self.dtype in INTEGERS and not is_output:
            others = "'indices' or 'structured'"
            return f"is {self.dtype} without values: state range(first, end), {others}"
        elif self.values == INDICES and self.dtype not in INTEGERS:
            return "has indices of no integer type"
        return ""

    def spec(self, name: str, dtype: str, *, is_output: bool) -> TensorSpec:
        """The tensor as a `TensorSpec`. `dtype`: the problem's own."""
        is_updated = isinstance(self, InOut)
        is_ranged = isinstance(self.values, range)
        is_steady = self.values in (INDICES, STRUCTURED)
        is_index = (is_steady or is_ranged) and not is_output
        dtype = self.dtype or dtype
        return TensorSpec(
            name,
            self.shape,
            dtype,
            is_output or is_updated,
            is_index=is_index,
            is_ranged=is_ranged,
            is_steady=is_steady,
            is_updated=is_updated,
        )


class InOut(Tensor):
    """A tensor in the result of `inputs` that a kernel updates in place. Before each launch it has
    its values again. `compute` gets them, and gives the new ones by the tensor's name."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A problem's own tolerance of floats: `absolute` + `relative` * |reference|, in addition to
    the rounding to the output's type. Reports repeat the `reason`, a line, since it is the author's
    word alone."""

    reason: str
    relative: float = 0.0
    absolute: float = 0.0

    def wrong(self) -> str:
        """Why it is invalid, in one line; "" if it is valid."""
        if not isinstance(self.reason, str) or not self.reason.strip() or "\n" in self.reason:
            return f"has the reason {self.reason!r}, expected a line"
        for name in ("relative", "absolute"):
            value = getattr(self, name)
            most = 1.0 if name == "relative" else math.inf
            if not isinstance(value, int | float) or not 0 <= value < most:
                return f"has {name} {value!r}, expected a number of at least 0" + (
                    ", and less than 1" if name == "relative" else ""
                )
        return "" if self.relative or self.absolute else "is 0"

    def __str__(self) -> str:
        parts = [f"{name} {getattr(self, name):g}" for name in ("relative", "absolute")]
        return f"{', '.join(p for p in parts if not p.endswith(' 0'))}: {self.reason}"


def tensor_of(found: Any) -> Tensor | None:
    """The tensor that a user's shape, or `Tensor`, means; None for anything else."""
    shape = found.shape if isinstance(found, Tensor) else found
    if not isinstance(shape, tuple | list):
        return None
    try:
        extents = tuple(map(operator.index, shape))
    except TypeError:
        return None
    if isinstance(found, Tensor):
        return replace(found, shape=extents)
    return Tensor(extents)


def _is_range(found: Any) -> bool:
    if not isinstance(found, tuple) or len(found) != 2:
        return False
    numbers = all(isinstance(each, int | float) and math.isfinite(each) for each in found)
    return numbers and 0.0 < found[0] <= found[1]


_MOST_TEXT = 300
_RAISE = opcode.opmap["RAISE_VARARGS"]


class _RuntimeMistake(ProblemMistake, RuntimeError):
    """A mistake that is also a RuntimeError, because the device's own errors (no memory left, say)
    are distinguished from mistakes only later."""


class ProblemFile:
    """The Python file of a problem. `path`: its name in tracebacks. `name`: its name in
    messages."""

    def __init__(self, path: str, name: str, content: bytes) -> None:
        self._path = path
        self._name = name
        self._content = content

    @contextlib.contextmanager
    def running(self, line: int, hint: str = "") -> Iterator[None]:
        """A context for code of the file. Its prints go to stderr. Any exception, SystemExit too,
        becomes a ProblemMistake at the line that raised it; if no line of the file did, at `line`,
        with `hint`. Ctrl-C is no mistake."""
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        except BaseException as error:
            mistake = self.mistake(error, line, hint)
            if mistake is None:
                raise
            raise mistake from error

    def mistake(self, error: BaseException, line: int = 0, hint: str = "") -> ProblemMistake | None:
        """The mistake that caused an exception; None if the file has none. That is so for Ctrl-C,
        for evotune's own errors and, without `line`, for an exception in whose traceback the file
        does not occur."""
        if isinstance(error, ProblemMistake):
            return error
        if isinstance(error, SyntaxError) and error.filename == self._path:
            return self.at(error.lineno or 1, f"{type(error).__name__}: {error.msg}")
        place = self._innermost(error.__traceback__)
        if isinstance(error, EvotuneError) or not (place or line):
            return None
        if place:
            line, hint = place.tb_lineno, ""
        if isinstance(error, SystemExit):
            code = "" if error.code is None else shorten(repr(error.code))
            return ProblemMistake(f"{self._name}:{line} called sys.exit({code})")
        if isinstance(error, KeyboardInterrupt) and not (place and _raises(place)):
            return None
        kind = _RuntimeMistake if isinstance(error, RuntimeError) else ProblemMistake
        return self.at(line, f"{_words(error)}{hint}", kind)

    def at(
        self, line: int, message: str, kind: type[ProblemMistake] = ProblemMistake
    ) -> ProblemMistake:
        """A mistake at that line. Without a file it has only the message."""
        return kind(f"{self._name}:{line}: {message}" if self._name else message)

    def line_of(self, kind: type, attribute: str = "") -> int:
        """Line where the class or a base class sets `attribute`; else the class's first line."""
        for each in kind.__mro__:
            statement = self._classes.get(each.__name__)
            if statement is None or each.__module__ != kind.__module__:
                continue
            for inner in statement.body:
                if attribute in _names_of(inner):
                    return inner.lineno
        own = self._classes.get(kind.__name__)
        return own.lineno if own is not None else 1

    @functools.cached_property
    def _classes(self) -> dict[str, ast.ClassDef]:
        nodes = ast.walk(ast.parse(self._content)) if self._content else ()
        return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}

    def _innermost(self, trace: TracebackType | None) -> TracebackType | None:
        """The last step of a traceback that lies in the file; None without such a step."""
        found = None
        while trace is not None:
            code: CodeType = trace.tb_frame.f_code
            if code.co_filename == self._path:
                found = trace
            trace = trace.tb_next
        return found


def _names_of(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return [statement.name]
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _raises(place: TracebackType) -> bool:
    """True if a `raise` raised there. Ctrl-C interrupts between other instructions as well."""
    instruction = place.tb_frame.f_code.co_code[place.tb_lasti]
    return place.tb_next is None and instruction == _RAISE


def _words(error: BaseException) -> str:
    try:
        text = shorten(str(error), _MOST_TEXT)
    except Exception as second:  # noqa: BLE001 - user code too: the class may be the file's
        text = f"(its text cannot be made: {type(second).__name__})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
