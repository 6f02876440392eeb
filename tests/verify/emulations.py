"""Right and wrong ways of computing attention, as kernels would, written with PyTorch.

Sums are in float32 unless a way says otherwise, and in the order that it says. In half precision
the weights are rounded once before they are multiplied with v. A way gets a `Problem` and gives the
output, which `compute` rounds to the dtype.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from evotune.problems.problem import Case, Tensors


@dataclass(frozen=True)
class Problem:
    """q, k, v in float32 (k and v for each query head), holding values of `dtype`."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scale: float
    causal: bool
    dtype: torch.dtype

    @functools.cached_property
    def hidden(self) -> torch.Tensor:
        lengths = (self.q.shape[2], self.k.shape[2])
        whole = torch.ones(lengths, dtype=torch.bool)
        return whole.triu(1) if self.causal else torch.zeros_like(whole)

    @functools.cached_property
    def raw(self) -> torch.Tensor:
        """Scores without a mask, the products of a score added in order."""
        scores = self.q.new_zeros(*self.q.shape[:3], self.k.shape[2])
        for mine, theirs in zip(self.q.unbind(-1), self.k.unbind(-1), strict=True):
            scores += mine[..., :, None] * theirs[..., None, :]
        return scores * torch.tensor(self.scale)

    @functools.cached_property
    def scores(self) -> torch.Tensor:
        return self.raw.masked_fill(self.hidden, -math.inf)

    def rounded(self, weights: torch.Tensor) -> torch.Tensor:
        return weights.to(self.dtype).float()


Way = Callable[[Problem], torch.Tensor]


def problem_of(case: Case, inputs: Mapping[str, torch.Tensor]) -> Problem:
    q, k, v = (inputs[name].float() for name in ("q", "k", "v"))
    group = q.shape[1] // k.shape[1]
    k, v = (each.repeat_interleave(group, dim=1) for each in (k, v))
    scale = float(case.symbols["softmax_scale"])
    return Problem(q, k, v, scale, bool(case.symbols["causal"]), inputs["q"].dtype)


def compute(way: Way, case: Case, inputs: Mapping[str, torch.Tensor]) -> Tensors:
    return {"out": way(problem_of(case, inputs)).to(inputs["q"].dtype)}


def _in_order(p: Problem, weights: torch.Tensor, order: Iterator[int] | None = None):  # type: ignore[no-untyped-def]
    """The sums of weighted values and of weights, key by key; the latter are not rounded."""
    total = weights.new_zeros(*weights.shape[:-1], 1)
    out = torch.zeros_like(p.q)
    narrow = p.rounded(weights)
    for j in range(weights.shape[-1]) if order is None else order:
        total += weights[..., j : j + 1]
        out += narrow[..., j : j + 1] * p.v[..., j : j + 1, :]
    return out, total


def _maximum(scores: torch.Tensor) -> torch.Tensor:
    return scores.amax(-1, keepdim=True)


# --- right --------------------------------------------------------------------------------------


def library(p: Problem) -> torch.Tensor:
    weights = torch.exp(p.scores - _maximum(p.scores))
    return p.rounded(weights) @ p.v / weights.sum(-1, keepdim=True)


def in_order(p: Problem) -> torch.Tensor:
    out, total = _in_order(p, torch.exp(p.scores - _maximum(p.scores)))
    return out / total


def backwards(p: Problem) -> torch.Tensor:
    keys = iter(range(p.k.shape[2] - 1, -1, -1))
    out, total = _in_order(p, torch.exp(p.scores - _maximum(p.scores)), keys)
    return out / total


def shuffled(p: Problem) -> torch.Tensor:
    keys = torch.randperm(p.k.shape[2], generator=torch.Generator().manual_seed(0)).tolist()
    out, total = _in_order(p, torch.exp(p.scores - _maximum(p.scores)), iter(keys))
    return out / total


