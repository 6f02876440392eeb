"""A problem of your own: a small class in a Python file next to the space.

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

`compute` is written with PyTorch and has three uses. On float64 copies of the inputs it is the
reference. Its rounding errors in float32 are the candidates' tolerance (or twice the error of its
result in the problem's own dtype, if that is larger). As `torch:eager` it is a baseline. Import
torch inside the methods: the process of `evotune run` reads the file too, without torch.
"""

from __future__ import annotations

import abc
import functools
import itertools
import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from evotune.problems.pair_cover import (
    COARSE,
    WORD,
    PairCover,
    SizeClass,
    Sizes,
    beyond,
    last_odd,
    length_classes,
    past_words,
    round_beyond,
    significant,
    single,
)
from evotune.problems.problem import (
    Case,
    Place,
    Tensors,
    TensorSpec,
    WrongSymbol,
    grouped,
    torch_dtype,
)
from evotune.problems.written import (
    GivenShapes,
    ProblemFile,
    Tensor,
    Tolerance,
    Written,
    solved_case,
)
from evotune.trial import Value

if TYPE_CHECKING:
    import torch


_LONG = 1200
_KEPT_SPECS = 4096  # cases whose tensors are cached


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
    """Sizes that edge and random shapes must not change, because they are compiled in or the kernel
    depends on them."""
    constants: ClassVar[Mapping[str, float]] = {}
    """Further names for expressions and arguments: `eps`, …"""
    ranges: ClassVar[Mapping[str, tuple[float, float] | range]] = {}
    """Ranges of constants: numbers as (least, most), or a `range` of integers. A kernel that gets
    such a constant as an argument must be right in the whole range: edge and random cases draw from
    it (uniformly in the logarithm if both ends are positive). `compute`, `baselines_of` and
    `yardstick_of` get the constants by name along with the tensors. A shape of the space may set
    them too."""

    flags: ClassVar[tuple[str, ...]] = ()
    """Names of variants that are true or false: `variants: [{has_bias: true}]`. Methods get them by
    name along with the sizes; kernels compile them in or get them as arguments."""
    tolerance: ClassVar[Tolerance | None] = None
    """A tolerance of its own in place of the one that evotune derives, with the reason."""
    optional: ClassVar[tuple[str, ...]] = ()
    """Tensors that `inputs` or `outputs` leaves out for some flags. A kernel gets a null pointer
    for a tensor that its case lacks, and `compute` is called without it."""

    problem_file = ProblemFile("", "", b"")
    """The file of the class; the reader of the file sets it."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    # --- to be written -----------------------------------------------------------------------

    @abc.abstractmethod
    def inputs(self, **sizes: int) -> Mapping[str, tuple[int, ...] | Tensor]:
        """The shape of every tensor that the kernel reads, by name, or a `Tensor` that says
        more."""

    @abc.abstractmethod
    def outputs(self, **sizes: int) -> Mapping[str, tuple[int, ...] | Tensor]:
        """The shape of every tensor that the kernel writes, by name, or a `Tensor` that says more.
        The kernel must write every element. Tensors that it updates in place are `InOut` in
        `inputs` alone.
        """

    @abc.abstractmethod
    def operations(self, **sizes: int) -> int:
        """The number of floating point operations. A kernel whose speed would exceed the device's
        peak is refused."""

    @abc.abstractmethod
    def compute(self, **inputs: torch.Tensor) -> Tensors:
        """The outputs by name, in the inputs' dtype, on their device. It may list sizes, flags and
        constants beside the tensors."""

    # --- may be written ----------------------------------------------------------------------

    def exponentials(self, **sizes: int) -> int:
        """The number of exponentials that any kernel must compute. `evotune explain` counts them as
        work."""
        return 0

    def baselines_of(self, **inputs: torch.Tensor) -> Mapping[str, Callable[[], Tensors]]:
        """Baselines: functions without arguments, by `torch:NAME`. Each must be correct."""
        from evotune.problems import user_torch

        return {"torch:eager": lambda: self.compute(**user_torch.widened(self.dtype, inputs))}

    def yardstick_of(self, **inputs: torch.Tensor) -> Tensors:
        """A coarser result that you still accept. If its error exceeds the tolerance, a kernel's
        error may be up to twice as large as its error."""
        return self.compute(**inputs)

    def same(
        self,
        outputs: Mapping[str, torch.Tensor],
        reference: Mapping[str, torch.Tensor],
        inputs: Mapping[str, Any],
    ) -> bool:
        """Whether the outputs are a right answer, if several are: ties in any order, any valid
        answer. It replaces the comparison with the reference, and so decides alone. The tensors are
        by name; `reference` is what `compute` gives in float64, and `inputs` has sizes and
        constants too. Two equal launches must still give equal outputs.
        """
        raise NotImplementedError

    def make_indices(
        self, kind: str, generator: torch.Generator, **sizes: int
    ) -> Mapping[str, torch.Tensor]:
        """The inputs whose values are "indices": lengths and indices that match each other, on the
        generator's device. Make awkward ones: empty, full, shuffled, shared.
        """
        raise NotImplementedError("inputs has indices, so the problem must write make_indices")

    def check(self, **sizes: int) -> None:  # noqa: B027 (a problem may do without)
        """Raises ValueError, one line, for sizes that are invalid together."""

    def make_input(
        self, name: str, shape: tuple[int, ...], kind: str, generator: torch.Generator
    ) -> torch.Tensor:
        """float32 values of one input, on the generator's device; float64 ones of a float64 tensor,
        and integers of a structured tensor of integers. Complex numbers may come as such, or as
        their parts in two calls.

        - normal: N(0, 1).
        - large: rows in turn are 32 times that, 150 to 300 off zero, rising or falling by 240 to
          300: an exponential, or a square in half precision, overflows or vanishes. Others are 600
          to 1e6 off zero, or have a third of their columns at -1e4 or the lowest number.
        - ramp: values that count, so that a misplaced one shows; every fifth row is zero, -0 first,
          another fifth begins with a zero.
        - spike: a value of 6.5 to 13 in each row of small ones; in some rows several equal ones.
        """
        from evotune.problems import drawn_values

        return drawn_values.input_values(shape, kind, generator)

    # --- for evotune: implements `evotune.problems.problem.Problem` -------------------------------

    def case(self, shape: Mapping[str, Value], variant: Mapping[str, Value]) -> Case:
        """The case of a shape. Raises ValueError, one line, if the shape is invalid."""
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
        """The tensors for sizes and flags, cached because a plan needs them several times for each
        of its thousands of cases."""

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
        return sum(spec.nbytes * (1 + spec.is_updated) for spec in self.tensors(case))

    def scalars(self, case: Case) -> tuple[str, ...]:
        return tuple(self.ranges)

    def edge_cases(self, case: Case, kept: Collection[str] = ()) -> Sequence[Case]:
        return edge_cases(self, case, kept)

    def siblings(self, case: Case) -> Sequence[Case]:
        """The case with every choice of its flags."""
        shape = {**self._sizes(case), **self.constants_of(case)}
        choices = itertools.product((False, True), repeat=len(self.flags))
        return [self.case(shape, dict(zip(self.flags, each, strict=True))) for each in choices]

    def random_cases(
        self, cases: Sequence[Case], seed: int, kept: Collection[str] = ()
    ) -> Iterator[Case]:
        return random_cases(self, cases, seed, kept)

    def random_kinds(self, case: Case, number: int) -> Sequence[str]:
        """One kind of inputs, in turn. For a long case it is `spike`, because other kinds hardly
        show an error of one element."""
        long = any(size > _LONG for size in self._sizes(case).values())
        if long and "spike" in self.input_kinds:
            return ("spike",)
        return (self.input_kinds[number % len(self.input_kinds)],)

    def formulas(self, case: Case) -> Mapping[str, tuple[str, str]]:
        return {}

    def called_case(
        self, shapes: GivenShapes, options: Mapping[str, Value], tuned: Sequence[Case]
    ) -> Case:
        """See `Problem.called_case`. Solves for the sizes that give these shapes."""
        return solved_case(self, shapes, options, tuned)

    def place(self, case: Case) -> Place:
        sizes = self.sizes_of(case)
        elements = max(math.prod(spec.shape) for spec in self.tensors(case))
        free = {name: sizes[name] for name in self.free_sizes(())}
        ranged = self.constants_of(case)
        # Those with a range are floats, as integers would be lengths, which are executed in pairs.
        constants = {
            name: float(ranged[name]) if name in ranged else value
            for name, value in self.constants.items()
        }
        return Place(
            {name: case.symbols[name] for name in ("dtype", *self.fixed, *self.flags)},
            {**free, **constants, "elements": elements},
        )

    def make_inputs(self, case: Case, kind: str, seed: int, device: str = "cpu") -> Tensors:
        from evotune.problems import user_torch

        return user_torch.make_inputs(self, case, kind, seed, device)

    def altered_indices(
        self, case: Case, inputs: Tensors, name: str, most: int, rng: random.Random
    ) -> tuple[int, torch.Tensor] | None:
        from evotune.problems import user_torch

        return user_torch.altered_indices(self, case, inputs, name, most=most, rng=rng)

    def reference(self, case: Case, inputs: Tensors) -> Tensors:
        """The result of `compute` on float64 copies of the inputs; integer inputs keep their
        type."""
        from evotune.problems import user_torch

        return user_torch.reference(self, case, inputs)

    def tolerances(self, case: Case, inputs: Tensors, reference: Tensors) -> Tensors:
        from evotune.problems import user_torch

        return user_torch.tolerances(self, case, inputs, reference)

    def baselines(
        self, case: Case, inputs: Tensors, only: str = ""
    ) -> dict[str, Callable[[], Tensors]]:
        found = self.written.baselines({**inputs, **self.given(case, "baselines_of")})
        return {name: call for name, call in found.items() if only in ("", name)}

    @functools.cached_property
    def written(self) -> Written:
        """The methods that the user wrote, for evotune to call."""
        return Written(self, self.problem_file)

    def checked_reference(self, case: Case, inputs: Tensors) -> Tensors:
        """The result of `reference`, which the user may override, checked like that of
        `compute`."""
        from evotune.problems import user_torch

        with self.written.unchanged("reference", inputs):
            found = self.written.call("reference", case=case, inputs=inputs)
        return user_torch.checked(self, case, "reference", found)

    def check_baselines(self, case: Case, inputs: Tensors) -> None:
        """Calls each baseline once. Raises ProblemMistake if its outputs have wrong names, shapes
        or types."""
        shapes = self.output_shapes(case)
        dtypes = {s.name: torch_dtype(s.dtype) for s in self.tensors(case) if s.is_output}
        for name in self.baselines(case, inputs):
            own = {tensor: value.clone() for tensor, value in inputs.items()}
            call = self.baselines(case, own)[name]
            self.written.baseline_outputs(name, call, own, shapes, dtypes)

    @property
    def has_same(self) -> bool:
        """Whether the problem judges outputs itself."""
        return type(self).same is not UserProblem.same

    def refusal(self, case: Case, outputs: Tensors, answer: Tensors, inputs: Tensors) -> str:
        """Why the problem's `same` does not accept the outputs; "" if it does."""
        from evotune.problems import accepted_answers

        return accepted_answers.refusal(self, case, outputs, answer, inputs)

    def output_ranges(self, case: Case) -> dict[str, range]:
        """The ranges of integer outputs that the problem states, and those of bools, by name."""
        described = self.written.described("outputs", self.sizes_of(case))
        ranges = {name: each.values for name, each in described.items()}
        bools = {spec.name: range(2) for spec in self.tensors(case) if spec.dtype == "bool"}
        return bools | {name: each for name, each in ranges.items() if isinstance(each, range)}

    def symbols_of(self, case: Case) -> dict[str, Any]:
        """Sizes, flags and constants by name."""
        return {name: value for name, value in case.symbols.items() if name != "dtype"}

    def output_shapes(self, case: Case) -> dict[str, tuple[int, ...]]:
        return {spec.name: spec.shape for spec in self.tensors(case) if spec.is_output}

    def sizes_of(self, case: Case) -> dict[str, int]:
        """The sizes and flags of a case, in the form in which the user's methods get them."""
        return {**self._sizes(case), **self._flags(case)}

    def _sizes(self, case: Case) -> dict[str, int]:
        return {size: int(case.symbols[size]) for size in self.sizes}

    def _flags(self, case: Case) -> dict[str, bool]:
        return {name: bool(case.symbols[name]) for name in self.flags}

    def constants_of(self, case: Case) -> dict[str, Any]:
        return {name: case.symbols[name] for name in self.ranges}

    def given(self, case: Case, method: str) -> dict[str, Any]:
        """What the method gets by name along with tensors: the constants with a range, and sizes,
        flags and other constants that it lists."""
        listed = self.written.named(method)
        known = {**self.sizes_of(case), **{name: case.symbols[name] for name in self.constants}}
        return {n: value for n, value in known.items() if n in self.ranges or n in listed}

    def free_sizes(self, kept: Collection[str]) -> tuple[str, ...]:
        """The sizes that edge and random cases change."""
        return tuple(name for name in self.sizes if name not in {*self.fixed, *kept})

    def _constants(self, shape: Mapping[str, Value]) -> dict[str, float]:
        """The shape's values of constants with a range."""
        found = {}
        for name, values in self.ranges.items():
            value = shape.get(name, self.constants[name])
            whole = isinstance(values, range)
            if isinstance(value, bool | str) or not math.isfinite(value):
                kind = "an integer" if whole else "a number"
                raise WrongSymbol(f"expected {name} to be {kind}, got {value!r}", name)
            if isinstance(values, range) and value not in values:
                raise WrongSymbol(f"expected {name} to be one of {values}, got {value!r}", name)
            found[name] = int(value) if whole else float(value)
        return found

    def _check_tensors(self, case: Case) -> None:
        """Refuses a tensor without elements, whose result could not be judged."""
        specs = self.tensors(case)
        if not any(spec.is_output for spec in specs):
            message = "outputs names no tensor, a kernel needs at least one"
            raise self.written.mistake("outputs", message)
        self.written.check_names(specs, case.symbols)
        for spec in specs:
            if any(extent < 1 for extent in spec.shape):
                raise Refused(f"{spec.name} has no elements, its shape is {spec.shape}")


