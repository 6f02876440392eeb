"""Serves padded batches of transformers' models by kernels for packed sequences.

A call is served if

- its mask hides only padding and, if it is causal, later keys,
- each sequence has more than one row, and
- a kernel was measured to win on the packed case.

transformers' own `sdpa` serves other calls. It has neither soft caps nor sinks, so plain PyTorch
serves calls with these.

To pack a call, q, k, v and the output are copied once. A kernel's measured time does not contain
these copies. If padding lies on one side of each sequence, and a kernel was also measured to win on
the case of all places, it reads them in place, without a copy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ._asked_features import Asked
from ._attention_package import ALIGNMENT, FEATURES, PYTORCH, Call, autocast_device
from ._left_calls import LeftCalls
from ._loaded_kernels import Refused
from ._named_kernels import NotServed, Ready
from ._operators import needs_grad
from ._plain_features import plain_with_features
from ._plain_state import are_plain, below_function_modes
from ._ragged_package import RaggedKernels
from ._transformers_hook import Asking, Said, is_capturing

_KEPT = "_evotune_packing_2"  # another number where other things are kept


class _Plan(NamedTuple):
    """The decision on calls of the same facts, their packing, and how they get there.

    - age: that of the kernels when they decided.
    - ways: how q, k and v are flattened.
    """

    age: object
    decision: Ready | Refused
    packing: Packing
    ways: tuple[Flattening | None, ...]


class _Kept(NamedTuple):
    """Kept with a mask for the model's next layers: the packing, and plans by the facts of calls. A
    GPU may be done with a layer before the host is, so a plan leaves little to do."""

    queries: int
    said: Said
    packing: Packing
    plans: dict[Any, _Plan]


class PaddedModels:
    """Serves the calls of models by kernels of `attention_varlen`."""

    def __init__(self, kernels: RaggedKernels, left: LeftCalls) -> None:
        self._kernels = kernels
        self._left = left

    def serve(self, asking: Asking) -> torch.Tensor | None:
        """The output of attention in a model with padding, in the form that `register` expects."""
        call, said, dropout, others = asking
        if others.get("position_bias") is not None:
            self._left.count("bias", "the model adds a position bias to the scores")
            return None
        softcap, sinks = float(others.get("softcap") or 0.0), others.get("s_aux")
        if softcap or sinks is not None:
            own = Asked(softcap=softcap, sinks=sinks is not None)
            causal = call.is_causal and call.mask is None
            self._left.count(FEATURES, "no kernel for padding has soft caps or sinks", PYTORCH)
            return _plain(call._replace(is_causal=causal, asked=own, sinks=sinks), dropout)
        if (reason := _unpackable(call, dropout)) is not None:
            self._left.count(*reason)
            return None
        assert call.mask is not None
        with below_function_modes():
            return self._by_packing(call, call.mask, said)

    def _by_packing(self, call: Call, mask: torch.Tensor, said: Said | None) -> torch.Tensor | None:
        facts = _facts(call)
        plan = None if said is None else self._kept(mask, said, facts)
        told = said if plan is not None else _told(call, mask, said)
        if told is None:
            self._left.count("mask", "the mask has no padding, or hides more than packing can say")
            return None
        if torch.is_grad_enabled() and needs_grad(*call[:3]):
            self._kernels.refuse(Refused("grad", "an input requires grad"))
            return None
        if plan is None:
            plan = self._planned(call, mask, told, facts, is_noted=said is not None)
        return self._attempt(call, plan)

    def _kept(self, mask: torch.Tensor, said: Said, facts: Any) -> _Plan | None:
        """The plan that an earlier layer has made, unless the kernels have forgotten it. One that
        is older than the graph that is captured would keep its lengths in each replay."""
        kept = getattr(mask, _KEPT, None)
        if not isinstance(kept, _Kept) or kept.said is not said:
            return None
        if said.is_captured != is_capturing(mask):
            return None
        plan = kept.plans.get(facts)
        return None if plan is None or plan.age is not self._kernels.age else plan

    def _planned(
        self, call: Call, mask: torch.Tensor, said: Said, facts: Any, is_noted: bool
    ) -> _Plan:
        """A new plan. It is kept with a mask that has a note."""
        queries = call.q.shape[2]
        kept = _kept_with(mask, said, queries) if is_noted else None
        places = _packing_of(mask, said, queries) if kept is None else kept.packing
        age = self._kernels.age
        ways = tuple(flattening(each) for each in call[:3])
        decision = self._decided(call, places, said.is_causal)
        if isinstance(decision, Ready) and said.rows_are_keys and _lie_flat(call, ways):
            whole = None if is_capturing(mask) else _in_place(said)
            if whole is not None:
                of_all = self._decided(call, whole, said.is_causal)
                if isinstance(of_all, Ready):
                    decision, places = of_all, whole
        plan = _Plan(age, decision, places, ways)
        if kept is not None:
            kept.plans[facts] = plan
        return plan

    def _decided(self, call: Call, places: Packing, is_causal: bool) -> Ready | Refused:
        rows, keys = places
        options: dict[str, Any] = {
            **{"max_seqlen_q": rows.longest, "max_seqlen_k": keys.longest},
            "causal": is_causal,
        }
        if call.scale is not None:
            options["scale"] = call.scale
        sides = zip(call[:3], (rows, keys, keys), strict=True)
        alike = [each.new_empty(side.tokens, each.shape[1], each.shape[3]) for each, side in sides]
        return self._kernels.decided([*alike, rows.boundaries, keys.boundaries], options)

    def _attempt(self, call: Call, plan: _Plan) -> torch.Tensor | None:
        q, k, v = call[:3]
        _, decision, (rows, keys), (of_q, of_k, of_v) = plan
        if isinstance(decision, Refused):
            self._kernels.refuse(decision)  # before anything is packed
            return None
        tensors = [packed(q, rows, of_q), packed(k, keys, of_k), packed(v, keys, of_v)]
        tensors += rows.boundaries, keys.boundaries
        try:
            (out,) = self._kernels.launched(decision, tensors)
        except NotServed:
            return None
        return unpacked(out, rows, q.shape[0], q.shape[2])


def _plain(call: Call, dropout: float) -> torch.Tensor:
    if device_type := autocast_device(call.q):
        with torch.autocast(device_type, enabled=False):
            return plain_with_features(call.cast(device_type), {}, dropout)[0]
    return plain_with_features(call, {}, dropout)[0]


def _unpackable(call: Call, dropout: float) -> tuple[str, str] | None:
    """Why a call is not packed, whatever its mask says: the kind of miss, and words. Autocast and
    PyTorch's modes may change from call to call."""
    if call.mask is None:
        return "mask", "the call has no mask, and the kernels are for padding"
    if dropout:
        return "dropout", "the call has dropout"
    if torch.compiler.is_compiling():
        return "graph", "a compiler traces the call, and cannot look into its padding"
    kind = autocast_device(call.q)
    if kind and call.q.dtype != torch.get_autocast_dtype(kind):
        return "dtype", "autocast casts the tensors to another type"
    if not are_plain(*call[:3]):
        return "tensor", "an argument is no plain tensor, or a mode of PyTorch is on"
    return None


