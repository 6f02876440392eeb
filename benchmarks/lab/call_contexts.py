"""Modes in which `export_random_calls` makes a call, by name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

Function = Callable[..., Any]
WEIGHTED = (
    *((46.0, "plain"), (30.0, "no_grad"), (8.0, "inference_mode")),
    *((3.0, "autocast bfloat16"), (2.0, "autocast float16"), (1.5, "math alone")),
    *((1.5, "one backend"), (1.0, "deterministic"), (1.0, "one thread"), (1.0, "function mode")),
    *((1.0, "dispatch mode"), (1.0, "default device"), (1.5, "forward AD"), (1.5, "vmap")),
)
"""(weight, name)."""


class _Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def made(
    name: str, device: str, function: Function, tensors: Sequence[Any], options: dict[str, Any]
) -> Any:
    """The result of function(*tensors, **options) in that mode."""
    if name == "vmap":
        return torch.vmap(lambda *given: function(*given, **options))(*(t[None] for t in tensors))
    if name == "forward AD":
        return _with_tangent(function, tensors, options)
    with _context(name, device):
        return function(*tensors, **options)


def _context(name: str, device: str) -> Any:
    if name.startswith("autocast "):
        return torch.autocast(device, dtype=getattr(torch, name.partition(" ")[2]))
    one = SDPBackend.FLASH_ATTENTION if device == "cpu" else SDPBackend.EFFICIENT_ATTENTION
    contexts: dict[str, Callable[[], Any]] = {
        "plain": contextlib.nullcontext,
        "no_grad": torch.no_grad,
        "inference_mode": torch.inference_mode,
        "math alone": lambda: sdpa_kernel(SDPBackend.MATH),
        "one backend": lambda: sdpa_kernel([one, SDPBackend.MATH]),
        "deterministic": _deterministic,
        "one thread": _one_thread,
        "function mode": _Functions,
        "dispatch mode": _Operators,
        "default device": lambda: torch.device(device),
    }
    return contexts[name]()


def _with_tangent(function: Function, tensors: Sequence[Any], options: dict[str, Any]) -> Any:
    """(output, tangent), where q has a tangent of ones."""
    with forward_ad.dual_level():
        q = tensors[0].detach()
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        out = function(dual, *(t.detach() for t in tensors[1:]), **options)
        primal, tangent = forward_ad.unpack_dual(out)
        return primal.clone(), None if tangent is None else tangent.clone()