_EDGE_COST = (1 << 28, 1 << 24)  # operations and bytes
_ORDINARY_COST = (1 << 27, 1 << 24)
_LARGE_COST = (1 << 31, 5 << 26)
_MOST_REFUSED = 100


class Refused(ValueError):
    """Raised for sizes that are invalid together."""


def edge_cases(problem: UserProblem, case: Case, kept: Collection[str]) -> list[Case]:
    """Small and odd sizes, the `fixed` ones as in the case. In the last two, constants with a range
    are at its ends."""
    like, found = _Like(problem, case, kept), []
    for number, candidates in enumerate(edge_sizes(problem.free_sizes(kept))):
        constants = {
            name: ends[-(number % 2)] if number >= 2 else float(case.symbols[name])
            for name, ends in problem.ranges.items()
        }
        made = like.first(candidates, constants, _EDGE_COST)
        found += [] if made is None else [made]
    return found


def random_cases(
    problem: UserProblem, cases: Sequence[Case], seed: int, kept: Collection[str]
) -> Iterator[Case]:
    """Cases of `random_sizes`, alternating over the groups of cases with the same `fixed` and kept
    sizes. They end when a hundred consecutive draws give no case, or when cases cannot differ."""
    rng = random.Random(seed)
    free = problem.free_sizes(kept)
    longest = {name: max(int(case.symbols[name]) for case in cases) for name in free}
    same = [name for name in (*problem.sizes, *problem.flags) if name not in free]
    streams = [
        (like, random_sizes(rng, free, longest, like.accept))
        for like in (_Like(problem, alike[-1], kept) for alike in grouped(cases, same))
    ]
    refused = 0
    while True:
        for like, drawn in rng.sample(streams, len(streams)):
            sizes = next(drawn)
            refused = refused + 1 if sizes is None else 0
            if sizes is not None:
                yield like.case(sizes, like.drawn_constants(rng))
            if refused == _MOST_REFUSED:
                return
        if not free and set(problem.ranges) <= set(kept):
            return


