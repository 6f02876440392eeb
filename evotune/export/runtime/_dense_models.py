"""Serves calls of transformers' models by kernels of dense attention.

A call with a soft cap or with sinks is always served here, by plain PyTorch if no kernel serves it:
transformers' own `sdpa` has neither.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ._asked_features import NONE, Asked
from ._attention_package import Call
from ._feature_calls import FeatureCalls
from ._left_calls import LeftCalls
from ._transformers_hook import Asking, Serve


def serving(
    attempt: Callable[..., torch.Tensor | None], features: FeatureCalls, left: LeftCalls
) -> Serve:
    """For `register`. `attempt` gives the output of a call without features, or None, and counts a
    call that it does not serve. `left` counts the calls for which nothing else is tried."""

    def serve(asking: Asking) -> torch.Tensor | None:
        call, mask, said, dropout, others = asking
        softcap, sinks = float(others.get("softcap") or 0.0), others.get("s_aux")
        own = Asked(softcap=softcap, sinks=sinks is not None)
        call = call._replace(asked=own, sinks=sinks)
        if said is not None and said.is_causal and said.padding is None:
            asked = own._replace(bottom_right=True, window_left=said.window_left)
            call = call._replace(is_causal=True, asked=asked)
            mask = None
        elif mask is not None:
            call = call._replace(is_causal=False)
        elif own != NONE and _is_a_last_row(call):
            call = call._replace(is_causal=True, asked=own._replace(bottom_right=True))
        if own != NONE:
            return features.serve(call, mask, dropout)[0]
        if mask is not None:
            left.count("mask", "the model's mask is neither causal nor a window, or has padding")
            return None
        if call.asked != NONE:
            found = features.attempt(call, None, dropout)
            return None if found is None else found[0]
        if call.is_causal and call.q.shape[2] != call.k.shape[2]:
            left.count("mask", "the call is causal, has no mask, and its lengths differ")
            return None
        return attempt(*call[:3], None, dropout, *call[3:6])

    return serve


def _is_a_last_row(call: Call) -> bool:
    """Whether it is a single row without a mask, which sees all keys, while torch.compile traces. A
    causal mask would show it all keys too, and some kernels need one. Outside of tracing a note
    says it."""
    return torch.compiler.is_compiling() and not call.is_causal and call.q.shape[2] == 1
