"""Attention with features in plain PyTorch: serves the calls that no kernel does.

Windows and alignment alone are SDPA with a mask. All else is computed score by score in float32 (in
float64 for tensors of float64), by tiles of rows, and has gradients. See `_asked_features`. A mask
hides keys in addition to the features.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from ._asked_features import Asked, require_known, simplified
from ._attention_package import Call, plain_attention, sdpa
from ._masks import whole_shape

Trees = Mapping[str, Any]
_SCORES_PER_TILE = 1 << 26


def require_fit(call: Call) -> None:
    """Raises ValueError, one line, for tensors whose shapes, types or devices do not match."""
    q, k, v = call[:3]
    given = [*call[:3], *call.further]
    if not q.dim() == k.dim() == v.dim() == 4:
        raise ValueError(
            "with features q, k and v must have four dimensions (batch, heads, length, size), got "
            f"{_shapes(call)}"
        )
    agree = q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3] and k.shape[:3] == v.shape[:3]
    grouped = q.shape[1] == k.shape[1] or (
        call.enable_gqa and k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0
    )
    if not agree or not grouped:
        hint = "" if call.enable_gqa else "; enable_gqa=True lets heads share keys"
        raise ValueError(f"the shapes of q, k and v do not fit together: {_shapes(call)}{hint}")
    if not q.dtype == k.dtype == v.dtype or not q.is_floating_point():
        found = ", ".join(str(tensor.dtype) for tensor in (q, k, v))
        raise ValueError(f"q, k and v must have one floating-point type, got {found}")
    for name, tensor in (("alibi_slopes", call.slopes), ("sinks", call.sinks)):
        if tensor is not None and (tensor.dim() != 1 or tensor.shape[0] != q.shape[1]):
            numbers = f"{name} must have one number for each of {q.shape[1]} heads"
            raise ValueError(f"{numbers}, got the shape {tuple(tensor.shape)}")
        if tensor is not None and tensor.is_complex():
            raise ValueError(f"{name} must have real numbers, got {tensor.dtype}")
    if call.scale is not None and not hasattr(call.scale, "__float__"):
        raise ValueError(f"scale must be a number, got {call.scale!r}")
    if any(tensor.device != q.device for tensor in given):
        raise ValueError("the tensors are on several devices: move them to one")
    if call.mask is not None:
        _require_mask(call.mask, q, k)


def _require_mask(mask: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> None:
    whole = (*q.shape[:3], k.shape[2])
    if whole_shape(mask, whole) is None:
        found = tuple(mask.shape)
        raise ValueError(
            f"attn_mask must be of two to four dimensions, broadcastable to {whole}, got {found}"
        )
    if mask.dtype not in (torch.bool, torch.float32, q.dtype):
        raise ValueError(f"attn_mask must be bool, float32 or {q.dtype}, got {mask.dtype}")


def _shapes(call: Call) -> str:
    return ", ".join(str(tuple(tensor.shape)) for tensor in call[:3])


def plain_with_features(
    call: Call, trees: Trees, dropout: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The output, and the logarithms if the call requests them. `trees` are the package's score
    modifications."""
    require_known(call.asked.score_mod, trees)
    call = _with_whole_mask(call)
    q, k, v, causal, mask, asked = call.q, call.k, call.v, call.is_causal, call.mask, call.asked
    if not torch.compiler.is_compiling():  # a compiler may not know the lengths
        asked, causal = simplified(asked, causal, q.shape[2], k.shape[2])
    hides = Asked(asked.bottom_right, asked.window_left, asked.window_right)
    if asked != hides:
        changed = call._replace(asked=asked, is_causal=causal)
        out, lse = explicit(changed, trees, dropout)
        return out, lse.float() if asked.lse else None
    options: dict[str, Any] = {"scale": call.scale, "enable_gqa": call.enable_gqa}
    if hides == Asked() and mask is None and not dropout:
        return plain_attention(q, k, v, causal, call.scale, call.enable_gqa), None
    if hides == Asked() and not (causal and mask is not None):
        return sdpa(q, k, v, mask, dropout, causal, **options), None
    seen = visible(asked, causal, slice(0, q.shape[2]), q, k)
    assert seen is not None
    if mask is not None:
        seen = seen & mask if mask.dtype == torch.bool else mask.masked_fill(~seen, -math.inf)
    blind, safe = _unblinded(seen)
    out = sdpa(q, k, v, safe, dropout, False, **options)
    return out.masked_fill(blind, 0.0), None


