"""A call of attention as an entry of a file of cases: problem, dtype, shape, variant.

Facts of the call that a case does not have are under `call`:

- grad: an input requires grad. dropout: the probability.
- strides: those of q, k and v, if no `layout` of a case has them; `layout` then names the nearest.
- mask_strides: those of a mask that is not contiguous.
- cast_from: the inputs' dtype, if autocast has changed it.
- device, function: where the call ran, and what the program called.
- obstacle: why no kernel can serve the call, in words.

A mask is a part of the variant (`evotune.problems.attention_masks`). `mask` is its kind: `bias` if
it is added, with its `mask_dtype`; `padding` if its shape (B, 1, 1, L) shows that it is the same
for all heads and rows; else `bool`. `mask_batch`, `mask_heads` and `mask_rows` are its sizes; 1 if
it is broadcast, also by strides of 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from evotune.problems import create_problem
from evotune.problems.attention import layout_strides
from evotune.space.reading.case_file import CaseEntry
from evotune.space.reading.yaml_source import Data
from evotune.trial import Value

Sizes: TypeAlias = tuple[int, ...]


class SeenTensor(NamedTuple):
    """A tensor without its values. `dtype` is PyTorch's object."""

    shape: Sizes
    strides: Sizes
    dtype: object


class SeenCall(NamedTuple):
    """A call as it was made, hashable.

    - function: what the program called. problem: the name of the problem that it computes.
    - q, k, v: (batch, heads, length, head), or in the problem's own order. mask: None for none.
    - dtype: the output's dtype. device: its type of device.
    - sizes: sizes of packed and paged sequences that no shape implies.
    - features: the features as symbols of a case. obstacle: why no kernel can serve the call.
    """

    function: str
    q: SeenTensor
    k: SeenTensor
    v: SeenTensor
    mask: SeenTensor | None
    dropout: float
    causal: bool
    scale: float | None
    grad: bool
    dtype: object
    device: str
    problem: str = "attention"
    sizes: tuple[tuple[str, int], ...] = ()
    features: tuple[tuple[str, Value], ...] = ()
    obstacle: str = ""


def described(seen: SeenCall, count: float) -> CaseEntry:
    """The call as an entry of a file of cases that stands for `count` calls."""
    dtype = _dtype(seen.dtype)
    call: dict[str, Data] = {"function": seen.function, "device": seen.device}
    if seen.grad:
        call["grad"] = True
    if seen.dropout:
        call["dropout"] = float(seen.dropout)
    if (given := _dtype(seen.q.dtype)) != dtype:
        call["cast_from"] = given
    if seen.obstacle:
        call["obstacle"] = seen.obstacle
    variant: dict[str, Value] = {"causal": bool(seen.causal)}
    shape = _dense(seen, variant, call) if seen.problem == "attention" else _ragged(seen)
    if seen.scale is not None and not math.isclose(
        seen.scale, 1.0 / math.sqrt(max(1, int(shape["head_dim"])))
    ):
        shape["scale"] = float(seen.scale)
    return CaseEntry({}, shape, variant, dtype, count, problem=seen.problem, call=call)


