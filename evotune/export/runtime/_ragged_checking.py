"""Compares kernels of attention over ragged sequences with PyTorch on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ._checking import Result, Row, check_cases
from ._ragged_package import RaggedKernels

_TIMES_PLAIN = 2.0
_PAGES_BESIDE = 3
"""Pages that no sequence has."""


def check_ragged(kernels: RaggedKernels) -> Result:
    """Calls every case that was timed and is served on seeded inputs, whatever the versions here
    are. A kernel's largest error against float64 may be twice that of SDPA and one rounding."""
    device = torch.device(kernels.kernels.device_type)

    def words(symbols: Mapping[str, Any]) -> str:
        return ", ".join(f"{name}={value}" for name, value in symbols.items() if name != "dtype")

    def compare(symbols: Mapping[str, Any], case: str) -> Row:
        return _checked(kernels, symbols, case, device)

    return check_cases(kernels.dispatch.exact_cases(), words, compare)


def _checked(
    kernels: RaggedKernels, symbols: Mapping[str, Any], case: str, device: torch.device
) -> Row:
    plain = kernels.own_fallback
    assert plain is not None
    tensors, options = timed_inputs(kernels, symbols, device)
    with torch.no_grad():
        (found,) = kernels.run(tensors, options, any_version=True)
        known = plain(*tensors, **options)
        exact = plain(*(t.double() for t in tensors[:3]), *tensors[3:], **options)
    error, plain_error = (float((each.double() - exact).abs().max()) for each in (found, known))
    largest = float(exact.abs().max())
    allowed = _TIMES_PLAIN * plain_error + torch.finfo(kernels.dtype).eps * largest
    return Row(case, error, allowed, "" if error <= allowed else "differs")  # NaN is a difference


def timed_inputs(
    kernels: RaggedKernels, symbols: Mapping[str, Any], device: torch.device
) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Seeded inputs and the options of a call that is the case with these symbols."""
    return (_paged if kernels.is_paged else _varlen)(kernels.dtype, symbols, device)


def _varlen(
    dtype: torch.dtype, symbols: Mapping[str, Any], device: torch.device
) -> tuple[list[torch.Tensor], dict[str, Any]]:
    generator = torch.Generator(device).manual_seed(0)
    tensors, options = [], _options(symbols)
    for name, heads in (("q", symbols["heads"]), ("k", _kv_heads(symbols)), ("v", 0)):
        shape = (
            int(symbols[f"tokens_{'q' if name == 'q' else 'k'}"]),
            int(heads or _kv_heads(symbols)),
            int(symbols["head_dim"]),
        )
        tensors.append(torch.randn(shape, generator=generator, device=device).to(dtype))
    for side in "qk":
        longest = int(symbols[f"longest_{side}"])
        lengths = _lengths(int(symbols["sequences"]), int(symbols[f"tokens_{side}"]), longest)
        ends = torch.tensor([0, *lengths], device=device).cumsum(0)
        tensors.append(ends.to(torch.int32))
        options[f"max_seqlen_{side}"] = longest
    return tensors, options


def _lengths(sequences: int, tokens: int, longest: int) -> list[int]:
    """Lengths that add up: full ones first, then the rest, then none."""
    found = []
    for _ in range(sequences):
        found.append(min(longest, tokens))
        tokens -= found[-1]
    return found


def _paged(
    dtype: torch.dtype, symbols: Mapping[str, Any], device: torch.device
) -> tuple[list[torch.Tensor], dict[str, Any]]:
    generator = torch.Generator(device).manual_seed(0)
    sequences, queries, heads, page_size, longest, head_dim = (
        int(symbols[name])
        for name in ("sequences", "queries", "heads", "page_size", "longest", "head_dim")
    )
    most_pages = -(-longest // page_size)
    pages = sequences * most_pages + _PAGES_BESIDE
    pool = (pages, page_size, _kv_heads(symbols), head_dim)
    tensors = [
        torch.randn(shape, generator=generator, device=device).to(dtype)
        for shape in ((sequences, queries, heads, head_dim), pool, pool)
    ]
    lengths = [max(queries, longest // number) for number in range(1, sequences + 1)]
    tensors.append(torch.tensor(lengths, dtype=torch.int32, device=device))
    order = torch.randperm(pages, generator=generator, device=device)[: sequences * most_pages]
    tensors.append(order.reshape(sequences, most_pages).to(torch.int32).contiguous())
    return tensors, {"max_seqlen_k": longest, **_options(symbols)}


def _options(symbols: Mapping[str, Any]) -> dict[str, Any]:
    return {"causal": bool(symbols["causal"]), "scale": float(symbols["softmax_scale"])}


def _kv_heads(symbols: Mapping[str, Any]) -> int:
    return int(symbols.get("kv_heads") or symbols["heads"] // symbols["group"])