def _facts(call: Call) -> Any:
    """All of a call that a plan depends on."""
    q, k, v = call[:3]
    return (
        *(q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride()),
        *(q.dtype, k.dtype, v.dtype, q.device, k.device, v.device, call.scale),
        _are_aligned(call),
    )


def _are_aligned(call: Call) -> bool:
    """Whether a kernel can read the tensors in place."""
    q, k, v = call[:3]
    return (q.data_ptr() | k.data_ptr() | v.data_ptr()) % ALIGNMENT == 0


def _lie_flat(call: Call, ways: tuple[Flattening | None, ...]) -> bool:
    flat = all(way is not None and way.is_contiguous() for way in ways)
    return flat and _are_aligned(call)


def _told(call: Call, mask: torch.Tensor, said: Said | None) -> Said | None:
    """The facts that a mask expresses, if packed sequences can express the same."""
    if not _fits(call, mask):
        return None
    told = said or _looked_at(mask)
    return told if told is not None and _has_packing(call, told) else None


def _fits(call: Call, mask: torch.Tensor) -> bool:
    """Whether the tensors can be packed."""
    q, k, v = call[:3]
    shapes = q.dim() == k.dim() == v.dim() == mask.dim() == 4 and q.shape[2] > 1
    return bool(shapes and q.numel() and q.device == k.device == v.device == mask.device)


