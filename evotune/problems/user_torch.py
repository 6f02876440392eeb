"""The tensor side of a user's problem: inputs, float64 reference, tolerances."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from evotune.problems.drawn_values import (
    all_digits,
    in_float16,
    index_values,
    masked_otherwise,
    near,
    size_of,
    spread_values,
    unmasked,
)
from evotune.problems.problem import (
    FLOAT8,
    INTEGERS,
    Case,
    Tensors,
    comparable,
    element_type,
    is_rounded,
    rounding_of,
    torch_dtype,
)
from evotune.problems.rounding_errors import rounding_errors
from evotune.problems.written import INDICES, STRUCTURED, Tolerance, WrittenProblem

Change: TypeAlias = "Callable[[torch.Tensor], torch.Tensor]"
_DEVIATIONS = 12.0
"""The tolerance for a right kernel, in standard deviations of rounding errors."""
_SMALLER, _TIMES = 0.25, 4
_AGREEING = 1e-3
"""How far float32 may be off, as a share of the largest value of a row, with far values."""


def make_inputs(problem: WrittenProblem, case: Case, kind: str, seed: int, device: str) -> Tensors:
    """Seeded inputs. Inputs for which `compute` gives NaN, infinity or values too large for an
    output's type are scaled down; if that is not enough, normal inputs are used.

    Large inputs have masked columns only if the result of `compute` does not depend on how low
    these are, and far values only if it is right in float32 too, where squares may overflow."""

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
        if fits(problem, case, problem.reference(case, inputs)):
            return inputs
    generator = torch.Generator(device).manual_seed(seed)
    return _made(problem, case, "normal", generator)


def _is_sound(
    problem: WrittenProblem, case: Case, inputs: Tensors, others: Sequence[Tensors]
) -> bool:
    """Whether `compute` gives the same for `others`, fits the outputs' types, and agrees with what
    it gives in float32, if a kernel may compute in that."""
    reference = problem.reference(case, inputs)
    if not fits(problem, case, reference):
        return False
    same = [problem.reference(case, each) for each in others if not _equal(each, inputs)]
    pairs = [(each, 0.0) for each in same]
    if any(s.is_output and s.dtype != "float64" for s in problem.tensors(case)):
        single = {n: v.float() if v.is_floating_point() else v for n, v in inputs.items()}
        arguments = {**single, **problem.given(case, "compute")}
        shapes = problem.output_shapes(case)
        in_float32 = problem.written.tensors("compute", arguments, shapes, dtypes={})
        pairs.append((in_float32, _AGREEING))
    return all(
        _agree(found[name], value, share) for found, share in pairs
        for name, value in reference.items()
    )  # fmt: skip


def _equal(some: Tensors, others: Tensors) -> bool:
    # torch compares no floats of 8 bits.
    pairs = ((comparable(some[n]), comparable(v)) for n, v in others.items())
    return all(bool((one.double() == other.double()).all()) for one, other in pairs)


def _agree(found: torch.Tensor, wanted: torch.Tensor, share: float) -> bool:
    """Whether all elements differ by at most this share of the largest one of their row. Integers
    must be equal."""
    if not is_rounded(wanted.dtype):
        return torch.equal(found.to(wanted.dtype), wanted)
    size = wanted.abs()
    allowed = share * (size.amax(-1, keepdim=True) if size.dim() else size)
    return bool(((found.to(wanted.dtype) - wanted).abs() <= allowed).all())


def fits(problem: WrittenProblem, case: Case, reference: Tensors) -> bool:
    """Whether the outputs' types hold the results, with room for a kernel's own sums."""
    for spec in problem.tensors(case):
        if spec.is_output:
            low, high = _limits(spec.dtype)
            value = comparable(reference[spec.name])
            if not bool(((value > low) & (value < high)).all()):
                return False
    return True


def can_follow(problem: WrittenProblem, case: Case, inputs: Tensors) -> bool:
    """Whether the inputs are valid in which a launch updated some: integers are still of their
    ranges, and numbers finite, and so are the results."""
    described = problem.written.described("inputs", problem.sizes_of(case))
    for name, value in inputs.items():
        values, numbers = described[name].values, comparable(value)
        if isinstance(values, range):
            low, high = (int(end) for end in torch.aminmax(numbers))
            if low < min(values[0], values[-1]) or high > max(values[0], values[-1]):
                return False
        elif not bool(numbers.double().isfinite().all()):
            return False
    return fits(problem, case, problem.reference(case, inputs))


def _limits(dtype: str) -> tuple[float, float]:
    """Values of an output lie between these two. A kernel's own sums may overflow at a quarter of
    the largest number. 8-bit floats are used up to that number, which scales aim at, so for them it
    is a little more: the number itself with the rounding errors of `compute`."""
    if dtype in INTEGERS:
        ends = torch.iinfo(torch_dtype("uint8" if dtype == "bool" else dtype))
        return (-math.inf, math.inf) if dtype == "int64" else (ends.min - 0.5, ends.max + 0.5)
    limits = torch.finfo(torch_dtype(dtype))
    most = limits.max / 4
    if dtype in FLOAT8:
        most = limits.max * (1.0 + limits.eps / 4)  # rounds to the largest number
    return -most, most


def _made(
    problem: WrittenProblem,
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
            with all_digits(dtype):
                values = spread_values(tensor.shape, *tensor.values, generator)
        elif name in indices:
            continue
        elif tensor.values == STRUCTURED:
            with all_digits(dtype):
                values = written.input(name, tensor.shape, kind, generator, dtype)
        else:
            with all_digits(dtype):
                values = written.input(name, tensor.shape, kind, generator, dtype)
            if dtype == torch.float16 and kind == "large":
                values = in_float16(values)
            parts = comparable(values)
            parts = (parts if change is None else change(parts)) * factor
            parts = _held(parts, dtype)
            values = torch.view_as_complex(parts.contiguous()) if dtype.is_complex else parts
        made[name] = values.to(dtype).contiguous()
    if indices:
        made |= written.indices(indices, kind, generator, sizes)
    return {name: made[name] for name in described}


def _held(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The values, at most the largest of the type. In 8-bit types torch gives NaN beyond it; in
    other types infinities may be intended."""
    largest = torch.finfo(dtype).max
    is_far = values.isnan() if element_type(dtype) in FLOAT8 else values.isinf()
    return torch.where(is_far, values, values.clamp(-largest, largest))