def _with_whole_mask(call: Call) -> Call:
    """The call whose mask, if it has one, has four dimensions."""
    if call.mask is None or call.mask.dim() == 4:
        return call
    return call._replace(mask=call.mask[(None,) * (4 - call.mask.dim())])


def visible(
    asked: Asked, causal: bool, rows: slice, q: torch.Tensor, k: torch.Tensor
) -> torch.Tensor | None:
    """A mask (rows, keys) of the keys that each row sees; None if each row sees all."""
    left, right = asked.window_left, 0 if causal else asked.window_right
    if left < 0 and right < 0:
        return None
    key = torch.arange(k.shape[2], device=q.device)
    behind = key - own_keys(asked, rows, q, k)[:, None]
    seen = torch.ones_like(behind, dtype=torch.bool)
    if left >= 0:
        seen = seen & (behind >= -left)
    return seen & (behind <= right) if right >= 0 else seen


def own_keys(asked: Asked, rows: slice, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The number of each row's own key."""
    own = torch.arange(rows.start, rows.stop, device=q.device)
    return own + (k.shape[2] - q.shape[2]) if asked.bottom_right else own


def _unblinded(mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which rows of a mask see no key, (..., rows, 1), and the mask with the first key for them, so
    that no step on the way to their zeros is NaN, nor is a gradient."""
    is_bool = mask.dtype == torch.bool
    seen = mask if is_bool else mask > -math.inf
    blind = ~seen.any(-1, keepdim=True)
    first = torch.arange(mask.shape[-1], device=mask.device) == 0
    return blind, mask | (blind & first) if is_bool else mask.masked_fill(blind & first, 0.0)


def explicit(
    call: Call,
    trees: Trees,
    dropout: float = 0.0,
    rounded: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output in the type of q and the logarithms in the type of the scores. With `rounded` the
    weights are rounded to the type of q before they are multiplied by v, as in kernels for tensor
    cores."""
    q, k = call.q, call.k
    if torch.compiler.is_compiling():  # it may leave the number of rows open
        return _tile(call, trees, slice(0, q.shape[2]), dropout, rounded)
    step = max(1, _SCORES_PER_TILE // max(1, q.shape[0] * q.shape[1] * k.shape[2]))
    tiles = [
        _tile(call, trees, slice(first, min(first + step, q.shape[2])), dropout, rounded)
        for first in range(0, max(1, q.shape[2]), step)
    ]
    if len(tiles) == 1:
        return tiles[0]
    return torch.cat([out for out, _ in tiles], 2), torch.cat([lse for _, lse in tiles], 2)


def _tile(
    call: Call,
    trees: Trees,
    rows: slice,
    dropout: float,
    rounded: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of the output and of the logarithms. Scores are (batch, key heads, heads of a group,
    rows, keys)."""
    q, k, v, asked, mask = call.q, call.k, call.v, call.asked, call.mask
    wide = torch.promote_types(q.dtype, torch.float32)
    groups = (k.shape[1], q.shape[1] // max(1, k.shape[1]))
    scale = 1.0 / math.sqrt(max(1, q.shape[3])) if call.scale is None else call.scale
    tile = _grouped(q[:, :, rows].to(wide), groups)
    scores = tile @ k.to(wide).unsqueeze(2).transpose(-1, -2) * scale
    scores = _with_changes(call, trees, rows, scores, groups)
    seen = visible(asked, call.is_causal, rows, q, k)
    if mask is not None:
        part = mask if mask.shape[2] == 1 else mask[:, :, rows]
        part = part.unsqueeze(2) if mask.shape[1] == 1 else _grouped(part, groups)
        allowed = part if part.dtype == torch.bool else part > -math.inf
        seen = allowed if seen is None else seen & allowed
        scores = scores if part.dtype == torch.bool else scores + part.masked_fill(~allowed, 0.0)
    blind = None
    if seen is not None:
        blind, safe = _unblinded(seen)
        scores = scores.masked_fill(~safe, -math.inf)
    sink = None if call.sinks is None else call.sinks.to(wide).view(*groups, 1, 1)
    whole = scores if sink is None else torch.cat([scores, sink.expand(*scores.shape[:-1], 1)], -1)
    lse = torch.logsumexp(whole, dim=-1, keepdim=True)
    # Not exp(scores - lse): where the lowest float hides all keys, the sum does not show in lse.
    weights = torch.softmax(whole, dim=-1)[..., : k.shape[2]]
    if blind is not None:
        weights = weights.masked_fill(blind, 0.0)
        nothing = torch.full_like(lse, -math.inf) if sink is None else sink.expand_as(lse)
        lse = torch.where(blind, nothing, lse)
    if rounded:
        weights = weights.to(q.dtype).to(wide)
    if dropout:
        weights = functional.dropout(weights, dropout)
    out = weights @ v.to(wide).unsqueeze(2)
    return out.to(q.dtype).flatten(1, 2), lse.squeeze(-1).flatten(1, 2)


def _grouped(of_heads: torch.Tensor, groups: tuple[int, int]) -> torch.Tensor:
    """The tensor with its heads in the groups that share keys."""
    return of_heads.reshape(of_heads.shape[0], *groups, *of_heads.shape[2:])


def _with_changes(
    call: Call, trees: Trees, rows: slice, scores: torch.Tensor, groups: tuple[int, int]
) -> torch.Tensor:
    """The scores with the cap, ALiBi and the score modification."""
    q, k, asked = call.q, call.k, call.asked
    if asked.softcap:
        scores = torch.tanh(scores / asked.softcap) * asked.softcap
    column = torch.arange(k.shape[2], device=q.device)
    if call.slopes is not None:
        distance = (own_keys(asked, rows, q, k)[:, None] - column).abs().to(scores.dtype)
        scores = scores - call.slopes.to(scores.dtype).view(*groups, 1, 1) * distance
    if asked.score_mod:
        head = torch.arange(q.shape[1], device=q.device).view(*groups, 1, 1)
        row = torch.arange(rows.start, rows.stop, device=q.device)[:, None]
        scores = changed_scores(trees[asked.score_mod], scores, head, row, column)
    return scores


# The value of a score modification on tensors, from its tree in `dispatch.json`.
def changed_scores(
    tree: Any, score: torch.Tensor, head: torch.Tensor, row: torch.Tensor, column: torch.Tensor
) -> torch.Tensor:
    """The scores that the tree makes of `score`; the other tensors number heads, rows and columns,
    and are integers that broadcast with it."""
    value = _value(tree, {"score": score, "head": head, "row": row, "column": column})
    if not isinstance(value, torch.Tensor):
        return torch.full_like(score, value)
    return value.to(score.dtype).expand(score.shape)


def _value(tree: Any, names: Mapping[str, torch.Tensor]) -> Any:
    """A tensor, or a number if the tree has no names."""
    if isinstance(tree, dict):
        return names[tree["name"]]
    if not isinstance(tree, list):
        return tree
    name, *operands = tree
    values = [_value(each, names) for each in operands]
    if name in ("min", "max", "if"):
        of = names["score"]
        tensors = [
            each if isinstance(each, torch.Tensor) else torch.full((), each, device=of.device)
            for each in values
        ]
        if name == "if":
            return torch.where(*tensors)
        return functools.reduce(torch.minimum if name == "min" else torch.maximum, tensors)
    return functools.reduce(_OPERATORS[name], values) if len(values) > 1 else _ONE[name](*values)


_ONE: Mapping[str, Callable[[Any], Any]] = {
    "neg": operator.neg,
    "abs": abs,
    "not": lambda a: not a if isinstance(a, bool) else torch.logical_not(a),
}
_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "and": operator.and_,
    "or": operator.or_,
}
