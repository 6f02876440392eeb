"""`attention_varlen` and `attention_paged`, as functions and operators of a package.

The tensors and maxima have the names and the order that they have in flash-attn. `scale` is its
`softmax_scale`; dropout and windows are not there.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ._attention_package import autocast_device, cast_for_autocast
from ._named_calls import NamedCalls
from ._named_kernels import NamedKernels
from ._operators import under_autocast
from ._ragged_package import CALLS

_SHARED = {"causal": "bool causal=False", "scale": "float? scale=None"}
_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "attention_varlen": {
        "max_seqlen_q": "SymInt max_seqlen_q",
        "max_seqlen_k": "SymInt max_seqlen_k",
        **_SHARED,
    },
    "attention_paged": {"max_seqlen_k": "SymInt? max_seqlen_k=None", **_SHARED},
}


class RaggedCalls(NamedCalls):
    """Serves calls of one of the two functions."""

    def __init__(self, name: str, description: Mapping[str, Any]) -> None:
        problem = description["problem"]["name"]
        self._is_paged = problem == "attention_paged"
        self._maxima = ("max_seqlen_k",) if self._is_paged else ("max_seqlen_q", "max_seqlen_k")
        super().__init__(name, description, CALLS[problem].said, _OPTIONS[problem])

    def function(self) -> Callable[..., torch.Tensor]:
        """The function that the package offers. A method would be pickled with its object."""
        call = self.attention_paged if self._is_paged else self.attention_varlen

        @functools.wraps(call)
        def function(*tensors: Any, **named: Any) -> torch.Tensor:
            return call(*tensors, **named)

        return function

    def attention_varlen(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        *,
        causal: bool = False,
        scale: float | None = None,
    ) -> torch.Tensor:
        """Attention of sequences that are packed one after the other, each by itself.

        - q (tokens_q, heads, head_dim); k, v (tokens_k, kv_heads, head_dim); heads is a multiple of
          kv_heads. The result is like q.
        - cu_seqlens_q, cu_seqlens_k: int32, (sequences + 1). Sequence i has the rows
          cu_seqlens_q[i] to cu_seqlens_q[i + 1] - 1, and the keys likewise; either may be none.
        - max_seqlen_q, max_seqlen_k: no sequence is longer. Kernels rely on it.
        - causal: a sequence's last row sees all of its keys, the row before one less, and so on. A
          row that sees no key is 0.
        - scale: 1 / sqrt(head_dim) if not given.

        Raises ValueError, one line, if shapes do not agree, or on a CPU if the boundaries do not
        match them.
        """
        named = {"max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k}
        return self._served(
            (q, k, v, cu_seqlens_q, cu_seqlens_k), {**named, "causal": causal, "scale": scale}
        )

    def attention_paged(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        cache_seqlens: torch.Tensor,
        page_table: torch.Tensor,
        *,
        max_seqlen_k: int | None = None,
        causal: bool = False,
        scale: float | None = None,
    ) -> torch.Tensor:
        """Attention of a few rows a sequence on keys in pages.

        - q (sequences, queries, heads, head_dim); k_cache, v_cache (pages, page_size, kv_heads,
          head_dim); heads is a multiple of kv_heads. The result is like q.
        - cache_seqlens: int32, (sequences): the keys of each, those of the rows in q included.
        - page_table: int32, (sequences, most pages). Key j of sequence i is slot j % page_size of
          the page page_table[i, j // page_size]. What lies beyond a length is not read.
        - max_seqlen_k: no sequence has more keys; if not given, as many as the table has room for.
        - causal, scale: as in `attention_varlen`.

        Raises ValueError, one line, if shapes do not agree, or on a CPU if lengths and pages do not
        match them.
        """
        named = {"max_seqlen_k": max_seqlen_k, "causal": causal, "scale": scale}
        return self._served((q, k_cache, v_cache, cache_seqlens, page_table), named)

    def implement(self, kernels: NamedKernels) -> None:
        super().implement(kernels)
        device_type = kernels.kernels.device_type
        cast = under_autocast(self.overload, device_type)
        self._library.impl(self._operator, cast, f"Autocast{device_type.upper()}")

    def _served(self, tensors: tuple[torch.Tensor, ...], named: dict[str, Any]) -> torch.Tensor:
        for number, tensor in enumerate(tensors):
            if not isinstance(tensor, torch.Tensor):
                name, found = self._inputs[number], type(tensor).__name__
                raise TypeError(f"{self._operator}: {name} is a tensor, got {found}")
        if not torch.compiler.is_compiling():
            for name in self._maxima:
                value = named[name]
                if value is not None and (type(value) is not int or value < 0):
                    named[name] = _length(name, value)
        if device_type := autocast_device(tensors[0]):
            cast = [cast_for_autocast(tensor, device_type) for tensor in tensors[:3]]
            with torch.autocast(device_type, enabled=False):
                return self.call(*cast, *tensors[3:], **named)  # type: ignore[no-any-return]
        return self.call(*tensors, **named)  # type: ignore[no-any-return]


def _length(name: str, value: Any) -> int:
    """The integer. Raises ValueError, one line, for anything but an integer of at least 0."""
    try:
        length = operator.index(value)
    except TypeError:
        length = -1
    if length < 0:
        raise ValueError(f"{name} is an integer of at least 0, got {value!r}")
    return length
