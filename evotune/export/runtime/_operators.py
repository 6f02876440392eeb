"""The package's operators in `torch.ops`, with fake kernels for torch.compile and autograd.

- attention: the public one. SDPA serves what the kernels do not, and whatever requires grad.
- _served: the same for tensors that do not require grad. Graphs of torch.compile contain it.
- _with_grad: the same for tensors that may require grad.
- attention_with_features: defined by `_feature_calls`.
- _attempt: the output, or None if no kernel serves the call. Native code implements it; these are
  for native code to call: _decide (what serves a call), _launch (as Python does it), _before
  (SDPA).

All but the first take NaN as the usual scale. An output has the strides that the fake kernel
promises, on every path. Under autocast the public operator casts its inputs as SDPA does.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import torch

from ._attention_package import (
    ALIGNMENT,
    AttentionKernels,
    Call,
    Served,
    autocast_device,
    cast_for_autocast,
    plain_attention,
)
from ._missed import Missed
from ._plain_state import questions
from ._tracing import forward_mode

_MOST_NAMESAKES = 100
_SIGNATURE = (
    "(Tensor q, Tensor k, Tensor v, bool is_causal=False, float? scale=None, "
    "bool enable_gqa=False, Tensor? attn_mask=None) -> Tensor"
)
_PRIVATE = (
    "(Tensor q, Tensor k, Tensor v, bool is_causal, float scale, bool enable_gqa, "
    "Tensor? attn_mask=None) -> "
)
ANY_DEVICE = "CompositeExplicitAutograd"


def open_namespace(name: str, operator: str, signature: str) -> tuple[Any, str]:
    """A library in which `operator` is defined, and its namespace. The namespace is the module's;
    if an earlier import of the same name still has it, a number is added."""
    namespace = wanted = name.replace(".", "_")
    for number in range(2, _MOST_NAMESAKES):
        library: Any = torch.library.Library(namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
        try:
            library.define(f"{operator}{signature}", tags=(torch.Tag.pt2_compliant_tag,))
        except RuntimeError:
            namespace = f"{wanted}_{number}"
        else:
            return library, namespace
    raise ImportError(f"{wanted} was imported {_MOST_NAMESAKES} times")


class AttentionOperator:
    """The operators of one package. `implement` makes them callable."""

    def __init__(self, name: str) -> None:
        self._library, self.namespace = open_namespace(name, "attention", _SIGNATURE)
        operators = getattr(torch.ops, self.namespace)
        for private in ("_served", "_attempt", "_launch", "_before"):
            self._library.define(f"{private}{_PRIVATE}Tensor", tags=(torch.Tag.pt2_compliant_tag,))
            # Their callers see to it that nothing requires grad.
            self._library.impl(private, torch.library.fallthrough_kernel, "Autograd")
        self._library.define(f"_with_grad{_PRIVATE}Tensor")
        self._library.define(f"_decide{_PRIVATE}int")
        self.public: Any = operators.attention.default
        self.served: Any = operators._served.default
        self.attempt: Any = operators._attempt.default
        self.decisions: NativeDecisions | None = None
        """The native launcher's; None if Python launches."""
        self.direct: Callable[..., Any] | None = None
        """The native launcher's function, which needs no operator (`Native.function`)."""

    def implement(self, kernels: AttentionKernels) -> None:
        def serve(*given: Any) -> torch.Tensor | None:
            found = kernels.serve(Call(*given))
            return None if found is None else found[0]

        def attention(
            q: torch.Tensor,
            k: torch.Tensor,
            v: torch.Tensor,
            is_causal: bool = False,
            scale: float | None = None,
            enable_gqa: bool = False,
            attn_mask: torch.Tensor | None = None,
        ) -> torch.Tensor:
            given = q, k, v, is_causal, scale, enable_gqa, attn_mask
            out = serve(*given)
            return before(*given) if out is None else out

        served = _with_usual_scale(attention)
        library, key = self._library, kernels.kernels.device_type.upper()
        native = kernels.kernels.launcher.open_native(self.namespace, key)
        library.impl("attention", attention, ANY_DEVICE)
        library.impl("_served", served, ANY_DEVICE)
        if native is not None:  # native code has implemented both operators for its key
            self.decisions = NativeDecisions(kernels, native, serve)
            self.direct = self.decisions.function()
            library.impl("_decide", self.decisions.decide, key)
            library.impl("_launch", served, key)
            library.impl("_before", _with_usual_scale(before), key)
            library.impl("_attempt", _with_usual_scale(serve), ANY_DEVICE)
        for device in {"CPU", key}:
            for name, function in (("attention", before), ("_served", _with_usual_scale(before))):
                library.impl(name, function, f"NestedTensor{device}")
        recorded = _differentiable(kernels, self.served)
        library.impl("attention", recorded, "Autograd")
        library.impl("_with_grad", _with_usual_scale(recorded), "CompositeImplicitAutograd")
        cast = under_autocast(self.public, kernels.kernels.device_type)
        library.impl("attention", cast, f"Autocast{key}")
        library._register_fake("attention", fake)
        library._register_fake("_served", fake)

    def define(self, name: str, signature: str) -> None:
        """Defines an additional operator."""
        self._library.define(f"{name}{signature}", tags=(torch.Tag.pt2_compliant_tag,))

    def implement_further(
        self,
        name: str,
        function: Callable[..., Any],
        autograd: Callable[..., Any],
        fake: Callable[..., Any],
        device_type: str,
    ) -> None:
        """Makes an additional operator callable; autocast casts its first three arguments."""
        overload = getattr(getattr(torch.ops, self.namespace), name).default
        self._library.impl(name, function, ANY_DEVICE)
        self._library.impl(name, autograd, "Autograd")
        cast = under_autocast(overload, device_type)
        self._library.impl(name, cast, f"Autocast{device_type.upper()}")
        self._library._register_fake(name, fake)


