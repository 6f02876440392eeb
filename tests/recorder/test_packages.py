"""Functions of exported packages, and packages that serve a model that is recorded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

import evotune

pytestmark = pytest.mark.filterwarnings("ignore:kept_")  # a package says what it does not serve


def test_attention_of_a_package_tells_features(opened: Callable[..., ModuleType]) -> None:
    package = opened()
    own, q = package.attention, torch.randn(1, 2, 6, 16)
    with evotune.recording() as calls:
        package.attention(q, q, q, is_causal=True)
        out, lse = package.attention(
            *(q, q, q), window=(3, None), softcap=20.0, alibi_slopes=torch.ones(2), return_lse=True
        )
    assert out.shape == q.shape != lse.shape
    plain, featured = sorted(calls, key=lambda call: len(call.entry.shape))
    assert plain.entry.variant["causal"] is True
    told = {"window_left": 3, "softcap": 20.0, "alibi": True, "lse": True}
    assert told.items() <= featured.entry.shape.items()
    assert "window_right" not in featured.entry.shape
    assert plain.entry.call["function"] == f"{package.__name__}.attention"
    assert package.attention is own


def test_a_miss_and_a_recording_tell_the_same_mask(opened: Callable[..., ModuleType]) -> None:
    package, q = opened(), torch.randn(2, 4, 6, 16)
    masks = [torch.ones(1, 6).bool(), torch.ones(2, 1, 6, 6).bool(), torch.zeros(4, 6, 6)]
    for mask in (*masks, masks[0].expand(2, 4, 6, 6)):
        with evotune.recording() as calls:
            package.attention(q, q, q, attn_mask=mask)
        (found,) = calls
        missed = [{**each["shape"], **each["variant"]} for each in package.misses()]
        assert {**found.entry.shape, **found.entry.variant} in missed
        assert found.entry.variant["mask"] in ("padding", "bool", "bias")


def test_an_active_package_serves_and_each_call_counts_once(
    opened: Callable[..., ModuleType],
) -> None:
    package, q = opened(), torch.randn(1, 2, 6, 16)
    before = F.scaled_dot_product_attention
    with package.active(), evotune.recording() as calls:
        F.scaled_dot_product_attention(q, q, q)
        torch.compile(F.scaled_dot_product_attention, backend="eager")(q, q, q)
    assert calls.count == 1 + 1
    with evotune.recording() as calls, package.active():
        F.scaled_dot_product_attention(q, q, q)
    assert calls.count == 1
    assert F.scaled_dot_product_attention is before


def test_packed_and_paged_sequences() -> None:
    """The functions of packages with such kernels, by a module that has their names."""
    package = ModuleType("a_ragged_package")

    def attention_varlen(  # noqa: PLR0917
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
        parts = q[None].transpose(1, 2)
        F.scaled_dot_product_attention(parts, parts, parts)  # its fallback is a part of the call
        return q

    def attention_paged(
        q: torch.Tensor, *tables: torch.Tensor, causal: bool = False
    ) -> torch.Tensor:
        return q

    package.attention_varlen = attention_varlen  # type: ignore[attr-defined]
    package.attention_paged = attention_paged  # type: ignore[attr-defined]
    package.write_misses = print  # type: ignore[attr-defined]
    sys.modules[package.__name__] = package
    q, ends = torch.randn(9, 4, 64), torch.tensor([0, 4, 9], dtype=torch.int32)
    kv = torch.randn(9, 2, 64)
    pages, lengths = torch.randn(7, 16, 2, 64), torch.tensor([30, 17], dtype=torch.int32)
    table = torch.zeros(2, 3, dtype=torch.int32)
    try:
        with evotune.recording() as calls:
            package.attention_varlen(q, kv, kv, ends, ends, 5, max_seqlen_k=5, causal=True)
            rows = torch.randn(2, 1, 4, 64)
            package.attention_paged(rows, pages, pages, lengths, table)
    finally:
        del sys.modules[package.__name__]
    paged, packed = sorted(calls, key=lambda call: str(call.entry.problem))
    assert packed.entry.shape == {
        **{"sequences": 2, "tokens_q": 9, "tokens_k": 9, "longest_q": 5, "longest_k": 5},
        **{"heads": 4, "kv_heads": 2, "head_dim": 64},
    }
    assert packed.entry.variant == {"causal": True}
    assert packed.spaces("cpu") == ["attention-varlen-cpu"]
    assert paged.entry.shape == {
        **{"sequences": 2, "queries": 1, "longest": 48, "page_size": 16},
        **{"heads": 4, "kv_heads": 2, "head_dim": 64},
    }
    assert paged.spaces("cpu") == ["attention-paged-cpu"]
    assert "attention-paged" in paged.spaces("h200") or paged.entry.dtype == "float32"