def _dtype(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def _dense(seen: SeenCall, variant: dict[str, Value], call: dict[str, Data]) -> dict[str, Value]:
    """The shape; adds layout and mask to the variant, and to the call what a case cannot say."""
    tensors = [_of_four(each) for each in (seen.q, seen.k, seen.v)]
    (batch, heads, seq_len_q, head_dim), (_, kv_heads, seq_len_k, _) = (
        each.shape for each in tensors[:2]
    )
    shape: dict[str, Value] = {"batch": batch, "heads": heads, "kv_heads": kv_heads}
    shape |= {"seq_len_q": seq_len_q, "seq_len_k": seq_len_k, "head_dim": head_dim}
    if (value_dim := tensors[2].shape[3]) != head_dim:
        shape["value_dim"] = value_dim
    shape |= seen.features
    dimensions = {len(each.shape) for each in (seen.q, seen.k, seen.v)}
    if dimensions != {4}:
        call.setdefault("obstacle", f"tensors of {max(dimensions)} dimensions, not of 4")
    elif any(
        each.shape[0] != batch or each.shape[1:3] != tensors[1].shape[1:3] for each in tensors[1:]
    ):
        call.setdefault("obstacle", "q, k and v are broadcast against each other")
    elif 0 in (*tensors[0].shape, *tensors[1].shape, value_dim):
        call.setdefault("obstacle", "a tensor has no element")
    layout, exact = _layout(tensors, shape)
    if layout:
        variant["layout"] = layout
    if not exact:
        call["strides"] = {
            name: list(each.strides) for name, each in zip("qkv", tensors, strict=True)
        }
    if any(each.strides[3] != 1 and each.shape[3] != 1 for each in tensors):
        call.setdefault("obstacle", "the elements of a head do not lie side by side")
    if seen.mask is not None:
        variant |= _mask(seen.mask, call)
        if seen.mask.shape[-1] != seq_len_k:
            call.setdefault("obstacle", "the mask is broadcast over the keys")
    return shape


def _of_four(tensor: SeenTensor) -> SeenTensor:
    """The tensor with four dimensions: further ones before the last three count as its batch."""
    shape, strides = tensor.shape, tensor.strides
    missing = 4 - len(shape)
    if missing > 0:
        return tensor._replace(shape=(1,) * missing + shape, strides=(0,) * missing + strides)
    if missing < 0:
        batch, first = math.prod(shape[:-3]), len(shape) - 4
        return tensor._replace(shape=(batch, *shape[-3:]), strides=strides[first:])
    return tensor


def _layout(tensors: Sequence[SeenTensor], shape: Mapping[str, Value]) -> tuple[str, bool]:
    """The name of the layout ("" for contiguous tensors), and whether it has these strides. A
    stride along a size of 1 is of no use and counts for nothing."""
    sizes = {name: int(size) for name, size in shape.items() if name.endswith(_SIZE_ENDS)}
    sizes.setdefault("value_dim", sizes["head_dim"])
    for layout in _NAMED_LAYOUTS:
        wanted = layout_strides(layout, sizes)
        if all(
            have == want or size == 1
            for each, name in zip(tensors, "qkv", strict=True)
            for have, want, size in zip(each.strides, (*wanted[name], 1), each.shape, strict=True)
        ):
            return ("" if layout == _NAMED_LAYOUTS[0] else layout), True
    rows_outside = any(
        each.shape[1] > 1 and each.shape[2] > 1 and 0 < each.strides[1] < each.strides[2]
        for each in tensors
    )
    return ("blhd" if rows_outside else "mixed"), False


_SIZE_ENDS = ("batch", "heads", "seq_len_q", "seq_len_k", "_dim")
_NAMED_LAYOUTS = ("bhld", "blhd", "packed_qkv")


def _mask(mask: SeenTensor, call: dict[str, Data]) -> dict[str, Value]:
    whole = _of_four(mask)
    sizes = [
        1 if stride == 0 else size for size, stride in zip(whole.shape, whole.strides, strict=True)
    ]
    batch, heads, rows, keys = sizes
    dtype = _dtype(mask.dtype)
    added = dtype != "bool"
    kind = "bias" if added else "padding" if heads == rows == 1 else "bool"
    steps = [stride for stride, size in zip(whole.strides, sizes, strict=True) if size > 1]
    if steps != _contiguous([size for size in sizes if size > 1]):
        call["mask_strides"] = list(whole.strides)
    if keys > 1 and whole.strides[3] != 1:
        call.setdefault("obstacle", "the keys of a row of the mask do not lie side by side")
    told: dict[str, Value] = {"mask": kind, "mask_batch": batch, "mask_heads": heads}
    return {**told, "mask_rows": rows} | ({"mask_dtype": dtype} if added else {})


def _contiguous(sizes: Sequence[int]) -> list[int]:
    return [math.prod(sizes[place + 1 :]) for place in range(len(sizes))]


def _ragged(seen: SeenCall) -> dict[str, Value]:
    """The shape of packed or paged sequences."""
    shape: dict[str, Value] = dict(seen.sizes)
    heads, head_dim = seen.q.shape[-2:]
    return shape | {"heads": heads, "kv_heads": seen.k.shape[-2], "head_dim": head_dim}


def label_of(entry: CaseEntry) -> str:
    """The case in the words of its problem, without the mask. Its symbols if its problem does not
    have it."""
    variant = {n: value for n, value in entry.variant.items() if not n.startswith("mask")}
    try:
        problem = create_problem(entry.problem or "attention", "float32")  # labels have no dtype
        return problem.case(dict(entry.shape), variant).label
    except ValueError:
        return ", ".join(f"{name} {size}" for name, size in {**entry.shape, **variant}.items())


def mask_words(entry: CaseEntry) -> str:
    """The mask in words, such as `padding 16x1x1x512`, with the dtype of a mask that is added; ""
    for none."""
    told: Mapping[str, Any] = entry.variant
    if "mask" not in told:
        return ""
    sizes = [told[f"mask_{name}"] for name in ("batch", "heads", "rows")]
    words = "x".join(map(str, (*sizes, entry.shape["seq_len_k"])))
    return f"{told['mask']} {words} {told.get('mask_dtype', '')}".rstrip()
