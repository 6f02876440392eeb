"""Columns of a large table, as arrays.

A number takes eight bytes, and one more says whether the cell has a value. Sorting a table moves
whole arrays.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, TypeAlias

import numpy as np

from evotune.trial import Json

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Column:
    """The cells of one column.

    - `values`: int64 if all present cells are whole numbers (no booleans), float64 if all are
      floats, else objects.
    - `missing`: marks absent cells.
    """

    values: Array
    missing: Array

    @classmethod
    def of(cls, cells: Sequence[Json]) -> Column:
        """A column of `cells`, of which None are absent."""
        kinds = set(map(type, cells))
        if kinds <= {NoneType}:
            return cls.empty(len(cells))
        missing = np.zeros(len(cells), dtype=bool)
        known = cells
        if NoneType in kinds:
            kinds.discard(NoneType)
            missing[:] = [cell is None for cell in cells]
            known = [0 if cell is None else cell for cell in cells]
        if kinds == {float}:
            return cls(np.array(known, dtype=np.float64), missing)
        if kinds == {int}:
            with contextlib.suppress(OverflowError):  # beyond 64 bits
                return cls(np.array(known, dtype=np.int64), missing)
        values = np.empty(len(cells), dtype=object)
        values[:] = cells
        return cls(values, missing)

    @classmethod
    def empty(cls, count: int) -> Column:
        """A column of absent cells."""
        return cls(np.full(count, None, dtype=object), np.ones(count, dtype=bool))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def kind(self) -> str:
        """NumPy's letter for the type of `values`: i, f or O."""
        return self.values.dtype.kind

    def cells(self) -> list[Json]:
        """The cells' values, None for absent cells."""
        values = self.values
        if self.kind != "O" and self.missing.any():
            values = values.astype(object)
            values[self.missing] = None
        found: list[Json] = values.tolist()
        return found

    def rows(self, first: int, last: int) -> Column:
        """The rows from `first` to before `last`."""
        return Column(self.values[first:last], self.missing[first:last])

    def ordered(self, rows: Array) -> Column:
        return Column(self.values[rows], self.missing[rows])


def joined(parts: Iterable[Mapping[str, Column]]) -> dict[str, Column]:
    """Joins tables one below the other. A column that a table lacks has absent cells there. Columns
    are in order of appearance."""
    count = 0
    found: dict[str, list[tuple[int, Column]]] = {}
    for table in parts:
        for name, column in table.items():
            found.setdefault(name, []).append((count, column))
        count += max(map(len, table.values()))
    # One by one, so that memory holds only one of them twice.
    return {name: _joined(found.pop(name), count) for name in list(found)}


def _joined(parts: Sequence[tuple[int, Column]], count: int) -> Column:
    """Makes one column of `count` cells from parts, each with the number of its first row."""
    whole = Column.empty(count)
    kinds = {part.kind for _, part in parts if not part.missing.all()}
    numbers = len(kinds) == 1 and "O" not in kinds
    if numbers:
        whole = Column(np.zeros(count, dtype=f"{kinds.pop()}8"), whole.missing)
    for first, part in parts:
        rows = slice(first, first + len(part))
        whole.missing[rows] = part.missing
        if not numbers:
            whole.values[rows] = part.cells()
        elif part.kind == whole.kind:
            whole.values[rows] = part.values
    return whole
