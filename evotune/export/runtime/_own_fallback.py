"""The fallback in a package: the problem's own `compute`, in PyTorch.

`_problem_compute.py` has the method unchanged from the problem's file. A package lacks it if the
method needs more than its arguments.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ._certificate import Contents

_MODULE = "_problem_compute"


def own_fallback(contents: Contents) -> Callable[..., dict[str, torch.Tensor]] | None:
    """A function of the inputs in their order, and of options by name, that returns the outputs by
    name. None if the package has no `compute`, or if `compute` or the description of the inputs was
    changed. Other damage does not matter."""
    file = f"{_MODULE}.py"
    if not contents.has(file) or contents.fault(file) or not contents.says_what_is_called():
        return None
    compute = importlib.import_module(f".{_MODULE}", __package__).compute
    problem, given = contents.dispatch["problem"], contents.dispatch["cases_from"]
    inputs: list[str] = problem["inputs"]
    types = {name: getattr(torch, dtype) for name, dtype in problem.get("types", {}).items()}
    own: torch.dtype = getattr(torch, problem["dtype"])
    constants: Mapping[str, Any] = given.get("constants", {})
    ranged = [name for name in constants if name in given.get("ranges", {})]

    def fallback(*tensors: torch.Tensor | None, **options: Any) -> dict[str, torch.Tensor]:
        named = {name: options.get(name, constants[name]) for name in ranged}
        for name, tensor in zip(inputs, tensors, strict=True):
            if tensor is None:
                continue
            # PyTorch computes nothing with floats of 8 bits.
            narrow = tensor.is_floating_point() and tensor.element_size() == 1
            named[name] = tensor.to(own) if narrow else tensor
        found = compute(None, **named)
        return {
            name: rounded(value, types[name]) if name in types else value
            for name, value in found.items()
        }

    return fallback


def rounded(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The values rounded to `dtype`. An 8-bit float gets its largest value where PyTorch gives
    NaN."""
    if value.dtype == dtype:  # a fallback's call must cost little
        return value
    if dtype.is_floating_point and dtype.itemsize == 1:
        most = torch.finfo(dtype).max
        value = value.clamp(-most, most)
    return value.to(dtype)
