"""The tensor side of attention: inputs, float64 reference, yardstick and SDPA baselines."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from evotune.problems.base import Case, Tensors, TensorSpec

_BACKENDS = {
    "sdpa:flash": SDPBackend.FLASH_ATTENTION,
    "sdpa:cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa:efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa:math": SDPBackend.MATH,
}
_SCORES_PER_TILE = 1 << 24  # 128 MiB in float64, whatever the batch
_SCORES_PER_CALL = 1 << 28  # 1 GiB in float32, and PyTorch takes two to three times that
_THIN = 16  # queries or keys


def make_inputs(
    tensors: Sequence[TensorSpec], case: Case, kind: str, seed: int, device: str
) -> Tensors:
    """One seeded input set for the problem's `tensors`, made on `device`.

    normal: N(0, 1). needle: each query matches one key far more than all others, so that a
    dropped or misplaced key shows. ramp: V counts the keys, so that every key's weight shows.
    large_logits: scores beyond 100, where a softmax without the running maximum overflows.
    """
    generator = torch.Generator(device).manual_seed(seed)
    specs = {spec.name: spec for spec in tensors}

    def normal(name: str) -> torch.Tensor:
        shape = specs[name].shape
        return torch.randn(shape, generator=generator, dtype=torch.float32, device=device)

    q, k, v = normal("q"), normal("k"), normal("v")
    keys = k.shape[2]
    if kind == "needle":
        queries = q.shape[2]
        # Consecutive queries look at keys spread over the whole length, the last ones included.
        query = torch.arange(queries, device=device)
        target = (query * 7919 + (keys - 1)) % keys
        if case.symbols["causal"]:
            own = query.clamp(max=keys - 1)
            # Every other query, the last one included, looks at the last key it may see.
            at_edge = (queries - 1 - query) % 2 == 0
            target = torch.where(at_edge, own, torch.minimum(target, own))
        grouped = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        q = 2.0 * grouped[:, :, target, :] + 0.1 * q
    elif kind == "ramp":
        ramp = torch.arange(1, keys + 1, dtype=torch.float32, device=device) / keys
        v = ramp.reshape(1, 1, keys, 1) + 0.001 * v
    elif kind == "large_logits":
        q = q * 30.0
    elif kind != "normal":
        raise ValueError(f"unknown input kind {kind!r}")
    dtype: torch.dtype = getattr(torch, specs["q"].dtype)
    return {"q": q.to(dtype), "k": k.to(dtype), "v": v.to(dtype)}


def reference(case: Case, inputs: Tensors) -> Tensors:
    """Float64, a tile of query rows at a time, so that long sequences fit in memory."""
    q, k, v = (inputs[name].double() for name in ("q", "k", "v"))
    batch, kv_heads, key_count, head_dim = k.shape
    # The heads of a group are further rows for the same keys: those need no copies.
    grouped = q.reshape(batch, kv_heads, -1, q.shape[2], head_dim)
    scale = float(case.symbols["softmax_scale"])
    out = torch.empty_like(grouped)
    keys = torch.arange(key_count, device=q.device)
    rows_per_tile = max(1, _SCORES_PER_TILE // (q.shape[0] * q.shape[1] * key_count))
    for start in range(0, q.shape[2], rows_per_tile):
        rows = slice(start, min(start + rows_per_tile, q.shape[2]))
        tile = grouped[:, :, :, rows]
        scores = (tile.flatten(2, 3) @ k.transpose(-1, -2)) * scale
        if case.symbols["causal"]:
            queries = torch.arange(rows.start, rows.stop, device=q.device)
            hidden = keys[None, :] > queries[:, None]
            scores.view(*tile.shape[:4], key_count).masked_fill_(hidden, float("-inf"))
        out[:, :, :, rows] = (torch.softmax(scores, dim=-1) @ v).view(tile.shape)
    return {"out": out.view(q.shape)}


def yardstick(case: Case, inputs: Tensors) -> Tensors:
    """SDPA's MATH backend in the inputs' dtype, with reduced-precision reductions off.

    But in float32 the matrix product of PyTorch 2.13 on a CPU adds a score's products in order, as
    kernels do, only from 4 queries and 13 keys on. With fewer it has several sums at once, and half
    the error: there the scores are added in order here.
    """
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    thin = min(q.shape[2], k.shape[2]) < _THIN and q.dtype == torch.float32 and not q.is_cuda
    if q.is_cuda:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(False)
    out = torch.empty_like(q)
    group = q.shape[1] // k.shape[1]
    # All scores of a call are held: so many heads at once as have a bounded number.
    scores_per_kv_head = q.shape[0] * group * q.shape[2] * k.shape[2]
    step = max(1, _SCORES_PER_CALL // scores_per_kv_head)
    attend = _in_order if thin else _math
    for first in range(0, k.shape[1], step):
        heads = slice(first * group, (first + step) * group)
        kv_heads = slice(first, first + step)
        out[:, heads] = attend(case, q[:, heads], k[:, kv_heads], v[:, kv_heads])
    return {"out": out}


def _math(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            is_causal=bool(case.symbols["causal"]),
            scale=float(case.symbols["softmax_scale"]),
            enable_gqa=q.shape[1] > k.shape[1],
        )


def _in_order(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention with each score a sum from the first element of a head to its last one."""
    group = q.shape[1] // k.shape[1]
    k, v = (each.repeat_interleave(group, dim=1) for each in (k, v))
    scores = q.new_zeros(*q.shape[:3], k.shape[2])
    scaled = q * float(case.symbols["softmax_scale"])
    for mine, theirs in zip(scaled.unbind(-1), k.unbind(-1), strict=True):
        scores.addcmul_(mine[..., :, None], theirs[..., None, :])
    if case.symbols["causal"]:
        hidden = torch.ones(scores.shape[2:], dtype=torch.bool, device=q.device).triu(1)
        scores.masked_fill_(hidden, float("-inf"))
    return torch.softmax(scores, dim=-1) @ v


