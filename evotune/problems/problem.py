"""The Problem protocol, and the types of tensors' elements.

Neither importing this nor creating a problem imports torch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias, runtime_checkable

from evotune.errors import UsageError
from evotune.trial import Value

if TYPE_CHECKING:
    import numpy as np
    import torch

Tensors: TypeAlias = "dict[str, torch.Tensor]"


CONTIGUOUS = "contiguous"
"""The layout of tensors without gaps, row-major."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor argument of the kernel; its last dimension is contiguous.

    - `strides`: of every dimension, in elements; empty if the tensor is contiguous.
    - `stride_symbols`: the symbols that pass the strides of all dimensions but the last to a
      kernel; empty if the problem knows contiguous tensors only.
    - `is_index`: its values are lengths, or indices into other tensors. Only the problem makes and
      alters them, since a kernel may read memory where they point.
    - `is_ranged`: its values are integers of a range, and any of them may occur anywhere.
    - `is_steady`: its values decide the work of each block of threads, as lengths do. The blocks of
      a launch must agree on them, so they never change while a launch may run.
    - `may_be_infinite`: a right output may hold infinities.
    - `is_updated`: an output that is an input too: a kernel updates it in place.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str  # one of `ELEMENT_BYTES`
    is_output: bool = False
    strides: tuple[int, ...] = ()
    stride_symbols: tuple[str, ...] = ()
    is_index: bool = False
    is_ranged: bool = False
    is_steady: bool = False
    may_be_infinite: bool = False
    is_updated: bool = False

    @property
    def is_input(self) -> bool:
        return self.is_updated or not self.is_output

    @property
    def nbytes(self) -> int:
        """Bytes of its elements, without gaps."""
        return ELEMENT_BYTES[self.dtype] * math.prod(self.shape)

    @property
    def all_strides(self) -> tuple[int, ...]:
        """The strides, computed if the tensor is contiguous."""
        return self.strides or contiguous_strides(self.shape)

    @property
    def is_far(self) -> bool:
        """Whether parts of it lie so far apart that 32-bit offsets do not reach from one to the
        next."""
        return any(stride >= 1 << 31 for stride in self.strides)

    @property
    def span(self) -> int:
        """Elements of memory from the first to the last element, gaps included."""
        steps = zip(self.shape, self.all_strides, strict=True)
        return 1 + sum((size - 1) * stride for size, stride in steps)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor, in elements."""
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))


@dataclass(frozen=True, slots=True)
class Case:
    """One shape x variant of a problem.

    `symbols` are the names expressions and kernels may use; `label` is what reports print.
    """

    label: str
    symbols: Mapping[str, Value]


def grouped(cases: Sequence[Case], names: Collection[str]) -> list[list[Case]]:
    """The cases in groups with the same values of these symbols."""
    found: dict[tuple[Value, ...], list[Case]] = {}
    for case in cases:
        found.setdefault(tuple(case.symbols[name] for name in sorted(names)), []).append(case)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Place:
    """A case's place among all cases of a kernel: values that are fixed (a dtype, a mask, a size
    that is compiled in), quantities that vary over ranges, and the tensors' layout.

    `mask_sizes`: of attention with a mask, how that is broadcast: a word each for batch, heads and
    rows. `batch 1 rows` is one mask for all heads, and `-` a dimension in which the case itself has
    size 1.
    """

    fixed: Mapping[str, Value]
    ranged: Mapping[str, int | float]
    layout: str = CONTIGUOUS
    mask_sizes: str = ""

    def is_in(
        self, fixed: Mapping[str, Value], ranges: Mapping[str, tuple[int | float, int | float]]
    ) -> bool:
        """Whether a case with this place is in the region."""
        return fixed == self.fixed and all(
            low <= self.ranged[name] <= high for name, (low, high) in ranges.items()
        )


def was_broadcast(executed: Iterable[str], mask_sizes: str) -> bool:
    """Whether a mask was executed that is broadcast in this way (`Place.mask_sizes`). A dimension
    of size 1 is read at index 0 alone, whatever its stride."""
    own = mask_sizes.split()
    return any(
        all(word in ("-", other) for word, other in zip(own, each.split(), strict=True))
        for each in executed
    )


def distinct_broadcasts(executed: Iterable[str]) -> tuple[str, ...]:
    """The ways in which masks were broadcast, without those that another one implies."""
    found = dict.fromkeys(executed)
    return tuple(
        each for each in found if not was_broadcast([way for way in found if way != each], each)
    )


def with_strides(
    case: Case, specs: Sequence[TensorSpec], strides: Mapping[str, tuple[int, ...]]
) -> Case:
    """The case with new strides for some tensors: `strides` maps a tensor's name to its strides in
    elements. `specs` are the case's tensors; they have symbols for these strides.
    """
    symbols = dict(case.symbols)
    for spec in specs:
        if spec.name in strides:
            symbols |= zip(spec.stride_symbols, strides[spec.name][:-1], strict=True)
    if symbols == case.symbols:
        return case
    return Case(f"{case.label} strided", {**symbols, "layout": "strided"})


class WrongKey(UsageError):
    """A problem that cannot be made because of the space's value under `key`."""

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


