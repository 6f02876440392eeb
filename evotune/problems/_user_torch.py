"""The tensor side of a user's problem: inputs, float64 reference, tolerances."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from evotune.problems._monte_carlo import rounding_errors
from evotune.problems._user_inputs import (
    in_float16,
    index_values,
    masked_otherwise,
    near,
    spread_values,
    unmasked,
)
from evotune.problems._user_tensors import INDICES
from evotune.problems.element_types import FLOAT8, element_type, torch_dtype
from evotune.problems.problem import Case, Tensors
from evotune.problems.rounding import rounding_of

if TYPE_CHECKING:
    from evotune.problems.user import UserProblem

Change: TypeAlias = "Callable[[torch.Tensor], torch.Tensor]"
_DEVIATIONS = 12.0
"""The tolerance for a right kernel, in standard deviations of rounding errors."""
_SMALLER, _TIMES = 0.25, 4
_AGREEING = 1e-3
"""How far float32 may be off, as a share of the largest value of a row, with far values."""


def make_inputs(problem: UserProblem, case: Case, kind: str, seed: int, device: str) -> Tensors:
    """Seeded inputs. Where `compute` gives NaN, infinity or values too large for an output's type,
    the inputs are made smaller several times, and in the end normal.

    Large inputs have masked columns only where `compute` gives the same however low these are, and
    far values only where it is right in float32 too: the squares of some overflow there."""

    def made(factor: float = 1.0, change: Change | None = None) -> Tensors:
        generator = torch.Generator(device).manual_seed(seed)
        return _made(problem, case, kind, generator, factor=factor, change=change)

    if kind == "large":
        for changes in ((None, masked_otherwise), (unmasked,)):
            inputs, *others = (made(change=change) for change in changes)
            if _is_sound(problem, case, inputs, others):
                return inputs
    for times in range(0 if kind == "normal" else _TIMES):
        keeps_far = kind == "ramp" or (kind == "spike" and times == 0)
        inputs = made(_SMALLER**times, None if keeps_far else near)
        if _fits(problem, case, problem.reference(case, inputs)):
            return inputs
    generator = torch.Generator(device).manual_seed(seed)
    return _made(problem, case, "normal", generator)


def _is_sound(problem: UserProblem, case: Case, inputs: Tensors, others: Sequence[Tensors]) -> bool:
    """Whether `compute` gives the same for `others`, fits the outputs' types, and agrees with what
    it gives in float32."""
    reference = problem.reference(case, inputs)
    if not _fits(problem, case, reference):
        return False
    single = {n: v.float() if v.is_floating_point() else v for n, v in inputs.items()}
    arguments = {**single, **problem.constants_of(case)}
    in_float32 = problem.written.tensors(
        "compute", arguments, problem.output_shapes(case), dtypes={}
    )
    same = [problem.reference(case, each) for each in others if not _equal(each, inputs)]
    pairs = [(each, 0.0) for each in same] + [(in_float32, _AGREEING)]
    return all(
        _agree(found[name], value, share) for found, share in pairs
        for name, value in reference.items()
    )  # fmt: skip


def _equal(some: Tensors, others: Tensors) -> bool:
    # torch compares no floats of 8 bits.
    return all(bool((some[n].double() == v.double()).all()) for n, v in others.items())


def _agree(found: torch.Tensor, wanted: torch.Tensor, share: float) -> bool:
    """Whether all elements differ by at most this share of the largest one of their row. Integers
    must be equal."""
    if not wanted.dtype.is_floating_point:
        return torch.equal(found.to(wanted.dtype), wanted)
    size = wanted.abs()
    allowed = share * (size.amax(-1, keepdim=True) if size.dim() else size)
    return bool(((found.double() - wanted).abs() <= allowed).all())


def _fits(problem: UserProblem, case: Case, reference: Tensors) -> bool:
    for spec in problem.tensors(case):
        if spec.is_output:
            low, high = _limits(spec.dtype)
            value = reference[spec.name]
            if not bool(((value > low) & (value < high)).all()):
                return False
    return True


def _limits(dtype: str) -> tuple[float, float]:
    """Values of an output lie between these two. A kernel's own sums may overflow at a quarter of
    the largest number. 8-bit floats are used up to that number, which scales aim at, so for them it
    is a little more: the number itself with the rounding errors of `compute`."""
    if not torch_dtype(dtype).is_floating_point:
        ends = torch.iinfo(torch_dtype(dtype))
        return (-math.inf, math.inf) if dtype == "int64" else (ends.min - 0.5, ends.max + 0.5)
    limits = torch.finfo(torch_dtype(dtype))
    most = limits.max / 4
    if dtype in FLOAT8:
        most = limits.max * (1.0 + limits.eps / 4)  # rounds to the largest number
    return -most, most


def _made(
    problem: UserProblem,
    case: Case,
    kind: str,
    generator: torch.Generator,
    *,
    factor: float = 1.0,
    change: Change | None = None,
) -> Tensors:
    """`change` is made to what `make_input` made. `near` holds for integers of a range too."""
    written, sizes = problem.written, problem.sizes_of(case)
    described = written.described("inputs", sizes)
    specs = {spec.name: spec for spec in problem.tensors(case)}
    indices = {name: specs[name] for name, each in described.items() if each.values == INDICES}
    made: Tensors = {}
    for name, tensor in described.items():
        dtype = torch_dtype(specs[name].dtype)
        if isinstance(tensor.values, range):
            far = change is not near
            values = index_values(tensor.shape, tensor.values, kind, generator, far=far)
        elif isinstance(tensor.values, tuple):
            values = spread_values(tensor.shape, *tensor.values, generator)
        elif name in indices:
            continue
        else:
            values = written.input(name, tensor.shape, kind, generator)
            if dtype == torch.float16 and kind == "large":
                values = in_float16(values)
            values = (values if change is None else change(values)) * factor
            largest = torch.finfo(dtype).max
            held = values.clamp(-largest, largest)
            # Of 8 bits torch gives NaN beyond the largest value; elsewhere infinities may be meant.
            is_far = values.isinf() if specs[name].dtype not in FLOAT8 else values.isnan()
            values = torch.where(is_far, values, held)
        made[name] = values.to(dtype).contiguous()
    if indices:
        made |= written.indices(indices, kind, generator, sizes)
    return {name: made[name] for name in described}


def altered_indices(
    problem: UserProblem,
    case: Case,
    inputs: Tensors,
    name: str,
    *,
    most: int,
    rng: random.Random,
) -> tuple[int, torch.Tensor] | None:
    """Other integers of a range, or other lengths and places, which change as a whole. All tensors
    of these get one draw for the same inputs and `most`, since they must fit together."""
    sizes = problem.sizes_of(case)
    tensor = problem.written.described("inputs", sizes)[name]
    if tensor.values == INDICES:
        wanted = {spec.name: spec for spec in problem.tensors(case) if spec.is_steady}
        seed = most + sum(int(inputs[each].sum()) for each in wanted)
        generator = torch.Generator(inputs[name].device).manual_seed(seed % (1 << 48))
        return 0, problem.written.indices(wanted, "normal", generator, sizes)[name].flatten()
    count = math.prod(tensor.shape)
    if not isinstance(tensor.values, range) or not count:
        return None
    some = min(count, rng.randint(1, most))
    values = [rng.choice(tensor.values) for _ in range(some)]
    place = rng.randrange(count - some + 1)
    return place, torch.tensor(values, dtype=torch_dtype(tensor.dtype))


def widened(dtype: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs with those of 8-bit floats in the problem's own dtype: torch computes nothing with
    them."""
    return {
        name: value.to(torch_dtype(dtype))
        if isinstance(value, torch.Tensor) and element_type(value.dtype) in FLOAT8
        else value
        for name, value in inputs.items()
    }


