"""The tensor side of a user's problem: inputs, float64 reference, tolerances."""

from __future__ import annotations

import functools
import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode

from evotune.problems.problem import (
    FLOAT8,
    Case,
    Tensors,
    element_type,
    rounding_of,
    table_on,
    torch_dtype,
)
from evotune.problems.written import INDICES, WrittenProblem

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
        if _fits(problem, case, problem.reference(case, inputs)):
            return inputs
    generator = torch.Generator(device).manual_seed(seed)
    return _made(problem, case, "normal", generator)


def _is_sound(
    problem: WrittenProblem, case: Case, inputs: Tensors, others: Sequence[Tensors]
) -> bool:
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


def _fits(problem: WrittenProblem, case: Case, reference: Tensors) -> bool:
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
            # In 8-bit types torch gives NaN beyond the largest value; in other types infinities may
            # be intended.
            is_far = values.isinf() if specs[name].dtype not in FLOAT8 else values.isnan()
            values = torch.where(is_far, values, held)
        made[name] = values.to(dtype).contiguous()
    if indices:
        made |= written.indices(indices, kind, generator, sizes)
    return {name: made[name] for name in described}


def altered_indices(
    problem: WrittenProblem,
    case: Case,
    inputs: Tensors,
    name: str,
    *,
    most: int,
    rng: random.Random,
) -> tuple[int, torch.Tensor] | None:
    """Other integers of a range, or other lengths and indices, which change as a whole. All tensors
    of these get one draw for the same inputs and `most`, because they must match each other.
    """
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


def reference(problem: WrittenProblem, case: Case, inputs: Tensors) -> Tensors:
    return checked(problem, case, "compute", _in_float64(problem, case, inputs))


def computed(problem: WrittenProblem, case: Case, inputs: Tensors, like: Tensors) -> Tensors:
    """What `compute` gives for some rows of the inputs; ProblemMistake unless it is of the shapes
    of `like`."""
    found = _in_float64(problem, case, inputs)
    return problem.written.outputs("compute", found, _shapes(like), {})


def _in_float64(problem: WrittenProblem, case: Case, inputs: Tensors) -> Any:
    copies = {
        name: value.double() if value.is_floating_point() else value
        for name, value in inputs.items()
    }
    return problem.written.call("compute", **copies, **problem.constants_of(case))


def checked(problem: WrittenProblem, case: Case, method: str, found: Any) -> Tensors:
    """The method's answer as a reference in float64. Integer outputs may come as any numbers;
    64-bit integers, which float64 cannot represent, stay as they are."""
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
    problem: WrittenProblem, case: Case, inputs: Tensors, like: Tensors | None = None
) -> Tensors:
    """What `yardstick_of` returns. `like`: tensors of the outputs' shapes, if `inputs` are only
    some rows."""
    arguments = {**widened(problem.dtype, inputs), **problem.constants_of(case)}
    shapes = problem.output_shapes(case) if like is None else _shapes(like)
    return problem.written.tensors("yardstick_of", arguments, shapes, dtypes={})


def _shapes(tensors: Tensors) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in tensors.items()}