def altered_indices(
    problem: WrittenProblem,
    case: Case,
    inputs: Tensors,
    name: str,
    *,
    most: int,
    rng: random.Random,
) -> tuple[int, torch.Tensor] | None:
    """Other integers of a range, or other structured values, lengths and indices, which change as
    a whole. All tensors of indices get one draw for the same inputs and `most`, because they must
    match each other.
    """
    sizes = problem.sizes_of(case)
    described = problem.written.described("inputs", sizes)
    tensor = described[name]
    if tensor.values == STRUCTURED:
        old = inputs[name]
        seed = most + int(old.reshape(-1).view(torch.uint8).long().sum())
        generator = torch.Generator(old.device).manual_seed(seed)
        with all_digits(old.dtype):
            made = problem.written.input(name, tensor.shape, "normal", generator, old.dtype)
        return 0, made.to(old.dtype).flatten()
    if tensor.values == INDICES:
        specs = {spec.name: spec for spec in problem.tensors(case)}
        wanted = {n: specs[n] for n, each in described.items() if each.values == INDICES}
        seed = most + sum(int(inputs[each].sum()) for each in wanted)
        generator = torch.Generator(inputs[name].device).manual_seed(seed % (1 << 48))
        return 0, problem.written.indices(wanted, "normal", generator, sizes)[name].flatten()
    count = math.prod(tensor.shape)
    if not isinstance(tensor.values, range) or not count:
        return None
    some = min(count, rng.randint(1, most))
    values = [tensor.values[rng.randrange(size_of(tensor.values))] for _ in range(some)]
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


def reference(problem: WrittenProblem, case: Case, inputs: Tensors) -> Tensors:
    return checked(problem, case, "compute", _in_float64(problem, case, inputs))


