"""An exported package whose kernels compute another problem than attention.

PyTorch has no function for the problem that could be faster. So a kernel serves every case that it
was checked on; other calls go to the fallback, and are an error if there is none.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ._case_expressions import Names, NoValue, evaluate
from ._case_sizes import CaseSizes
from ._certificate import Contents
from ._dispatch import OUTSIDE
from ._loaded_kernels import LoadedKernels, Refused
from ._missed import Misses
from ._named_kernels import Examine, Given, NamedKernels


class ProblemKernels(NamedKernels):
    """Finds the case of a call from the shapes of its inputs."""

    def __init__(self, contents: Contents, kernels: LoadedKernels, misses: Misses) -> None:
        super().__init__(contents, kernels, misses)
        self.sizes = CaseSizes(contents.dispatch)
        self.values = ValueRanges(contents.dispatch["problem"])
        flags = self.sizes.flags.items()
        self.flag_of = {name: flag for flag, tensors in flags for name in tensors}
        """For each input that a call may lack, the flag that implies its presence."""

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


# Holds integers whose values matter to the ranges for which the kernels were checked.
#
# A kernel may use such an integer as a place in memory. On a CPU the values are read before each
# call, and a value out of range is a miss. On a GPU the program would have to wait for them. There
# the GPU asserts them before the kernel starts, as PyTorch's own losses and embeddings do: a value
# out of range ends in a CUDA error ("device-side assert triggered") at the next synchronisation.
class Range(NamedTuple):
    """The values from `least` to `most` of the input `name`, which has this place among them."""

    place: int
    name: str
    least: int
    most: int


class ValueRanges:
    """The ranges that `dispatch.json` gives for inputs."""

    def __init__(self, problem: Mapping[str, Any]) -> None:
        self._ends: Mapping[str, Any] = problem.get("values", {})
        self._inputs: Sequence[str] = problem["inputs"]

    def ends(self, name: str, symbols: Mapping[str, Any]) -> tuple[Any, Any] | None:
        """The least and the largest value in the case; None for an input of any values."""
        if name not in self._ends:
            return None
        names = Names(symbols, {})
        least, most = (evaluate(end, names) for end in self._ends[name])
        return least, most

    def checked(
        self, symbols: Mapping[str, Any], tensors: Sequence[torch.Tensor | None]
    ) -> tuple[Range, ...]:
        """The ranges against which each call's integers are checked. An input whose type holds no
        value out of range needs no check."""
        found = []
        for place, (name, tensor) in enumerate(zip(self._inputs, tensors, strict=True)):
            ends = self.ends(name, symbols)
            if ends is None or tensor is None or tensor.is_floating_point():
                continue
            limits = torch.iinfo(tensor.dtype)
            if limits.min < ends[0] or limits.max > ends[1]:
                found.append(Range(place, name, int(ends[0]), int(ends[1])))
        return tuple(found)


def outside(ranges: Sequence[Range], tensors: Sequence[torch.Tensor | None]) -> Refused | None:
    """A miss if a value on a CPU is out of range. On a GPU returns None, and the GPU asserts the
    ranges."""
    for place, name, least, most in ranges:
        tensor = tensors[place]
        assert tensor is not None
        if not tensor.is_cpu:
            _assert_on_device(tensor, least, most)
            continue
        low, high = (int(end) for end in torch.aminmax(tensor))
        if low < least or high > most:
            value = low if low < least else high
            return Refused("values", f"{name} holds {value}, the kernels take {least} to {most}")
    return None


def _assert_on_device(tensor: torch.Tensor, least: int, most: int) -> None:
    """PyTorch's `gather` asserts on the device that each index is one of its source. It is a
    single launch, while comparing and `torch._assert_async` are four. The source is one byte that
    stands for all elements, and need not be set."""
    index = tensor.reshape(-1).long()
    if least:
        index = index - least
    source = torch.empty(1, dtype=torch.uint8, device=tensor.device)
    torch.gather(source.expand(most - least + 1), 0, index)