@dataclass(frozen=True, slots=True)
class _Like:
    """Makes cases with the fixed and kept sizes of `base`, and with its flags."""

    problem: UserProblem
    base: Case
    kept: Collection[str]

    def case(self, sizes: Sizes, constants: Mapping[str, float]) -> Case:
        own = {name: int(self.base.symbols[name]) for name in self.problem.sizes}
        shape: dict[str, Value] = {**own, **sizes, **constants}
        shape |= {name: self.base.symbols[name] for name in self.kept if name in shape}
        return self.problem.case(shape, {n: self.base.symbols[n] for n in self.problem.flags})

    def accept(
        self, candidates: Iterable[Sizes], *, large: bool, elements: int = 0
    ) -> Sizes | None:
        """See `_user_sizes.Accept`."""
        cost = _LARGE_COST if large else _ORDINARY_COST
        found = self.first(candidates, self.problem.constants_of(self.base), cost, elements)
        if found is None:
            return None
        return {name: int(found.symbols[name]) for name in self.problem.free_sizes(self.kept)}

    def first(
        self,
        candidates: Iterable[Sizes],
        constants: Mapping[str, float],
        cost: tuple[int, int],
        elements: int = 0,
    ) -> Case | None:
        """A case of the first valid candidate that costs at most `cost` in operations and bytes and
        has a tensor of more than this many elements; None if there is none. If sizes are fixed or
        kept, a case may always cost as much as the base."""
        operations, nbytes = cost
        if self.problem.fixed or self.kept:
            operations = max(operations, self._own_cost[0])
            nbytes = max(nbytes, self._own_cost[1])
        for sizes in candidates:
            try:
                case = self.case(sizes, constants)
            except Refused:
                continue
            most = max(math.prod(spec.shape) for spec in self.problem.tensors(case))
            cheap = self.problem.flops(case) <= operations
            if cheap and self.problem.bytes_moved(case) <= nbytes and most > elements:
                return case
        return None

    def drawn_constants(self, rng: random.Random) -> dict[str, float]:
        """Constants with a range; every second one is the case's own."""
        return {
            name: _draw(rng, ends) if rng.random() < 0.5 else float(self.base.symbols[name])
            for name, ends in self.problem.ranges.items()
        }

    @property
    def _own_cost(self) -> tuple[int, int]:
        return self.problem.flops(self.base), self.problem.bytes_moved(self.base)


