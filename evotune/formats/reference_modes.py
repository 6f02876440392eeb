"""Runs a reference that somebody else wrote in another precision than it states.

Other people's references name their types: they compute in float32 and round the result to
bfloat16. `widened` lets such code compute in float64, as the gate's reference must. `coarser`
computes as tensor cores do: the operands of matrix products are of the inputs' type.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

_BITS = {torch.float64: 64, torch.float32: 32, torch.bfloat16: 16, torch.float16: 16}
_CASTS = {torch.Tensor.float: 32, torch.Tensor.half: 16, torch.Tensor.bfloat16: 16}
_MOVES = ("to", "contiguous", "cuda", "half", "bfloat16", "float")
_PRODUCTS = {
    *(torch.matmul, torch.mm, torch.bmm, torch.mv, torch.addmm, torch.baddbmm, torch.einsum),
    *(torch.dot, F.linear, F.scaled_dot_product_attention, F.conv1d, F.conv2d, F.conv3d),
    *(torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.__rmatmul__, torch.Tensor.mm),
    *(torch.Tensor.bmm, torch.Tensor.mv, torch.Tensor.dot, torch.Tensor.addmm),
}


@contextlib.contextmanager
def widened(wide: torch.dtype) -> Iterator[None]:
    """A context in which a narrower floating-point type means `wide`, in casts, in new tensors and
    as the default type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(wide)
    try:
        with _Widened(wide):
            yield
    finally:
        torch.set_default_dtype(before)


def coarser(narrow: torch.dtype, draw: int) -> contextlib.AbstractContextManager[object]:
    """A context in which operands of matrix products and convolutions that `narrow` cannot hold are
    off by its unit roundoff, up or down at random. The products are summed as before."""
    return _CoarserOperands(narrow, draw)


class _Widened(TorchFunctionMode):
    def __init__(self, wide: torch.dtype) -> None:
        super().__init__()
        self._wide = wide

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in _CASTS and _CASTS[func] < _BITS[self._wide]:
            return args[0].to(self._wide)
        given = {name: self._type(value) for name, value in (kwargs or {}).items()}
        return func(*map(self._type, args), **given)

    def _type(self, value: Any) -> Any:
        if not isinstance(value, torch.dtype) or not value.is_floating_point:
            return value
        return self._wide if _BITS.get(value, 8) < _BITS[self._wide] else value


class _CoarserOperands(TorchFunctionMode):
    def __init__(self, narrow: torch.dtype, draw: int) -> None:
        super().__init__()
        self._narrow, self._draw = narrow, draw

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in _PRODUCTS:
            args = self._coarser(args)
            kwargs = {name: self._coarser(value) for name, value in (kwargs or {}).items()}
        return func(*args, **(kwargs or {}))

    def _coarser(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(map(self._coarser, value))
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            is_held = value.to(self._narrow).to(value.dtype) == value
            generator = torch.Generator(value.device).manual_seed(self._draw)
            up = torch.rand(value.shape, generator=generator, device=value.device) < 0.5
            unit = torch.finfo(self._narrow).eps / 2
            moved = value * torch.where(up, 1.0 + unit, 1.0 - unit)
            return torch.where(is_held, value, moved.to(value.dtype))
        return value


class OnDevice(TorchFunctionMode):
    """A context in which CUDA means `device`: many tasks name it for the tensors that they make."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.cuda:
            return args[0].to(self._device)
        given = {name: self._placed(value) for name, value in (kwargs or {}).items()}
        return func(*map(self._placed, args), **given)

    def _placed(self, value: Any) -> Any:
        names_cuda = isinstance(value, str) and value.partition(":")[0] == "cuda"
        if names_cuda or (isinstance(value, torch.device) and value.type == "cuda"):
            return self._device
        return value


class NormalTensors(TorchFunctionMode):
    """A context that notes which tensors come straight from `torch.randn`."""

    def __init__(self) -> None:
        super().__init__()
        self._made: list[torch.Tensor] = []

    def made(self, tensor: torch.Tensor) -> bool:
        return any(each is tensor for each in self._made)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        is_moved = getattr(func, "__name__", "") in _MOVES and any(map(self.made, args[:1]))
        if func in (torch.randn, torch.randn_like) or is_moved:
            self._made.append(found)
        return found
