"""The tensor side of attention: float64 reference, tolerances and SDPA baselines."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from evotune.problems.problem import Case, Tensors, TensorSpec
from evotune.problems.rounding import rounding_of

_BACKENDS = {
    "sdpa:flash": SDPBackend.FLASH_ATTENTION,
    "sdpa:cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa:efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa:math": SDPBackend.MATH,
}
_SCORES_PER_TILE = 1 << 25  # 256 MiB in float64, whatever the batch
_UNIT = 2.0**-24  # of float32: the largest error of one rounding, relative to the result
_MANY = 3.0
"""Standard deviations of a sum's rounding errors, where each is about 0.4 units."""
_FEW = 8.0
"""Errors of exponentials, products and quotients, in units in the last place."""
_LOST = 4 * _UNIT
"""A sum may lose all weights below it."""
_ROUNDED = 4.0
_SMALL_WEIGHT = 2.0**-25  # half the distance of the smallest float16 numbers


def reference(case: Case, inputs: Tensors) -> Tensors:
    """Outputs in float64, computed by tiles of query rows, so that long sequences fit in memory."""
    q, k, v = (inputs[name].double() for name in ("q", "k", "v"))
    grouped = _grouped(q, k)
    out = torch.empty_like(grouped)
    for rows in _tiles(q, k):
        tile = grouped[:, :, :, rows]
        scores = tile.flatten(2, 3) @ k.transpose(-1, -2) * _scale(case)
        _hide(case, scores, rows)
        out[:, :, :, rows] = (torch.softmax(scores, dim=-1) @ v).view(tile.shape)
    return {"out": out.view(q.shape)}


def tolerances(case: Case, inputs: Tensors, reference: Tensors) -> Tensors:
    """The error that a right kernel may have in each element of the output.

    A right kernel may

    - add in float32 in any order;
    - have exponentials that are a few units in the last place off;
    - scale its weights by any factor with which none overflows;
    - in half precision, round the weights once before they are multiplied with V;
    - round the results once.

    Rounding errors are taken as independent, as they nearly are: the errors of a sum of n terms add
    up to sqrt(n) units of its magnitude (Higham and Mary, A New Approach to Probabilistic Rounding
    Error Analysis, 2019), times a factor for the worst of millions of elements. For out = sum p v
    with the weights p of a row, whose sum is 1, the limit adds up:

    - The sums over the keys: sqrt(n) units of sqrt(sum p v^2), which is at least sum p |v|.
    - Dependent errors: weights of less than a few units, which a sum near 1 may lose, times the
      largest |v|; and as many units of the largest |v|, for a running mean.
    - The scores: an error e of a score is a relative error of its weight. The common part of a
      row's errors cancels out; by Cauchy and Schwarz the rest changes out by
      sqrt(sum p e^2) sqrt(sum p (v - out)^2) at most.
    - Weights that are normalised by exp(score - logsumexp): a unit of the largest score.
    - Weights in half precision: units of that type times sqrt(sum p^2 v^2); for small weights in
      float16, multiples of 2^-24.
    """
    q, k, v = (inputs[name].float() for name in ("q", "k", "v"))
    dtype = inputs["q"].dtype
    grouped, out = _grouped(q, k), _grouped(reference["out"].float(), k)
    squares, largest = v.square(), v.abs().amax(2, keepdim=True)
    squares_seen = squares.cumsum(2) if dtype == torch.float16 else squares
    allowed = torch.empty_like(grouped)
    of_score = _UNIT * (_MANY * math.sqrt(q.shape[3]) + _FEW)
    for rows in _tiles(q, k):
        tile, mean = grouped[:, :, :, rows].flatten(2, 3), out[:, :, :, rows].flatten(2, 3)
        scores = tile @ k.transpose(-1, -2) * _scale(case)
        size = (tile.square() @ k.square().transpose(-1, -2)).sqrt_() * abs(_scale(case))
        size += scores.abs()
        _hide(case, scores, rows)
        top = scores.amax(-1, keepdim=True).abs_()
        weights = torch.softmax(scores, dim=-1)
        error = (of_score * size + 2 * _UNIT * top).square_().mul_(weights).sum(-1, keepdim=True)
        second = weights @ squares
        seen = _seen(case, rows, k).repeat(grouped.shape[2])
        sums = _UNIT * (_MANY * seen.sqrt()[:, None] + _FEW)
        limit = sums * (second.sqrt() + mean.abs()) + 2 * _UNIT * top * mean.abs()
        lost = weights.masked_fill(weights > _LOST, 0).sum(-1, keepdim=True)
        limit += (2 * lost + _LOST) * largest
        limit += error.sqrt_() * (second - mean.square()).clamp_(min=0).sqrt_()
        if dtype != torch.float32:
            weights.square_()
            spread = weights @ squares + mean.square() * weights.sum(-1, keepdim=True)
            limit += _ROUNDED * torch.finfo(dtype).eps / 2 * spread.sqrt_()
        if dtype == torch.float16:
            limit += _ROUNDED * _SMALL_WEIGHT * squares_seen[:, :, seen - 1].sqrt_()
        allowed[:, :, :, rows] = limit.view(allowed[:, :, :, rows].shape)
    return {"out": allowed.view(q.shape).double() + rounding_of(reference["out"], dtype)}