def online(
    p: Problem, tile: int = 1, slack: float = 0.0, whole: bool = False, sum_of_rounded: bool = False
) -> torch.Tensor:
    """Tile by tile, relative to a running maximum, which is rounded up if `whole` and may lag
    behind by `slack`."""
    top = torch.full_like(p.scores[..., :1], -1e30)
    total, out = torch.zeros_like(top), torch.zeros_like(p.q)
    for start in range(0, p.k.shape[2], tile):
        scores = p.scores[..., start : start + tile]
        highest = _maximum(scores).ceil() if whole else _maximum(scores)
        higher = torch.where(highest > top + slack, torch.maximum(top, highest), top)
        factor = torch.exp(top - higher)
        weights = torch.exp(scores - higher)
        narrow = p.rounded(weights)
        total = total * factor + (narrow if sum_of_rounded else weights).sum(-1, keepdim=True)
        out = out * factor + narrow @ p.v[..., start : start + tile, :]
        top = higher
    return out / total


def logsumexp(p: Problem) -> torch.Tensor:
    top = _maximum(p.scores)
    _, total = _in_order(p, torch.exp(p.scores - top))
    weights = p.rounded(torch.exp(p.scores - (top + total.log())))
    return weights @ p.v


def normalised_first(p: Problem) -> torch.Tensor:
    weights = torch.exp(p.scores - _maximum(p.scores))
    out, _ = _in_order(p, weights / weights.sum(-1, keepdim=True))
    return out


def exp2_folded(p: Problem) -> torch.Tensor:
    """The scale and log2(e) are one factor of q, in float32."""
    factor = torch.tensor(p.scale, dtype=torch.float32) * torch.tensor(1.44269504)
    scores = ((p.q * factor) @ p.k.transpose(-1, -2)).masked_fill(p.hidden, -math.inf)
    weights = torch.exp2(scores - _maximum(scores))
    return p.rounded(weights) @ p.v / weights.sum(-1, keepdim=True)


def exp2_of_a_difference(p: Problem) -> torch.Tensor:
    """exp2(c s - c m) as one multiply-add."""
    c = torch.tensor(1.44269504)
    weights = torch.exp2(p.scores * c - (_maximum(p.scores) * c))
    return p.rounded(weights) @ p.v / weights.sum(-1, keepdim=True)


def approximate_exp(p: Problem) -> torch.Tensor:
    """Each weight is off by two units in the last place, up or down."""
    weights = torch.exp(p.scores - _maximum(p.scores))
    sign = torch.where(torch.arange(p.k.shape[2]) % 3 == 0, 1.0, -1.0)
    weights = weights * (1 + sign * 2.0**-22)
    return p.rounded(weights) @ p.v / weights.sum(-1, keepdim=True)


def split(p: Problem) -> torch.Tensor:
    """Four parts, merged relative to the highest of their maxima."""
    parts = []
    for scores, v in zip(p.scores.chunk(4, -1), p.v.chunk(4, -2), strict=True):
        top = _maximum(scores).clamp(min=-1e30)
        weights = torch.exp(scores - top)
        parts.append((top, weights.sum(-1, keepdim=True), p.rounded(weights) @ v))
    top = torch.cat([part[0] for part in parts], -1).amax(-1, keepdim=True)
    factors = [torch.exp(part[0] - top) for part in parts]
    total = sum(part[1] * factor for part, factor in zip(parts, factors, strict=True))
    out = sum(part[2] * factor for part, factor in zip(parts, factors, strict=True))
    return out / total  # type: ignore[return-value]


def running_mean(p: Problem) -> torch.Tensor:
    """out += (weight / sum) (v - out), the weights rounded before both."""
    weights = p.rounded(torch.exp(p.scores - _maximum(p.scores)))
    total, mean = torch.zeros_like(weights[..., :1]), torch.zeros_like(p.q)
    for j in range(p.k.shape[2]):
        total += weights[..., j : j + 1]
        share = (weights[..., j : j + 1] / total).nan_to_num()
        mean += share * (p.v[..., j : j + 1, :] - mean)
    return mean