def _draw(rng: random.Random, values: tuple[float, float] | range) -> float:
    """A number of three digits, or an integer of a range, drawn uniformly, in the logarithm if both
    ends are positive."""
    least, most = sorted((values[0], values[-1]))
    if least > 0:
        drawn = math.exp(rng.uniform(math.log(least), math.log(most)))
    else:
        drawn = rng.uniform(least, most)
    if isinstance(values, range):
        return values[round((drawn - values.start) / values.step)]
    return significant(drawn)


_EDGES = ((1, 1, 1, 1), (3, 5, 7, 2), (17, 63, 65, 19), (67, 1087, 31, 34))
_IF_TOO_LARGE = ((67, 129, 31, 34), (13, 37, 11, 34))
_MULTIPLES = (1, 8, 64)
_MOST_BESIDE_LARGE = 9
_ATTEMPTS = 16
_SPECIAL_EVERY = 2
_MANY_ELEMENTS = 1 << 24  # the least number that float32 does not count by one
_CANDIDATES = 4


class Accept(Protocol):
    """Tries sizes one after the other. Returns the sizes of the first case that is valid, is not
    too large and has a tensor of the given number of elements; None if there is none.
    """

    def __call__(
        self, candidates: Sequence[Sizes], *, large: bool, elements: int = 0
    ) -> Sizes | None: ...