class WrongSymbol(ValueError):
    """A shape or a variant that is invalid because of its symbol `name`."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


@runtime_checkable
class HasLayouts(Protocol):
    """A problem whose tensors may lie in memory in several ways."""

    layout_sizes: ClassVar[tuple[str, ...]]
    """The sizes on which the distance between two rows of a tensor depends."""

    def other_layouts(self, case: Case) -> Sequence[Case]:
        """The case in other layouts that programs use, for kernels that receive strides."""

    def odd_layout(self, case: Case) -> Case:
        """The case in a layout that hardly any program uses: with gaps, and with dimensions in any
        order."""

    def other_masks(self, case: Case, kept: Collection[str]) -> Sequence[Case]:
        """Short cases with the case's keys whose mask is broadcast in another way, one for each."""


@runtime_checkable
class HasFeatures(Protocol):
    """A problem with features that not every kernel computes."""

    def features_of(self, case: Case) -> Mapping[str, frozenset[str]]:
        """The features that the case uses, each with names of symbols and tensors; a kernel must
        receive one of these."""


@runtime_checkable
class HasAdvice(Protocol):
    """A problem with cases that users may easily misunderstand."""

    def advice(self, shape: Mapping[str, Value], variant: Mapping[str, Value]) -> str:
        """A line of advice for the author of the space, or ""."""


class Problem(Protocol):
    """A computation that kernels must do, with its reference and its baselines.

    Built in the main process (torch-free: `case`, `tensors`, `flops`, `bytes_moved`,
    `edge_cases`, `siblings`, `random_cases`, `random_kinds`, `place`) and again in the worker,
    where the methods that take or give tensors run.
    """

    name: ClassVar[str]
    dtypes: ClassVar[tuple[str, ...]]
    input_kinds: ClassVar[tuple[str, ...]]
    """`normal` first, then the adversarial ones; see `make_inputs`."""
    variant_symbols: ClassVar[tuple[str, ...]]
    """Symbols of a variant; all others are a shape's."""

    @property
    def optional(self) -> tuple[str, ...]:
        """The tensors that some cases lack. A kernel gets a null pointer for a tensor that its case
        lacks."""

    dtype: str

    def scalars(self, case: Case) -> tuple[str, ...]:
        """Symbols, other than sizes, that edge and random cases vary: a scale, an epsilon."""

    def case(self, shape: Mapping[str, Value], variant: Mapping[str, Value]) -> Case:
        """The case of a shape and a variant. Raises ValueError, one line, if either is invalid, and
        WrongSymbol if a single symbol is the cause.
        """

    def tensors(self, case: Case) -> tuple[TensorSpec, ...]: ...

    def flops(self, case: Case) -> int: ...

    def bytes_moved(self, case: Case) -> int:
        """Bytes that must cross memory at least once: inputs read, outputs written."""

    def edge_cases(self, case: Case, kept: Collection[str] = ()) -> Sequence[Case]:
        """Small awkward shapes for the same binary: with the same head size, the same variant, and
        the case's own values of the symbols `kept`. `layout` is among these unless the kernel takes
        strides.
        """

    def siblings(self, case: Case) -> Sequence[Case]:
        """The case's shape in every variant, its own included. A finalist must pass all of them."""

    def random_cases(
        self, cases: Sequence[Case], seed: int, kept: Collection[str] = ()
    ) -> Iterator[Case]:
        """Seeded shapes, spread over the variants of `cases`: an endless stream, or until no more
        are found. They use the binaries of `cases`, provided that a binary fixes only the symbols
        `kept`. Every kind of shape comes early, and so do a few large ones."""

    def random_kinds(self, case: Case, number: int) -> Sequence[str]:
        """The input kinds for random test `number`, which runs on `case`."""

    def formulas(self, case: Case) -> Mapping[str, tuple[str, str]]:
        """Symbols whose values are formulas: for each the macro that a kernel gets which compiles
        the symbol in, with its parameters, and the macro's C++ text."""

    def called_case(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        options: Mapping[str, Value],
        tuned: Sequence[Case],
    ) -> Case:
        """The case of a call with inputs of these shapes. `options` has symbols that the shapes do
        not imply. A symbol that neither determines has the value of the cases `tuned`, if they
        agree. Raises ValueError, one line, if the case makes no sense or a symbol remains unknown.
        """

    def place(self, case: Case) -> Place:
        """The case's place in a domain."""

    def make_inputs(self, case: Case, kind: str, seed: int, device: str = "cpu") -> Tensors:
        """Seeded tensors of one input kind. The values differ between kinds of devices."""

    def reference(self, case: Case, inputs: Tensors) -> Tensors:
        """Outputs in float64 from the rounded inputs, by a separate, tiled path. Integers may be
        int64."""

    def altered_indices(
        self, case: Case, inputs: Tensors, name: str, most: int, rng: random.Random
    ) -> tuple[int, torch.Tensor] | None:
        """Other valid values for up to `most` elements of the index tensor `name`: the flat index
        of the first element, and the values. None if there are no others.

        Unless the tensor `is_steady`, a kernel may run while only some of the elements have their
        new values, and while other alterations of the same inputs are incomplete. Each such mixture
        must be valid.
        """

    def tolerances(self, case: Case, inputs: Tensors, reference: Tensors) -> Tensors:
        """The error allowed to a right kernel in each element of the outputs, in float64."""

    def baselines(
        self, case: Case, inputs: Tensors, only: str = ""
    ) -> dict[str, Callable[[], Tensors]]:
        """Every baseline that runs on the inputs' device, by name, as a function to time. `only`
        names a single one, which may be an optional library (`libraries/`): it is returned only if
        named, and its function raises UnusableBaseline if the library cannot be called.
        """