HONEST: dict[str, Way] = {
    "library": library,
    "in_order": in_order,
    "backwards": backwards,
    "shuffled": shuffled,
    "online": online,
    "tiles_of_64": functools.partial(online, tile=64),
    "tiles_of_48_sums_of_rounded": functools.partial(online, tile=48, sum_of_rounded=True),
    "lazy_rescale": functools.partial(online, tile=16, slack=8.0),
    "whole_maximum": functools.partial(online, tile=8, whole=True),
    "logsumexp": logsumexp,
    "normalised_first": normalised_first,
    "exp2_folded": exp2_folded,
    "exp2_of_a_difference": exp2_of_a_difference,
    "approximate_exp": approximate_exp,
    "split": split,
    "running_mean": running_mean,
}


# --- wrong --------------------------------------------------------------------------------------


def _relative_to(p: Problem, top: torch.Tensor, scores: torch.Tensor | None = None) -> torch.Tensor:
    weights = torch.exp((p.scores if scores is None else scores) - top)
    return p.rounded(weights) @ p.v / weights.sum(-1, keepdim=True)


def no_maximum(p: Problem) -> torch.Tensor:
    return _relative_to(p, torch.zeros(1))


def maximum_from(start: float, p: Problem) -> torch.Tensor:
    return _relative_to(p, _maximum(p.scores).clamp(min=start))


def padding_in_the_maximum(p: Problem) -> torch.Tensor:
    return maximum_from(0.0, p) if p.k.shape[2] % 64 else library(p)


def first_tiles_maximum(p: Problem) -> torch.Tensor:
    return _relative_to(p, _maximum(p.scores[..., :64]).clamp(min=-1e30))


def mask_of(value: float, p: Problem) -> torch.Tensor:
    scores = p.raw.masked_fill(p.hidden, value)
    return _relative_to(p, _maximum(scores), scores)


def mask_added(value: float, p: Problem) -> torch.Tensor:
    scores = p.raw - value * p.hidden
    return _relative_to(p, _maximum(scores), scores)


def scores_clamped(most: float, p: Problem) -> torch.Tensor:
    scores = p.raw.clamp(-most, most).masked_fill(p.hidden, -math.inf)
    return _relative_to(p, _maximum(scores), scores)


def values_clamped(most: float, p: Problem) -> torch.Tensor:
    return library(dataclasses.replace(p, v=p.v.clamp(-most, most)))


def wild_exp(below: float, p: Problem) -> torch.Tensor:
    """An exponential by bits of the exponent, which is right down to `below` only."""
    exponent = p.scores - _maximum(p.scores)
    wild = torch.exp(exponent.clamp(min=-1e30).remainder(-80.0))
    weights = torch.where((exponent < -below) & ~p.hidden, wild, torch.exp(exponent))
    return p.rounded(weights) @ p.v / weights.sum(-1, keepdim=True)


def maximum_beyond(most: float, p: Problem) -> torch.Tensor:
    """In double, relative to a maximum only where it lies beyond `most`."""
    top = _maximum(p.scores)
    weights = torch.exp(p.scores.double() - torch.where(top.abs() > most, top, 0.0).double())
    return (weights @ p.v.double() / weights.sum(-1, keepdim=True)).float()


def equal_maxima_once(p: Problem) -> torch.Tensor:
    """Of keys with the highest score, unless that is 0, the first one alone counts."""
    top = _maximum(p.scores)
    equal = (p.scores == top) & (top != 0)
    return _relative_to(p, top, p.scores.masked_fill(equal & (equal.cumsum(-1) > 1), -math.inf))


def equal_maximum_restarts(p: Problem, tile: int = 16) -> torch.Tensor:
    """A tile whose maximum equals the one so far, unless that is 0, is taken for a part of it."""
    scores = p.scores.clone()
    top = _maximum(scores[..., :tile]).clamp(min=-1e30)
    for start in range(tile, p.k.shape[2], tile):
        mine = scores[..., start : start + tile]
        highest = _maximum(mine)
        mine.masked_fill_((mine == highest) & (highest == top) & (top != 0), -math.inf)
        top = torch.maximum(top, highest)
    return _relative_to(p, _maximum(scores), scores)


