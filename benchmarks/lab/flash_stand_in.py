"""Stands in the place of the package `flash_attn`, whose functions then call an exported package.

Only what an exported package claims is computed: forward, without dropout, window, soft cap and
ALiBi; a causal mask for as many queries as keys (flash_attn aligns it at the last key, SDPA at the
first), or for one query, which sees all keys. Everything else skips the test that asks for it. The
gradient, which an exported package does not have, is PyTorch's.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from exported import calls
from flash_padding import pad_input, unpad_input
from torch.nn.attention import SDPBackend, sdpa_kernel

_NAME = "flash_attn"
_WHOLE = (-1, -1)


class StandIn:
    """The functions of flash_attn, for one exported package.

    - served: calls that a kernel computed.
    - anywhere: kernels serve all cases for which they were checked, not those alone where they won.

    A test is skipped where its case lies outside of the domain, where a kernel's guard refuses the
    case, and, with anywhere=False, where no kernel was measured to win.
    """

    def __init__(self, module: ModuleType, anywhere: bool) -> None:
        self._package = module
        self._kernels = module._loaded._kernels
        if anywhere:
            choose = self._kernels.dispatch.choose
            self._kernels.dispatch.choose = lambda *case: choose(*case, anywhere=True)
        self._unclaimed = {
            "outside the domain": "outside the domain",
            "not measured to win": "a kernel's guard" if anywhere else "not measured to win",
        }
        self.served: Counter[str] = Counter()

    def flash_attn_func(  # noqa: PLR0917  # flash_attn's arguments
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = _WHOLE,
        softcap: float = 0.0,
        alibi_slopes: torch.Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
    ) -> Any:
        """q (batch, rows, heads, head_dim), k and v (batch, keys, kv_heads, head_dim) -> out laid
        out like q; with `return_attn_probs` (out, None, None)."""
        unclaimed = {
            "dropout": dropout_p != 0.0,
            "window": tuple(window_size) != _WHOLE,
            "soft cap": bool(softcap),
            "ALiBi": alibi_slopes is not None,
            "causal mask at the last key": causal and q.shape[1] not in (1, k.shape[1]),
        }
        for reason, asked in unclaimed.items():
            if asked:
                pytest.skip(reason)
        causal = causal and q.shape[1] > 1
        out = _Attention.apply(q, k, v, (causal, softmax_scale), self._forward)
        return (out, None, None) if return_attn_probs else out

    def flash_attn_kvpacked_func(
        self, q: torch.Tensor, kv: torch.Tensor, *rest: Any, **named: Any
    ) -> Any:
        """kv is (batch, keys, 2, kv_heads, head_dim)."""
        return self.flash_attn_func(q, *kv.unbind(2), *rest, **named)

    def flash_attn_qkvpacked_func(self, qkv: torch.Tensor, *rest: Any, **named: Any) -> Any:
        """qkv is (batch, length, 3, heads, head_dim)."""
        return self.flash_attn_func(*qkv.unbind(2), *rest, **named)

    def _forward(
        self, tensors: list[torch.Tensor], causal: bool, scale: float | None
    ) -> torch.Tensor:
        """out (batch, heads, rows, head_dim), by a kernel. Where none takes strides, by copies. A
        test fails whose case is one of the kernels' and yet is served by none."""
        grouped = tensors[0].shape[1] != tensors[1].shape[1]
        before = calls(self._package)
        copies = [t.contiguous() for t in tensors]
        for kind, given in (("views", tensors), ("copies", copies)):
            out = self._package.attention(*given, is_causal=causal, scale=scale, enable_gqa=grouped)
            if calls(self._package) > before:
                self.served[kind] += 1
                return out  # type: ignore[no-any-return]
        missed = self._decide(*copies, causal, scale)
        if reason := self._unclaimed.get(getattr(missed, "kind", "")):  # by the kinds of misses
            pytest.skip(reason)
        pytest.fail(f"no kernel served a case of the domain: {getattr(missed, 'words', 'why?')}")

    def _decide(self, q: Any, k: Any, v: Any, causal: bool, scale: Any) -> Any:
        call = sys.modules[f"{self._package.__name__}._attention_package"].Call
        return self._kernels.decide(call(q, k, v, causal, scale, q.shape[1] != k.shape[1]))


class _Attention(torch.autograd.Function):
    """The package's forward pass, PyTorch's backward pass in float32."""

    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any, q: Any, k: Any, v: Any, options: tuple[bool, float | None], attention: Any
    ) -> torch.Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.causal, ctx.scale = options
        out: torch.Tensor = attention([t.transpose(1, 2) for t in (q, k, v)], *options)
        return out.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            leaves = [t.detach().float().requires_grad_() for t in ctx.saved_tensors]
            q, k, v = (t.transpose(1, 2) for t in leaves)
            out = F.scaled_dot_product_attention(
                q, k, v, is_causal=ctx.causal, scale=ctx.scale, enable_gqa=True
            )
            wanted = gradients[0].float().transpose(1, 2)
            found = torch.autograd.grad(out, leaves, wanted)
        pairs = zip(found, ctx.saved_tensors, strict=True)
        return (*(gradient.to(t.dtype) for gradient, t in pairs), None, None)


class _Missing:
    """Something of flash_attn that no package has: who calls it, or asks for a part, skips."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_: Any, **__: Any) -> None:
        pytest.skip(self._name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        pytest.skip(self._name)


class _Skipping(ModuleType):
    """A module all of whose other members are missing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(name)


def install(stand_in: StandIn) -> None:
    """Makes `import flash_attn` find the stand-in."""
    members: dict[str, dict[str, Any]] = {
        "": {
            name: getattr(stand_in, name)
            for name in ("flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func")
        },
        "bert_padding": {"pad_input": pad_input, "unpad_input": unpad_input},
        "flash_attn_interface": {"USE_TRITON_ROCM": False},
        "layers": {},
        "layers.rotary": {},
    }
    for name, named in members.items():
        module = _Skipping(f"{_NAME}.{name}" if name else _NAME)
        module.__path__ = []
        vars(module).update(named)
        sys.modules[module.__name__] = module


def unclaimed(parameters: dict[str, Any], dtype: torch.dtype, head_dims: set[int]) -> str:
    """Why a test with these parameters need not run; "" when it must. Names are those of the
    parameters in FlashAttention's tests."""
    rows, keys = parameters.get("seqlen_q"), parameters.get("seqlen_k")
    reasons = {
        "another dtype": parameters.get("dtype", dtype) != dtype,
        "another head_dim": parameters.get("d", min(head_dims)) not in head_dims,
        "dropout": parameters.get("dropout_p", 0.0) != 0.0,
        "window": bool(parameters.get("local", False)),
        "soft cap": bool(parameters.get("softcap", 0.0)),
        "ALiBi": bool(parameters.get("alibi", False)),
        "the backward pass's order": bool(parameters.get("deterministic", False)),
        "causal mask at the last key": bool(parameters.get("causal", False))
        and None not in (rows, keys)
        and rows not in (1, keys),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def head_dims(module: ModuleType) -> set[int]:
    """The head sizes for which kernels of the package were checked."""
    found = set()
    for region in module._loaded._kernels.dispatch._domain:
        if "head_dim" in region["fixed"]:
            found.add(int(region["fixed"]["head_dim"]))
        else:
            low, high = region["ranges"].get("head_dim", (0, math.inf))
            found |= {d for d in range(8, 264, 8) if low <= d <= high}
    return found
