"""How a callable's function is called: with the outputs by name, or it returns them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from evotune.backends.base.launch import CallPlan
from evotune.problems.problem import torch_dtype

if TYPE_CHECKING:
    import torch


class Wanted(NamedTuple):
    """An output, as a function must return it."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, plan: CallPlan) -> list[Wanted]:
        return [
            cls(spec.name, spec.shape, spec.strides, torch_dtype(spec.dtype))
            for spec in plan.tensors
            if spec.is_output
        ]

    def empty(self, device: str = "cpu") -> Callable[[], torch.Tensor]:
        """Allocates it."""
        import torch

        given = self.shape, self.strides
        return functools.partial(torch.empty_strided, *given, dtype=self.dtype, device=device)


def takes_outputs(function: Callable[..., object], names: Sequence[str]) -> bool:
    """Whether the function has a parameter for each output. Raises TypeError if it has some."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # compiled code that does not say
        return False
    taken = [name for name in names if name in parameters]
    if taken and len(taken) < len(names):
        missing = ", ".join(name for name in names if name not in taken)
        raise TypeError(f"the function takes {', '.join(taken)} but not {missing}")
    return bool(taken)


def returned_tensors(returned: object, wanted: Sequence[Wanted]) -> Sequence[torch.Tensor]:
    """The tensors that a function returned, in the order of the outputs and contiguous. Raises
    TypeError or ValueError for anything else."""
    import torch

    if isinstance(returned, torch.Tensor):
        returned = (returned,)
    elif isinstance(returned, Mapping):
        missing = [each.name for each in wanted if each.name not in returned]
        if missing:
            raise ValueError(f"the function returned no {', '.join(missing)}")
        returned = [returned[each.name] for each in wanted]
    if not isinstance(returned, list | tuple):
        names = ", ".join(each.name for each in wanted)
        raise TypeError(f"the function returned a {type(returned).__name__}, expected {names}")
    if len(returned) != len(wanted):
        raise ValueError(f"the function returned {len(returned)} values, expected {len(wanted)}")
    for each, value in zip(wanted, returned, strict=True):
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{each.name} is a {type(value).__name__}, expected a tensor")
        if value.shape != each.shape or value.dtype != each.dtype:
            raise ValueError(
                f"{each.name} is {value.dtype} {tuple(value.shape)}, expected {each.dtype} "
                f"{each.shape}"
            )
    return [_plain(value) for value in returned]


def _plain(value: torch.Tensor) -> torch.Tensor:
    """Contiguous, with the values in its memory: of a view such as `conj()` PyTorch changes the
    signs only when it reads the view."""
    if value.is_conj() or value.is_neg():
        value = value.resolve_conj().resolve_neg()
    return value.contiguous()
