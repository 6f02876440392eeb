"""An exported package whose kernels compute another problem than attention.

PyTorch has no function for the problem that could be faster. So a kernel serves every case that it
was checked on; other calls go to the fallback, and are an error where there is none.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from ._case_expressions import NoValue
from ._case_sizes import CaseSizes
from ._certificate import Contents
from ._dispatch import OUTSIDE
from ._loaded_kernels import LoadedKernels, Refused
from ._missed import Misses
from ._named_kernels import Examine, Given, NamedKernels
from ._value_ranges import ValueRanges, outside


class ProblemKernels(NamedKernels):
    """Finds the case of a call from the shapes of its inputs."""

    def __init__(self, contents: Contents, kernels: LoadedKernels, misses: Misses) -> None:
        super().__init__(contents, kernels, misses)
        self.sizes = CaseSizes(contents.dispatch)
        self.values = ValueRanges(contents.dispatch["problem"])
        flags = self.sizes.flags.items()
        self.flag_of = {name: flag for flag, tensors in flags for name in tensors}
        """The flag that tells the presence of each input that a call may lack."""

    def promised(self, tensors: Given, options: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        """Extents that a compiler leaves open stay open: an exported program takes other ones."""
        shapes = {
            name: tuple(tensor.shape)
            for name, tensor in zip(self.inputs, tensors, strict=True)
            if tensor is not None
        }
        is_open = any(
            isinstance(extent, torch.SymInt) for each in shapes.values() for extent in each
        )
        if not is_open or not self.have_types(tensors):
            return super().promised(tensors, options)
        symbols = self.sizes.open_symbols(shapes, options)
        try:
            return self.empty(tensors, self.shapes(symbols))
        except NoValue as error:
            raise ValueError(
                f"the shapes of the outputs do not follow while traced: {error}"
            ) from None

    def symbols(self, tensors: Given, options: Mapping[str, Any]) -> dict[str, Any]:
        shapes = {
            name: tuple(int(extent) for extent in tensor.shape)
            for name, tensor in zip(self.inputs, tensors, strict=True)
            if tensor is not None
        }
        return self.sizes.symbols(shapes, options)

    def examining(self, symbols: Mapping[str, Any], tensors: Given) -> Examine | None:
        ranges = self.values.checked(symbols, tensors)
        return functools.partial(outside, ranges) if ranges else None

    def outside(self, symbols: Mapping[str, Any], kind: str) -> Refused:
        case = ", ".join(f"{n}={v}" for n, v in symbols.items() if n != "dtype")
        shape = {name: symbols[name] for name in (*self.sizes.sizes, *self.sizes.ranged)}
        variant = {flag: symbols[flag] for flag in self.sizes.flags}
        missed = {"shape": shape, "variant": variant, "dtype": symbols["dtype"]}
        return Refused(OUTSIDE, f"{case}; {self._domain(symbols)}", missed)

    def _domain(self, symbols: Mapping[str, Any]) -> str:
        if never := self.dispatch.never_checked(symbols):
            sizes = " with ".join(f"{name}={size}" for name, size in never.items())
            return f'no check had {sizes}; `info()["lengths"]` names the lengths that were checked'
        regions = [
            ", ".join(
                f"{name} {low}" if low == high else f"{name} {low} to {high}"
                for name, (low, high) in ranges.items()
            )
            for ranges in self.dispatch.checked_ranges()
        ]
        return f"checked: {' or '.join(dict.fromkeys(regions))}"