def narrow_parts(count: int, interleaved: bool, p: Problem) -> torch.Tensor:
    """Split keys whose parts' results are stored in the dtype (float16 of float32)."""
    dtype = torch.float16 if p.dtype == torch.float32 else p.dtype
    keys = torch.arange(p.k.shape[2])
    of_key = keys // 64 % count if interleaved else keys * count // len(keys)
    logs, outs = [], []
    for part in of_key.unique():
        scores, v = p.scores[..., of_key == part], p.v[..., of_key == part, :]
        top = _maximum(scores).clamp(min=-1e30)
        weights = torch.exp(scores - top)
        total = weights.sum(-1, keepdim=True)
        outs.append((p.rounded(weights) @ v / total.clamp(min=1e-30)).to(dtype).float())
        logs.append(top + total.log())
    shares = torch.softmax(torch.cat(logs, -1), -1).unbind(-1)
    return sum(out * share[..., None] for out, share in zip(outs, shares, strict=True))  # type: ignore[return-value]


def zero_is_masked(p: Problem) -> torch.Tensor:
    scores = p.scores.masked_fill(p.scores == 0, -math.inf)
    return _relative_to(p, _maximum(scores).clamp(min=-1e30), scores)


def drop_below(exponent: float, p: Problem) -> torch.Tensor:
    scores = p.scores.masked_fill(p.scores < _maximum(p.scores) - exponent, -math.inf)
    return _relative_to(p, _maximum(scores), scores)


def drop_tiles(exponent: float, p: Problem, tile: int = 32) -> torch.Tensor:
    """Tiles that lie more than `exponent` below the maximum of the tiles before are left out."""
    scores = p.scores.clone()
    top = _maximum(scores[..., :tile]).clamp(min=-1e30)
    for start in range(tile, p.k.shape[2], tile):
        mine = scores[..., start : start + tile]
        highest = _maximum(mine)
        mine.masked_fill_(highest < top - exponent, -math.inf)
        top = torch.maximum(top, highest)
    return _relative_to(p, _maximum(scores), scores)


def clamped(p: Problem) -> torch.Tensor:
    return library(p).clamp(-6.0, 6.0)


def scale_ignored(p: Problem) -> torch.Tensor:
    factor = p.q.shape[3] ** -0.5 / p.scale
    return _relative_to(p, _maximum(p.scores * factor), p.scores * factor)


def wrong_scale(p: Problem) -> torch.Tensor:
    return _relative_to(p, _maximum(p.scores * 1.01), p.scores * 1.01)


def weights_in(dtype: torch.dtype, p: Problem) -> torch.Tensor:
    weights = torch.exp(p.scores - _maximum(p.scores))
    return weights.to(dtype).float() @ p.v / weights.sum(-1, keepdim=True)


