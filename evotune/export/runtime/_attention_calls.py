"""`NAME.attention`, and how the package answers calls of SDPA while it is active."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch

from ._asked_features import NONE, Asked
from ._attention_package import (
    DTYPE,
    FEATURES,
    AttentionKernels,
    Call,
    Outputs,
    plain_attention,
)
from ._dispatch import LAYOUT, NOT_WON, OUTSIDE, Choice
from ._loaded_kernels import Refused
from ._masks import MASK
from ._missed import Missed, Misses
from ._operators import AttentionOperator, memory_holds_values, needs_grad
from ._plain_state import (
    are_plain,
    below_function_modes,
    every_backend_is_allowed,
    modes_look_at_calls,
)
from ._tracing import decided_while_tracing, forward_mode, is_exporting, is_transformed

# Looked up once, since look-ups cost every call.
_Tensor = torch.Tensor
_is_compiling = torch.compiler.is_compiling
_is_traced = torch.compiler.is_dynamo_compiling  # a constant to torch.compile
_is_grad_enabled, _is_autocast_enabled = torch.is_grad_enabled, torch.is_autocast_enabled
_function_modes = torch._C._len_torch_function_stack
_is_any_autocast_enabled = torch._C._is_any_autocast_enabled
_autocast_dtype = torch.get_autocast_dtype

_USUAL = math.nan
_MOST_LOST = 4096
_LASTING = (NOT_WON, OUTSIDE, LAYOUT, DTYPE, MASK, FEATURES)
"""The kinds of misses that follow from the facts of a call."""
_OWN_MEMORY = (torch.Tensor, torch.nn.Parameter)
_WHILE_TRACING = {
    "export": "torch.export traces the call",
    "autocast": "torch.compile traces a call under autocast",
    "symbolic shape": "torch.compile traces a call whose shapes it leaves open",
    "symbolic number": "torch.compile traces a call with a number that it leaves open",
    OUTSIDE: "torch.compile traces a call whose tensors do not have four dimensions",
}


class AttentionCalls:
    """Serves calls that have SDPA's arguments."""

    def __init__(
        self, kernels: AttentionKernels, operator: AttentionOperator, misses: Misses
    ) -> None:
        self._kernels = kernels
        self._served = operator.served
        self._misses = misses
        self._device_type = kernels.kernels.device_type
        self._grad = misses.missed("grad", None, "an input requires grad")
        self._dropout = misses.missed("dropout", None, "the call has dropout")
        self._other = misses.missed("tensor", None, "an argument is no plain tensor or number")
        self._backend = misses.missed("backend", None, "the user chose SDPA's backend")
        self._while_tracing = {
            "tensor": self._other,
            "dropout": self._dropout,
            "grad": self._grad,
            **{kind: misses.missed(kind, None, words) for kind, words in _WHILE_TRACING.items()},
        }
        # Of `_lost_key`. False: whether such a call is a miss depends on more than these facts.
        self._lost: dict[Any, Missed | Literal[False]] = {}
        self._native: Any = operator.attempt if operator.decisions is not None else None
        self._direct: Any = operator.direct
        self.attention = self.public(operator.direct)
        self.with_features: Callable[[Call, dict[str, Any]], Any]
        """Serves a call of `attention` that has features, which are the dictionary."""

    def public(self, direct: Callable[..., Any] | None) -> Callable[..., Any]:
        """Makes the function `NAME.attention`. It asks `direct`, the native launcher, first.

        It is a plain function, because a call of a bound method takes longer: about as long as
        making the dictionary `features` takes here.
        """

        def attention(
            q: torch.Tensor,
            k: torch.Tensor,
            v: torch.Tensor,
            *,
            attn_mask: torch.Tensor | None = None,
            is_causal: bool = False,
            scale: float | None = None,
            enable_gqa: bool = False,
            **features: Any,
        ) -> Any:
            """scaled_dot_product_attention(q, k, v, attn_mask=…, is_causal=…, scale=…,
            enable_gqa=…). A kernel of this package serves it if it was measured to win there,
            otherwise SDPA.

            Features: alignment="bottom_right", window=(left, right), softcap=…, alibi_slopes=…,
            sinks=…, score_mod="…", and return_lse=True, which also returns the logarithms of the
            rows' sums. PyTorch computes what no kernel does. `_asked_features.py` says more.
            """
            if features:
                call = Call(q, k, v, is_causal, scale, enable_gqa, attn_mask)
                return self.with_features(call, features)
            out: torch.Tensor | Literal[False] | None
            if not _is_traced() and direct is not None:  # as `attempt` does, without its frame
                out = direct(q, k, v, attn_mask, 0.0, is_causal, scale, enable_gqa)
                if out is not None and out is not False:
                    return out
                if out is False:
                    return plain_attention(q, k, v, is_causal, scale, enable_gqa, attn_mask)
            out = self.attempt(q, k, v, attn_mask, 0.0, is_causal, scale, enable_gqa)
            if out is None:
                return plain_attention(q, k, v, is_causal, scale, enable_gqa, attn_mask)
            return out

        return attention

    def attempt(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor | None,
        dropout: float,
        is_causal: bool,
        scale: float | None,
        enable_gqa: bool,
    ) -> torch.Tensor | None:
        """The output of a call of SDPA, or None if the kernels do not serve it."""
        if not _is_traced() and self._direct is not None:
            out: torch.Tensor | Literal[False] | None
            out = self._direct(q, k, v, mask, dropout, is_causal, scale, enable_gqa)
            if out is not None:
                return None if out is False else out
        if _is_compiling():
            return self._traced(Call(q, k, v, is_causal, scale, enable_gqa, mask), dropout)
        if _function_modes():
            if self._direct is None:
                with below_function_modes():
                    if self._is_known_miss(q, k, v, is_causal, scale, enable_gqa, mask):
                        return None
            found = self.outputs(Call(q, k, v, is_causal, scale, enable_gqa, mask), dropout)
        elif self._is_known_miss(q, k, v, is_causal, scale, enable_gqa, mask):
            return None  # before a `Call` is made: a miss must cost little
        else:
            found = self._examined(Call(q, k, v, is_causal, scale, enable_gqa, mask), dropout)
        return None if found is None else found[0]

    def outputs(self, call: Call, dropout: float = 0.0) -> Outputs | None:
        """The outputs of an eager call, or None if the kernels do not serve it."""
        if not _function_modes():
            return self._attempt(call, dropout)
        with below_function_modes():
            if self._direct is not None and call.is_plain:
                # Native code serves calls under a default device, which it does not see here.
                if modes_look_at_calls():
                    self._other.count()
                    return None
                out = self._direct(*call[:3], call.mask, dropout, *call[3:6])
                if out is not None:
                    return None if out is False else (out, None)
            return self._attempt(call, dropout)

    def _attempt(self, call: Call, dropout: float) -> Outputs | None:
        """The same; does not use the native launcher's function."""
        return None if self._is_known_miss(*call[:8]) else self._examined(call, dropout)

    def _is_known_miss(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        is_causal: bool,
        scale: float | None,
        enable_gqa: bool,
        mask: torch.Tensor | None,
        asked: Asked = NONE,
    ) -> bool:
        """Whether a call with such facts is remembered as a miss. Counts it then."""
        if not self._lost:
            return False
        cast_to = self._autocast_dtype() if _is_any_autocast_enabled() else None
        key = _lost_key(q, k, v, is_causal, scale, enable_gqa, mask, asked, cast_to)
        lost = self._lost.get(key)
        if lost:
            lost.count()
        return bool(lost)

    def _autocast_dtype(self) -> torch.dtype | None:
        """The type that autocast casts inputs to, or None where it is off."""
        if _is_autocast_enabled(self._device_type):
            return _autocast_dtype(self._device_type)
        return None

    def _examined(self, call: Call, dropout: float) -> Outputs | None:
        """The same for a call that is not remembered as a miss."""
        cast_to = self._autocast_dtype() if _is_any_autocast_enabled() else None
        is_plain = call.is_plain
        given = call[:3] if is_plain and call.mask is None else _memory_of(call)
        missed = self.untakable(call, dropout)
        if missed is None and not are_plain(*given):
            missed = self._other
        if missed is not None:
            missed.count()
            return None
        cast = call if cast_to is None else call.cast(self._device_type)
        if _is_grad_enabled() and needs_grad(*cast[:3], *cast.further):
            self._grad.count()
            return None
        found: Outputs | None
        if self._native is None or not is_plain:
            if not memory_holds_values(*given):  # the dispatcher makes it so for native code
                self._other.count()
                return None
            found = self._kernels.serve(cast if is_plain else cast.in_float32())
        else:
            usual = _USUAL if call.scale is None else call.scale
            out = self._native(*cast[:4], usual, *cast[5:7])
            found = None if out is None else (out, None)
        if found is None:
            self._note(call, cast, cast_to)
        return found

    def forget(self) -> None:
        """Forgets the shapes for which no call can be served."""
        self._lost.clear()

    def _note(self, call: Call, cast: Call, cast_to: torch.dtype | None) -> None:
        """Remembers a miss that every call with such facts is, whatever else it has. `cast`: the
        call as autocast makes it."""
        key = _lost_key(*call[:8], cast_to)
        if key in self._lost:
            return
        if len(self._lost) >= _MOST_LOST:
            self._lost.clear()
        self._lost[key] = False
        q, k, v = call[:3]
        tensors = (q, k, v) if call.mask is None else (q, k, v, call.mask)
        if q.dtype == k.dtype == v.dtype and all(t.device == q.device for t in tensors):
            choice = self._kernels.chosen(cast, q.device)
            if isinstance(choice, Refused) and choice.kind in _LASTING:
                self._lost[key] = self._kernels.missed(cast, choice)

    def untakable(self, call: Call, dropout: float) -> Missed | None:
        """Why no kernel takes a call with such options, whatever its tensors."""
        is_number = isinstance(dropout, int | float)
        if is_number and dropout != 0.0:
            return self._dropout
        if not every_backend_is_allowed():
            return self._backend
        if forward_mode():
            return self._grad
        scale = call.scale
        if (
            not is_number
            or not type(call.is_causal) is type(call.enable_gqa) is bool
            or (scale is not None and (type(scale) is not float or math.isnan(scale)))
            or modes_look_at_calls()
        ):
            return self._other
        return None

    def _traced(self, call: Call, dropout: float) -> torch.Tensor | None:
        """The output of a call while torch.compile traces, or None if the kernels do not serve it.
        The decision is part of the graph: it holds for the shapes that the graph is compiled for,
        and shapes that it leaves open are not served. A miss counts once for each graph.
        """
        if not self.wins_while_tracing(call, dropout):
            return None
        q, k, v, is_causal, scale, enable_gqa, mask = call[:7]
        scale = 1.0 / math.sqrt(q.shape[3]) if scale is None else scale
        return self._served(q, k, v, is_causal, scale, enable_gqa, mask)  # type: ignore[no-any-return]

    def wins_while_tracing(
        self, call: Call, dropout: float, features: tuple[Any, ...] = ()
    ) -> bool:
        """Whether a kernel serves the call that is traced. `features` are those of `Asked` in their
        order."""
        kind = self._untraceable(call, dropout)
        options = call[3:6]
        given = [*call[:3]] if call.mask is None else [*call[:3], call.mask]
        shapes = tuple(tuple(each.shape) for each in given)
        strides = tuple(each.stride() for each in given)
        for number in (*options, *features) if not kind else ():
            if number is None or isinstance(number, str):
                continue
            if not isinstance(number, int | float):
                kind = "tensor"
            elif not torch.fx.experimental.symbolic_shapes.has_static_value(number):
                kind = "symbolic number"
        for sizes in (*shapes, *strides) if not kind else ():
            for size in sizes:
                if not torch.fx.experimental.symbolic_shapes.has_static_value(size):
                    kind = "symbolic shape"
        if kind:
            self._note_traced(kind)
            return False
        dtypes = tuple(each.dtype for each in given)
        return self._wins(dtypes, call.q.device, shapes, strides, options, features)

    def _untraceable(self, call: Call, dropout: float) -> str:
        """The kind of miss that a traced call is, whatever its sizes; "" for none."""
        q, k, v = call[:3]
        given = (q, k, v, *call.further)
        reasons = (
            ("dropout", dropout != 0.0),
            ("export", is_exporting()),
            ("tensor", not all(type(each) in _OWN_MEMORY for each in given) or is_transformed()),
            ("autocast", torch.is_autocast_enabled(self._device_type)),
            ("grad", forward_mode() or (torch.is_grad_enabled() and needs_grad(*given))),
            (OUTSIDE, not len(q.shape) == len(k.shape) == len(v.shape) == 4),
        )
        for kind, holds in reasons:
            if holds:
                return kind
        return ""

    @decided_while_tracing
    def _wins(
        self,
        dtypes: tuple[torch.dtype, ...],
        device: torch.device,
        shapes: tuple[tuple[int, ...], ...],
        strides: tuple[tuple[int, ...], ...],
        options: tuple[bool, float | None, bool],
        features: tuple[Any, ...],
    ) -> bool:
        """Whether a kernel serves the case. It runs while torch.compile traces, on facts alone: of
        q, k, v and the mask."""
        q, k, v, *mask = (
            torch.empty_strided(shape, steps, dtype=dtype, device="meta")
            for shape, steps, dtype in zip(shapes, strides, dtypes, strict=True)
        )
        if not every_backend_is_allowed():
            self._backend.count()
            return False
        call = Call(q, k, v, *options, mask[0] if mask else None, Asked(*features))
        choice = self._kernels.chosen(call, device)
        if isinstance(choice, Choice):
            return True
        self._kernels.missed(call, choice).count()
        return False

    @decided_while_tracing
    def _note_traced(self, kind: str) -> bool:
        self._while_tracing[kind].count()
        return True


