"""An exported package whose kernels compute attention. SDPA serves all calls that they do not.

A call is served when all of this holds; `misses` counts the others by these kinds:

- device: the device is the model that was measured, with as many multiprocessors or threads.
- version: PyTorch and the driver are those of the measurements, or `check` has passed here.
- dtype: all three tensors have the dtype of the kernels.
- mask: kernels of the package take masks of this kind, and the call is not causal, too.
- dropout: there is none.
- grad: no input requires grad, or grad mode is off.
- layout, alignment: the kernel takes tensors with such strides. Each tensor begins at a multiple of
  16 bytes, and so does each row of q, k and v if they are not contiguous.
- features: kernels of the package have such features, for a call that asks for some.
- not measured to win, outside the domain: the case lies in a served region.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ._asked_features import NONE, Asked, asked_of, same_cases
from ._certificate import Contents
from ._dispatch import CONTIGUOUS, LAYOUT, OUTSIDE, STRIDED, Choice, Dispatch
from ._loaded_kernels import DEVICE, LoadedKernels, Refused
from ._masks import BIAS, FAR_ROWS, MASK, TENSOR, UNMASKED, Mask, SeenMask, seen_mask
from ._missed import Missed, Misses
from ._tracing import decided_while_tracing

BEFORE, PYTORCH = "scaled_dot_product_attention", "PyTorch"
ALIGNMENT = 16
FEATURES, DTYPE = "features", "dtype"
_NAMES = ("q", "k", "v", "out")
_STRIDES = ("batch", "head", "row")
_MOST_DECISIONS = 4096
Outputs = tuple[torch.Tensor, "torch.Tensor | None"]
"""The output, and the logarithms of the rows' sums if they are requested."""

sdpa: Callable[..., Any] = torch._C._nn.scaled_dot_product_attention
"""PyTorch's own function, even if torch.nn.functional has a replacement. It returns None if cuDNN's
kernel is to serve a call and q, k or v has no element."""


