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
reference, its rounding errors in float32 are the candidates' tolerance (where its result in the
problem's own dtype is off by more, twice that), and as `torch:eager` it is a baseline. Import
torch inside the methods: the process of `evotune run` reads the file too, without torch.
"""

from __future__ import annotations

import abc
import functools
import itertools
import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from evotune.problems import _user_cases
from evotune.problems._problem_file import ProblemFile
from evotune.problems._solving import Shapes, solved_case
from evotune.problems._user_cases import Refused
from evotune.problems._user_tensors import Tensor
from evotune.problems._written import Written
from evotune.problems.element_types import torch_dtype
from evotune.problems.problem import Case, Place, Tensors, TensorSpec, WrongSymbol
from evotune.trial import Value

if TYPE_CHECKING:
    import torch

_LONG = 1200
_KEPT_SPECS = 4096  # cases of which the tensors are kept


class UserProblem(abc.ABC):
    """Base class of a problem: set the class variables below, and write the four methods.

    The methods get sizes by name; `compute` and `baselines_of` get tensors by name, all contiguous
    and row-major. A method that raises, or returns another type than its docstring here says, ends
    the command with an error at its line in the file. Prints go to stderr.
    """

    name: ClassVar[str] = "user"
    dtypes: ClassVar[tuple[str, ...]] = ("float16", "bfloat16", "float32")
    input_kinds: ClassVar[tuple[str, ...]] = ("normal", "large", "ramp", "spike")
    variant_symbols: ClassVar[tuple[str, ...]] = ()

    sizes: ClassVar[tuple[str, ...]] = ()
    """Names of the sizes that each shape of the space must give: integers of at least 1."""
    fixed: ClassVar[tuple[str, ...]] = ()
    """Sizes that edge and random shapes keep: compiled in, or the kernel depends on them."""
    constants: ClassVar[Mapping[str, float]] = {}
    """Further names for expressions and arguments: `eps`, …"""
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """Constants for which a kernel must be right in a whole range, as (least, most). If they are
    passed to the kernel, edge and random cases draw them (evenly in the logarithm where both ends
    are positive). `compute`, `baselines_of` and `yardstick_of` get them by name beside the tensors.
    A shape of the space may set them too."""

    flags: ClassVar[tuple[str, ...]] = ()
    """Names of variants that are true or false: `variants: [{has_bias: true}]`. Methods get them by
    name beside the sizes; kernels compile them in or get them as arguments."""
    optional: ClassVar[tuple[str, ...]] = ()
    """Tensors that `inputs` or `outputs` leaves out for some flags. There a kernel that lists one
    gets a null pointer, and `compute` is called without it."""

    problem_file = ProblemFile("", "", b"")
    """The file of the class; the reader of the file sets it."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    # --- to be written -----------------------------------------------------------------------

    @abc.abstractmethod
    def inputs(self, **sizes: int) -> Mapping[str, tuple[int, ...] | Tensor]:
        """Name -> shape of every tensor that the kernel reads, or a `Tensor` that says more."""

    @abc.abstractmethod
    def outputs(self, **sizes: int) -> Mapping[str, tuple[int, ...] | Tensor]:
        """The same for every tensor that the kernel writes, all of it."""

    @abc.abstractmethod
    def operations(self, **sizes: int) -> int:
        """Floating point operations; a kernel that beats the device's peak with them is refused."""

    @abc.abstractmethod
    def compute(self, **inputs: torch.Tensor) -> Tensors:
        """The outputs by name, in the inputs' dtype, on their device."""

    # --- may be written ----------------------------------------------------------------------

    def exponentials(self, **sizes: int) -> int:
        """Exponentials that any kernel must compute. `evotune explain` counts them as work."""
        return 0

    def baselines_of(self, **inputs: torch.Tensor) -> Mapping[str, Callable[[], Tensors]]:
        """Baselines: functions without arguments, by `torch:NAME`. Each must be correct."""
        from evotune.problems import _user_torch

        return {"torch:eager": lambda: self.compute(**_user_torch.widened(self.dtype, inputs))}

    def yardstick_of(self, **inputs: torch.Tensor) -> Tensors:
        """Outputs computed in a coarser way that you still call right. Where their error is larger
        than `compute`'s rounding errors, a kernel's error may be twice as large."""
        return self.compute(**inputs)

    def make_indices(
        self, kind: str, generator: torch.Generator, **sizes: int
    ) -> Mapping[str, torch.Tensor]:
        """The inputs whose values are "indices": lengths and places that fit together, on the
        generator's device. Make awkward ones: empty, full, shuffled, shared."""
        raise NotImplementedError("inputs has indices, so the problem must write make_indices")

    def check(self, **sizes: int) -> None:  # noqa: B027 (a problem may do without)
        """ValueError, one line, for sizes that make no sense together."""

    def make_input(
        self, name: str, shape: tuple[int, ...], kind: str, generator: torch.Generator
    ) -> torch.Tensor:
        """float32 values of one input, on the generator's device.

        - normal: N(0, 1).
        - large: rows in turn are 32 times that, 150 to 300 off zero, rising or falling by 240 to
          300: an exponential, or a square in half precision, overflows or vanishes. Others are 600
          to 1e6 off zero, or have a third of their columns at -1e4 or the lowest number.
        - ramp: values that count, so that a misplaced one shows; every fifth row is zero, -0 first,
          another fifth begins with a zero.
        - spike: a value of 6.5 to 13 in each row of small ones; in some rows several equal ones.
        """
        from evotune.problems import _user_inputs

        return _user_inputs.input_values(shape, kind, generator)

    # --- for evotune: implements `evotune.problems.problem.Problem` -------------------------------

    def case(self, shape: Mapping[str, Value], variant: Mapping[str, Value]) -> Case:
        """ValueError, one line, when the shape makes no sense."""
        for name, value in variant.items():
            message = f"{type(self).__name__} has no variants, got {dict(variant)}"
            if self.flags:
                expected = ", ".join(f"{flag}: true|false" for flag in self.flags)
                message = f"expected a variant {{{expected}}}, got {name}: {value}"
            if name not in self.flags or not isinstance(value, bool):
                raise WrongSymbol(message, name)
        flags = {name: bool(variant.get(name, False)) for name in self.flags}
        for size in shape:
            if size not in (*self.sizes, *self.ranges):
                known = ", ".join((*self.sizes, *self.ranges))
                raise WrongSymbol(f"unknown size {size!r}; known: {known}", size)
        missing = [size for size in self.sizes if size not in shape]
        if missing:
            raise ValueError(f"the shape lacks {', '.join(missing)}")
        sizes: dict[str, int] = {}
        for size in self.sizes:
            value = shape[size]
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                message = f"expected {size} to be an integer of at least 1, got {value!r}"
                raise WrongSymbol(message, size)
            sizes[size] = value
        refusal = self.written.check({**sizes, **flags})
        if refusal:
            raise Refused(refusal)
        constants = {**self.constants, **self._constants(shape)}
        unusual = (f"{n}={v}" for n, v in constants.items() if v != self.constants[n])
        label = f"({','.join((*map(str, sizes.values()), *unusual))})"
        label = " ".join((label, *(name for name, value in flags.items() if value)))
        case = Case(label, {**sizes, **flags, **constants, "dtype": self.dtype})
        self._check_tensors(case)
        return case

    def tensors(self, case: Case) -> tuple[TensorSpec, ...]:
        return self._specs(tuple(self.sizes_of(case).items()))

    @functools.cached_property
    def _specs(self) -> Callable[[tuple[tuple[str, int], ...]], tuple[TensorSpec, ...]]:
        """The tensors for sizes and flags, kept since a plan asks several times for each of its
        thousands of cases."""

        @functools.lru_cache(maxsize=_KEPT_SPECS)
        def made(sizes: tuple[tuple[str, int], ...]) -> tuple[TensorSpec, ...]:
            return tuple(
                tensor.spec(name, self.dtype, is_output=method == "outputs")
                for method in ("inputs", "outputs")
                for name, tensor in self.written.described(method, dict(sizes)).items()
            )

        return made

    def flops(self, case: Case) -> int:
        return self.written.count("operations", self.sizes_of(case))

    def count_exponentials(self, case: Case) -> int:
        return self.written.count("exponentials", self.sizes_of(case))

    def bytes_moved(self, case: Case) -> int:
        return sum(spec.nbytes for spec in self.tensors(case))

    def scalars(self, case: Case) -> tuple[str, ...]:
        return tuple(self.ranges)

    def edge_cases(self, case: Case, kept: Collection[str] = ()) -> Sequence[Case]:
        return _user_cases.edge_cases(self, case, kept)

    def siblings(self, case: Case) -> Sequence[Case]:
        """The case with every choice of its flags."""
        shape = {**self._sizes(case), **self.constants_of(case)}
        choices = itertools.product((False, True), repeat=len(self.flags))
        return [self.case(shape, dict(zip(self.flags, each, strict=True))) for each in choices]

    def random_cases(
        self, cases: Sequence[Case], seed: int, kept: Collection[str] = ()
    ) -> Iterator[Case]:
        return _user_cases.random_cases(self, cases, seed, kept)

    def random_kinds(self, case: Case, number: int) -> Sequence[str]:
        """One kind, in turn; for a long case the spike: other kinds hardly show one element."""
        long = any(size > _LONG for size in self._sizes(case).values())
        if long and "spike" in self.input_kinds:
            return ("spike",)
        return (self.input_kinds[number % len(self.input_kinds)],)

    def formulas(self, case: Case) -> Mapping[str, tuple[str, str]]:
        return {}

    def called_case(
        self, shapes: Shapes, options: Mapping[str, Value], tuned: Sequence[Case]
    ) -> Case:
        """Solves for the sizes that give these shapes."""
        return solved_case(self, shapes, options, tuned)

    def place(self, case: Case) -> Place:
        sizes = self.sizes_of(case)
        elements = max(math.prod(spec.shape) for spec in self.tensors(case))
        free = {name: sizes[name] for name in self.free_sizes(())}
        constants = {
            name: self.constants_of(case).get(name, self.constants[name]) for name in self.constants
        }
        return Place(
            {name: case.symbols[name] for name in ("dtype", *self.fixed, *self.flags)},
            {**free, **constants, "elements": elements},
        )

    def make_inputs(self, case: Case, kind: str, seed: int, device: str = "cpu") -> Tensors:
        from evotune.problems import _user_torch

        return _user_torch.make_inputs(self, case, kind, seed, device)

    def altered_indices(
        self, case: Case, inputs: Tensors, name: str, most: int, rng: random.Random
    ) -> tuple[int, torch.Tensor] | None:
        from evotune.problems import _user_torch

        return _user_torch.altered_indices(self, case, inputs, name, most=most, rng=rng)

    def reference(self, case: Case, inputs: Tensors) -> Tensors:
        """`compute` on float64 copies; integers stay what they are."""
        from evotune.problems import _user_torch

        return _user_torch.reference(self, case, inputs)

    def tolerances(self, case: Case, inputs: Tensors, reference: Tensors) -> Tensors:
        from evotune.problems import _user_torch

        return _user_torch.tolerances(self, case, inputs, reference)

    def baselines(
        self, case: Case, inputs: Tensors, only: str = ""
    ) -> dict[str, Callable[[], Tensors]]:
        found = self.written.baselines({**inputs, **self.constants_of(case)})
        return {name: call for name, call in found.items() if only in ("", name)}

    @functools.cached_property
    def written(self) -> Written:
        """The methods that the user wrote, for evotune to call."""
        return Written(self, self.problem_file)

    def checked_reference(self, case: Case, inputs: Tensors) -> Tensors:
        """The answer of `reference`, which the user may override, checked like `compute`'s."""
        from evotune.problems import _user_torch

        with self.written.unchanged("reference", inputs):
            found = self.written.call("reference", case=case, inputs=inputs)
        return _user_torch.checked(self, case, "reference", found)

    def check_baselines(self, case: Case, inputs: Tensors) -> None:
        """Calls each baseline once; ProblemMistake when its outputs have wrong names, shapes or
        types."""
        shapes = self.output_shapes(case)
        dtypes = {s.name: torch_dtype(s.dtype) for s in self.tensors(case) if s.is_output}
        for name, call in self.baselines(case, inputs).items():
            self.written.baseline_outputs(name, call, inputs, shapes, dtypes)

    def output_shapes(self, case: Case) -> dict[str, tuple[int, ...]]:
        return {spec.name: spec.shape for spec in self.tensors(case) if spec.is_output}

    def sizes_of(self, case: Case) -> dict[str, int]:
        """Sizes and flags, as the methods get them."""
        return {**self._sizes(case), **self._flags(case)}

    def _sizes(self, case: Case) -> dict[str, int]:
        return {size: int(case.symbols[size]) for size in self.sizes}

    def _flags(self, case: Case) -> dict[str, bool]:
        return {name: bool(case.symbols[name]) for name in self.flags}

    def constants_of(self, case: Case) -> dict[str, Any]:
        return {name: float(case.symbols[name]) for name in self.ranges}

    def free_sizes(self, kept: Collection[str]) -> tuple[str, ...]:
        """The sizes that edge and random cases change."""
        return tuple(name for name in self.sizes if name not in {*self.fixed, *kept})

    def _constants(self, shape: Mapping[str, Value]) -> dict[str, float]:
        """The shape's values of constants with a range."""
        found = {}
        for name in self.ranges:
            value = shape.get(name, self.constants[name])
            if isinstance(value, bool | str) or not math.isfinite(value):
                raise WrongSymbol(f"expected {name} to be a number, got {value!r}", name)
            found[name] = float(value)
        return found

    def _check_tensors(self, case: Case) -> None:
        """Refuses a tensor without elements, whose result could not be judged."""
        specs = self.tensors(case)
        self.written.check_names(specs, case.symbols)
        for spec in specs:
            if any(extent < 1 for extent in spec.shape):
                raise Refused(f"{spec.name} has no elements, its shape is {spec.shape}")
