"""Serves padded batches of transformers' models by kernels for packed sequences.

A call is served if

- its mask hides only padding and, if it is causal, later keys,
- each sequence has more than one row, and
- a kernel was measured to win on the packed case.

transformers' own `sdpa` serves other calls. It has neither soft caps nor sinks, so plain PyTorch
serves calls with these.

To pack a call, q, k, v and the output are copied once. A kernel's measured time does not contain
these copies.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ._asked_features import NONE, Asked
from ._attention_package import Call, casts
from ._feature_calls import cast
from ._loaded_kernels import Refused
from ._named_kernels import NotServed
from ._operators import needs_grad
from ._padded_places import Packing, packed, packing, unpacked
from ._plain_features import plain_with_features
from ._plain_state import are_plain
from ._ragged_package import RaggedKernels
from ._transformers_hook import Asking, Said, is_capturing

_PACKING = "_evotune_packing_1"


class _Kept(NamedTuple):
    """A packing that is kept with the mask, for the model's next layers."""

    queries: int
    said: Said
    packing: Packing


class PaddedModels:
    """Serves the calls of models by kernels of `attention_varlen`."""

    def __init__(self, kernels: RaggedKernels) -> None:
        self._kernels = kernels

    def serve(self, asking: Asking) -> torch.Tensor | None:
        """For `register`."""
        call, mask, said, dropout, others = asking
        softcap, sinks = float(others.get("softcap") or 0.0), others.get("s_aux")
        own = Asked(softcap=softcap, sinks=sinks is not None)
        if own != NONE:
            causal = call.is_causal and mask is None
            return _plain(call._replace(is_causal=causal, asked=own, sinks=sinks), mask, dropout)
        if mask is None or dropout or torch.compiler.is_compiling() or not _fits(call, mask):
            return None
        kept = said is not None
        if said is None:
            said = _looked_at(mask)
        if said is None or not _has_packing(call, said):
            return None
        if torch.is_grad_enabled() and needs_grad(*call[:3]):
            self._kernels.refuse(Refused("grad", "an input requires grad"))
            return None
        made = _packing_of_noted if kept else _packing_of
        return self._attempt(call, made(mask, said, call.q.shape[2]), said.is_causal)

    def _attempt(self, call: Call, places: Packing, is_causal: bool) -> torch.Tensor | None:
        q, k, v = call[:3]
        rows, keys = places
        options: dict[str, Any] = {
            **{"max_seqlen_q": rows.longest, "max_seqlen_k": keys.longest},
            "causal": is_causal,
        }
        if call.scale is not None:
            options["scale"] = call.scale
        tables = [rows.boundaries, keys.boundaries]
        sides = ((q, rows), (k, keys), (v, keys))
        alike = [each.new_empty(side.tokens, each.shape[1], each.shape[3]) for each, side in sides]
        decision = self._kernels.decided([*alike, *tables], options)
        if isinstance(decision, Refused):
            self._kernels.refuse(decision)  # before anything is packed
            return None
        try:
            (out,) = self._kernels.run(
                [*(packed(each, side) for each, side in sides), *tables], options
            )
        except NotServed:
            return None
        return unpacked(out, rows, q.shape[0], q.shape[2])


def _plain(call: Call, mask: torch.Tensor | None, dropout: float) -> torch.Tensor:
    if casts(device_type := call.q.device.type):
        with torch.autocast(device_type, enabled=False):
            return plain_with_features(cast(call, device_type), {}, mask, dropout)[0]
    return plain_with_features(call, {}, mask, dropout)[0]


def _fits(call: Call, mask: torch.Tensor) -> bool:
    """Whether packing and a kernel do with the tensors as SDPA would."""
    q, k, v = call[:3]
    shapes = q.dim() == k.dim() == v.dim() == mask.dim() == 4 and q.shape[2] > 1
    if not shapes or not q.numel() or not q.device == k.device == v.device == mask.device:
        return False
    cast_away = casts(q.device.type) and q.dtype != torch.get_autocast_dtype(q.device.type)
    return not cast_away and are_plain(q, k, v)


def _has_packing(call: Call, said: Said) -> bool:
    """Whether packed sequences can say the same: no window, padding for each key. Parts of a prompt
    stay, since earlier keys would be packed again for each part."""
    queries, keys = call.q.shape[2], call.k.shape[2]
    if said.padding is None or said.padding.shape != (call.k.shape[0], keys):
        return False
    return not 0 <= said.window_left < keys - 1 and (queries == keys or not said.is_causal)


def _looked_at(mask: torch.Tensor) -> Said | None:
    """What a mask without a note says: which keys exist, where it is the same for all rows. One
    that is added to the scores must be 0 or hide the key, which is looked at, so a CUDA graph has
    none. Rows may be other tokens than keys, so all rows exist."""
    if mask.dim() != 4 or mask.shape[1] != 1 or (mask.shape[2] > 1 and mask.stride(2) != 0):
        return None
    if mask.dtype == torch.bool:
        return Said(False, -1, mask[:, 0, 0], rows_are_keys=False)
    if not mask.is_floating_point() or is_capturing(mask):
        return None
    row = mask[:, 0, 0]
    exist = row == 0
    if not bool((exist | (row <= torch.finfo(mask.dtype).min)).all()):
        return None
    return Said(False, -1, exist, rows_are_keys=False)


def _packing_of_noted(mask: torch.Tensor, said: Said, queries: int) -> Packing:
    """The packing of a mask that this package has made, so that nobody writes into it. Layers that
    get the same mask share the packing, unless it is older than the graph that is captured."""
    kept = getattr(mask, _PACKING, None)
    if isinstance(kept, _Kept) and kept.queries == queries and kept.said is said:
        return kept.packing
    found = _packing_of(mask, said, queries)
    if said.is_captured == is_capturing(mask):
        setattr(mask, _PACKING, _Kept(queries, said, found))
    return found


def _packing_of(mask: torch.Tensor, said: Said, queries: int) -> Packing:
    assert said.padding is not None
    exact = not is_capturing(mask)
    return packing(said.padding.bool(), queries, said.rows_are_keys, is_exact=exact)
