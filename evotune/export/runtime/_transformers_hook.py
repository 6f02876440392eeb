"""Registers the package with transformers, which need not be installed otherwise.

A model passes its attention a mask of all scores, even if the mask only says "causal", a sliding
window, or which tokens are padding. So the function that makes masks here notes on the mask what it
says (`Said`), and attention reads the note. A model that changes a mask makes another tensor,
without the note, and gets SDPA with that mask. So does a model that writes into the mask: PyTorch
counts writes, except those in inference mode and through `mask.data`. `_dense_models.py` and
`_padded_models.py` decide which calls kernels serve.

torch.compile traces the note like any attribute. A graph cannot ask for the count of writes. So a
note counts there only on a mask that the same graph has made and not taken since: no operation of
it has written into the mask, and nobody else has seen it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ._attention_package import Call
from ._left_calls import LeftCalls
from ._tracing import NOTES_ARE_TRACED, is_exporting, is_of_this_graph

_NOTE = "_evotune_said_2"  # another number for another agreement between packages
_WRITES = "_evotune_writes"  # PyTorch's count of writes into the mask when it was noted

_BIDIRECTIONAL = "bidirectional_mask_function"
_ENCODERS = (
    *("albert", "bert", "camembert", "distilbert", "electra", "ernie", "esm", "megatron-bert"),
    *("mpnet", "nomic_bert", "rembert", "roberta", "xlm-roberta", "xlm-roberta-xl", "xmod"),
)
"""The types of models without cross-attention, unless their configuration adds it."""


class Said(NamedTuple):
    """A mask in a few facts.

    - is_causal: row i sees the keys up to its own one; the last row's own key is the last key.
      False: a row sees all keys but padding.
    - window_left: the keys that a row of a causal sliding window sees before its own; -1 without a
      window.
    - padding: (batch, keys), False for keys that are padding; None if there is no padding.
    - is_captured: the mask was made while a CUDA graph was captured, so its values were not read.
    - rows_are_keys: the rows are the last keys' tokens, so `padding` holds for rows too.
    """

    is_causal: bool
    window_left: int
    padding: torch.Tensor | None
    is_captured: bool = False
    rows_are_keys: bool = True


class Asking(NamedTuple):
    """A call of a model. `call.is_causal` counts if there is no mask; `others` are the model's
    other arguments by name."""

    call: Call
    said: Said | None
    dropout: float
    others: Mapping[str, Any]


Serve = Callable[[Asking], "torch.Tensor | None"]


def register(name: str, serve: Serve, left: LeftCalls) -> None:
    """Makes `attn_implementation=name` valid. `serve` returns the output of a call, or None. For
    None transformers' own `sdpa` implementation serves the call, with the model's arguments. It has
    neither soft caps nor sinks, so `serve` must serve all calls with these. `serve` counts the
    calls that it does not serve, and `left` those that never reach it.

    Raises ImportError if transformers is missing or too old.
    """
    from transformers import AttentionInterface, AttentionMaskInterface  # type: ignore[import-not-found]
    from transformers.integrations.sdpa_attention import (  # type: ignore[import-not-found]
        sdpa_attention_forward,
    )
    from transformers.masking_utils import sdpa_mask  # type: ignore[import-not-found]

    def forward(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        """The output as (batch, length, heads, head size), and no weights."""
        out = None
        # transformers' `sdpa` says that it returns no weights, but it has neither caps nor sinks.
        needs_serve = bool(others.get("softcap")) or others.get("s_aux") is not None
        asks_weights = others.get("output_attentions", False) and not needs_serve
        if asks_weights:
            left.count("weights", "the model asks for the weights of attention")
        else:
            causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
            grouped = getattr(module, "num_key_value_groups", 1) > 1
            causal = bool(query.shape[2] > 1 and causal)
            call = Call(query, key, value, causal, scaling, grouped, attention_mask)
            said = None if attention_mask is None else _noted(attention_mask)
            out = serve(Asking(call, said, dropout, others))
        if out is not None:
            return out.transpose(1, 2).contiguous(), None
        found: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            is_causal=is_causal,
            **others,
        )
        return found

    def mask(*sizes: Any, **named: Any) -> torch.Tensor | None:
        """The mask for SDPA; None if `is_causal`, or no mask at all, is equivalent.

        transformers makes a mask of all ones while a graph is captured or compiled, because it
        cannot read a padding mask then. Without a padding mask, nothing has to be read.
        """
        if not sizes and _says_nothing(named):
            return None
        found: torch.Tensor | None = sdpa_mask(*sizes, **named)
        if found is not None and not sizes and (said := _said(named)) is not None:
            setattr(found, _NOTE, said)
            if not torch.compiler.is_compiling():
                setattr(found, _WRITES, _writes_into(found))
        return found

    AttentionInterface.register(name, forward)
    AttentionMaskInterface.register(name, mask)


def _said(arguments: Mapping[str, Any]) -> Said | None:
    """Everything that the mask of these arguments says; None if it may say more than `Said` can.
    The mask may have to be read to find padding, as transformers does too. A compiler cannot do
    that."""
    traced = is_exporting() or torch._C._get_tracing_state() is not None
    padding = arguments.get("attention_mask")
    if traced or not _notes_are_kept() or arguments.get("use_vmap", False):
        return None
    if padding is not None and (torch.compiler.is_compiling() or padding.dim() != 2):
        return None
    is_captured = padding is not None and is_capturing(padding)
    if arguments.get("allow_is_bidirectional_skip", False):
        return _of_all_rows(arguments, is_captured)
    if not _is_causal(arguments):
        return None
    if padding is not None:  # the caller may write into the original one
        padding = None if not is_captured and bool(padding.all()) else padding.clone()
    local = arguments.get("local_size")
    return Said(True, -1 if local is None else int(local) - 1, padding, is_captured)


def _is_causal(arguments: Mapping[str, Any]) -> bool:
    """Whether the mask is a causal one, perhaps with a window, and the last row's own key is the
    last one."""
    if not arguments.get("allow_is_causal_skip", True):
        return False
    sizes = [arguments.get(f"{side}_offset", 0) for side in ("q", "kv")]
    sizes += [arguments.get(f"{side}_length") for side in ("q", "kv")]
    local, config = arguments.get("local_size"), arguments.get("config")
    if any(type(size) is not int for size in sizes) or _are_open(sizes, local):
        return False
    if sizes[0] + sizes[2] != sizes[1] + sizes[3]:
        return False
    if local is None:
        return True
    # The mask is a sliding window, or it is chunked: a window cannot describe chunks.
    chunked = getattr(config, "attention_chunk_size", None) is not None
    return not chunked and local == getattr(config, "sliding_window", None)


def _are_open(sizes: Sequence[int], local: int | None) -> bool:
    """Whether torch.compile leaves a size open. No kernel serves a call in such a graph, so that a
    note would only make it hold for fewer sizes."""
    if not torch.compiler.is_compiling():
        return False
    known = [*sizes, *(() if local is None else (local,))]
    return not all(torch.fx.experimental.symbolic_shapes.has_static_value(size) for size in known)


def _of_all_rows(arguments: Mapping[str, Any], is_captured: bool) -> Said | None:
    """The note on a mask that is the same for all rows: which keys exist. transformers also makes
    such a mask for cross-attention, whose rows are other tokens than the keys, and nothing here
    distinguishes the two. So rows count as keys only in models that are known to have no
    cross-attention."""
    own = getattr(arguments.get("mask_function"), "__name__", "") == _BIDIRECTIONAL
    sizes = [arguments.get(f"{side}_offset", 0) for side in ("q", "kv")]
    if not own or arguments.get("local_size") is not None or sizes != [0, 0]:
        return None
    config = arguments.get("config")
    alone = getattr(config, "model_type", None) in _ENCODERS
    alone = alone and not getattr(config, "add_cross_attention", False)
    same = arguments.get("q_length") == arguments.get("kv_length")
    padding = arguments.get("attention_mask")
    own_padding = None if padding is None else padding.clone()  # the caller may write into it
    return Said(False, -1, own_padding, is_captured, alone and same)


def _noted(mask: torch.Tensor) -> Said | None:
    """The note on the mask, if it holds."""
    if not _notes_are_kept():
        return None
    said: Said | None = getattr(mask, _NOTE, None)
    if said is None:
        return None
    if torch.compiler.is_compiling():
        holds = is_of_this_graph(mask)
    else:  # a mask of a graph has no count
        holds = getattr(mask, _WRITES, None) == _writes_into(mask)
    return said if holds else None


def _writes_into(mask: torch.Tensor) -> int:
    """PyTorch's count of writes into the mask; -1 in inference mode, which has none."""
    return -1 if mask.is_inference() else mask._version