def _scale(case: Case) -> float:
    return float(case.symbols["softmax_scale"])


def _grouped(of_queries: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The tensor with the heads of a group as further rows for the same keys, which thus need no
    copies."""
    batch, _, queries, head_dim = of_queries.shape
    return of_queries.reshape(batch, k.shape[1], -1, queries, head_dim)


def _tiles(q: torch.Tensor, k: torch.Tensor) -> Iterator[slice]:
    """Tiles of the query rows."""
    step = max(1, _SCORES_PER_TILE // (q.shape[0] * q.shape[1] * k.shape[2]))
    return (slice(at, min(at + step, q.shape[2])) for at in range(0, q.shape[2], step))


def _seen(case: Case, rows: slice, k: torch.Tensor) -> torch.Tensor:
    """Number of keys that each row sees."""
    keys = k.shape[2]
    row = torch.arange(rows.start, rows.stop, device=k.device)
    return (row + 1).clamp(max=keys) if case.symbols["causal"] else torch.full_like(row, keys)


def _hide(case: Case, scores: torch.Tensor, rows: slice) -> None:
    """Sets the scores of keys that a row may not see to minus infinity."""
    if case.symbols["causal"]:
        queries = torch.arange(rows.start, rows.stop, device=scores.device)
        hidden = torch.arange(scores.shape[-1], device=scores.device) > queries[:, None]
        of_heads = scores.view(*scores.shape[:2], -1, *hidden.shape)
        of_heads.masked_fill_(hidden, float("-inf"))


def _unfused(case: Case, inputs: Tensors, mask: torch.Tensor | None) -> Tensors:
    """matmul, scale, mask, softmax, matmul: library calls on the whole score matrix."""
    group = inputs["q"].shape[1] // inputs["k"].shape[1]
    k, v = inputs["k"], inputs["v"]
    if group > 1:
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.matmul(inputs["q"], k.transpose(-1, -2)) * _scale(case)
    if mask is not None:
        scores = scores.masked_fill(mask, float("-inf"))
    return {"out": torch.matmul(torch.softmax(scores, dim=-1), v)}


def _laid_out(specs: Sequence[TensorSpec], inputs: Tensors) -> Tensors:
    """The inputs with the strides of `specs`, copied where they have others."""
    found = dict(inputs)
    for spec in specs:
        if spec.strides and spec.name in found:
            value = found[spec.name]
            view = torch.empty_strided(
                spec.shape, spec.strides, dtype=value.dtype, device=value.device
            )
            found[spec.name] = view.copy_(value)
    return found


def baselines(
    case: Case, specs: Sequence[TensorSpec], inputs: Tensors, only: str = ""
) -> dict[str, Callable[[], Tensors]]:
    """The SDPA backends that accept these inputs here, with the strides of `specs`, and the unfused
    path. `only` names one that is known to be among them; the others are left out.

    The backend that PyTorch would choose by itself is called plainly, without the context
    manager that forces a backend, so that its time is the time a user sees.
    """
    causal = bool(case.symbols["causal"])
    grouped = case.symbols["heads"] != case.symbols["kv_heads"]
    inputs = _laid_out(specs, inputs)
    q, k, v = inputs["q"], inputs["k"], inputs["v"]

    def attend() -> Tensors:
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=causal, scale=_scale(case), enable_gqa=grouped
        )
        return {"out": out}

    def forced(backend: SDPBackend) -> Tensors:
        with sdpa_kernel(backend):
            return attend()

    chosen = SDPBackend(
        torch._fused_sdp_choice(q, k, v, is_causal=causal, scale=_scale(case), enable_gqa=grouped)
    )
    usable: dict[str, Callable[[], Tensors]] = {}
    for name, backend in _BACKENDS.items():
        if only not in ("", name):
            continue
        if backend == chosen:
            usable[name] = attend
            continue
        try:
            forced(backend)
        except RuntimeError:  # PyTorch refuses with "No available kernel"
            if only:
                raise  # it ran before: memory has run out, or the device is lost
            continue
        usable[name] = functools.partial(forced, backend)
    if only in ("", "unfused"):
        lengths = (q.shape[2], k.shape[2])
        mask = torch.ones(lengths, dtype=torch.bool, device=q.device).triu(1) if causal else None
        usable["unfused"] = functools.partial(_unfused, case, inputs, mask)
    return usable
