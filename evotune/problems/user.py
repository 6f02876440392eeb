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
reference, what rounding to float32 may do to it is what candidates may be off (where its result in
the problem's own dtype is off by more, twice that), and as `torch:eager` it is a baseline. Import
torch inside the methods: the process of `evotune run` reads the file too, and does not need torch.
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
_TRAITS = 5
_SPIKES = (12.5, 6.5, 11.0, 8.0, 13.0, 9.5)
_DEVIATIONS = 12.0
"""What a right kernel may be off, in standard deviations of rounding errors."""
_SMALLER, _TIMES = 0.25, 4


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
        """Outputs in the inputs' dtype of which a right kernel may be off by twice as much, where
        that is more than `compute`'s rounding errors: a coarser way that you call right."""
        return self.compute(**inputs)

    def check(self, **sizes: int) -> None:  # noqa: B027 (a problem may do without)
        """ValueError, one line, for sizes that make no sense together."""

    def make_input(
        self, name: str, shape: tuple[int, ...], kind: str, generator: torch.Generator
    ) -> torch.Tensor:
        """float32 values of one input, on the generator's device.

        normal: N(0, 1). large: rows in turn 32 times that, 150 to 250 above and below zero, rising
        and falling by 240 to 300, so that an exponential overflows or vanishes. ramp: values that
        count, so that a misplaced one shows; every fifth row is zero. spike: one value of 6.5 to 13
        in each row of small ones.
        """
        import torch

        device = generator.device
        values = torch.randn(shape, generator=generator, device=device)
        if kind == "normal" or not shape:
            return values
        rows, columns = values.reshape(-1, shape[-1]), shape[-1]
        turn = torch.randint(2520, (1,), generator=generator, device=device)
        turn = turn + torch.arange(len(rows), device=device)
        if kind == "large":
            rows = _large(rows, turn)
        elif kind == "ramp":
            count = torch.arange(values.numel(), device=device) % 251
            rows = (count / 125.0 - 1.0).reshape(rows.shape) + 0.001 * rows
            if len(shape) > 1:
                rows[turn % _TRAITS == 0] = 0.0
        elif kind == "spike":
            heights = torch.tensor(_SPIKES, device=device)[turn % len(_SPIKES)]
            place = torch.arange(len(rows), device=device) * 7919 % columns
            rows = rows * 0.1
            rows[torch.arange(len(rows), device=device), place] = heights
        return rows.reshape(shape)

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
        """Where `compute` gives no number for them, or none that fits the dtype, they are made
        smaller, and in the end normal ones."""
        import torch

        dtype: torch.dtype = getattr(torch, self.dtype)

        def made(kind: str, factor: float) -> Tensors:
            generator = torch.Generator(device).manual_seed(seed)
            return {
                name: (self.make_input(name, tuple(shape), kind, generator) * factor)
                .to(dtype)
                .contiguous()
                for name, shape in self.inputs(**self._sizes(case)).items()
            }

        for times in range(0 if kind == "normal" else _TIMES):
            inputs = made(kind, _SMALLER**times)
            largest = torch.finfo(dtype).max / 4
            found = self.reference(case, inputs).values()
            if all(bool((value.abs() < largest).all()) for value in found):
                return inputs
        return made("normal", 1.0)

    def reference(self, case: Case, inputs: Tensors) -> Tensors:
        """`compute` on float64 copies."""
        copies = {name: value.double() for name, value in inputs.items()}
        return self._checked(case, self.compute(**copies))

    def tolerances(self, case: Case, inputs: Tensors, reference: Tensors) -> Tensors:
        """One rounding to the dtype, what rounding to float32 may do in `compute`, and in a row
        where `yardstick_of` is off by more than that, twice its largest error beyond."""
        import torch

        from evotune.problems.monte_carlo import rounding_errors
        from evotune.problems.rounding import rounding_of

        dtype: torch.dtype = getattr(torch, self.dtype)
        deviations = rounding_errors(self.compute, inputs, reference)
        yardstick = self._checked(case, self.yardstick_of(**inputs))
        allowed = {}
        for name, value in reference.items():
            limit = _DEVIATIONS * deviations[name] + rounding_of(value, dtype)
            off = (yardstick[name].double() - value).abs()
            # What overflows excuses nothing.
            beyond = (off - limit).clamp_(min=0).nan_to_num_(0.0, 0.0, 0.0)
            row = beyond.amax(-1, keepdim=True) if beyond.dim() else beyond
            allowed[name] = limit + 2 * row
        return allowed

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


def _large(rows: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    import torch

    trait, part = turn % _TRAITS, turn // _TRAITS % _TRAITS / (_TRAITS - 1)
    shift = ((trait == 1).float() - (trait == 2).float()) * (150.0 + 100.0 * part)
    slope = ((trait == 3).float() - (trait == 4).float()) * (120.0 + 30.0 * part)
    along = torch.linspace(-1.0, 1.0, rows.shape[1], device=rows.device)
    spread = torch.where(trait == 0, 32.0, 1.0)
    return rows * spread[:, None] + shift[:, None] + slope[:, None] * along