def _memory_of(call: Call) -> list[torch.Tensor]:
    """The tensors of the call. A model's mask or sinks may be its parameters, which are no plain
    tensors but have their memory."""
    further = call.further
    return [*call[:3], *(t.detach() if type(t) is torch.nn.Parameter else t for t in further)]


def _lost_key(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    mask: torch.Tensor | None,
    asked: Asked,
    cast_to: torch.dtype | None,
) -> tuple[object, ...] | None:
    """The facts of a call on which a remembered miss depends; None for tensors without such facts.
    `cast_to` is autocast's type. If k and v have another type or device than q, or the mask another
    device, the call is a miss anyway, so those are left out."""
    if not type(q) is type(k) is type(v) is _Tensor:
        return None
    try:
        shapes = q.shape, k.shape, v.shape
    except RuntimeError:  # a nested tensor has none
        return None
    layout: Any = q.is_contiguous() and k.is_contiguous() and v.is_contiguous()
    if not layout:
        layout = q.stride(), k.stride(), v.stride()
    more: Any = cast_to
    if mask is not None:
        if type(mask) is not _Tensor or mask.is_nested:
            return None
        more = cast_to, mask.shape, mask.stride(), mask.dtype
    if asked is not NONE:
        more = more, asked
    return *shapes, q.dtype, q.device, layout, is_causal, scale, enable_gqa, more
