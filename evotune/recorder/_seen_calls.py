"""Turns calls of attention into facts, and passes them to the open recordings.

The facts are the shapes, strides and types of a call's tensors, never their values. All open
recordings get each call.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol, TypeAlias

from evotune.recorder.described_calls import SeenCall, SeenTensor, Sizes
from evotune.trial import Value

SizeOf: TypeAlias = Callable[[Any], int]
"""An integer of a size, which a graph of torch.compile may leave open."""
Make: TypeAlias = Callable[..., "SeenCall | None"]


def of_sdpa(out: Any, function: str, size: SizeOf, arguments: Mapping[str, Any]) -> SeenCall:
    """The facts of a call with SDPA's arguments. `out`: what it returned."""
    q, k, v = (arguments[name] for name in ("query", "key", "value"))
    if q.is_nested or k.is_nested or v.is_nested:
        return _of_nested(out, function, arguments)
    mask = arguments.get("attn_mask")
    return SeenCall(
        function,
        tensor_of(q, size),
        tensor_of(k, size),
        tensor_of(v, size),
        None if mask is None else tensor_of(mask, size),
        arguments.get("dropout_p", 0.0),
        arguments.get("is_causal", False),
        arguments.get("scale"),
        (q if out is None else out).requires_grad,
        (q if out is None else out).dtype,
        q.device.type,
        features=tuple(arguments.get("features", ())),
    )


def tensor_of(tensor: Any, size: SizeOf) -> SeenTensor:
    shape = tuple(map(size, tensor.shape))
    return SeenTensor(shape, tuple(map(size, tensor.stride())), tensor.dtype)


def _of_nested(out: Any, function: str, arguments: Mapping[str, Any]) -> SeenCall:
    """Nested tensors do not tell their lengths without a look at values."""
    q, k, v = (_first_of_nested(arguments[name]) for name in ("query", "key", "value"))
    causal, scale = arguments.get("is_causal", False), arguments.get("scale")
    return SeenCall(
        *(function, q, k, v, None, arguments.get("dropout_p", 0.0), causal, scale),
        *(out.requires_grad, out.dtype, out.device.type),
        obstacle="nested tensors",
    )


def _first_of_nested(tensor: Any) -> SeenTensor:
    """(sequences, heads, 0, head) of a nested tensor (sequences, heads, length, head)."""
    if not tensor.is_nested:
        return tensor_of(tensor, int)
    shape = (int(tensor.size(0)), int(tensor.size(1)), 0, int(tensor.size(3)))
    return SeenTensor(shape, contiguous(shape), tensor.dtype)


def contiguous(shape: Sizes) -> Sizes:
    strides = [1] * len(shape)
    for place in range(len(shape) - 2, -1, -1):
        strides[place] = strides[place + 1] * max(1, shape[place + 1])
    return tuple(strides)


# PyTorch's own functions for a layer: attention inside them calls no function that Python sees.
_LAYER_MASKS = {0: "rows", 1: "padding"}


def of_fast_path(
    out: Any, function: str, size: SizeOf, arguments: Mapping[str, Any]
) -> SeenCall | None:
    """A call of the fast path of nn.MultiheadAttention or nn.TransformerEncoderLayer, which takes
    (batch, length, width) before the projection and has q, k and v contiguous behind it."""
    source, heads = arguments["query"], size(arguments["num_heads"])
    head_dim = size(arguments["embed_dim"]) // heads
    found = out[0] if isinstance(out, tuple) else out
    common = (0.0, False, None, found.requires_grad, found.dtype, source.device.type)
    if source.is_nested:
        lengths = [int(each[0]) for each in source._nested_tensor_size().tolist()]
        packed = SeenTensor((sum(lengths), heads, head_dim), (), source.dtype)
        sizes: dict[str, int] = {"sequences": len(lengths)}
        sizes |= dict.fromkeys(("tokens_q", "tokens_k"), sum(lengths))
        sizes |= dict.fromkeys(("longest_q", "longest_k"), max(lengths, default=0))
        return SeenCall(
            *(function, packed, packed, packed, None, *common),
            "attention_varlen",
            tuple(sizes.items()),
        )
    batch, length = size(source.shape[0]), size(source.shape[1])
    shape = (batch, heads, length, head_dim)
    each = SeenTensor(shape, contiguous(shape), source.dtype)
    mask = arguments.get("mask")
    seen = None if mask is None else _layer_mask(tensor_of(mask, size), arguments.get("mask_type"))
    return SeenCall(function, each, each, each, seen, *common)


def _layer_mask(mask: SeenTensor, kind: int | None) -> SeenTensor:
    """The mask with four dimensions: of rows and keys, or which keys are padding."""
    if _LAYER_MASKS.get(kind or 0) == "padding" and len(mask.shape) == 2:
        shape, strides = mask.shape, mask.strides
        return mask._replace(
            shape=(shape[0], 1, 1, shape[1]), strides=(strides[0], 0, 0, strides[1])
        )
    return mask