def edge_sizes(names: Sequence[str]) -> Iterator[list[Sizes]]:
    """Yields four lists of small and odd sizes. In each the wanted sizes come first, then
    replacements to use if they are too large."""
    for wanted in _EDGES:
        others = _IF_TOO_LARGE if wanted == _EDGES[-1] else ()
        yield [_cycled(names, numbers) for numbers in (wanted, *others)]


def random_sizes(
    rng: random.Random, names: Sequence[str], longest: Mapping[str, int], accept: Accept
) -> Iterator[Sizes | None]:
    """Yields sizes without end; None for an attempt that gave no case.

    About the first hundred meet each pair of classes of two sizes. In turn with these, each size is
    once the space's longest odd one, well beyond it, a round one beyond it, multiples of 4,096 and
    lengths past 16 and 17 bits, while the others are small; then a tensor has more than 2^24
    elements.
    """

    def settled(sizes: Sizes, asked: Collection[str], cost: int) -> Sizes | None:
        beside = {n: size if n in asked else min(size, _beside(rng)) for n, size in sizes.items()}
        whole = _multiples(beside) if cost > 1 else _less_and_less(sizes, asked)
        return accept(whole, large=cost > 1)

    cover = PairCover(rng, list(_classes(names)), settled, candidates=_CANDIDATES)
    special = [
        [{n: size if n == name else _beside(rng) for n in names} for size in sizes]
        for name in names
        for sizes in _large(rng, longest[name])
    ]
    rng.shuffle(special)
    covered = iter(cover)
    for number in itertools.count():
        found: Sizes | None = None
        if names and special and number % _SPECIAL_EVERY == 0:
            wanted = [each for sizes in special.pop() for each in _multiples(sizes)]
            found = accept(wanted, large=True)
            if not special and found is not None:
                special_elements = _many_elements(rng, names)
                many = accept(special_elements, large=True, elements=_MANY_ELEMENTS)
                if many is not None:
                    yield many
        if found is not None:
            cover.met(found)
            yield found
        else:
            yield next(covered) if names else accept([{}], large=False)