def tolerances(problem: WrittenProblem, case: Case, inputs: Tensors, reference: Tensors) -> Tensors:
    """Rounding to the output's dtype plus the rounding errors of `compute` in float32. In a row
    where the error of `yardstick_of` exceeds that, plus twice the largest excess. Integers must be
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


# Estimates the effect of rounding in float32 on a computation written with PyTorch.
#
# The computation runs several times in float64, each time with every result of an operation moved
# by a random amount, as float32 might round it (Monte Carlo arithmetic: Parker, Pierce and Eggert,
# Computing in Science and Engineering, 2000). Sums are moved by the error of an addition in any
# order: sqrt(n) units of the sum of the magnitudes. Inputs are moved by a unit too: a kernel may be
# right for inputs that float32 cannot distinguish from these. And a softmax may be exp(x -
# logsumexp(x)), whose error is a unit of |x| and of the highest x, of the largest |x| at most.
_UNIT = 2.0**-24  # of float32
_IN_ORDER = 0.45
"""Standard deviation of one rounding in a sum, in units: at most 1/sqrt(3), less on average."""
_FEW = 3.0
"""Units in the last place that an exponential, a root, ... may be off."""
_RUNS, _RUNS_OF_MANY, _MANY = 6, 4, 1 << 20  # elements
_SIZE = 64.0
_SIGN_BITS, _SIZE_BITS = -0x7F7F7F7F7F7F7F80, 0x4040404040404040
"""The highest bit of each of eight bytes, and the one below it. A byte with the second bit alone is
_SIZE, and with both -_SIZE."""
_SMALL, _LEAST_ROW = 1 << 17, 1 << 13  # elements; signs
_ENOUGH = 8  # elements that a row needs for a quantile of them to mean something
_SAMPLE = 512  # elements of a row that show its quantiles

_ATEN, _PRIMS = torch.ops.aten, torch.ops.prims
_MATRICES = {  # operation -> which argument has the summed dimension last
    _ATEN.mm: 0,
    _ATEN.bmm: 0,
    _ATEN.mv: 0,
    _ATEN.dot: 0,
    _ATEN.addmm: 1,
    _ATEN.baddbmm: 1,
    _ATEN.addbmm: 1,
    _ATEN.addmv: 1,
    _ATEN.vdot: 0,
}
_SUMS = {
    *(_ATEN.sum, _ATEN.mean, _ATEN.nansum, _ATEN.cumsum, _ATEN.trace, _ATEN.avg_pool2d),
    *(_ATEN.scatter_add, _ATEN.scatter_add_, _ATEN.index_add, _ATEN.index_add_),
    *(_PRIMS.sum, _PRIMS.var),  # that operations are decomposed into
}
_BASIC = {
    _ATEN.add,
    _ATEN.sub,
    _ATEN.rsub,
    _ATEN.mul,
    _ATEN.div,
    _ATEN.add_,
    _ATEN.sub_,
    _ATEN.mul_,
}
_EXACT = {
    *(_ATEN.neg, _ATEN.abs, _ATEN.amax, _ATEN.amin, _ATEN.max, _ATEN.min, _ATEN.maximum),
    *(_ATEN.minimum, _ATEN.relu, _ATEN.where, _ATEN.clone, _ATEN.copy_, _ATEN._to_copy),
    *(_ATEN.masked_fill, _ATEN.masked_fill_, _ATEN.fill_, _ATEN.zero_, _ATEN.cat, _ATEN.stack),
    *(_ATEN.gather, _ATEN.index_select, _ATEN.index, _ATEN.clamp, _ATEN.round, _ATEN.floor),
    *(_ATEN.sort, _ATEN.topk, _ATEN.flip, _ATEN.roll, _ATEN.constant_pad_nd, _ATEN.sign),
    *(_ATEN.arange, _ATEN.full, _ATEN.zeros, _ATEN.ones, _ATEN.empty, _ATEN.new_zeros),
    *(_ATEN.zeros_like, _ATEN.ones_like, _ATEN.empty_like, _ATEN.full_like, _ATEN.new_empty),
    *(_ATEN.scalar_tensor, _ATEN.eye, _ATEN.tril, _ATEN.triu, _ATEN.repeat, _ATEN.linspace),
}
_SOFTMAX = {_ATEN._softmax, _ATEN._log_softmax, _ATEN._safe_softmax}
_IN_PARTS = {
    *_SOFTMAX,
    *(_ATEN.logsumexp, _ATEN.native_layer_norm, _ATEN.native_group_norm, _ATEN._fused_rms_norm),
    *(_ATEN.var, _ATEN.var_mean, _ATEN.std, _ATEN.std_mean, _ATEN.linalg_vector_norm),
    _ATEN._scaled_dot_product_flash_attention_for_cpu,
    *(_ATEN.gelu, _ATEN.silu, _ATEN.mish, _ATEN.softplus, _ATEN.log_sigmoid_forward, _ATEN.elu),
    *(_ATEN.native_batch_norm, _ATEN._adaptive_avg_pool2d, _ATEN.mse_loss, _ATEN.huber_loss),
    *(_ATEN.nll_loss_forward, _ATEN.nll_loss2d_forward, _ATEN.smooth_l1_loss),
    *(_ATEN.binary_cross_entropy, _ATEN.binary_cross_entropy_with_logits),
}
"""Operations with several roundings inside, which are decomposed first."""


class _Noise:
    """Random signs on one device. Drawing each one separately would take longer than everything
    else here. The signs of small tensors begin at a random place in a row of signs that was drawn
    before; others are made from random bytes, and each draw overwrites the one before."""

    def __init__(self, device: torch.device) -> None:
        self._generator = torch.Generator(device)
        self._places = random.Random()
        self._words = torch.empty(0, dtype=torch.int64, device=device)
        self._numbers: dict[torch.dtype, torch.Tensor] = {}
        self._rows: dict[torch.dtype, torch.Tensor] = {}

    def start(self, seed: int) -> None:
        self._generator.manual_seed(seed)
        self._places.seed(seed)

    def add_to(self, value: torch.Tensor, by: torch.Tensor, most: float) -> None:
        """Adds `by` times a random sign to each element of `value`, with the standard deviation of
        uniform numbers between -most and most."""
        value.addcmul_(by, self._draw(value), value=most / (math.sqrt(3.0) * _SIZE))

    def _draw(self, like: torch.Tensor) -> torch.Tensor:
        """Either -_SIZE or _SIZE for each element, in the shape and dtype of `like`."""
        count = like.numel()
        if count <= _SMALL:
            signs = self._signs(like, 2 * count)
            place = self._places.randrange(len(signs) - count + 1)
            return signs[place : place + count].view(like.shape)
        if count > 8 * len(self._words):
            self._words = self._words.new_empty((count + 7) // 8)
        words = _draw_signs(self._words[: (count + 7) // 8], self._generator)
        numbers = self._numbers.get(like.dtype)
        if numbers is None or len(numbers) < count:
            numbers = torch.empty(count, dtype=like.dtype, device=like.device)
            self._numbers[like.dtype] = numbers
        return numbers[:count].copy_(words.view(torch.int8)[:count]).view(like.shape)

    def _signs(self, like: torch.Tensor, least: int) -> torch.Tensor:
        """A row of at least this many random signs. It is not reused for another estimate, because
        a candidate that runs in between may write anywhere."""
        known = self._rows.get(like.dtype)
        if known is None or len(known) < least:
            words = self._words.new_empty((max(least, _LEAST_ROW) + 7) // 8)
            generator = torch.Generator(like.device).manual_seed(least)
            known = _draw_signs(words, generator).view(torch.int8).to(like.dtype)
            self._rows[like.dtype] = known
        return known


def _draw_signs(words: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Fills the words with bytes that are either -_SIZE or _SIZE."""
    words.random_(-(1 << 63), None, generator=generator)
    return words.bitwise_and_(_SIGN_BITS).bitwise_or_(_SIZE_BITS)


