"""A run as one flat table: columns, their CSV, and their Parquet file.

Columns, in this order; names and units stay as they are, a value that does not exist is empty:

    rank trial outcome reason                       rank 1 is best; ties share a rank
    speedup speedup_low speedup_high                baseline time / candidate time, 95% interval
    time_us error error_limit                       microseconds; maximum error and its limit
    confirmed flags duplicate_of finished_s         flags joined by spaces; seconds
    stage_s.STAGE                                   seconds
    resource.NAME                                   the compiler's figures: registers, spills, ...
    time_us.CASE speedup.CASE baseline.CASE         per timed and held-out case, warm, and cold
                                                    (CASE ends with " cold") where it was timed
    eager_us.CASE eager_baseline_us.CASE            where calls were timed without a graph too
    param.NAME                                      the configuration
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from evotune.errors import EnvironmentProblem
from evotune.report.data import RunData
from evotune.report.leaderboard import Evidence, figures, rank, weigh
from evotune.report.whole import TRIALS_A_PART, Ranked, each_part, ranks
from evotune.trial import Json, Measurement, NamedFigures
from evotune.util.words import csv_text

if TYPE_CHECKING:
    import pandas as pd


# Columns of a large table, as arrays.
# A number takes eight bytes, and one more says whether the cell has a value. Sorting a table moves
# whole arrays.

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
        """A column of `cells`; a None cell is empty."""
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


Columns: TypeAlias = dict[str, Column]

_FIXED = (
    *("rank", "trial", "outcome", "reason", "speedup", "speedup_low", "speedup_high"),
    *("time_us", "error", "error_limit", "confirmed", "flags", "duplicate_of", "finished_s"),
)
_COLD = " cold"
_ALWAYS = ("time_us", "speedup", "baseline")
_EAGER = ("eager_us", "eager_baseline_us")
_INTEGERS = ("rank", "trial", "duplicate_of")


def run_columns(data: RunData) -> Columns:
    """The columns of all trials: the leaderboard first, then the rest by number."""
    ranked = ranks(data)
    columns = _columns(data, each_part(data, _part, ranked))
    first = np.searchsorted(columns["trial"].values, np.fromiter(ranked, dtype=np.int64))
    order = np.concatenate([first, np.flatnonzero(columns["rank"].missing)])
    for name in columns:  # one by one, so that memory holds only one of them twice
        columns[name] = columns[name].ordered(order)
    return columns


def leaderboard_columns(data: RunData, count: int | None = None) -> Columns:
    """The columns of the first `count` rows of the leaderboard."""
    evidence = weigh(data)
    rows = rank(data, evidence).rows[:count]
    return _columns(
        data, [_part(data.recorded, [(evidence[row.number], row.rank) for row in rows])]
    )


def csv_lines(columns: Columns) -> Iterator[str]:
    """RFC 4180 with `\\n` line ends; no text in it acts as a spreadsheet formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([csv_text(name) for name in columns])
    whole = _whole(columns)
    safe = functools.lru_cache(4096)(csv_text)
    for first in range(0, len(columns["trial"]), TRIALS_A_PART):
        yield text.getvalue()
        text.seek(0)
        text.truncate()
        some = (
            _csv_cells(column.rows(first, first + TRIALS_A_PART), name in whole, safe)
            for name, column in columns.items()
        )
        writer.writerows(zip(*some, strict=True))
    yield text.getvalue()


def _csv_cells(column: Column, whole: bool, safe: Callable[[str], str]) -> Iterable[Json]:
    """Cells for CSV: booleans among whole numbers as 0 and 1, NaN as no value."""
    if column.kind == "f":
        return Column(column.values, column.missing | np.isnan(column.values)).cells()
    cells = column.cells()
    if column.kind == "i" or column.missing.all():
        return cells
    if whole:
        return (None if cell is None else int(cell) for cell in cells)
    kinds = set(map(type, cells))
    if float in kinds:
        cells = [None if cell != cell else cell for cell in cells]  # noqa: PLR0124
    if str in kinds:
        return (safe(cell) if isinstance(cell, str) else cell for cell in cells)
    return cells


