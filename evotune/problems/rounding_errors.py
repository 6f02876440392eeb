"""Estimates the effect of rounding on a computation written with PyTorch.

The computation runs several times in float64, each time with every result of an operation moved
by a random amount, as float32 might round it (Monte Carlo arithmetic: Parker, Pierce and Eggert,
Computing in Science and Engineering, 2000). Sums are moved by the error of an addition in any
order: sqrt(n) units of the sum of the magnitudes. Inputs are moved by a unit too: a kernel may be
right for inputs that float32 cannot distinguish from these. And a softmax may be exp(x -
logsumexp(x)), whose error is a unit of |x| and of the highest x, of the largest |x| at most.

The effect of rounding in float64 is in proportion to the unit, as long as the unit is small. But
float64 itself cannot hold moves of its own unit. So the moves are 2^15 times as large, and the
result is divided by that: the rounding of float64 during the estimate is a small part of them.

A complex number is moved by parts.
"""

from __future__ import annotations

import functools
import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode

from evotune.problems.problem import Tensors, comparable, is_rounded

_UNIT = 2.0**-24  # of float32
_WIDER, _UNIT_OF_FLOAT64 = 2.0**15, 2.0**-53
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
_BY_PARTS = {*_BASIC} - {_ATEN.mul, _ATEN.div, _ATEN.mul_}
"""Operations on complex numbers that are two on real ones."""
_EXACT = {
    *(_ATEN.neg, _ATEN.abs, _ATEN.amax, _ATEN.amin, _ATEN.max, _ATEN.min, _ATEN.maximum),
    *(_ATEN.minimum, _ATEN.relu, _ATEN.where, _ATEN.clone, _ATEN.copy_, _ATEN._to_copy),
    *(_ATEN.masked_fill, _ATEN.masked_fill_, _ATEN.fill_, _ATEN.zero_, _ATEN.cat, _ATEN.stack),
    *(_ATEN.gather, _ATEN.index_select, _ATEN.index, _ATEN.clamp, _ATEN.round, _ATEN.floor),
    *(_ATEN.sort, _ATEN.topk, _ATEN.flip, _ATEN.roll, _ATEN.constant_pad_nd, _ATEN.sign),
    *(_ATEN.arange, _ATEN.full, _ATEN.zeros, _ATEN.ones, _ATEN.empty, _ATEN.new_zeros),
    *(_ATEN.zeros_like, _ATEN.ones_like, _ATEN.empty_like, _ATEN.full_like, _ATEN.new_empty),
    *(_ATEN.complex, _ATEN.view_as_complex, _ATEN._conj_physical),
    *(_ATEN.scalar_tensor, _ATEN.eye, _ATEN.tril, _ATEN.triu, _ATEN.repeat, _ATEN.linspace),
}
_FOURIER = {_ATEN._fft_c2c, _ATEN._fft_r2c, _ATEN._fft_c2r}
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

    def __init__(self, device: torch.device, unit: float) -> None:
        """`unit`: half a unit in the last place of 1, in the arithmetic that is estimated."""
        self.unit = unit
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
        uniform numbers between -most and most. `by` is real for both parts of complex numbers
        alike, or complex for each part."""
        if value.is_complex():
            parts = (by if by.is_complex() else torch.complex(by, by)).expand(value.shape)
            self.add_to(torch.view_as_real(value), torch.view_as_real(parts.resolve_conj()), most)
            return
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
                self._noise.add_to(result, by, self._noise.unit)
            return result
        lost = self._lost_in_sums(func, args, kwargs)
        result = func(*args, **kwargs)
        if _is_exact(func) and not (packet is _ATEN.abs and args[0].is_complex()):
            return result
        units = 1.0 if packet in _BASIC or lost is not None else _FEW
        first = result[0] if isinstance(result, (tuple, list)) else result
        for each in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(each, torch.Tensor) and is_rounded(each.dtype):
                # A part of a product, or of a function, is a difference of both parts' terms.
                size = each.abs() if each.is_complex() and packet not in _BY_PARTS else each
                self._noise.add_to(each, size, units * self._noise.unit)
        if lost is not None:
            self._noise.add_to(first, lost.nan_to_num_(0.0, 0.0, 0.0), 1.0)
        return result

    def _lost_in_sums(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
        """sqrt(n) units of the sum of n magnitudes; None if nothing is added up. It includes the
        factor that gives uniform numbers the standard deviation of rounding errors."""
        packet = func.overloadpacket
        if packet in _FOURIER:
            return _lost_in_stages(packet, *args) * self._noise.unit
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
        lost: torch.Tensor = magnitudes * (math.sqrt(3 * count) * _IN_ORDER * self._noise.unit)
        return lost


def rounding_errors(
    compute: Callable[..., Tensors],
    inputs: Mapping[str, torch.Tensor],
    reference: Tensors,
    *,
    in_float64: bool = False,
) -> Tensors:
    """The standard deviation of each element of the outputs, in float64, by the parts of complex
    ones. An element whose few runs agree by chance gets the deviation at the lower quartile of its
    row. With `in_float64` the roundings are those of float64, else of float32."""
    if "torch._dynamo" in sys.modules:  # `compute` may have compiled parts
        compute = torch.compiler.disable(compute)  # type: ignore[no-untyped-call]
    runs = _RUNS if max(each.numel() for each in reference.values()) <= _MANY else _RUNS_OF_MANY
    squares = {name: torch.zeros_like(comparable(each)) for name, each in reference.items()}
    wider = _WIDER if in_float64 else 1.0
    unit = _WIDER * _UNIT_OF_FLOAT64 if in_float64 else _UNIT
    noise = _Noise(next(iter(inputs.values())).device, unit)
    for run in range(runs):
        noise.start(run)
        moved = {
            name: _moved(value, noise) if is_rounded(value.dtype) else value
            for name, value in inputs.items()
        }
        with _Rounding(noise):
            found = compute(**moved)
        for name, value in reference.items():
            off = comparable(found[name].to(value.dtype) - value)
            squares[name] += off.square_().nan_to_num_(0.0, 0.0, 0.0)
    return {
        name: _smoothed((square / runs).sqrt_(), reference[name]).div_(wider)
        for name, square in squares.items()
    }


def _lost_in_stages(
    packet: Any, x: torch.Tensor, dims: Sequence[int], normalization: int, last: int
) -> torch.Tensor:
    """What a fast Fourier transform loses, in units: sqrt(log2(n)) of the 2-norm of its n inputs,
    one error in each stage (Higham, Accuracy and Stability of Numerical Algorithms, chapter 24).
    Its factors may be off by a few units."""
    count = math.prod(x.shape[dim] for dim in dims)
    norm: torch.Tensor = torch.linalg.vector_norm(x, dim=list(dims), keepdim=True)
    if packet is _ATEN._fft_c2r:  # the other half of its inputs is conjugate
        count = count // x.shape[dims[-1]] * last
        norm = norm * math.sqrt(2.0)
    scale = (1.0, count**-0.5, 1.0 / count)[normalization]
    return norm * (_FEW * scale * math.sqrt(3.0 * max(1.0, math.log2(count))))


def _moved(value: torch.Tensor, noise: _Noise) -> torch.Tensor:
    wide = torch.complex128 if value.is_complex() else torch.float64
    moved = value.to(wide, copy=True)  # a unit of float32 is too small for float16
    noise.add_to(moved, moved, noise.unit)
    return moved


def _smoothed(deviation: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Raises each deviation to the lower quartile of its row, and its share of the value to the
    lower quartile of the row's shares: of millions of elements a few have runs that agree by
    chance. The quartiles of long rows are those of a sample."""
    columns = deviation.numel() // max(1, reference.shape[:-1].numel()) if reference.dim() else 1
    if columns < _ENOUGH:
        columns = deviation.numel()
    values = comparable(reference).abs().reshape(-1, columns)
    rows = deviation.reshape(-1, columns)
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
    return value.abs() if is_rounded(value.dtype) else value.clone()


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
