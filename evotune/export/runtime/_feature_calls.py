"""Serves calls of `attention` that have features, and `torch.ops.NAME.attention_with_features`.

The calls go from Python to the launcher: native code knows the arguments of SDPA alone.
"""

from __future__ import annotations

from typing import Any

import torch

from ._asked_features import Asked, read_features, require_softcap
from ._attention_calls import AttentionCalls
from ._attention_package import AttentionKernels, Call, Outputs, autocast_device
from ._operators import AttentionOperator, laid_out, needs_grad
from ._plain_features import plain_with_features, require_fit
from ._tracing import forward_mode

OPERATOR = "attention_with_features"
_SIGNATURE = (
    "(Tensor q, Tensor k, Tensor v, Tensor? alibi_slopes=None, Tensor? sinks=None, "
    "bool is_causal=False, float? scale=None, bool enable_gqa=False, bool bottom_right=False, "
    "int window_left=-1, int window_right=-1, float softcap=0.0, bool lse=False, "
    'str score_mod="", Tensor? attn_mask=None) -> (Tensor, Tensor)'
)


class FeatureCalls:
    """Decides on calls with features as `AttentionCalls` does on others; serves all of them."""

    def __init__(
        self,
        kernels: AttentionKernels,
        operator: AttentionOperator,
        calls: AttentionCalls,
    ) -> None:
        self.kernels = kernels
        self._calls = calls
        self.trees = kernels.score_mods
        self._grad = kernels.misses.missed("grad", None, "an input requires grad")
        operator.define(OPERATOR, _SIGNATURE)
        self._overload: Any = getattr(getattr(torch.ops, operator.namespace), OPERATOR).default
        operator.implement_further(
            OPERATOR, self._run_operator, self._autograd, self._fake, kernels.kernels.device_type
        )

    def attention(self, call: Call, features: dict[str, Any]) -> Any:
        """The output, with `return_lse` a pair of it and the logarithms. TypeError and ValueError,
        one line, for features that make no sense. A mask hides keys in addition to them."""
        is_causal = bool(call.is_causal)
        asked, slopes, sinks = read_features(features, is_causal, self.trees)
        call = call._replace(asked=asked, slopes=slopes, sinks=sinks)
        if call.is_plain:
            q, k, v, is_causal, scale, enable_gqa, mask = call[:7]
            return self._calls.attention(
                q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
            )
        call = call._replace(is_causal=is_causal)
        if device_type := autocast_device(call.q):
            call = call.cast(device_type)
        require_fit(call)
        out, lse = self.serve(call)
        return (out, lse) if asked.lse else out

    def serve(self, call: Call, dropout: float = 0.0) -> Outputs:
        """The outputs of a kernel, or of PyTorch."""
        if device_type := autocast_device(call.q):
            call = call.cast(device_type)
            with torch.autocast(device_type, enabled=False):
                return self.serve(call, dropout)
        found = self.attempt(call, dropout)
        return plain_with_features(call, self.trees, dropout) if found is None else found

    def attempt(self, call: Call, dropout: float = 0.0) -> Outputs | None:
        """The outputs, or None if no kernel serves the call."""
        if not torch.compiler.is_compiling():
            return self._calls.outputs(call, dropout)
        features = tuple(call.asked)[:-1]  # without the mask, which is not known yet
        if not self._calls.wins_while_tracing(call, dropout, features):
            return None
        out, lse = self._overload(*arguments_of(call))
        return out, lse if call.asked.lse else None

    def _run_operator(self, *given: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
        call = _call(*given, **named)
        require_fit(call)
        found = self.kernels.serve(call.in_float32())
        return self._as_promised(call, found or plain_with_features(call, self.trees))

    def _autograd(self, *given: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
        call = _call(*given, **named)
        tensors = [*call[:3], *call.further]
        if forward_mode() or (torch.is_grad_enabled() and needs_grad(*tensors)):
            self._grad.count()
            require_fit(call)
            return self._as_promised(call, plain_with_features(call, self.trees))
        with torch._C._AutoDispatchBelowAutograd():
            return self._overload(*arguments_of(call))  # type: ignore[no-any-return]

    @staticmethod
    def _fake(*given: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
        call = _call(*given, **named)
        require_fit(call)
        return _promised(call)

    @staticmethod
    def _as_promised(call: Call, found: Outputs) -> tuple[torch.Tensor, torch.Tensor]:
        """The outputs with the strides of the fake kernel's."""
        promised, no_lse = _promised(call)
        out, lse = found
        if out.stride() != promised.stride():
            out = promised.copy_(out)
        return out, no_lse if lse is None else lse.contiguous()


def arguments_of(call: Call) -> tuple[Any, ...]:
    """The operator's arguments."""
    asked = call.asked
    return (
        *(*call[:3], call.slopes, call.sinks, *call[3:6]),
        *(asked.bottom_right, asked.window_left, asked.window_right),
        *(asked.softcap, asked.lse, asked.score_mod, call.mask),
    )


def _call(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    bottom_right: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    lse: bool = False,
    score_mod: str = "",
    attn_mask: torch.Tensor | None = None,
) -> Call:
    """The call of the operator's arguments. Raises ValueError for a soft cap that makes no
    sense."""
    require_softcap(softcap)
    asked = Asked(
        bottom_right=bottom_right,
        window_left=max(-1, window_left),
        window_right=-1 if is_causal else max(-1, window_right),
        softcap=softcap,
        alibi=alibi_slopes is not None,
        sinks=sinks is not None,
        lse=lse,
        score_mod=score_mod,
    )
    return Call(q, k, v, is_causal, scale, enable_gqa, attn_mask, asked, alibi_slopes, sinks)


def _promised(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs' memory. Logarithms that were not requested have no elements."""
    q, k, v = call[:3]
    shape = (*q.shape[:3], v.shape[3])
    sizes = tuple(q.shape[:3]) if call.asked.lse else (0,)
    return laid_out(q, k, v, shape), q.new_empty(sizes, dtype=torch.float32)
