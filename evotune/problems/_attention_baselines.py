"""Attention by PyTorch: scaled_dot_product_attention, and library calls on the whole score matrix.

SDPA has no features but a mask, which can say all that hides or shifts scores: windows, alignment,
ALiBi; a sink is a further key of zeros whose mask is the sink. It has no soft cap. Nor does it give
the logarithms of the rows' sums, so it does less than a kernel that is asked for them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from evotune.problems._attention_scores import Scores, WholeScores
from evotune.problems.problem import Case, Tensors


@dataclass(frozen=True)
class SdpaCall:
    """A call of scaled_dot_product_attention."""

    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    options: Mapping[str, Any]

    def __call__(self) -> Tensors:
        return {"out": F.scaled_dot_product_attention(*self.tensors, **self.options)}


def sdpa_call(case: Case, inputs: Tensors) -> SdpaCall | None:
    """The call that computes the case; None where there is none."""
    of_case = Scores(case, inputs)
    features = of_case.features
    if features.softcap or features.score_mod:
        return None
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    options: dict[str, Any] = {
        "scale": float(case.symbols["softmax_scale"]),
        "enable_gqa": case.symbols["heads"] != case.symbols["kv_heads"],
    }
    shifted = features.bottom_right and q.shape[2] != k.shape[2]
    if not (features.has_window or features.alibi or features.sinks or shifted):
        return SdpaCall((q, k, v), {"is_causal": bool(case.symbols["causal"]), **options})
    every = slice(None)
    hidden, bias = of_case.hidden(every), of_case.bias(every, torch.float32)
    if bias is None and not features.sinks:
        return SdpaCall((q, k, v), {"attn_mask": None if hidden is None else ~hidden, **options})
    if bias is None:
        groups = (k.shape[1], q.shape[1] // k.shape[1], q.shape[2], k.shape[2])
        bias = torch.zeros(groups, dtype=torch.float32, device=q.device)
    if hidden is not None:
        bias = bias.masked_fill(hidden, -math.inf)
    sink = of_case.sink(torch.float32)
    if sink is not None:
        bias = torch.cat([bias, sink.expand(*bias.shape[:-1], 1)], dim=-1)
        k, v = (F.pad(each, (0, 0, 0, 1)) for each in (k, v))
    mask = bias.flatten(0, 1)[None].to(q.dtype)
    return SdpaCall((q, k, v), {"attn_mask": mask, **options})


def unfused_call(case: Case, inputs: Tensors) -> Callable[[], Tensors]:
    """matmul, scale, features, softmax, matmul: library calls on the whole score matrix."""
    of_case = WholeScores(case, inputs)
    of_case.prepare()
    return functools.partial(_unfused_with_features if of_case.features.any else _unfused, of_case)


def _unfused(of_case: WholeScores) -> Tensors:
    scores, v = _scores(of_case)
    hidden = of_case.hidden(slice(None))
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    return {"out": torch.matmul(torch.softmax(scores, dim=-1), v)}


def _unfused_with_features(of_case: WholeScores) -> Tensors:
    q, k, v = (of_case.inputs[name] for name in ("q", "k", "v"))
    batch, kv_heads, keys, _ = k.shape
    groups = (batch, kv_heads, q.shape[1] // kv_heads, q.shape[2])
    k, v = k.flatten(0, 1), v.flatten(0, 1)
    # The rows of a group of heads are the rows of one product, so keys need no copy for each head.
    scores = _float32_product(q.reshape(k.shape[0], -1, q.shape[-1]), k.transpose(1, 2))
    scores = scores.mul_(float(of_case.case.symbols["softmax_scale"])).view(*groups, keys)
    changed, _ = of_case.changed(scores, slice(None))
    weights, lse = of_case.weighed(changed)
    out = torch.bmm(weights.to(v.dtype).view(k.shape[0], -1, keys), v)
    found = {"out": out.view(batch, q.shape[1], q.shape[2], v.shape[-1])}
    return found | (
        {"lse": lse.view(batch, q.shape[1], q.shape[2])} if of_case.features.lse else {}
    )


def _float32_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The batched product with float32 elements. In half precision scores are off by up to a
    thousandth of the highest one, which is beyond the gate's limits where a soft cap follows or the
    logarithms of the sums are asked for."""
    if a.is_cuda and a.dtype != torch.float32:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a.float(), b.float())


def _scores(of_case: Scores) -> tuple[torch.Tensor, torch.Tensor]:
    """Scaled scores (batch, heads, rows, keys), and v with as many heads."""
    q, k, v = (of_case.inputs[name] for name in ("q", "k", "v"))
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scale = float(of_case.case.symbols["softmax_scale"])
    return torch.matmul(q, k.transpose(-1, -2)) * scale, v