def _unfused(case: Case, inputs: Tensors, mask: torch.Tensor | None) -> Tensors:
    """matmul, scale, mask, softmax, matmul: library calls on the whole score matrix."""
    group = inputs["q"].shape[1] // inputs["k"].shape[1]
    k, v = inputs["k"], inputs["v"]
    if group > 1:
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.matmul(inputs["q"], k.transpose(-1, -2)) * float(case.symbols["softmax_scale"])
    if mask is not None:
        scores = scores.masked_fill(mask, float("-inf"))
    return {"out": torch.matmul(torch.softmax(scores, dim=-1), v)}


def baselines(case: Case, inputs: Tensors, only: str = "") -> dict[str, Callable[[], Tensors]]:
    """The SDPA backends that accept these inputs here, and the unfused path; or `only` one, known
    to be among them.

    The backend that PyTorch would choose by itself is called plainly, without the context
    manager that forces a backend, so that its time is the time a user sees.
    """
    causal = bool(case.symbols["causal"])
    scale = float(case.symbols["softmax_scale"])
    grouped = case.symbols["heads"] != case.symbols["kv_heads"]
    q, k, v = inputs["q"], inputs["k"], inputs["v"]

    def attend() -> Tensors:
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped
        )
        return {"out": out}

    def forced(backend: SDPBackend) -> Tensors:
        with sdpa_kernel(backend):
            return attend()

    choice = torch._fused_sdp_choice(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)
    chosen = SDPBackend(choice)
    usable: dict[str, Callable[[], Tensors]] = {}
    for name, backend in _BACKENDS.items():
        if only not in ("", name):
            continue
        if backend == chosen:
            usable[name] = attend
            continue
        try:
            forced(backend)
        except RuntimeError:  # "No available kernel" is how PyTorch says no
            if only:
                raise  # it ran before: memory has run out, or the device is lost
            continue
        usable[name] = functools.partial(forced, backend)
    if only in ("", "unfused"):
        lengths = (q.shape[2], k.shape[2])
        mask = torch.ones(lengths, dtype=torch.bool, device=q.device).triu(1) if causal else None
        usable["unfused"] = functools.partial(_unfused, case, inputs, mask)
    return usable