def _notes_are_kept() -> bool:
    """Whether attention may read notes. An exported program would keep the answer for other
    masks."""
    return not torch.compiler.is_compiling() or (NOTES_ARE_TRACED and not is_exporting())


def is_capturing(tensor: torch.Tensor) -> bool:
    """Whether a CUDA graph is being captured, so that the tensor's values cannot be read."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _says_nothing(arguments: dict[str, Any]) -> bool:
    """Whether the mask is a plain causal one, or hides nothing. An exported program would reuse the
    answer for other lengths, so it is False there."""
    if arguments.get("attention_mask") is not None or arguments.get("local_size") is not None:
        return False
    if is_exporting() or torch._C._get_tracing_state() is not None:
        return False
    if arguments.get("allow_is_bidirectional_skip", False):
        return True
    return bool(arguments.get("allow_is_causal_skip", True)) and _is_plain_causal(arguments)


def _is_plain_causal(sizes: Mapping[str, Any]) -> bool:
    """Whether a causal mask of these sizes is SDPA's own one, or hides nothing.

    A single row sees all keys if the last one is its own. This is needed only while a compiler
    traces: otherwise a note on the mask says it, and also that the mask is causal, which some
    kernels need. If a cache has places for later tokens, a tensor says how many it holds.
    """
    rows, keys = sizes["q_length"], sizes["kv_length"]
    first_row, first_key = sizes.get("q_offset", 0), sizes.get("kv_offset", 0)
    if rows == keys:
        return bool(first_row == first_key)
    if rows != 1 or not torch.compiler.is_compiling() or isinstance(first_row, torch.Tensor):
        return False
    return bool(first_row + 1 == first_key + keys)
