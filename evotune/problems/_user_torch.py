"""The tensor side of a user's problem: inputs, float64 reference, tolerances."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from evotune.problems._monte_carlo import rounding_errors
from evotune.problems._user_inputs import index_values, spread_values
from evotune.problems._user_tensors import INDICES
from evotune.problems.element_types import FLOAT8, element_type, torch_dtype
from evotune.problems.problem import Case, Tensors
from evotune.problems.rounding import rounding_of

if TYPE_CHECKING:
    from evotune.problems.user import UserProblem

_DEVIATIONS = 12.0
"""The tolerance for a right kernel, in standard deviations of rounding errors."""
_SMALLER, _TIMES = 0.25, 4


def make_inputs(problem: UserProblem, case: Case, kind: str, seed: int, device: str) -> Tensors:
    """Seeded inputs. Where `compute` gives NaN, infinity or values too large for an output's type,
    the inputs are made smaller several times, and in the end normal."""
    largest = {
        spec.name: _largest(spec.dtype)
        for spec in problem.tensors(case)
        if spec.is_output and torch_dtype(spec.dtype).is_floating_point
    }
    for times in range(0 if kind == "normal" else _TIMES):
        generator = torch.Generator(device).manual_seed(seed)
        inputs = _made(problem, case, kind, generator, _SMALLER**times)
        found = problem.reference(case, inputs)
        if all(bool((found[name].abs() < most).all()) for name, most in largest.items()):
            return inputs
    return _made(problem, case, "normal", torch.Generator(device).manual_seed(seed), 1.0)


def _largest(dtype: str) -> float:
    """Numbers of an output lie below it. A kernel's own sums may overflow at a quarter of the
    largest number. 8-bit floats are used up to that number, which scales aim at, so for them it is
    a little more: the number itself with the rounding errors of `compute`."""
    limits = torch.finfo(torch_dtype(dtype))
    if dtype in FLOAT8:
        return limits.max * (1.0 + limits.eps / 4)  # rounds to the largest number
    return limits.max / 4


def _made(
    problem: UserProblem, case: Case, kind: str, generator: torch.Generator, factor: float
) -> Tensors:
    written, sizes = problem.written, problem.sizes_of(case)
    described = written.described("inputs", sizes)
    specs = {spec.name: spec for spec in problem.tensors(case)}
    indices = {name: specs[name] for name, each in described.items() if each.values == INDICES}
    made: Tensors = {}
    for name, tensor in described.items():
        dtype = torch_dtype(specs[name].dtype)
        if isinstance(tensor.values, range):
            values = index_values(tensor.shape, tensor.values, kind, generator)
        elif isinstance(tensor.values, tuple):
            values = spread_values(tensor.shape, *tensor.values, generator)
        elif name in indices:
            continue
        else:
            values = written.input(name, tensor.shape, kind, generator) * factor
            if specs[name].dtype in FLOAT8:  # beyond its largest value torch gives NaN
                most = torch.finfo(dtype).max
                values = values.clamp(-most, most)
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
