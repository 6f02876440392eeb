"""States of PyTorch and of tensors in which a call must give what SDPA gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

Call = Callable[..., torch.Tensor]
State = Callable[[Call, list[torch.Tensor]], Any]


class _Doubled(TorchDispatchMode):
    """Changes the inputs of whatever operator is called first."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        first, *others = args
        return function(first * 2, *others, **(kwargs or {}))


class _Seen(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*args, **(kwargs or {}))


class _Own(torch.Tensor):
    pass


def tangent(call: Call, tensors: list[torch.Tensor]) -> Any:
    """Of a tensor that does not require grad, and has a direction of forward-mode AD."""
    q, k, v = tensors
    with forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        made = forward_ad.unpack_dual(call(forward_ad.make_dual(q, q + 1), k, v))
        return made.primal, made.tangent


def tangent_with_any_backend(call: Call, tensors: list[torch.Tensor]) -> Any:
    """SDPA's fused kernels have no tangent: an error, not a result without one."""
    q, k, v = tensors
    with forward_ad.dual_level(), torch.no_grad():
        try:
            found = forward_ad.unpack_dual(call(forward_ad.make_dual(q, q + 1), k, v)).tangent
        except NotImplementedError:
            return 0
        return 1 if found is None else found


def negated(call: Call, tensors: list[torch.Tensor]) -> Any:
    """q's memory holds its values with the other sign."""
    q, k, v = tensors
    return call(torch._neg_view(q), k, v)


def dispatch_mode(call: Call, tensors: list[torch.Tensor]) -> Any:
    with _Doubled():
        return call(*tensors)


def function_mode(call: Call, tensors: list[torch.Tensor]) -> Any:
    with _Seen():
        return call(*tensors)


def subclass(call: Call, tensors: list[torch.Tensor]) -> Any:
    q, k, v = tensors
    return call(q.as_subclass(_Own), k, v).as_subclass(torch.Tensor)


def autocast(call: Call, tensors: list[torch.Tensor]) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return call(*tensors)


def chosen_backend(call: Call, tensors: list[torch.Tensor]) -> Any:
    with sdpa_kernel(SDPBackend.MATH):
        return call(*tensors)


def mapped(call: Call, tensors: list[torch.Tensor]) -> Any:
    return torch.vmap(call)(*(torch.stack([t, t + 1]) for t in tensors))


def gradient(call: Call, tensors: list[torch.Tensor]) -> Any:
    q, k, v = (t.clone().requires_grad_() for t in tensors)
    with torch.enable_grad():
        call(q, k, v).sum().backward()
    return q.grad, k.grad, v.grad


def functional(call: Call, tensors: list[torch.Tensor]) -> Any:
    return torch.func.functionalize(lambda *t: call(*t) * 1)(*tensors)


def meta(call: Call, tensors: list[torch.Tensor]) -> Any:
    return call(*(t.to("meta") for t in tensors)).shape


STATES: list[State] = [
    *(tangent, tangent_with_any_backend, negated, dispatch_mode, function_mode, subclass),
    *(autocast, chosen_backend, mapped, gradient, functional, meta),
]
