"""Compares outputs of calls with features with float64, for `check`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ._asked_features import Asked, asked_of
from ._attention_package import Call, Outputs
from ._plain_features import Trees, explicit

_TIMES_PLAIN = 2.0


def seeded_features(
    symbols: Mapping[str, Any], heads: int, generator: torch.Generator
) -> tuple[Asked, torch.Tensor | None, torch.Tensor | None]:
    """The features of a case, with slopes and sinks where it has them."""
    asked, device = asked_of(symbols), generator.device
    slopes = sinks = None
    if asked.alibi:
        head = torch.arange(1, heads + 1, dtype=torch.float32, device=device)
        slopes = torch.exp2(-8.0 * head / heads)
    if asked.sinks:
        sinks = torch.randn(heads, generator=generator, device=device)
    return asked, slopes, sinks


def compared(call: Call, trees: Trees, found: Outputs) -> tuple[float, float]:
    """The largest absolute error against float64, and the error that is allowed: twice that of
    PyTorch with weights rounded as kernels round them, plus one rounding.

    If the call asks for logarithms, the two numbers are those of the output or of the logarithms,
    whichever uses more of what is allowed.
    """
    q, k, v = (tensor.double() for tensor in call[:3])
    wide = call._replace(q=q, k=k, v=v)
    reference, reference_lse = explicit(wide, trees)
    known, known_lse = explicit(call, trees, rounded=True)
    pairs = [(found[0], known, reference)]
    if found[1] is not None:
        pairs.append((found[1], known_lse, reference_lse))
    eps = torch.finfo(call.q.dtype).eps
    return max((_compared(*pair, eps) for pair in pairs), key=lambda pair: _share(*pair))


def _compared(
    found: torch.Tensor, known: torch.Tensor, reference: torch.Tensor, eps: float
) -> tuple[float, float]:
    finite = torch.isfinite(reference)
    if not torch.equal(found[~finite].double(), reference[~finite]):  # -inf of a row without keys
        return math.nan, 0.0
    found, known, reference = (each[finite].double() for each in (found, known, reference))
    if not reference.numel():
        return 0.0, 0.0
    off, known_off = (float((each - reference).abs().max()) for each in (found, known))
    return off, _TIMES_PLAIN * known_off + eps * float(reference.abs().max())


def _share(off: float, allowed: float) -> float:
    """The error as a share of what it may be; NaN is the worst."""
    if math.isnan(off) or (off > 0.0 and not allowed):
        return math.inf
    return off / allowed if allowed else 0.0
