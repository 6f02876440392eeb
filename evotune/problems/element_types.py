"""The types of tensors' elements: their names in problems and spaces, their sizes, torch's types.

Importing this does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch

ELEMENT_BYTES: Mapping[str, int] = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float8_e4m3": 1,
    "float8_e5m2": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
}
INTEGERS = ("uint8", "int32", "int64")
FLOAT8 = ("float8_e4m3", "float8_e5m2")
_IN_TORCH = {"float8_e4m3": "float8_e4m3fn"}  # "fn": finite, its only special value is NaN


def torch_dtype(name: str) -> torch.dtype:
    """torch's type of elements that are called `name` here."""
    import torch

    found: torch.dtype = getattr(torch, torch_name(name))
    return found


def table_on(device: torch.device | str, values: Sequence[object] | np.ndarray) -> torch.Tensor:
    """A small table as a tensor on the device. A GPU copies it in its own time: `torch.tensor` with
    a device would wait until the GPU has done all that was asked of it before."""
    import torch

    return torch.as_tensor(values).to(device, non_blocking=True)


def torch_name(name: str) -> str:
    """torch's name of elements that are called `name` here, without importing it."""
    return _IN_TORCH.get(name, name)


def element_type(dtype: torch.dtype) -> str:
    """The name of torch's type here."""
    name = str(dtype).removeprefix("torch.")
    return next((ours for ours, theirs in _IN_TORCH.items() if theirs == name), name)