def of_layer(out: Any, function: str, size: SizeOf, arguments: Mapping[str, Any]) -> SeenCall:
    """The facts of a call of F.multi_head_attention_forward, whose inputs are (length, batch,
    width): those of the call of SDPA inside it, or of the equivalent call of SDPA if it returns
    weights."""
    query, key = arguments["query"], arguments["key"]
    heads, width = size(arguments["num_heads"]), size(arguments["embed_dim_to_check"])
    batch = size(query.shape[1]) if query.dim() == 3 else 1
    rows, keys = size(query.shape[0]), size(key.shape[0])
    keys += (arguments.get("bias_k") is not None) + bool(arguments.get("add_zero_attn", False))
    step = (width, width // heads, batch * width, 1)
    q, k = (
        SeenTensor((batch, heads, length, width // heads), step, query.dtype)
        for length in (rows, keys)
    )
    padding, mask = arguments.get("key_padding_mask"), arguments.get("attn_mask")
    weights = arguments.get("need_weights", True)
    causal = bool(arguments.get("is_causal", False)) and padding is None and not weights
    seen = None
    if (padding is not None or mask is not None) and not causal:
        own = mask is None or padding is not None or mask.dim() == 3  # a mask for each head
        shape = (*((batch, heads) if own else (1, 1)), 1 if mask is None else rows, keys)
        seen = SeenTensor(shape, contiguous(shape), query.dtype)
    found = out[0]
    return SeenCall(
        "F.scaled_dot_product_attention",
        *(q, k, k, seen),
        arguments["dropout_p"] if arguments.get("training", True) else 0.0,
        causal,
        None,
        *(found.requires_grad, found.dtype, found.device.type),
        obstacle=WEIGHTS if weights else "",
    )


WEIGHTS = "it gives the weights of attention (need_weights=False gives none)"


def of_packed(out: Any, function: str, size: SizeOf, arguments: Mapping[str, Any]) -> SeenCall:
    """The facts of a call of a package's `attention_varlen`."""
    q, k, v = (tensor_of(arguments[name], size) for name in ("q", "k", "v"))
    sizes = {"sequences": size(arguments["cu_seqlens_q"].shape[0]) - 1}
    sizes |= {"tokens_q": q.shape[0], "tokens_k": k.shape[0]}
    sizes |= {f"longest_{side}": size(arguments[f"max_seqlen_{side}"]) for side in "qk"}
    return _of_sequences(out, function, (q, k, v), arguments, "attention_varlen", sizes)


def of_paged(out: Any, function: str, size: SizeOf, arguments: Mapping[str, Any]) -> SeenCall:
    """The facts of a call of a package's `attention_paged`."""
    names = ("q", "k_cache", "v_cache")
    q, k, v = (tensor_of(arguments[name], size) for name in names)
    page_size, longest = k.shape[1], arguments.get("max_seqlen_k")
    if longest is None:
        longest = size(arguments["page_table"].shape[1]) * page_size
    sizes = {"sequences": q.shape[0], "queries": q.shape[1]}
    sizes |= {"longest": size(longest), "page_size": page_size}
    return _of_sequences(out, function, (q, k, v), arguments, "attention_paged", sizes)


def _of_sequences(  # noqa: PLR0917
    out: Any,
    function: str,
    tensors: tuple[SeenTensor, SeenTensor, SeenTensor],
    arguments: Mapping[str, Any],
    problem: str,
    sizes: Mapping[str, int],
) -> SeenCall:
    causal, scale = bool(arguments.get("causal", False)), arguments.get("scale")
    return SeenCall(
        *(function, *tensors, None, 0.0, causal, scale),
        *(out.requires_grad, out.dtype, out.device.type, problem, tuple(sizes.items())),
    )


def of_package(out: Any, function: str, size: SizeOf, arguments: Mapping[str, Any]) -> SeenCall:
    """The facts of a call of a package's `attention`."""
    given = {"query": arguments["q"], "key": arguments["k"], "value": arguments["v"]}
    named = {n: arguments[n] for n in ("is_causal", "scale", "attn_mask") if n in arguments}
    features = tuple(_asked_features(arguments).items())
    first = out[0] if isinstance(out, tuple) else out
    return of_sdpa(first, function, size, {**given, **named, "features": features})


def _asked_features(arguments: Mapping[str, Any]) -> dict[str, Value]:
    """Features by their names in a case."""
    found: dict[str, Value] = {}
    if arguments.get("alignment") == "bottom_right":
        found["alignment"] = "bottom_right"
    window = arguments.get("window") or (None, None)
    for name, width in zip(("window_left", "window_right"), window, strict=True):
        hidden = name == "window_right" and arguments.get("is_causal", False)
        if width is not None and width >= 0 and not hidden:
            found[name] = int(width)
    if arguments.get("softcap"):
        found["softcap"] = float(arguments["softcap"])
    if arguments.get("score_mod"):
        found["score_mod"] = " ".join(str(arguments["score_mod"]).split())
    flags = {"alibi": "alibi_slopes", "sinks": "sinks", "lse": "return_lse"}
    given = {flag: arguments.get(name) for flag, name in flags.items()}
    return found | {
        flag: True for flag, value in given.items() if value is not None and value is not False
    }


# The attention of transformers: (module, query, key, value, attention_mask, …), grouped heads.
def of_transformers(
    out: Any, function: str, size: SizeOf, arguments: Mapping[str, Any]
) -> SeenCall:
    """A call of an attention function of transformers. `function` is its name there.

    Those named flash align a causal mask to the bottom right, take a window by its size, and for a
    mask which tokens are padding; the others have all of that in the mask. A position bias and the
    mask are one mask, whose keys lie side by side: so a package makes it of them.
    """
    module, mask = arguments["module"], arguments.get("attention_mask")
    bias = arguments.get("position_bias")
    flash = "flash" in function
    causal = arguments.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    rows, keys = (size(arguments[name].shape[2]) for name in ("query", "key"))
    causal = bool(causal) and rows > 1 and (flash or mask is None) and "eager" not in function
    causal = causal and bias is None
    features: dict[str, Value] = {}
    if flash and causal and rows != keys:
        features["alignment"] = "bottom_right"
    window = arguments.get("sliding_window")
    if flash and window is not None and size(window) < keys:
        features |= {"alignment": "bottom_right", "window_left": size(window) - 1}
    if arguments.get("softcap"):
        features["softcap"] = float(arguments["softcap"])
    if arguments.get("s_aux") is not None or getattr(module, "sinks", None) is not None:
        features["sinks"] = True
    given = {name: arguments[name] for name in ("query", "key", "value")}
    seen = of_sdpa(
        out[0] if isinstance(out, tuple) else out,
        function,
        size,
        {
            **given,
            "attn_mask": mask,
            "dropout_p": arguments.get("dropout", 0.0),
            "is_causal": causal,
            "scale": arguments.get("scaling"),
            "features": features.items(),
        },
    )
    if bias is not None:
        shapes = [tensor_of(each, size).shape for each in (bias, mask) if each is not None]
        shape = tuple(map(max, *shapes)) if len(shapes) > 1 else shapes[0]
        return seen._replace(mask=SeenTensor(shape, contiguous(shape), bias.dtype))
    if seen.mask is not None and len(seen.mask.shape) == 2 and flash:
        return seen._replace(mask=_layer_mask(seen.mask, 1))
    return seen


class Listener(Protocol):
    def heard(self, key: Hashable, make: Make, *given: object) -> None:
        """Counts a call. Equal keys are equal calls. `make(*given)` returns the facts of a new
        call, or None for a call that the program did not make itself."""

    def missed(self, words: str) -> None:
        """Notes that a call could not be described."""


Call: TypeAlias = "functools.partial[Any]"
"""A function of attention with the arguments of a call."""


class Stopwatch(Protocol):
    def made(self, call: Call, seen: Callable[[Any], SeenCall | None], *, on_gpu: bool) -> Any:
        """Makes the call, and returns its result. Keeps its time with `seen(result)`, the facts of
        the call; None for a call that is none of the program's. Calls of attention that it makes
        itself are not recorded."""


class Listeners:
    """The open recordings of the process. `told` is read at every call, so it is a plain tuple.

    `inside` tells, for the thread that asks, how many recorded functions are running: a call that
    one of them makes is a part of it. With `as_served` this does not hold for the attention
    functions of transformers: if one of them calls SDPA, that call is told in place of its own,
    because it is what an exported package serves.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.told: tuple[Listener, ...] = ()
        self.stopwatch: Stopwatch | None = None
        self.as_served = False
        self.inside = _Inside()

    def heard(self, seen: SeenCall) -> None:
        for listener in self.told:
            listener.heard(seen, _itself, seen)

    def missed(self, words: str) -> None:
        for listener in self.told:
            listener.missed(words)


def _itself(seen: SeenCall) -> SeenCall:
    return seen


class _Inside(threading.local):
    depth = 0
    sdpa_calls = 0  # how many were told


LISTENERS = Listeners()


def _leave_to_the_parent() -> None:
    """A child process records nothing: a thread of the parent may hold a lock at a fork."""
    LISTENERS.lock = threading.RLock()
    LISTENERS.told = ()


os.register_at_fork(after_in_child=_leave_to_the_parent)
