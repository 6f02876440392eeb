"""Parts of a case that do not depend on each other: the heads of attention, for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from evotune.problems.problem import Case

Index: TypeAlias = "tuple[int | slice, ...]"


@dataclass(frozen=True, slots=True)
class Parts:
    """Some parts of a case as a smaller case. `regions` has the index of each part in each tensor;
    a tensor of the smaller case is its regions, stacked."""

    case: Case
    regions: Mapping[str, Sequence[Index]]


@runtime_checkable
class HasParts(Protocol):
    """A problem that says which outputs depend on an element of an input."""

    def parts(self, case: Case, touched: Sequence[tuple[str, int, int]]) -> Parts | None:
        """The parts that depend on the elements `touched`: an input's name, the number of its first
        element and how many there are. None where that is most of the case."""