def _differentiable(kernels: AttentionKernels, served: Any) -> Callable[..., torch.Tensor]:
    """The operator for tensors that may require grad: then SDPA is recorded in its place."""

    def attention(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        attn_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        given = (q, k, v) if attn_mask is None else (q, k, v, attn_mask)
        recorded = forward_mode() or (torch.is_grad_enabled() and needs_grad(*given))
        if recorded:
            kernels.misses.missed("grad", None, "an input requires grad").count()
        if recorded or (scale is not None and math.isnan(scale)):
            return before(q, k, v, is_causal, scale, enable_gqa, attn_mask)
        scale = math.nan if scale is None else scale
        return served(q, k, v, is_causal, scale, enable_gqa, attn_mask)  # type: ignore[no-any-return]

    return attention


def under_autocast(attention: Any, device_type: str) -> Callable[..., Any]:
    """The operator under autocast, which casts q, k, v and the mask. If the mode is off for the
    device, nothing is cast."""
    names = [argument.name for argument in attention._schema.arguments]

    def cast_attention(*given: Any, **named: Any) -> Any:
        whole = {**dict(zip(names, given, strict=False)), **named}
        for name in ("q", "k", "v", "attn_mask"):
            if whole.get(name) is not None:
                whole[name] = cast_for_autocast(whole[name], device_type)
        with torch._C._ExcludeDispatchKeyGuard(
            torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{device_type.upper()}"))
        ):
            return attention(**whole)

    return cast_attention


def _with_usual_scale(function: Callable[..., Any]) -> Callable[..., Any]:
    def with_usual_scale(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        is_causal: bool,
        scale: float,
        enable_gqa: bool,
        attn_mask: torch.Tensor | None = None,
    ) -> Any:
        return function(q, k, v, is_causal, given_scale(scale), enable_gqa, attn_mask)

    return with_usual_scale


def before(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    attn_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """SDPA's result, with the operator's strides."""
    out = plain_attention(q, k, v, is_causal, scale, enable_gqa, attn_mask)
    if out.is_nested:
        return out
    promised = laid_out(q, k, v, tuple(out.shape))
    return out if out.stride() == promised.stride() else promised.copy_(out)


def fake(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    attn_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """The output without its values. Raises RuntimeError for tensors that SDPA refuses."""
    for fact in ("device", "dtype"):
        if not getattr(q, fact) == getattr(k, fact) == getattr(v, fact):
            found = ", ".join(str(getattr(tensor, fact)) for tensor in (q, k, v))
            raise RuntimeError(f"expected q, k and v to have the same {fact}, got {found}")
    if not (q.is_floating_point() or q.is_complex()):  # which not every PyTorch refuses here
        return plain_attention(q, k, v, is_causal, scale, enable_gqa, attn_mask)
    if q.shape[-1] != k.shape[-1]:
        raise RuntimeError("expected q and k to have the same size of heads")
    leading = [tuple(tensor.shape[:-2]) for tensor in (q, k, v)]
    if enable_gqa:  # k and v count as having the heads of q
        heads = [sizes[-1] for sizes in leading]
        if any(each == 0 or heads[0] % each for each in heads[1:]):
            raise RuntimeError(f"expected the heads of k and v to divide those of q, got {heads}")
        leading = [(*sizes[:-1], heads[0]) for sizes in leading]
    whole: Any = leading[0]
    if any(sizes != whole for sizes in leading):
        whole = torch.broadcast_shapes(*leading)  # type: ignore[no-untyped-call]
    if attn_mask is not None:
        if is_causal:  # which SDPA refuses on some devices
            plain_attention(q, k, v, is_causal, scale, enable_gqa, attn_mask)
        _require_mask(attn_mask, q.dtype, (*whole, q.shape[-2], k.shape[-2]))
    return laid_out(q, k, v, (*whole, q.shape[-2], v.shape[-1]))


def _require_mask(mask: torch.Tensor, dtype: torch.dtype, scores: tuple[int, ...]) -> None:
    if mask.dtype not in (torch.bool, torch.float32, dtype):
        raise RuntimeError(f"expected a mask of bool, float32 or {dtype}, got {mask.dtype}")
    pairs = zip(reversed(mask.shape), reversed(scores), strict=False)
    if mask.dim() > len(scores) or any(size not in (1, whole) for size, whole in pairs):
        raise RuntimeError(f"expected a mask for scores of {scores}, got {tuple(mask.shape)}")


def laid_out(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, shape: tuple[int, ...]
) -> torch.Tensor:
    """The output's memory, laid out like q if possible."""
    same_batch = q.dim() == k.dim() == v.dim() == 4 and q.shape[0] == k.shape[0] == v.shape[0]
    return torch.empty_like(q) if same_batch and shape == tuple(q.shape) else q.new_empty(shape)


def needs_grad(*tensors: torch.Tensor) -> bool:
    return any(tensor.requires_grad for tensor in tensors)


def memory_holds_values(*tensors: torch.Tensor) -> bool:
    """False if PyTorch negates the values that are read, or a tensor of zeros has no memory. The
    dispatcher gives an operator tensors for which it is true."""
    return not any(tensor.is_neg() or tensor._is_zerotensor() for tensor in tensors)


# Answers the native launcher, which asks once for each case what serves it.
_MOST_DECISIONS = 4096


def given_scale(scale: float) -> float | None:
    """The scale that a caller gave, from the scale that native code passes on; None if the caller
    gave none.

    Native code passes on a positive NaN in place of None. A NaN that the caller gave is negative.
    """
    return None if math.isnan(scale) and math.copysign(1.0, scale) > 0 else scale


class NativeDecisions:
    """The decisions that native code has, and the calls that it has counted."""

    def __init__(
        self, kernels: AttentionKernels, native: Any, serve: Callable[..., torch.Tensor | None]
    ) -> None:
        """`serve` makes a call that native code leaves to Python."""
        self._kernels = kernels
        self._native = native
        self._serve = serve
        self._told: list[tuple[int, Served | Missed]] = []
        self._forgotten: list[tuple[int, Served | Missed]] = []
        self._calls = 0
        self._lock = threading.Lock()

    def function(self) -> Callable[..., Any] | None:
        """A function of Python that native code implements (`Native.function`)."""
        try:
            state = questions()
        except AttributeError:
            return None
        plain = (torch.Tensor, float, None, True, False)
        names = ("requires_grad", "dtype", self._kernels.kernels.device_type)
        asked = (torch.empty_like, torch.Tensor.is_neg, self.decide, self._serve)
        found: Callable[..., Any] | None = self._native.function((*plain, *names, *asked, *state))
        return found

    def decide(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        is_causal: bool,
        scale: float,
        enable_gqa: bool,
        attn_mask: torch.Tensor | None = None,
    ) -> int:
        """Tells native code what serves a call, in the same thread in which that asks. Where
        autocast casts the tensors, it is Python that serves the call."""
        given = Call(q, k, v, is_causal, given_scale(scale), enable_gqa, attn_mask)
        device_type = autocast_device(q)
        call = given.cast(device_type) if device_type else given
        is_cast = any(a is not b for a, b in zip(given, call, strict=True))
        self._forget(least=_MOST_DECISIONS)
        decision = self._kernels.decide(call)
        tensors = (*call[:3], *call.further)
        if isinstance(decision, Served) and any(t.data_ptr() % ALIGNMENT for t in tensors):
            decision = self._kernels.misaligned(call)
        if isinstance(decision, Missed):
            decision.count(0)
            number = self._native.add_miss()
        else:
            same = q.shape[3] == v.shape[3]  # the only output that native code makes
            add = self._native.add if same and not is_cast else self._native.add_python
            number = add(decision.launch, torch.empty_like(q))
        with self._lock:
            self._told.append((number, decision))
        return 0

    def forget(self) -> None:
        """Makes native code ask again about every case. Its counts are not reset."""
        self._forget(least=0)

    def _forget(self, least: int) -> None:
        """Does nothing if native code has fewer than `least` decisions. A call that has begun
        counts for the decision that it found, so decisions are dropped the next time."""
        with self._lock:
            if len(self._told) < least:
                return
            self._native.forget()
            dropped, self._forgotten, self._told = self._forgotten, self._told, []
        self._collect(dropped)
        for number, _ in dropped:
            self._native.drop(number)

    def collect(self) -> None:
        """Adds the calls since the last collection to the misses and to `calls`."""
        with self._lock:
            told = [*self._forgotten, *self._told]
        self._collect(told)

    def _collect(self, told: list[tuple[int, Served | Missed]]) -> None:
        for number, decision in told:
            times = self._native.calls(number)
            if not times:
                continue
            if isinstance(decision, Missed):
                decision.count(times)
            else:
                with self._lock:
                    self._calls += times

    def calls(self) -> int:
        """The number of calls that native code served."""
        self.collect()
        return self._calls
