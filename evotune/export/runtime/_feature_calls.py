"""Serves calls of `attention` that have features, and `torch.ops.NAME.attention_with_features`.

The calls go from Python to the launcher: native code knows the arguments of SDPA alone.
"""

from __future__ import annotations

from typing import Any

import torch

from ._asked_features import NONE, Asked, read_features, require_softcap
from ._attention_calls import AttentionCalls
from ._attention_package import (
    AttentionKernels,
    Call,
    Outputs,
    autocast_device,
    cast_for_autocast,
)
from ._operators import AttentionOperator, laid_out, memory_holds_values, needs_grad
from ._plain_features import plain_with_features, require_fit
from ._plain_state import are_plain, below_function_modes
from ._tracing import forward_mode

OPERATOR = "attention_with_features"
_SIGNATURE = (
    "(Tensor q, Tensor k, Tensor v, Tensor? alibi_slopes=None, Tensor? sinks=None, "
    "bool is_causal=False, float? scale=None, bool enable_gqa=False, bool bottom_right=False, "
    "int window_left=-1, int window_right=-1, float softcap=0.0, bool lse=False, "
    'str score_mod="") -> (Tensor, Tensor)'
)


class FeatureCalls:
    """Decides on calls with features as `AttentionCalls` does on others; serves all of them."""

    def __init__(
        self,
        kernels: AttentionKernels,
        operator: AttentionOperator,
        calls: AttentionCalls,
    ) -> None:
        self._kernels = kernels
        self._calls = calls
        self.trees = kernels.score_mods
        self._device_type = kernels.kernels.device_type
        misses = kernels.misses
        self._grad = misses.missed("grad", None, "an input requires grad")
        self._other = misses.missed("tensor", None, "an argument is no plain tensor or number")
        operator.define(OPERATOR, _SIGNATURE)
        self._overload: Any = getattr(getattr(torch.ops, operator.namespace), OPERATOR).default
        operator.implement_further(
            OPERATOR, self._run_operator, self._autograd, self._fake, self._device_type
        )

    def attention(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        is_causal: bool,
        scale: float | None,
        enable_gqa: bool,
        features: dict[str, Any],
    ) -> Any:
        """The output, with `return_lse` a pair of it and the logarithms. TypeError and ValueError,
        one line, for features that make no sense."""
        asked, slopes, sinks = read_features(features, bool(is_causal), self.trees)
        if asked == NONE:
            return self._calls.attention(
                q, k, v, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
            )
        call = Call(q, k, v, bool(is_causal), scale, enable_gqa, asked, slopes, sinks)
        if device_type := autocast_device(q):
            call = cast(call, device_type)
        require_fit(call)
        out, lse = self.serve(call)
        return (out, lse) if asked.lse else out

    def serve(self, call: Call, mask: torch.Tensor | None = None, dropout: float = 0.0) -> Outputs:
        """The outputs of a kernel, or of PyTorch."""
        if device_type := autocast_device(call.q):
            call = cast(call, device_type)
            with torch.autocast(device_type, enabled=False):
                return self.serve(call, mask, dropout)
        found = self.attempt(call, mask, dropout)
        return plain_with_features(call, self.trees, mask, dropout) if found is None else found

    def attempt(
        self, call: Call, mask: torch.Tensor | None = None, dropout: float = 0.0
    ) -> Outputs | None:
        """The outputs, or None if no kernel serves the call."""
        if torch.compiler.is_compiling():
            return self._traced(call, mask, dropout)
        with below_function_modes():
            return self._attempt(call, mask, dropout)

    def _attempt(self, call: Call, mask: torch.Tensor | None, dropout: float) -> Outputs | None:
        if device_type := autocast_device(call.q):
            call = cast(call, device_type)
        missed = self._calls.untakable(mask, dropout, call.is_causal, call.scale, call.enable_gqa)
        given = [tensor for tensor in (call.slopes, call.sinks) if tensor is not None]
        if missed is None and torch.is_grad_enabled() and needs_grad(*call[:3], *given):
            missed = self._grad
        # A model's sinks are its parameters, which are no plain tensors but have their memory.
        given = [each.detach() if type(each) is torch.nn.Parameter else each for each in given]
        plain = all(are_plain(tensor, tensor, tensor) for tensor in (*call[:3], *given))
        if missed is None and not (plain and memory_holds_values(*call[:3], *given)):
            missed = self._other
        if missed is not None:
            missed.count()
            return None
        return self._kernels.serve_with_features(_in_float32(call))

    def _traced(self, call: Call, mask: torch.Tensor | None, dropout: float) -> Outputs | None:
        given = tuple(tensor for tensor in (call.slopes, call.sinks) if tensor is not None)
        options = call.is_causal, call.scale, call.enable_gqa
        wins = self._calls.wins_while_tracing(
            *call[:3], mask, dropout, options, tuple(call.asked), given
        )
        if not wins:
            return None
        out, lse = self._overload(*arguments_of(call))
        return out, lse if call.asked.lse else None

    def _run_operator(self, *given: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
        call = _call(*given, **named)
        require_fit(call)
        found = self._kernels.serve_with_features(_in_float32(call))
        return self._as_promised(call, found or plain_with_features(call, self.trees))

    def _autograd(self, *given: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
        call = _call(*given, **named)
        tensors = [each for each in (*call[:3], call.slopes, call.sinks) if each is not None]
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


def cast(call: Call, device_type: str) -> Call:
    q, k, v = (cast_for_autocast(tensor, device_type) for tensor in call[:3])
    return call._replace(q=q, k=k, v=v)


def _in_float32(call: Call) -> Call:
    """The call with slopes and sinks as kernels take them."""
    slopes, sinks = (
        None if tensor is None else tensor.detach().to(torch.float32).contiguous()
        for tensor in (call.slopes, call.sinks)
    )
    return call._replace(slopes=slopes, sinks=sinks)


def arguments_of(call: Call) -> tuple[Any, ...]:
    """The operator's arguments."""
    asked = call.asked
    return (
        *(*call[:3], call.slopes, call.sinks, *call[3:6]),
        *(asked.bottom_right, asked.window_left, asked.window_right),
        *(asked.softcap, asked.lse, asked.score_mod),
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
    return Call(q, k, v, is_causal, scale, enable_gqa, asked, alibi_slopes, sinks)


def _promised(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs' memory. Logarithms that were not requested have no elements."""
    q, k, v = call[:3]
    shape = (*q.shape[:3], v.shape[3])
    sizes = tuple(q.shape[:3]) if call.asked.lse else (0,)
    return laid_out(q, k, v, shape), q.new_empty(sizes, dtype=torch.float32)