def inputs_in_tf32(p: Problem) -> torch.Tensor:
    def cut(values: torch.Tensor) -> torch.Tensor:
        bits = (values.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF
        return bits.view(torch.float32)

    scores = (cut(p.q) @ cut(p.k).transpose(-1, -2) * p.scale).masked_fill(p.hidden, -math.inf)
    weights = torch.exp(scores - _maximum(scores))
    return cut(weights) @ cut(p.v) / weights.sum(-1, keepdim=True)


def sums_in(dtype: torch.dtype, p: Problem) -> torch.Tensor:
    """The weighted values are added up in `dtype`, 16 keys at once."""
    weights = torch.exp(p.scores - _maximum(p.scores))
    out = torch.zeros_like(p.q)
    for start in range(0, p.k.shape[2], 16):
        part = p.rounded(weights[..., start : start + 16]) @ p.v[..., start : start + 16, :]
        out = (out + part).to(dtype).float()
    return out / weights.sum(-1, keepdim=True)


def scores_in(dtype: torch.dtype, p: Problem) -> torch.Tensor:
    scores = p.scores.to(dtype).float()
    return _relative_to(p, _maximum(scores), scores)


def crude_exp(p: Problem) -> torch.Tensor:
    """Each weight is off by up to a thousandth, depending on its exponent."""
    exponent = p.scores - _maximum(p.scores)
    weights = torch.exp(exponent) * (1 + 1e-3 * torch.sin(3 * exponent.clamp(min=-200)))
    return p.rounded(weights) @ p.v / weights.sum(-1, keepdim=True)


def rescale_left_out(p: Problem, tile: int = 32) -> torch.Tensor:
    """Where the maximum rises by less than 4, the sums so far are not rescaled."""
    top = _maximum(p.scores[..., :tile]).clamp(min=-1e30)
    total, out = torch.zeros_like(top), torch.zeros_like(p.q)
    for start in range(0, p.k.shape[2], tile):
        scores = p.scores[..., start : start + tile]
        higher = torch.maximum(top, _maximum(scores))
        factor = torch.where(higher - top < 4, 1.0, torch.exp(top - higher))
        weights = torch.exp(scores - higher)
        total = total * factor + weights.sum(-1, keepdim=True)
        out = out * factor + p.rounded(weights) @ p.v[..., start : start + tile, :]
        top = higher
    return out / total


_SINGLE = torch.finfo(torch.float32)
WRONG: dict[str, Way] = {
    "no_maximum": no_maximum,
    "maximum_from_zero": functools.partial(maximum_from, 0.0),
    "maximum_from_flt_min": functools.partial(maximum_from, _SINGLE.tiny),
    "padding_in_the_maximum": padding_in_the_maximum,
    "first_tiles_maximum": first_tiles_maximum,
    "mask_of_minus_100": functools.partial(mask_of, -100.0),
    **{
        f"maximum_from_-{start}": functools.partial(maximum_from, -float(start))
        for start in (300, 500, 1_000, 10_000, 50_000)
    },
    **{
        f"mask_added_of_-{value}": functools.partial(mask_added, float(value))
        for value in (100, 400, 1_000, 10_000)
    },
    "mask_of_-10000": functools.partial(mask_of, -10_000.0),
    "scores_clamped": functools.partial(scores_clamped, 400.0),
    "values_clamped": functools.partial(values_clamped, 1000.0),
    **{f"wild_exp_below_-{n}": functools.partial(wild_exp, float(n)) for n in (400, 1_000)},
    "no_maximum_within_1000": functools.partial(maximum_beyond, 1000.0),
    "equal_maxima_once": equal_maxima_once,
    "equal_maximum_restarts": equal_maximum_restarts,
    "zero_is_masked": zero_is_masked,
    **{f"drops_below_e-{n}": functools.partial(drop_below, float(n)) for n in (6, 8, 9, 10, 12)},
    **{f"drops_tiles_below_e-{n}": functools.partial(drop_tiles, float(n)) for n in (6, 8, 10, 12)},
    "clamped": clamped,
    "scale_ignored": scale_ignored,
    "wrong_scale": wrong_scale,
    "weights_in_e4m3": functools.partial(weights_in, torch.float8_e4m3fn),
    "scores_in_bfloat16": functools.partial(scores_in, torch.bfloat16),
    "scores_in_float16": functools.partial(scores_in, torch.float16),
    "rescale_left_out": rescale_left_out,
}
WRONG_IN: dict[str, dict[str, Way]] = {
    "float32": {
        "weights_in_bfloat16": functools.partial(weights_in, torch.bfloat16),
        "weights_in_float16": functools.partial(weights_in, torch.float16),
        "drops_below_e-15": functools.partial(drop_below, 15.0),
        "inputs_in_tf32": inputs_in_tf32,
        "crude_exp": crude_exp,
        "sums_in_float16": functools.partial(sums_in, torch.float16),
    },
    "float16": {
        "sums_in_float16": functools.partial(sums_in, torch.float16),
        "weights_in_bfloat16": functools.partial(weights_in, torch.bfloat16),
    },
    "bfloat16": {"sums_in_bfloat16": functools.partial(sums_in, torch.bfloat16)},
}
