"""The package's operator in `torch.ops`, with a fake kernel for torch.compile and autograd.

The operator's output has the strides that its fake kernel promises, on every path.
"""

from __future__ import annotations

from typing import Any

import torch

from ._attention_package import AttentionKernels, sdpa

_MOST_NAMESAKES = 100
_SIGNATURE = (
    "(Tensor q, Tensor k, Tensor v, bool is_causal=False, float? scale=None, "
    "bool enable_gqa=False) -> Tensor"
)


def open_namespace(name: str, operator: str, signature: str) -> tuple[Any, str]:
    """A library in which `operator` is defined, and its namespace. The namespace is that of the
    module; where an earlier import of the same name still has it, a number is added."""
    namespace = wanted = name.replace(".", "_")
    for number in range(2, _MOST_NAMESAKES):
        library: Any = torch.library.Library(namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
        try:
            library.define(f"{operator}{signature}", tags=(torch.Tag.pt2_compliant_tag,))
        except RuntimeError:
            namespace = f"{wanted}_{number}"
        else:
            return library, namespace
    raise ImportError(f"{wanted} was imported {_MOST_NAMESAKES} times")


class AttentionOperator:
    """`torch.ops.NAMESPACE.attention(q, k, v, is_causal=False, scale=None, enable_gqa=False)`.

    SDPA serves it where the kernels do not, and whenever an input requires grad.
    """

    def __init__(self, name: str) -> None:
        self.library, self.namespace = open_namespace(name, "attention", _SIGNATURE)
        self.overload: Any = getattr(torch.ops, self.namespace).attention.default

    def implement(self, kernels: AttentionKernels) -> None:
        def attention(
            q: torch.Tensor,
            k: torch.Tensor,
            v: torch.Tensor,
            is_causal: bool = False,
            scale: float | None = None,
            enable_gqa: bool = False,
        ) -> torch.Tensor:
            out = kernels.serve(q, k, v, is_causal, scale, enable_gqa)
            return before(q, k, v, is_causal, scale, enable_gqa) if out is None else out

        self.library.impl("attention", attention, kernels.kernels.device_type.upper())
        self._implement_rest(kernels)

    def _implement_rest(self, kernels: AttentionKernels) -> None:
        overload = self.overload

        def autograd(
            q: torch.Tensor,
            k: torch.Tensor,
            v: torch.Tensor,
            is_causal: bool = False,
            scale: float | None = None,
            enable_gqa: bool = False,
        ) -> torch.Tensor:
            if torch.is_grad_enabled() and needs_grad(q, k, v):
                kernels.misses.missed("grad", None, "an input requires grad").count()
                return before(q, k, v, is_causal, scale, enable_gqa)
            with torch._C._AutoDispatchBelowAutograd():
                return overload(q, k, v, is_causal, scale, enable_gqa)  # type: ignore[no-any-return]

        self.library.impl("attention", autograd, "Autograd")
        self.library._register_fake("attention", fake)


def before(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    """SDPA's result, with the operator's strides."""
    out = sdpa(q, k, v, None, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
    promised = fake(q, k, v)
    return out if out.stride() == promised.stride() else promised.copy_(out)


def fake(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """The output without its values: laid out like q."""
    if q.dim() == 4 and v.dim() == 4 and q.shape[3] == v.shape[3]:
        return torch.empty_like(q)
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def needs_grad(*tensors: torch.Tensor) -> bool:
    return any(tensor.requires_grad for tensor in tensors)