def _has_packing(call: Call, said: Said) -> bool:
    """Whether packed sequences can say the same: no window, padding for each key. Parts of a prompt
    stay, since earlier keys would be packed again for each part."""
    queries, keys = call.q.shape[2], call.k.shape[2]
    if said.padding is None or said.padding.shape != (call.k.shape[0], keys):
        return False
    return not 0 <= said.window_left < keys - 1 and (queries == keys or not said.is_causal)


def _looked_at(mask: torch.Tensor) -> Said | None:
    """What a mask without a note says: which keys exist, if it is the same for all rows. An
    additive mask must be 0 or hide the key. That reads the mask, so it is impossible in a CUDA
    graph. Rows may be other tokens than keys, so all rows exist."""
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


def _kept_with(mask: torch.Tensor, said: Said, queries: int) -> _Kept | None:
    """The packing and the plans that layers with the same mask share. Kept in its note. None if the
    mask is older than the graph that is captured."""
    if said.is_captured != is_capturing(mask):
        return None
    kept = getattr(mask, _KEPT, None)
    if isinstance(kept, _Kept) and kept.queries == queries and kept.said is said:
        return kept
    kept = _Kept(queries, said, _packing_of(mask, said, queries), {})
    setattr(mask, _KEPT, kept)
    return kept


def _in_place(said: Said) -> Packing | None:
    assert said.padding is not None
    return in_place(said.padding.bool())


def _packing_of(mask: torch.Tensor, said: Said, queries: int) -> Packing:
    assert said.padding is not None
    exact = not is_capturing(mask)
    return packing(said.padding.bool(), queries, said.rows_are_keys, is_exact=exact)


# Where the tokens of a padded batch lie when they are packed one after the other.
#
# A kernel for packed sequences needs the number of tokens as a number in Python, so an exact
# packing waits for the GPU. While a CUDA graph is captured it cannot wait. There every place of the
# batch is packed: first the tokens, then the padding, in further sequences. As many sequences as
# the batch has hold the padding among the rows; they have no keys, so their outputs are 0. As many
# again hold the padding among the keys; they have no rows.
#
# Sequences of all three kinds may also lie where they are, each row of the batch as three of them,
# if its tokens are its first or its last places. Then nothing is copied.
class Places(NamedTuple):
    """One side of a batch, rows or keys.

    - places: the index of each packed token among batch x length ones; None if they stay.
    - boundaries: int32, (sequences + 1).
    - tokens, longest: the number of packed tokens, and an upper bound of the longest sequence.
    """

    places: torch.Tensor | None
    boundaries: torch.Tensor
    tokens: int
    longest: int


class Packing(NamedTuple):
    """The packed places of a batch's rows and keys."""

    rows: Places
    keys: Places


class Flattening(NamedTuple):
    """Sizes and strides of a tensor (batch x length, heads, head_dim) in the memory of one (batch,
    heads, length, head_dim)."""

    sizes: tuple[int, int, int]
    strides: tuple[int, int, int]

    def is_contiguous(self) -> bool:
        _, heads, size = self.sizes
        return self.strides == (heads * size, size, 1)