def to_parquet(columns: Columns) -> bytes:
    """The same columns as a typed Parquet file: missing values are nulls, parameters keep their
    type.

    Takes each column out of `columns`, so that memory has two copies of one column only. Raises
    EnvironmentProblem without pyarrow.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise EnvironmentProblem(
            "parquet needs pyarrow; get it with: pip install 'evotune[parquet]'"
        ) from error
    buffer = io.BytesIO()
    to_pandas(columns).to_parquet(buffer, engine="pyarrow", index=False)
    return buffer.getvalue()


def to_pandas(columns: Columns) -> pd.DataFrame:
    """The same columns as a typed DataFrame: missing values are NA, parameters keep their type.

    Takes each column out of `columns`, so that memory has two copies of one column only.
    """
    import pandas as pd

    whole = _whole(columns)
    typed = {name: _typed(columns.pop(name), name in whole) for name in list(columns)}
    return pd.DataFrame(typed, copy=False)


def _typed(column: Column, whole: bool) -> pd.Series[Any]:
    """An array of a nullable type; cells of several types become texts."""
    import pandas as pd

    if column.kind == "i":
        return pd.Series(pd.arrays.IntegerArray(column.values, column.missing))
    if column.kind == "f":
        return pd.Series(np.where(column.missing, np.nan, column.values)).convert_dtypes()
    series = pd.Series(column.cells(), dtype=object)
    typed = series.astype("Int64") if whole else series.convert_dtypes()
    if typed.dtype == object:
        return typed.map(lambda cell: None if cell is None else str(cell))
    return typed


def _part(recorded: bool, items: Sequence[Ranked]) -> Columns:
    """The columns of some trials."""
    if not items:
        return {name: Column.empty(0) for name in _FIXED}
    fixed = zip(*(_fixed(recorded, item, place) for item, place in items), strict=True)
    trials = [item.trial for item, _ in items]
    cells: dict[str, Sequence[Json]] = {
        **dict(zip(_FIXED, fixed, strict=True)),
        **_named("stage_s.", [trial.outcome.stage_s for trial in trials]),
        **_named("resource.", [_figures(trial.outcome.resources) for trial in trials]),
        **_named("", [_measured(item.outcome.measurements) for item, _ in items]),
        **_named("param.", [trial.configuration.to_json() for trial in trials]),
    }
    return {name: Column.of(column) for name, column in cells.items()}


def _columns(data: RunData, parts: Iterable[Columns]) -> Columns:
    """Joins all parts, and adds the columns that every table has."""
    found = joined(itertools.chain([_part(data.recorded, [])], parts))
    count = len(found["trial"])
    labels = dict.fromkeys((*data.cases, *data.held_out_cases))
    cases = [
        f"{figure}.{label}"
        for case in labels
        for label in (case, case + _COLD)
        for figure in (*_ALWAYS, *_EAGER)
        if (label == case and figure in _ALWAYS) or f"{figure}.{label}" in found
    ]
    several = [[n for n in found if n.startswith(f"{group}.")] for group in ("stage_s", "resource")]
    parameters = [f"param.{name}" for name in data.parameters]
    names = [*_FIXED, *itertools.chain(*several), *cases, *parameters]
    # A case measured on failed trials alone comes after the leaders' cases.
    names += [name for name in found if name not in names]
    return {name: found.get(name) or Column.empty(count) for name in names}


def _named(prefix: str, rows: Sequence[Mapping[str, Json]]) -> dict[str, list[Json]]:
    """Columns of rows' cells; a row without a cell has None there."""
    columns: dict[str, list[Json]] = {}
    for place, row in enumerate(rows):
        for name, cell in row.items():
            column = columns.get(name)
            if column is None:
                column = columns[name] = [None] * len(rows)
            column[place] = cell
    return {prefix + name: column for name, column in columns.items()}


def _whole(columns: Columns) -> list[str]:
    """Names of the columns of integers."""
    return [
        *_INTEGERS,
        *(n for n in columns if n.startswith("resource.") and _is_whole(columns[n])),
    ]


def _is_whole(column: Column) -> bool:
    """True if its cells are whole numbers or booleans."""
    if column.kind == "O":
        return all(isinstance(cell, int) for cell in column.cells() if cell is not None)
    return column.kind == "i"


def _fixed(recorded: bool, item: Evidence, place: int | None) -> tuple[Json, ...]:
    """The cells of _FIXED."""
    trial, outcome = item.trial, item.outcome
    numbers = figures(outcome, recorded=recorded)
    return (
        *(place, trial.number, outcome.kind.value, item.reason),
        *(numbers.speedup, numbers.speedup_low, numbers.speedup_high),
        *(numbers.time_us, numbers.error, numbers.error_limit),
        *(item.confirmed, " ".join(dict.fromkeys(trial.outcome.flags + outcome.flags))),
        *(trial.outcome.duplicate_of, item.finished_s),
    )


def _figures(resources: NamedFigures) -> dict[str, Json]:
    return {name: value for name, value in resources.items() if isinstance(value, (int, float))}


def _measured(measurements: Iterable[Measurement]) -> dict[str, Json]:
    cells: dict[str, Json] = {}
    for measurement in measurements:
        case = measurement.case + (_COLD if measurement.cache == "cold" else "")
        cells[f"time_us.{case}"] = measurement.time_us
        cells[f"speedup.{case}"] = measurement.speedup
        cells[f"baseline.{case}"] = measurement.baseline
        for figure in _EAGER:
            if getattr(measurement, figure) is not None:
                cells[f"{figure}.{case}"] = getattr(measurement, figure)
    return cells