def reference(problem: UserProblem, case: Case, inputs: Tensors) -> Tensors:
    return checked(problem, case, "compute", _in_float64(problem, case, inputs))


def computed(problem: UserProblem, case: Case, inputs: Tensors, like: Tensors) -> Tensors:
    """What `compute` gives for some rows of the inputs; ProblemMistake unless it is of the shapes
    of `like`."""
    found = _in_float64(problem, case, inputs)
    return problem.written.outputs("compute", found, _shapes(like), {})


def _in_float64(problem: UserProblem, case: Case, inputs: Tensors) -> Any:
    copies = {
        name: value.double() if value.is_floating_point() else value
        for name, value in inputs.items()
    }
    return problem.written.call("compute", **copies, **problem.constants_of(case))


def checked(problem: UserProblem, case: Case, method: str, found: Any) -> Tensors:
    """The method's answer as a reference in float64. Outputs that are integers may come as any
    numbers; those of 64 bits, which float64 does not hold, stay as they are."""
    floats = {
        spec.name: torch.float64
        for spec in problem.tensors(case)
        if spec.is_output and torch_dtype(spec.dtype).is_floating_point
    }
    outputs = problem.written.outputs(method, found, problem.output_shapes(case), floats)
    return {
        name: value if value.dtype == torch.int64 else value.double()
        for name, value in outputs.items()
    }


def yardstick(
    problem: UserProblem, case: Case, inputs: Tensors, like: Tensors | None = None
) -> Tensors:
    """What `yardstick_of` gives. `like`: tensors of the outputs' shapes, where `inputs` are some
    rows alone."""
    arguments = {**widened(problem.dtype, inputs), **problem.constants_of(case)}
    shapes = problem.output_shapes(case) if like is None else _shapes(like)
    return problem.written.tensors("yardstick_of", arguments, shapes, dtypes={})


def _shapes(tensors: Tensors) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in tensors.items()}


def tolerances(problem: UserProblem, case: Case, inputs: Tensors, reference: Tensors) -> Tensors:
    """Rounding to the output's dtype plus the rounding errors of `compute` in float32. In a row
    where `yardstick_of` is off by more than that, plus twice the largest excess. Integers must be
    exact."""
    dtypes = {spec.name: torch_dtype(spec.dtype) for spec in problem.tensors(case)}
    reference = {name: value.double() for name, value in reference.items()}
    ranged = problem.constants_of(case)
    compute = functools.partial(problem.written.call, "compute", **ranged)
    deviations = rounding_errors(compute, inputs, reference)
    coarse = yardstick(problem, case, inputs, reference)
    allowed = {}
    for name, value in reference.items():
        limit = rounding_of(value, dtypes[name])
        if not dtypes[name].is_floating_point:
            allowed[name] = limit
            continue
        limit += _DEVIATIONS * deviations[name]
        off = (coarse[name].double() - value).abs()
        # An overflow in the yardstick excuses nothing.
        beyond = (off - limit).clamp_(min=0).nan_to_num_(0.0, 0.0, 0.0)
        row = beyond.amax(-1, keepdim=True) if beyond.dim() else beyond
        allowed[name] = limit + 2 * row
    return allowed