def packing(keys: torch.Tensor, queries: int, rows_are_keys: bool, is_exact: bool) -> Packing:
    """The places of the rows and keys of a padded batch after packing.

    `keys` (batch, length) is False for padding. With `rows_are_keys` the rows are the same tokens;
    otherwise each sequence has `queries` rows, none of them padding. With `is_exact` only tokens
    are packed, and the call waits for the device.
    """
    batch, length = keys.shape
    rows = keys if rows_are_keys else keys.new_ones(batch, queries)
    if is_exact:
        found = _exact(keys)
        return Packing(found if rows_are_keys else _all(rows), found)
    empty = torch.zeros(batch, dtype=torch.int64, device=keys.device)
    counts, queried = keys.sum(1), rows.sum(1)
    behind = _rest(counts, length), _rest(queried, queries)
    return Packing(
        _whole(rows if rows_are_keys else None, torch.cat([queried, behind[1], empty]), queries),
        _whole(keys, torch.cat([counts, empty, behind[0]]), length),
    )


def in_place(exist: torch.Tensor) -> Packing | None:
    """All places unchanged, for rows and keys that are the same tokens; None if a sequence has
    padding between its tokens or on both sides of them. The call waits for the device."""
    length = exist.shape[1]
    counts, at_start = exist.sum(1), exist[:, 0]
    none, rest = torch.zeros_like(counts), length - counts
    begins = torch.where(at_start, none, rest)[:, None]
    place = torch.arange(length, device=exist.device)
    if not torch.equal((place >= begins) & (place < begins + counts[:, None]), exist):
        return None

    def side(first: list[torch.Tensor], last: list[torch.Tensor]) -> Places:
        lengths = torch.where(at_start[:, None], torch.stack(first, 1), torch.stack(last, 1))
        return Places(None, _ends(lengths.flatten()), exist.numel(), length)

    return Packing(
        side([counts, rest, none], [rest, none, counts]),
        side([counts, none, rest], [none, rest, counts]),
    )


def flattening(tensor: torch.Tensor) -> Flattening | None:
    """How a tensor (batch, heads, length, head_dim) is flattened without a copy; None if its memory
    needs one."""
    batch, heads, length, size = tensor.shape
    of_batch, of_head, of_row, of_element = tensor.stride()
    if of_batch != length * of_row:
        return None
    return Flattening((batch * length, heads, size), (of_row, of_head, of_element))


def packed(tensor: torch.Tensor, places: Places, how: Flattening | None) -> torch.Tensor:
    """(tokens, heads, head_dim) of a tensor (batch, heads, length, head_dim)."""
    flat = tensor.transpose(1, 2).flatten(0, 1) if how is None else tensor.as_strided(*how)
    return flat.contiguous() if places.places is None else flat.index_select(0, places.places)


def unpacked(out: torch.Tensor, places: Places, batch: int, queries: int) -> torch.Tensor:
    """(batch, heads, queries, head_dim) of packed rows, which are contiguous; padding is 0."""
    _, heads, size = out.shape
    if places.places is not None:
        make = out.new_zeros if places.tokens < batch * queries else out.new_empty
        out = make(batch * queries, heads, size).index_copy_(0, places.places, out)
    row = heads * size
    return out.as_strided((batch, heads, queries, size), (queries * row, size, row, 1))


def _exact(exist: torch.Tensor) -> Places:
    counts = exist.sum(1)
    places = exist.flatten().nonzero().flatten()  # waits for the number of tokens
    return Places(places, _ends(counts), len(places), int(counts.max()))


def _all(rows: torch.Tensor) -> Places:
    return Places(None, _ends(rows.sum(1)), rows.numel(), rows.shape[1])


def _whole(exist: torch.Tensor | None, counts: torch.Tensor, length: int) -> Places:
    """All places, tokens first, in their order."""
    places = None
    if exist is not None:
        places = torch.argsort(exist.flatten(), descending=True, stable=True)
    tokens = length * (len(counts) // 3)
    return Places(places, _ends(counts), tokens, length)


def _rest(counts: torch.Tensor, length: int) -> torch.Tensor:
    """The lengths of as many sequences as there are counts, that have all other places of the
    batch, `length` at most each."""
    rest = length * len(counts) - counts.sum()
    number = torch.arange(len(counts), device=counts.device)
    return (rest - number * length).clamp(0, length)


def _ends(counts: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