def _classes(names: Sequence[str]) -> Iterator[SizeClass]:
    for name in names:
        yield from length_classes(name, long_cost=2, exact_cost=lambda length: 1 + length // 600)
        over = single(
            name, f"{name} over 1,000", lambda n: n > 1000, lambda rng: rng.randint(1001, 1400)
        )
        yield replace(over, level=COARSE, weight=2.0, cost=2)


def _large(rng: random.Random, longest: int) -> Iterator[tuple[int, ...]]:
    """Large sizes, each with what to take in its place if it is too large."""
    yield (last_odd(longest),)
    yield (beyond(rng, longest),)
    yield (round_beyond(rng, longest),)
    yield past_words(rng), WORD // 2 + 2 * rng.randint(0, 99) + 1
    yield 70_000 + rng.randint(0, 9999), past_words(rng)
    yield 2 * WORD + 2 * rng.randint(0, 999) + 1, past_words(rng)
    yield (4096,)
    yield (4096 * rng.choice((2, 3, 5)),)


def _many_elements(rng: random.Random, names: Sequence[str]) -> list[Sizes]:
    """Sizes such that one of them, or the product of two, is just above 2^24."""
    count = min(2, len(names))
    found = []
    for large in itertools.combinations(names, count):
        size = round(_MANY_ELEMENTS ** (1 / count)) + rng.randint(1, 40)
        found.append({name: size if name in large else 1 for name in names})
    rng.shuffle(found)
    return [each for sizes in found for each in _multiples(sizes)]


def _beside(rng: random.Random) -> int:
    """Another size in a shape with a large one."""
    return rng.randint(1, _MOST_BESIDE_LARGE)


def _less_and_less(sizes: Sizes, asked: Collection[str]) -> list[Sizes]:
    """The sizes and their multiples of 8 and 64. Then the same again and again, each time with the
    largest size cut to about a third (one that was not requested, as long as there is one). It
    keeps its remainder mod 16 while it is large."""
    found = []
    for _ in range(_ATTEMPTS):
        found += _multiples(sizes)
        if not sizes or max(sizes.values()) == 1:
            break
        free = [name for name in sizes if name not in asked and sizes[name] > 1] or list(sizes)
        name = max(free, key=lambda name: sizes[name])
        third = sizes[name] // 3
        kept = third - third % 16 + sizes[name] % 16
        sizes = {**sizes, name: kept if 16 < kept < sizes[name] else third | 1}
    return found


def _multiples(sizes: Sizes) -> list[Sizes]:
    """The sizes, and the next multiples of 8 and 64 for kernels that take only those."""
    return [{name: -(-size // m) * m for name, size in sizes.items()} for m in _MULTIPLES]


def _cycled(names: Sequence[str], values: Sequence[int]) -> Sizes:
    return {name: values[place % len(values)] for place, name in enumerate(names)}
