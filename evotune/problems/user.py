"""A problem of your own: a small class in a Python file beside the space.

    # problem.py                                   # space.yaml
    from evotune.problems import UserProblem       problem:
                                                     name: problem.py:Softmax
    class Softmax(UserProblem):                      dtype: float32
        sizes = ("rows", "columns")                  shapes: [{rows: 4096, columns: 1024}]
                                                   baseline: torch:best
        def inputs(self, rows, columns):
            return {"x": (rows, columns)}

        def outputs(self, rows, columns):
            return {"out": (rows, columns)}

        def operations(self, rows, columns):
            return 5 * rows * columns

        def compute(self, x):
            return {"out": x.softmax(dim=-1)}

`compute` is written with PyTorch and serves three times: on float64 copies of the inputs it is the
reference, in the problem's own dtype its error sets the limit for candidates (`yardstick_of` may
say otherwise), and as `torch:eager` it is a baseline. Import torch inside the methods: the process
of `evotune run` reads the file too, and does not need torch.
"""

from __future__ import annotations

import abc
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from evotune.problems.base import Case, Tensors, TensorSpec
from evotune.trial import Value

if TYPE_CHECKING:
    import torch

_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
_EDGES = ((1, 1, 1, 1), (3, 5, 7, 2), (17, 33, 65, 19), (67, 129, 31, 34))
_MOST_RANDOM = 300
_MOST_REFUSED = 1000
_EDGE_VALUE = 8.0


class _Refused(ValueError):
    """Sizes that make no sense; other errors are mistakes in the file."""