def plain_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """SDPA's result. If SDPA returns None, the result of PyTorch's implementation of the formula,
    which refuses tensors whose shapes do not agree."""
    out: torch.Tensor | None = sdpa(
        q, k, v, mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    if out is not None:
        return out
    by_formula = torch.ops.aten._scaled_dot_product_attention_math.default
    if device_type := autocast_device(q):  # of itself it casts SDPA's tensors alone
        q, k, v = (cast_for_autocast(tensor, device_type) for tensor in (q, k, v))
        mask = None if mask is None else cast_for_autocast(mask, device_type)
    found: torch.Tensor = by_formula(
        q, k, v, mask, 0.0, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]
    return found


def autocast_device(tensor: torch.Tensor) -> str:
    """The type of the tensor's device if autocast is on there, else ""."""
    # This question is quick, and a compiler cannot trace it; that for the device is slow.
    if not torch.compiler.is_compiling() and not torch._C._is_any_autocast_enabled():
        return ""
    kind = tensor.device.type
    # PyTorch 2.11 cannot trace torch.amp.is_autocast_available, which knows all devices without it.
    return kind if kind != "meta" and torch.is_autocast_enabled(kind) else ""


def cast_for_autocast(tensor: torch.Tensor, device_type: str) -> torch.Tensor:
    """The tensor as SDPA sees it under autocast."""
    if tensor.is_floating_point() and tensor.dtype != torch.float64:
        return tensor.to(torch.get_autocast_dtype(device_type))
    return tensor


class Call(NamedTuple):
    """The arguments that decide which kernel serves a call: those of SDPA without dropout, and its
    features with their tensors `slopes` and `sinks`, of float32."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    is_causal: bool
    scale: float | None
    enable_gqa: bool
    mask: torch.Tensor | None = None
    asked: Asked = NONE
    slopes: torch.Tensor | None = None
    sinks: torch.Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it has no argument that SDPA lacks."""
        return self.asked is NONE or self.asked == NONE

    @property
    def further(self) -> list[torch.Tensor]:
        """Its tensors other than q, k and v, in the order of a launch."""
        return [t for t in (self.slopes, self.sinks, self.mask) if t is not None]

    def cast(self, device_type: str) -> Call:
        """The call as autocast makes it."""
        q, k, v = (cast_for_autocast(tensor, device_type) for tensor in self[:3])
        mask = None if self.mask is None else cast_for_autocast(self.mask, device_type)
        return self._replace(q=q, k=k, v=v, mask=mask)

    def in_float32(self) -> Call:
        """The call with the slopes and sinks that kernels take: contiguous, in float32."""
        slopes, sinks = (
            None if tensor is None else tensor.detach().to(torch.float32).contiguous()
            for tensor in (self.slopes, self.sinks)
        )
        return self._replace(slopes=slopes, sinks=sinks)


class Served:
    """One case and its kernel, ready to be called. `new_out(q)` makes the output's memory."""

    __slots__ = ("calls", "choice", "launch", "misaligned", "new_out")

    def __init__(
        self,
        launch: Callable[..., None],
        choice: Choice,
        new_out: Callable[[torch.Tensor], torch.Tensor] = torch.empty_like,
    ) -> None:
        self.launch = launch
        self.choice = choice
        self.new_out = new_out
        self.calls = 0
        self.misaligned: Missed | None = None


class AttentionKernels:
    """Decides on calls, remembers the decisions, and makes the launches."""

    def __init__(self, contents: Contents, kernels: LoadedKernels, misses: Misses) -> None:
        description = contents.dispatch
        self.dispatch = Dispatch(description)
        self.kernels = kernels
        self.misses = misses
        self.dtype_name: str = description["problem"]["dtype"]
        self.dtype: torch.dtype = getattr(torch, self.dtype_name)
        self.score_mods: Mapping[str, Any] = description.get("score_mods", {})
        self._knows_features = self.dispatch.fixes("given")
        self._masks = self.dispatch.masks()
        self._spaces: Mapping[str, Sequence[str]] = description.get("spaces", {})
        self._strided = self.dispatch.takes_strides
        self._momentary = kernels.launcher.momentary_refusal
        self._decisions: dict[Any, Served | Missed] = {}
        self._known: dict[Any, bool] = {}
        self._earlier_calls = 0

    def serve(self, call: Call) -> Outputs | None:
        """The outputs, or None if no kernel serves the call, which then counts as a miss. The
        tensors must be plain ones with memory behind them, without grad."""
        q, k, v, is_causal, scale, enable_gqa, mask, asked, _, _ = call
        layout: Any = q.is_contiguous() and k.is_contiguous() and v.is_contiguous()
        if not layout and self._strided:
            layout = (q.stride(), k.stride(), v.stride())
        key: Any = (
            *(q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, q.device, k.device, v.device),
            *(is_causal, scale, enable_gqa, layout),
        )
        addresses = q.data_ptr() | k.data_ptr() | v.data_ptr()
        if mask is not None or asked is not NONE:
            further = call.further
            facts = [(each.shape, each.stride(), each.dtype, each.device) for each in further]
            key = (*key, None if asked is NONE else asked, *facts)
            for tensor in further:
                addresses |= tensor.data_ptr()
        served = self._ready(key, call, addresses)
        if served is None:
            return None
        outputs = _run(served, call)
        with self.misses.lock:
            served.calls += 1
        return outputs

    def _ready(self, key: Any, call: Call, addresses: int) -> Served | None:
        """The kernel of a call with these facts, decided once; None for a miss, which is counted.
        `addresses`: those of all tensors, or'ed."""
        decision = self._decisions.get(key)
        if decision is None:
            decision = self._decided(key, call)
        if type(decision) is Missed:
            decision.count()
            return None
        assert type(decision) is Served
        if addresses % ALIGNMENT:
            if decision.misaligned is None:
                decision.misaligned = self.misaligned(call)
            decision.misaligned.count()
            return None
        if self._momentary is not None and (words := self._momentary()):
            self.misses.missed(DEVICE, None, words).count()
            return None
        return decision

    def run_unaccepted(self, call: Call) -> Outputs | None:
        """The outputs, or None if the call is not served, whatever the versions here are. Nothing
        is remembered, so that no other call is served."""
        decision = self.decide(call, any_version=True)
        return None if isinstance(decision, Missed) else _run(decision, call)

    def _decided(self, key: Any, call: Call) -> Served | Missed:
        """A decision that is not known yet, remembered."""
        decision = self.decide(call)
        if len(self._decisions) >= _MOST_DECISIONS:
            self.forget()
        return self._decisions.setdefault(key, decision)

    def forget(self) -> None:
        """Forgets the decisions."""
        self._earlier_calls = self.calls()
        self._decisions.clear()

    def decide(self, call: Call, any_version: bool = False) -> Served | Missed:
        """The kernel bound to the case, or the miss."""
        device = call.q.device
        if len({tensor.device for tensor in (*call[:3], *call.further)}) > 1:
            return self.missed(call, Refused(DEVICE, "the tensors are on several devices"))
        choice = self.chosen(call, device, any_version)
        if isinstance(choice, Choice):
            launch = self.kernels.bound(choice, _names(call), device)
            if not isinstance(launch, Refused):
                return Served(launch, choice, _new_out(call))
            choice = launch
        return self.missed(call, choice)

    def missed(self, call: Call, refused: Refused) -> Missed:
        """The counter of calls like this one that are refused for this reason."""
        before = BEFORE if call.is_plain else PYTORCH
        return self.misses.missed(refused.kind, self._logged(call), refused.words, before)

    def misaligned(self, call: Call) -> Missed:
        words = f"a tensor does not begin at a multiple of {ALIGNMENT} bytes"
        return self.missed(call, Refused("alignment", words))

    def chosen(
        self, call: Call, device: torch.device, any_version: bool = False
    ) -> Choice | Refused:
        """The kernel for such a call on `device`. Reads the tensors' shapes, strides and dtypes
        only, so that tensors without memory do."""
        found = self.kernels.refused(device, any_version) or self._described(call)
        if isinstance(found, Refused):
            return found
        symbols, asked, layout = found
        kind = LAYOUT if layout == LAYOUT else ""
        for each, causal in () if kind else self._same_cases(call, asked):
            case = {**symbols, **each.symbols(), "causal": causal}
            choice = self.dispatch.choose(case, layout)
            if isinstance(choice, Choice):
                return choice
            kind = kind or choice
        if not kind:
            return Refused(FEATURES, f"no kernel of the package has {asked.words()}")
        return Refused(kind, in_words(symbols) + (", not contiguous" if kind == LAYOUT else ""))

    def _described(self, call: Call) -> tuple[dict[str, Any], Asked, str] | Refused:
        """The case's symbols, its features with the mask, and the layout of its tensors; or why no
        kernel takes such a call, whatever its sizes."""
        q, k, v = call[:3]
        symbols = self._symbols(call, call.enable_gqa)
        if symbols is None or (k.shape != v.shape and not self._knows_features):
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in (q, k, v))
            scaled = "" if call.scale is None else f", the scale is {call.scale}"
            return Refused(OUTSIDE, f"the tensors have the shapes {shapes}{scaled}")
        seen = _seen_mask(call)
        if isinstance(seen, Refused):
            return seen
        asked = call.asked._replace(mask=seen.mask)
        symbols |= {**asked.symbols(), **seen.strides, "mask_sizes": seen.broadcast}
        tensors = {"q": q, "k": k, "v": v, "out": _new_out(call)(q)}
        contiguous = all(t.is_contiguous() for t in tensors.values()) and seen.is_contiguous
        for name, tensor in tensors.items():
            for place, dimension in enumerate(_STRIDES):
                symbols[f"{name}_stride_{dimension}"] = _stride(tensor, place)
        rows = all(t.stride(3) == 1 or t.shape[3] == 1 for t in tensors.values())
        layout = CONTIGUOUS if contiguous else STRIDED if rows else LAYOUT
        refused = self._refused_mask(call, asked) or self._wrong_dtype(call)
        if refused is None and layout == STRIDED:
            refused = _refused_rows(tensors.values())
        return refused or (symbols, asked, layout)

    def _wrong_dtype(self, call: Call) -> Refused | None:
        dtypes = {tensor.dtype for tensor in call[:3]}
        if dtypes == {self.dtype}:
            return None
        found = ", ".join(sorted(map(str, dtypes)))
        return Refused(DTYPE, f"the tensors are {found}, the kernels take {self.dtype}")

    def takes_masks(self, kind: str) -> bool:
        """Whether some kernel takes a mask of this kind."""
        return any(kind == each for each, _ in self._masks)

    @decided_while_tracing
    def knows(
        self, features: tuple[Any, ...], causal: bool, queries: int, keys: int, mask: str
    ) -> bool:
        """Whether a kernel was measured to win with these features, those of `Asked` in their
        order, and this kind of mask, at whatever sizes."""
        key = features, causal, queries, keys, mask
        if key not in self._known:
            if len(self._known) >= _MOST_DECISIONS:
                self._known.clear()
            self._known[key] = any(
                self.dispatch.has({**asked.symbols(), "causal": is_causal})
                for asked, is_causal in same_cases(
                    Asked(*features)._replace(mask=Mask(mask)), causal, queries, keys
                )
                if self._knows_features or asked == NONE
            )
        return self._known[key]

    def _refused_mask(self, call: Call, asked: Asked) -> Refused | None:
        """Why no kernel takes the mask, whatever the call's sizes."""
        if call.mask is None:
            return None
        if call.is_causal and call.is_plain:
            return Refused(MASK, "the call has is_causal=True and an attention mask, too")
        alike = [(mask.kind, mask.dtype) for mask in asked.mask.alike()]
        if not self._masks.isdisjoint(alike):
            return None
        kind = " ".join(alike[0]) if asked.mask.kind == BIAS else asked.mask.kind
        spaces = " or ".join(self._spaces.get(asked.mask.kind, ()))
        tunes = f"; write_misses() lists it, and {spaces} tunes it" if spaces else ""
        return Refused(MASK, f"no kernel of the package takes a {kind} mask{tunes}")

    def _same_cases(self, call: Call, asked: Asked) -> Iterable[tuple[Asked, bool]]:
        """The features and the mask of all cases that are the call's, and that kernels may have."""
        own = (asked, bool(call.is_causal))
        if not self._knows_features and asked == NONE:
            return (own,)
        found = same_cases(*own, int(call.q.shape[2]), int(call.k.shape[2]))
        return (case for case in found if self._knows_features or case[0] == NONE)

    def _symbols(self, call: Call, enable_gqa: bool) -> dict[str, Any] | None:
        """The case's symbols; None for tensors, or a scale, that no case has."""
        q, k, v = call[:3]
        if call.scale is not None and not math.isfinite(call.scale):
            return None
        if not q.dim() == k.dim() == v.dim() == 4 or k.shape[:3] != v.shape[:3]:
            return None
        batch, heads, seq_len_q, head_dim = map(int, q.shape)
        kv_heads, seq_len_k = int(k.shape[1]), int(k.shape[2])
        if (int(k.shape[0]), int(k.shape[3])) != (batch, head_dim):
            return None
        if 0 in (*q.shape, *k.shape, *v.shape):
            return None
        if heads != kv_heads and (not enable_gqa or heads % kv_heads):
            return None
        scale, usual = call.scale, 1.0 / math.sqrt(head_dim)
        if scale is None or math.isclose(scale, usual):
            scale = usual
        return {
            **{"batch": batch, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim},
            **{"seq_len": seq_len_q, "seq_len_q": seq_len_q, "seq_len_k": seq_len_k},
            **{"causal": bool(call.is_causal), "dtype": self.dtype_name},
            "softmax_scale": float(scale),
            "value_dim": int(v.shape[3]),
            **call.asked.symbols(),
        }

    def _logged(self, call: Call) -> dict[str, Any] | None:
        """The case as a list of cases has it; None for tensors that no case has."""
        symbols = self._symbols(call, True)
        seen = UNMASKED if symbols is None else _seen_mask(call)
        if symbols is None or isinstance(seen, Refused):
            return None
        shape = listed_shape(symbols, call.asked.told())
        dtype = str(call.q.dtype).removeprefix("torch.")
        variant = {"causal": symbols["causal"], **seen.mask.told()}
        return {"shape": shape, "variant": variant, "dtype": dtype}

    def calls(self) -> int:
        """The number of calls that Python served."""
        decisions = list(self._decisions.values())
        now = sum(decision.calls for decision in decisions if isinstance(decision, Served))
        return self._earlier_calls + now


