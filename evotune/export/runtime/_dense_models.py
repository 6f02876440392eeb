"""Serves calls of transformers' models by kernels of dense attention.

A call with a soft cap or with sinks is always served here, by plain PyTorch if no kernel serves it:
transformers' own `sdpa` has neither.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ._asked_features import NONE, Asked
from ._attention_package import AttentionKernels, Call
from ._feature_calls import FeatureCalls
from ._left_calls import LeftCalls
from ._masks import BIAS, BOOL, NO_MASK, PADDING
from ._transformers_hook import Asking, Said, Serve


def serving(
    attempt: Callable[..., torch.Tensor | None], features: FeatureCalls, left: LeftCalls
) -> Serve:
    """For `register`. `attempt` gives the output of a call without features, or None, and counts a
    call that it does not serve. `left` counts the calls for which nothing else is tried."""

    def serve(asking: Asking) -> torch.Tensor | None:
        call, said, dropout, others = asking
        softcap, sinks = float(others.get("softcap") or 0.0), others.get("s_aux")
        own = Asked(softcap=softcap, sinks=sinks is not None)
        call = call._replace(asked=own, sinks=sinks)
        bias = others.get("position_bias")
        if bias is not None:
            if own == NONE and not features.kernels.takes_masks(BIAS):
                left.count("bias", "the model adds a position bias to the scores")
                return None
            call = call._replace(is_causal=False, mask=_with_bias(call, bias))
        elif call.mask is not None:
            told = None if said is None else _as_told(call, said, features.kernels)
            call = call._replace(is_causal=False) if told is None else told
        elif own != NONE and _is_a_last_row(call):
            call = call._replace(is_causal=True, asked=own._replace(bottom_right=True))
        if own != NONE:
            return features.serve(call, dropout)[0]
        if not call.is_plain:
            found = features.attempt(call, dropout)
            return None if found is None else found[0]
        if call.is_causal and call.q.shape[2] != call.k.shape[2]:
            left.count("mask", "the call is causal, has no mask, and its lengths differ")
            return None
        return attempt(*call[:3], call.mask, dropout, *call[3:6])

    return serve


def _as_told(call: Call, said: Said, kernels: AttentionKernels) -> Call | None:
    """The call with what the note on its mask says in the mask's place: a causal mask, a window,
    padding. None if kernels take the mask and none has such features, or if padding has another
    shape than the keys."""
    batch, keys, padding = call.k.shape[0], call.k.shape[2], said.padding
    if padding is not None and tuple(padding.shape) != (batch, keys):
        return None
    asked = call.asked._replace(bottom_right=said.is_causal, window_left=said.window_left)
    kind = NO_MASK if padding is None else PADDING
    features = tuple(asked)[:-1]
    if kernels.takes_masks(BOOL) and not kernels.knows(
        features, said.is_causal, call.q.shape[2], keys, kind
    ):
        return None
    mask = None if padding is None else padding.bool()[:, None, None]
    return call._replace(is_causal=said.is_causal, asked=asked, mask=mask)


def _is_a_last_row(call: Call) -> bool:
    """Whether it is a single row without a mask, which sees all keys, while torch.compile traces. A
    causal mask would show it all keys too, and some kernels need one. Outside of tracing a note
    says it."""
    return torch.compiler.is_compiling() and not call.is_causal and call.q.shape[2] == 1


def _with_bias(call: Call, bias: torch.Tensor) -> torch.Tensor:
    """The position bias and the call's mask as one mask, which transformers' `sdpa` makes in each
    layer, too. Its keys lie side by side, unlike those of T5's bias."""
    mask, bias = call.mask, bias.contiguous()
    if mask is None and call.is_causal:
        mask = torch.ones(call.q.shape[2], call.k.shape[2], dtype=torch.bool, device=bias.device)
        mask = mask.tril()
    if mask is None:
        return bias
    if mask.dtype != torch.bool:
        return bias + mask
    return torch.where(mask, bias, torch.finfo(call.k.dtype).min)