# Inputs that are lengths, or places in other inputs: a kernel's work depends on their values.
def index_bytes(problem: Problem, case: Case) -> dict[str, bytes]:
    """The bytes of a case's index tensors, by name, from its normal inputs with seed 0."""
    names = [spec.name for spec in problem.tensors(case) if spec.is_index]
    if not names:
        return {}
    import torch

    inputs = problem.make_inputs(case, "normal", 0)
    # NumPy lacks some types of floats, which structured inputs may have.
    return {n: inputs[n].reshape(-1).view(torch.uint8).numpy().tobytes() for n in names}


# Parts of a case that do not depend on each other: the heads of attention, for one.
Index: TypeAlias = "tuple[int | slice, ...]"


@dataclass(frozen=True, slots=True)
class Parts:
    """Some parts of a case, as a smaller case. `regions` maps each tensor to the index of each part
    in it; a tensor of the smaller case is these regions, stacked.
    """

    case: Case
    regions: Mapping[str, Sequence[Index]]


@runtime_checkable
class HasParts(Protocol):
    """A problem that can say which outputs depend on an element of an input."""

    def parts(self, case: Case, touched: Sequence[tuple[str, int, int]]) -> Parts | None:
        """The parts that depend on the elements `touched`: an input's name, the number of its first
        element and how many there are. None if that is most of the case."""


ELEMENT_BYTES: Mapping[str, int] = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float8_e4m3": 1,
    "float8_e5m2": 1,
    "float64": 8,
    "complex64": 8,
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
}
INTEGERS = ("bool", "uint8", "int8", "int16", "int32", "int64")
"""Types whose values are exact. A bool is a byte of 0 or 1."""
FLOAT8 = ("float8_e4m3", "float8_e5m2")
_IN_TORCH = {"float8_e4m3": "float8_e4m3fn"}  # "fn": finite, its only special value is NaN


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of the elements that evotune calls `name`."""
    import torch

    found: torch.dtype = getattr(torch, torch_name(name))
    return found


def table_on(device: torch.device | str, values: Sequence[object] | np.ndarray) -> torch.Tensor:
    """A small table as a tensor on the device, copied asynchronously: `torch.tensor` with a device
    would wait until the GPU has done all earlier work."""
    import torch

    return torch.as_tensor(values).to(device, non_blocking=True)


def torch_name(name: str) -> str:
    """torch's name for the elements that evotune calls `name`, without importing torch."""
    return _IN_TORCH.get(name, name)


def element_type(dtype: torch.dtype) -> str:
    """evotune's name for a torch dtype."""
    name = str(dtype).removeprefix("torch.")
    return next((ours for ours, theirs in _IN_TORCH.items() if theirs == name), name)


def is_rounded(dtype: torch.dtype) -> bool:
    """Whether numbers of the type are rounded: floats, and complex numbers, which are two."""
    return dtype.is_floating_point or dtype.is_complex


def comparable(values: torch.Tensor) -> torch.Tensor:
    """A view of numbers that have an order: a complex one as its two parts, which are a last
    dimension, and a bool as a byte, since a kernel may write other bytes than 0 and 1."""
    import torch

    if values.is_complex():
        return torch.view_as_real(values)
    return values.view(torch.uint8) if values.dtype == torch.bool else values


def rounding_of(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The error that two roundings to `dtype` make in each element, in the unit of `values`.

    It is one unit in the last place plus the smallest normal number, because processors may flush
    smaller numbers to zero. For float16 and floats of 8 bits no processor does, so there it is one
    unit plus the smallest subnormal number. For integers it is 0.5: no difference is allowed.
    """
    if not is_rounded(dtype):
        return values.new_full(values.shape, 0.5)
    return values.abs() * _finfo(dtype).eps + _smallest(dtype)


def rounding_share(values: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`scale * rounding_of(v)` for elements v, given as `values`, which are `scale * v`."""
    return values.abs().mul_(_finfo(dtype).eps).add_(scale, alpha=_smallest(dtype))


_NEVER_FLUSHED = ("float16", "float8_e4m3", "float8_e5m2")


def _smallest(dtype: torch.dtype) -> float:
    info = _finfo(dtype)
    return info.tiny * info.eps if element_type(dtype) in _NEVER_FLUSHED else info.tiny


def _finfo(dtype: torch.dtype) -> torch.finfo:
    import torch

    return torch.finfo(dtype)