def _seen_mask(call: Call) -> SeenMask | Refused:
    return UNMASKED if call.mask is None else seen_mask(call.mask, call.q, call.k)


def _names(call: Call) -> tuple[str, ...]:
    """The names of the tensors of a launch, in their order."""
    asked = call.asked
    further = (
        ("alibi_slopes", asked.alibi),
        ("sinks", asked.sinks),
        (TENSOR, call.mask is not None),
        ("lse", asked.lse),
    )
    return (*_NAMES, *(name for name, is_given in further if is_given))


def _run(decision: Served, call: Call) -> Outputs:
    q, k, v = call[:3]
    out = decision.new_out(q)
    if call.mask is None and call.asked is NONE:
        decision.launch(q, k, v, out)
        return out, None
    lse = None
    if call.asked.lse:
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    decision.launch(q, k, v, out, *call.further, *(() if lse is None else (lse,)))
    return out, lse


def _new_out(call: Call) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that makes the memory of an output, laid out like q if it has q's shape."""
    sizes = (*call.q.shape[:3], call.v.shape[-1])
    if sizes == tuple(call.q.shape):
        return torch.empty_like
    return lambda q: q.new_empty(sizes)


def _stride(tensor: torch.Tensor, place: int) -> int:
    """The stride of a dimension. For a dimension of size 1 PyTorch allows any stride, and the
    decision holds for all of them; then it is the extent of the other dimensions."""
    if tensor.shape[place] > 1:
        return tensor.stride(place)
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return max((int(size) * stride for size, stride in pairs if size > 1), default=1)