def computed(problem: WrittenProblem, case: Case, inputs: Tensors, like: Tensors) -> Tensors:
    """What `compute` gives for some rows of the inputs; ProblemMistake unless it is of the shapes
    of `like`."""
    found = _in_float64(problem, case, inputs)
    return problem.written.outputs("compute", found, _shapes(like), {})


def _in_float64(problem: WrittenProblem, case: Case, inputs: Tensors) -> Any:
    copies = {name: _wide(value) for name, value in inputs.items()}
    return problem.written.call("compute", **copies, **problem.given(case, "compute"))


def _wide(value: torch.Tensor) -> torch.Tensor:
    if value.is_complex():
        return value.to(torch.complex128)
    return value.double() if value.is_floating_point() else value


def checked(problem: WrittenProblem, case: Case, method: str, found: Any) -> Tensors:
    """The method's answer as a reference in float64, or complex128. Integer outputs may come as any
    numbers; 64-bit integers, which float64 cannot represent, stay as they are."""
    rounded = {
        spec.name: torch.complex128 if spec.dtype == "complex64" else torch.float64
        for spec in problem.tensors(case)
        if spec.is_output and spec.dtype not in INTEGERS
    }
    outputs = problem.written.outputs(method, found, problem.output_shapes(case), rounded)
    return {
        name: value if value.dtype in (torch.int64, torch.complex128) else value.double()
        for name, value in outputs.items()
    }


def yardstick(
    problem: WrittenProblem, case: Case, inputs: Tensors, like: Tensors | None = None
) -> Tensors:
    """What `yardstick_of` returns. `like`: tensors of the outputs' shapes, if `inputs` are only
    some rows."""
    arguments = {**widened(problem.dtype, inputs), **problem.given(case, "yardstick_of")}
    shapes = problem.output_shapes(case) if like is None else _shapes(like)
    return problem.written.tensors("yardstick_of", arguments, shapes, dtypes={})


def _shapes(tensors: Tensors) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in tensors.items()}


def tolerances(problem: WrittenProblem, case: Case, inputs: Tensors, reference: Tensors) -> Tensors:
    """Rounding to the output's dtype plus the rounding errors of `compute` in float32. In a row
    where the error of `yardstick_of` exceeds that, plus twice the largest excess. Integers must be
    exact, and complex numbers have a tolerance for each part.

    An output in float64 is allowed twice the rounding errors of `compute` in float64, because the
    reference has them too. A problem's own tolerance takes the place of all but the rounding."""
    dtypes = {spec.name: torch_dtype(spec.dtype) for spec in problem.tensors(case)}
    if problem.tolerance is not None:
        return {
            name: _own_tolerance(problem.tolerance, value, dtypes[name])
            for name, value in reference.items()
        }
    reference = {name: v if v.is_complex() else v.double() for name, v in reference.items()}
    given = problem.given(case, "compute")
    compute = functools.partial(problem.written.call, "compute", **given)
    deviations = {
        in_float64: rounding_errors(compute, inputs, reference, in_float64=in_float64)
        for in_float64 in {dtypes[name] == torch.float64 for name in reference}
    }
    coarse = yardstick(problem, case, inputs, reference)
    allowed = {}
    for name, value in reference.items():
        in_float64 = dtypes[name] == torch.float64
        limit = rounding_of(comparable(value), dtypes[name])
        if is_rounded(dtypes[name]):
            limit += _DEVIATIONS * deviations[in_float64][name]
            limit *= 2.0 if in_float64 else 1.0
            off = comparable(coarse[name].to(value.dtype) - value).abs()
            # An overflow in the yardstick excuses nothing.
            beyond = (off - limit).clamp_(min=0).nan_to_num_(0.0, 0.0, 0.0)
            dims = (-2, -1) if value.is_complex() and value.dim() else -1
            limit += 2 * (beyond.amax(dims, keepdim=True) if beyond.dim() else beyond)
        allowed[name] = torch.view_as_complex(limit) if value.is_complex() else limit
    return allowed


def _own_tolerance(
    tolerance: Tolerance, reference: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    values = comparable(reference if reference.is_complex() else reference.double())
    limit = rounding_of(values, dtype)
    if is_rounded(dtype):
        limit += tolerance.absolute + tolerance.relative * values.abs()
    return torch.view_as_complex(limit) if reference.is_complex() else limit
