"""The problem of a FlashInfer-Bench Definition: its axes are sizes, its `run` is `compute`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from evotune.formats.constraints import AxisRelations
from evotune.formats.foreign_reference import ForeignReference
from evotune.formats.stored_tensors import StoredTensor
from evotune.problems.problem import FLOAT8, INTEGERS, Case
from evotune.problems.written import INDICES, STRUCTURED, Tensor

if TYPE_CHECKING:
    import torch

WORKLOAD = "workload_number"
"""The size that numbers the workloads, where they have tensors of their own."""
ONCE = "once"
"""The size of a Definition without variable axes: 1."""
_RANDOM = {"int8": range(-128, 128), "bool": range(2)}
_OTHER_INTEGERS = range(-1024, 1024)
"""Random integers are those that the package draws."""


class Described(NamedTuple):
    """A tensor: the names of its axes (None: a number), and its type as evotune calls it."""

    shape: tuple[str, ...] | None
    dtype: str


class DefinitionProblem(ForeignReference):
    """Its subclass in a generated file says what a Definition and its workloads say."""

    constant_axes: ClassVar[Mapping[str, int]] = {}
    relations: ClassVar[AxisRelations] = AxisRelations({}, (), frozenset())
    definition_inputs: ClassVar[Mapping[str, Described]] = {}
    definition_outputs: ClassVar[Mapping[str, Described]] = {}
    stored: ClassVar[Mapping[int, Mapping[str, StoredTensor]]] = {}
    """The tensors of workloads, by the workload's number and the input's name."""
    untimed: ClassVar[Sequence[Mapping[str, Any]]] = ()
    """Shapes that are checked and not timed."""

    def check(self, **sizes: int) -> None:
        self._axes(sizes)

    def described_inputs(self, sizes: Mapping[str, int]) -> Mapping[str, Tensor]:
        axes = self._axes(sizes)
        kept = {name for tensors in self.stored.values() for name in tensors}
        found = {}
        for name, each in self.definition_inputs.items():
            if each.shape is None:
                continue
            values: range | str | None = None
            if name in kept:
                values = INDICES if each.dtype in INTEGERS else STRUCTURED
            elif each.dtype in INTEGERS:
                values = _RANDOM.get(each.dtype, _OTHER_INTEGERS)
            found[name] = Tensor(tuple(axes[axis] for axis in each.shape), each.dtype, values)
        return found

    def described_outputs(self, sizes: Mapping[str, int]) -> Mapping[str, Tensor]:
        axes = self._axes(sizes)
        return {
            name: Tensor(tuple(axes[axis] for axis in each.shape or ()), each.dtype)
            for name, each in self.definition_outputs.items()
        }

    def reference_call(
        self, given: Mapping[str, Any], wide: torch.dtype | None
    ) -> Callable[[], Any]:
        arguments = [number_of(each, given[name]) for name, each in self.definition_inputs.items()]
        return functools.partial(self.module.run, *arguments)

    def make_input(
        self, name: str, shape: tuple[int, ...], kind: str, generator: torch.Generator
    ) -> torch.Tensor:
        if not self.stored or name not in self._stored_now:
            return super().make_input(name, shape, kind, generator)
        return self._stored_now[name].read().to(generator.device)

    def make_indices(
        self, kind: str, generator: torch.Generator, **sizes: int
    ) -> Mapping[str, torch.Tensor]:
        return {
            name: each.read().to(generator.device)
            for name, each in self.stored[sizes[WORKLOAD]].items()
            if each.dtype in INTEGERS
        }

    def further_cases(self) -> Sequence[Case]:
        return [self.case(shape, {}) for shape in self.untimed]

    @property
    def _stored_now(self) -> Mapping[str, StoredTensor]:
        return self.stored[self.current_sizes[WORKLOAD]]

    def _axes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        own = {name: n for name, n in sizes.items() if name not in (WORKLOAD, ONCE)}
        return self.relations.whole({**self.constant_axes, **own})


def number_of(described: Described, value: Any) -> Any:
    """An argument of a reference or a solution: a tensor, or a number of the type that the
    Definition says."""
    if described.shape is not None:
        return value
    if described.dtype == "bool":
        return bool(value)
    return int(value) if described.dtype in INTEGERS else float(value)


def is_float(dtype: str) -> bool:
    return dtype not in INTEGERS and dtype not in FLOAT8