def _refused_rows(tensors: Iterable[torch.Tensor]) -> Refused | None:
    """The miss of tensors whose rows no kernel finds; None for none."""
    for tensor in tensors:
        if not _rows_are_aligned(tensor):
            return Refused("alignment", f"rows do not begin at multiples of {ALIGNMENT} bytes")
        if tensor.shape[2] > 1 and tensor.stride(2) >= FAR_ROWS:
            return Refused(LAYOUT, "rows of a tensor lie 2^30 elements or more apart")
    return None


def _rows_are_aligned(tensor: torch.Tensor) -> bool:
    """Whether every row begins at a multiple of `ALIGNMENT` bytes if the tensor does."""
    strides = [tensor.stride(i) for i in range(3) if tensor.shape[i] > 1]
    return not any(stride * tensor.element_size() % ALIGNMENT for stride in strides)


# A case of attention, for people and for lists of cases.
_SIZES = ("batch", "heads", "kv_heads", "seq_len_q", "seq_len_k", "head_dim")


def listed_shape(symbols: Mapping[str, Any], features: Mapping[str, Any]) -> dict[str, Any]:
    """The shape as a list of cases has it: with `features`, and without what is usual."""
    shape = {name: symbols[name] for name in _SIZES}
    if symbols["value_dim"] != symbols["head_dim"]:
        shape["value_dim"] = symbols["value_dim"]
    shape |= features
    if _has_own_scale(symbols):
        shape["scale"] = symbols["softmax_scale"]
    return shape


def in_words(symbols: Mapping[str, Any]) -> str:
    words = [f"{name} {symbols[name]}" for name in (*_SIZES, "causal")]
    if symbols["value_dim"] != symbols["head_dim"]:
        words.append(f"value_dim {symbols['value_dim']}")
    if _has_own_scale(symbols):
        words.append(f"scale {symbols['softmax_scale']:g}")
    if features := asked_of(symbols).words():
        words.append(features)
    return ", ".join(words)


def _has_own_scale(symbols: Mapping[str, Any]) -> bool:
    return bool(symbols["softmax_scale"] != 1.0 / math.sqrt(symbols["head_dim"]))