class UserProblem(abc.ABC):
    """Derive from it, say what the class variables below ask for, and write the four methods.

    Sizes reach the methods by name, tensors reach `compute` and `baselines_of` by name; all are
    contiguous and row-major. Whatever raises here ends the command with the exception's text.
    """

    name: ClassVar[str] = "user"
    dtypes: ClassVar[tuple[str, ...]] = ("float16", "bfloat16", "float32")
    input_kinds: ClassVar[tuple[str, ...]] = ("normal", "large", "ramp", "spike")

    sizes: ClassVar[tuple[str, ...]] = ()
    """What each shape of the space must give: integers of at least 1."""
    fixed: ClassVar[tuple[str, ...]] = ()
    """Sizes that edge and random shapes keep, as they are compiled in or the kernel depends on."""
    constants: ClassVar[Mapping[str, float]] = {}
    """Further names for expressions and arguments: `eps`, …"""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    # --- to be written -----------------------------------------------------------------------

    @abc.abstractmethod
    def inputs(self, **sizes: int) -> Mapping[str, tuple[int, ...]]:
        """Name -> shape of every tensor that the kernel reads."""

    @abc.abstractmethod
    def outputs(self, **sizes: int) -> Mapping[str, tuple[int, ...]]:
        """Name -> shape of every tensor that the kernel writes, all of it."""

    @abc.abstractmethod
    def operations(self, **sizes: int) -> int:
        """Floating point operations; a kernel that beats the device's peak with them is refused."""

    @abc.abstractmethod
    def compute(self, **inputs: torch.Tensor) -> Tensors:
        """The outputs by name, in the inputs' dtype, on their device."""

    # --- may be written ----------------------------------------------------------------------

    def baselines_of(self, **inputs: torch.Tensor) -> Mapping[str, Callable[[], Tensors]]:
        """What to beat: functions without arguments, by `torch:NAME`. Each must be correct."""
        return {"torch:eager": lambda: self.compute(**inputs)}

    def yardstick_of(self, **inputs: torch.Tensor) -> Tensors:
        """Outputs in the inputs' dtype whose error sets the limit, where `compute` errs less than
        a right kernel may: a library that cuts a long sum into parts, for one."""
        return self.compute(**inputs)

    def check(self, **sizes: int) -> None:  # noqa: B027 (a problem may do without)
        """ValueError, one line, for sizes that make no sense together."""

    def make_input(
        self, name: str, shape: tuple[int, ...], kind: str, generator: torch.Generator
    ) -> torch.Tensor:
        """float32 values of one input, on the generator's device.

        normal: N(0, 1). large: eight times that. ramp: values that count, so that a misplaced
        one shows. spike: one large value in each row of small ones.
        """
        import torch

        device = generator.device
        values = torch.randn(shape, generator=generator, device=device)
        if kind == "large":
            return values * _EDGE_VALUE
        if kind == "ramp":
            count = torch.arange(values.numel(), device=device) % 251
            return (count / 125.0 - 1.0).reshape(shape) + 0.001 * values
        if kind == "spike":
            rows = values.reshape(-1, shape[-1]) * 0.1
            place = torch.arange(rows.shape[0], device=device) * 7919 % shape[-1]
            rows[torch.arange(rows.shape[0], device=device), place] = _EDGE_VALUE
            return rows.reshape(shape)
        return values

    # --- what evotune makes of it: `evotune.problems.base.Problem` -----------------------------

    def case(self, shape: Mapping[str, Value], variant: Mapping[str, Value]) -> Case:
        """ValueError, one line, when the shape makes no sense."""
        if variant:
            raise ValueError(f"{type(self).__name__} has no variants, got {dict(variant)}")
        for size in shape:
            if size not in self.sizes:
                raise ValueError(f"unknown size {size!r}; known: {', '.join(self.sizes)}")
        missing = [size for size in self.sizes if size not in shape]
        if missing:
            raise ValueError(f"the shape lacks {', '.join(missing)}")
        sizes: dict[str, int] = {}
        for size in self.sizes:
            value = shape[size]
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"expected {size} to be an integer of at least 1, got {value!r}")
            sizes[size] = value
        try:
            self.check(**sizes)
        except ValueError as error:
            raise _Refused(str(error)) from error
        label = f"({','.join(map(str, sizes.values()))})"
        case = Case(label, {**sizes, **self.constants, "dtype": self.dtype})
        self._check_tensors(case)
        return case

    def tensors(self, case: Case) -> tuple[TensorSpec, ...]:
        sizes = self._sizes(case)
        inputs, outputs = self.inputs(**sizes), self.outputs(**sizes)
        return (
            *(TensorSpec(name, tuple(shape), self.dtype) for name, shape in inputs.items()),
            *(TensorSpec(name, tuple(shape), self.dtype, True) for name, shape in outputs.items()),
        )

    def flops(self, case: Case) -> int:
        return int(self.operations(**self._sizes(case)))

    def bytes_moved(self, case: Case) -> int:
        return _BYTES[self.dtype] * sum(math.prod(spec.shape) for spec in self.tensors(case))

    def edge_cases(self, case: Case) -> Sequence[Case]:
        """Small and odd sizes; the `fixed` ones as in the case."""
        return list(self._small(case, [itertools.cycle(edge) for edge in _EDGES]))

    def siblings(self, case: Case) -> Sequence[Case]:
        """A problem of this kind has no variants."""
        return [case]

    def random_cases(self, cases: Sequence[Case], seed: int) -> Iterator[Case]:
        """Sizes of 1 to 300, half of them small; the `fixed` ones as in one of the cases. They end
        when a thousand in a row make no sense."""
        rng = random.Random(seed)

        def numbers() -> Iterator[int]:
            while True:
                yield rng.randint(1, rng.choice((16, _MOST_RANDOM)))

        refused = 0
        while refused < _MOST_REFUSED:
            found = list(self._small(rng.choice(cases), [numbers()]))
            yield from found
            refused = 0 if found else refused + 1
            if set(self.sizes) <= set(self.fixed):
                return

    def make_inputs(self, case: Case, kind: str, seed: int, device: str = "cpu") -> Tensors:
        import torch

        generator = torch.Generator(device).manual_seed(seed)
        dtype: torch.dtype = getattr(torch, self.dtype)
        return {
            name: self.make_input(name, tuple(shape), kind, generator).to(dtype).contiguous()
            for name, shape in self.inputs(**self._sizes(case)).items()
        }

    def reference(self, case: Case, inputs: Tensors) -> Tensors:
        """`compute` on float64 copies."""
        copies = {name: value.double() for name, value in inputs.items()}
        return self._checked(case, self.compute(**copies))

    def yardstick(self, case: Case, inputs: Tensors) -> Tensors:
        """`yardstick_of` in the problem's dtype."""
        return self._checked(case, self.yardstick_of(**inputs))

    def baselines(
        self, case: Case, inputs: Tensors, only: str = ""
    ) -> dict[str, Callable[[], Tensors]]:
        found = self.baselines_of(**inputs)
        return {name: call for name, call in found.items() if only in ("", name)}

    def _sizes(self, case: Case) -> dict[str, int]:
        return {size: int(case.symbols[size]) for size in self.sizes}

    def _small(self, case: Case, streams: Sequence[Iterator[int]]) -> Iterator[Case]:
        """A case from each stream of numbers, but those that make no sense."""
        for numbers in streams:
            sizes = {
                size: int(case.symbols[size]) if size in self.fixed else next(numbers)
                for size in self.sizes
            }
            try:
                yield self.case(sizes, {})
            except _Refused:
                continue

    def _check_tensors(self, case: Case) -> None:
        """Results that rest on no input, or of no element, could not be judged."""
        specs = self.tensors(case)
        for what, is_output in (("inputs", False), ("outputs", True)):
            if not any(spec.is_output is is_output for spec in specs):
                raise _Refused(f"{what} names no tensor, a kernel needs at least one")
        for spec in specs:
            if any(extent < 1 for extent in spec.shape):
                raise _Refused(f"{spec.name} has no elements, its shape is {spec.shape}")

    def _checked(self, case: Case, found: Tensors) -> Tensors:
        """What was computed, which must be those tensors that `outputs` names."""
        wanted = {name: tuple(shape) for name, shape in self.outputs(**self._sizes(case)).items()}
        given = {name: tuple(value.shape) for name, value in found.items()}
        if given != wanted:
            raise ValueError(f"compute gave {given}, outputs says {wanted}")
        return {name: value.contiguous() for name, value in found.items()}