class _Rounding(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Moves the result of each operation as the module's docstring says."""

    def __init__(self, noise: _Noise) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._noise = noise

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: else PyTorch imports its compiler, which takes long, only to have it leave
        `__torch_dispatch__` as it is. `rounding_errors` sees to that."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet = func.overloadpacket
        parts = _parts_of(func)
        if parts is not None:
            with self:
                result = parts(*args, **kwargs)
            if packet in _SOFTMAX:
                # Columns that are masked by a very low number do not change the others' errors.
                x = args[0]
                largest = x.abs().amax(args[1], keepdim=True)
                size = torch.minimum(x.abs() + x.amax(args[1], keepdim=True).abs(), largest)
                size = size.nan_to_num(0.0, 0.0, 0.0)
                by = size if packet is _ATEN._log_softmax else size * result
                self._noise.add_to(result, by, _UNIT)
            return result
        lost = self._lost_in_sums(func, args, kwargs)
        result = func(*args, **kwargs)
        if _is_exact(func):
            return result
        units = 1.0 if packet in _BASIC or lost is not None else _FEW
        first = result[0] if isinstance(result, (tuple, list)) else result
        for each in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(each, torch.Tensor) and each.is_floating_point():
                self._noise.add_to(each, each, units * _UNIT)
        if lost is not None:
            self._noise.add_to(first, lost.nan_to_num_(0.0, 0.0, 0.0), 1.0)
        return result

    @staticmethod
    def _lost_in_sums(func: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
        """sqrt(n) units of the sum of n magnitudes; None if nothing is added up. It includes the
        factor that gives uniform numbers the standard deviation of rounding errors."""
        packet = func.overloadpacket
        if packet in _MATRICES:
            count = args[_MATRICES[packet]].shape[-1]
        elif packet is _ATEN.convolution:
            weight, transposed, groups = args[1], args[6], args[8]
            outputs = weight.shape[1] * groups if transposed else weight.shape[0]
            count = weight.numel() / outputs
        elif packet is _ATEN.trace:
            count = min(args[0].shape)
        elif packet is _ATEN.avg_pool2d:
            count = args[1][0] * args[1][-1]  # of a window; one number is both sides
        elif packet in _SUMS:
            count = None
        else:
            return None
        of_terms = args if packet is _PRIMS.var else map(_absolute, args)  # its terms are squares
        magnitudes = func(*of_terms, **kwargs)
        if not magnitudes.is_floating_point():
            return None
        if count is None:
            terms = max(each.numel() for each in args if isinstance(each, torch.Tensor))
            count = terms / max(1, magnitudes.numel())
            if packet is _ATEN.cumsum:
                count = args[0].shape[args[1]] if args[0].dim() else 1
        lost: torch.Tensor = magnitudes * (math.sqrt(3 * count) * _IN_ORDER * _UNIT)
        return lost


def rounding_errors(
    compute: Callable[..., Tensors], inputs: Mapping[str, torch.Tensor], reference: Tensors
) -> Tensors:
    """The standard deviation of each element of the outputs, in float64. An element whose few runs
    agree by chance gets the deviation at the lower quartile of its row."""
    if "torch._dynamo" in sys.modules:  # `compute` may have compiled parts
        compute = torch.compiler.disable(compute)  # type: ignore[no-untyped-call]
    runs = _RUNS if max(each.numel() for each in reference.values()) <= _MANY else _RUNS_OF_MANY
    squares = {name: torch.zeros_like(value) for name, value in reference.items()}
    noise = _Noise(next(iter(inputs.values())).device)
    for run in range(runs):
        noise.start(run)
        moved = {
            name: _moved(value, noise) if value.is_floating_point() else value
            for name, value in inputs.items()
        }
        with _Rounding(noise):
            found = compute(**moved)
        for name, value in reference.items():
            off = found[name].double() - value
            squares[name] += off.square_().nan_to_num_(0.0, 0.0, 0.0)
    return {
        name: _smoothed((square / runs).sqrt_(), reference[name])
        for name, square in squares.items()
    }


def _moved(value: torch.Tensor, noise: _Noise) -> torch.Tensor:
    moved = value.to(torch.float64, copy=True)  # a unit of float32 is too small for float16
    noise.add_to(moved, moved, _UNIT)
    return moved


def _smoothed(deviation: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Raises each deviation to the lower quartile of its row, and its share of the value to the
    lower quartile of the row's shares: of millions of elements a few have runs that agree by
    chance. The quartiles of long rows are those of a sample."""
    columns = deviation.shape[-1] if deviation.dim() else 1
    if columns < _ENOUGH:
        columns = deviation.numel()
    rows, values = deviation.reshape(-1, columns), reference.abs().reshape(-1, columns)
    step = (columns + _SAMPLE - 1) // _SAMPLE | 1  # odd: many patterns of columns are even
    some, of_some = rows[:, ::step], values[:, ::step]
    quarter = (some.shape[1] + 3) // 4
    least = some.kthvalue(quarter, dim=1, keepdim=True).values
    shares = (some / of_some).nan_to_num_(math.inf, math.inf)  # else inf becomes a finite number
    share = shares.kthvalue(quarter, dim=1, keepdim=True).values
    of_value = values.mul_(share).nan_to_num_(0.0, 0.0)
    return torch.maximum(torch.maximum(rows, least), of_value).view(deviation.shape)


def _absolute(value: Any) -> Any:
    """The magnitudes of a tensor. Other tensors are copied: the operation may write to one."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.abs() if value.is_floating_point() else value.clone()


@functools.cache
def _is_exact(func: Any) -> bool:
    """Whether the operation rounds nothing, as it copies elements or is a view of them."""
    return func.overloadpacket in _EXACT or any(
        each.alias_info is not None and not each.alias_info.is_write
        for each in func._schema.returns
    )


@functools.cache
def _parts_of(func: Any) -> Callable[..., Any] | None:
    """The operation as a function of simpler ones; None if it is simple itself."""
    if func in _WRITTEN:
        return _WRITTEN[func]
    if func.overloadpacket in _IN_PARTS and func in decomposition_table:
        return decomposition_table[func]
    return None


def _softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """As PyTorch decomposes it, without the checks of types, which take longer than small sums."""
    weights = x.sub(x.amax(dim, keepdim=True)).exp_() if x.numel() else x
    return weights.div(weights.sum(dim, keepdim=True))


_WRITTEN = {_ATEN._softmax.default: _softmax}


_TRAITS = 5
_LARGE_TRAITS = ("spread", "above", "far", "below", "rising", "far", "falling", "masked")
_SPIKES = (12.5, 6.5, 11.0, 8.0, 13.0, 9.5)
_SHORT = 64  # columns
_NEIGHBOURS = (2.0**-23, 2.0**-7, 2.0**-10)  # a unit in the last place of 1, by type
_FAR = (-2e4, 2e4, -1e6, 1e6, -600.0)
_FAR_SPREAD = 0.1
"""As a share of the value: sums of nearly equal numbers have rounding errors that add up."""
_MASKED = (-1e4, torch.finfo(torch.float32).min)
NEAR = 512.0
"""All rows but far ones, and masked columns, lie within it."""
_NEARER, _NEAREST = 2.0**-6, 300.0
_BEYOND_FLOAT16, _BEYOND_FAR = 6e4, 1e8
_NEAR_AN_END = 256


def input_values(shape: tuple[int, ...], kind: str, generator: torch.Generator) -> torch.Tensor:
    """float32 values on the generator's device."""
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
            # Zeros of both signs are equal, so the first one of a row is its highest value.
            signed = torch.where(torch.arange(columns, device=device) % 2 == 0, -0.0, 0.0)
            rows[turn % _TRAITS == 0] = signed
            rows[turn % _TRAITS == 1, 0] = 0.0  # another one only begins with a zero
    elif kind == "spike":
        rows = _spikes(rows, turn)
    return rows.reshape(shape)


def _large(rows: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    columns, device = rows.shape[1], rows.device
    step = turn // len(_LARGE_TRAITS)
    share = step % _TRAITS / (_TRAITS - 1)

    def has(trait: str) -> torch.Tensor:
        names = [place for place, name in enumerate(_LARGE_TRAITS) if name == trait]
        return torch.isin(turn % len(_LARGE_TRAITS), table_on(device, names))

    far = table_on(device, _FAR)[
        (2 * step + (turn % len(_LARGE_TRAITS) > _LARGE_TRAITS.index("far"))) % len(_FAR)
    ]
    shift = (has("above").float() - has("below").float()) * (150.0 + 150.0 * share)
    shift = torch.where(has("far"), far, shift)
    slope = (has("rising").float() - has("falling").float()) * (120.0 + 30.0 * share)
    spread = torch.where(has("spread"), 32.0, 1.0)
    spread = torch.where(has("far"), _FAR_SPREAD * far.abs(), spread)
    along = torch.linspace(-1.0, 1.0, columns, device=device)
    made = rows * spread[:, None] + shift[:, None] + slope[:, None] * along
    # About a third of the columns, at the end or in between; never all.
    column = torch.arange(columns, device=device)
    masked = torch.where(
        (turn % 2 == 0)[:, None], column % 3 == 1, column >= (2 * columns + 2) // 3
    )
    floor = table_on(device, _MASKED)[step % len(_MASKED)]
    return torch.where(masked & has("masked")[:, None], floor[:, None], made)


def in_float16(values: torch.Tensor) -> torch.Tensor:
    """The values of far rows that float16 does not hold, made smaller."""
    beyond = (values.abs() > _BEYOND_FLOAT16) & (values.abs() < _BEYOND_FAR)
    return torch.where(beyond, values / 32.0, values)


def masked_otherwise(values: torch.Tensor) -> torch.Tensor:
    """The values with each masked column as low as those of other rows are."""
    one, other = _MASKED
    return torch.where(values == one, other, torch.where(values == other, one, values))


def unmasked(values: torch.Tensor) -> torch.Tensor:
    """The values with zeros in masked columns."""
    return torch.where((values == _MASKED[0]) | (values == _MASKED[1]), 0.0, values)


def near(values: torch.Tensor) -> torch.Tensor:
    """The values without masked columns, and with far rows no farther than others."""
    values = unmasked(values)
    is_far = (values.abs() > NEAR) & values.isfinite()
    return torch.where(is_far, (values * _NEARER).clamp(-_NEAREST, _NEAREST), values)


def _spikes(rows: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Rows alternate among one spike, several equal ones, and a spike that is a unit in the last
    place above the spike before it. In every other row it lies in the last sixteenth. The last
    element of a row is half as high."""
    columns, device = rows.shape[1], rows.device
    row = torch.arange(len(rows), device=device)
    heights = table_on(device, _SPIKES)[turn % len(_SPIKES)]
    anywhere = turn * 7919 % columns
    place = torch.where(turn % 2 == 0, columns - 1 - turn * 31 % (columns // 16 + 1), anywhere)
    trait, part = turn // 2 % 3, turn // 6 % len(_NEIGHBOURS)
    rows = rows * 0.1
    if columns > _SHORT:  # of a long row the last element alone would not show if it were lost
        rows[:, -1] = 0.5 * heights
    rows[row, place] = heights
    after = [(place + step).clamp(max=columns - 1) for step in (1, 37, 1025)]
    for other in after:
        rows[row, other] = torch.where(trait == 1, heights, rows[row, other])
    unit = table_on(device, _NEIGHBOURS)[part]
    higher = torch.exp2(heights.log2().floor()) * (1.0 + unit)
    lower = torch.exp2(heights.log2().floor())
    before = (place - 1 - turn % 3).clamp(min=0)
    is_pair = (trait == 2) & (before < place)
    rows[row, before] = torch.where(is_pair, lower, rows[row, before])
    rows[row, place] = torch.where(is_pair, higher, rows[row, place])
    return rows


def index_values(
    shape: tuple[int, ...],
    values: range,
    kind: str,
    generator: torch.Generator,
    *,
    far: bool = True,
) -> torch.Tensor:
    """int64 integers of a range. normal: any; large: its two ends; ramp: all in order, cyclically;
    spike: one number throughout. With `far`, rows of large alternate among the two ends, numbers
    near one end, and numbers near the other. Rows of spike alternate among the one number, an odd
    number near one end, and an odd number near the other. So sums are large, and sums of all stay
    within int64."""
    device = generator.device
    drawn = torch.randint(len(values), shape, generator=generator, device=device)
    count = torch.arange(drawn.numel(), device=device).reshape(shape)
    if kind == "large":
        ends = (drawn + count) % 2 * (len(values) - 1)
        drawn = _near_ends(drawn, ends, values, generator) if far and shape else ends
    elif kind == "ramp":
        drawn = count % len(values)
    elif kind == "spike":
        one = int(drawn.flatten()[0])
        drawn = torch.full_like(drawn, one)
        drawn = _one_near_ends(drawn, one, values, generator) if far and shape else drawn
    return values.start + drawn * values.step


def _near_ends(
    drawn: torch.Tensor, ends: torch.Tensor, values: range, generator: torch.Generator
) -> torch.Tensor:
    """Numbers near the ends of the range: see `index_values`."""
    first, last = _summed(values, drawn.numel())
    if first > last:
        return ends
    turn = _turns(drawn, generator)
    some = drawn % min(_NEAR_AN_END, last - first + 1)
    return torch.where(turn == 0, ends, torch.where(turn == 1, last - some, first + some))


def _one_near_ends(
    drawn: torch.Tensor, one: int, values: range, generator: torch.Generator
) -> torch.Tensor:
    """Odd numbers near one end of the range: see `index_values`. Even ones would hide the rounding
    of a floating-point sum."""
    first, last = _summed(values, drawn.numel())
    if first > last:
        return drawn
    some = one % min(_NEAR_AN_END, last - first + 1)
    low, high = (
        number if values[number] % 2 else min(max(number + step, first), last)
        for number, step in ((first + some, 1), (last - some, -1))
    )
    turn = _turns(drawn, generator)
    turn = turn.clamp(min=1) if turn.numel() == 1 else turn  # a single row is at an end
    return torch.where(turn == 0, drawn, torch.where(turn == 1, high, low))


def _summed(values: range, count: int) -> tuple[int, int]:
    """The smallest and the largest value of which `count` can be added within int64. The smallest
    exceeds the largest if there is no such value."""
    most = (1 << 62) // max(1, count)
    places = sorted((end - values.start) // values.step for end in (-most, most))
    return max(0, places[0] + 1), min(len(values) - 1, places[1])


def _turns(drawn: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """0, 1 or 2 for each row."""
    turn = torch.randint(3, (1,), generator=generator, device=drawn.device)
    rows = torch.arange(math.prod(drawn.shape[:-1]), device=drawn.device)
    return (turn + rows).reshape(*drawn.shape[:-1], 1) % 3


def spread_values(
    shape: tuple[int, ...], least: float, most: float, generator: torch.Generator
) -> torch.Tensor:
    """float32 numbers from `least` to `most`, drawn evenly in the logarithm."""
    share = torch.rand(shape, generator=generator, device=generator.device)
    return torch.exp(math.log(least) + share * (math.log(most) - math.log(least)))
