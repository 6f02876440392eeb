"""A run as one flat table: columns, their CSV, and a pandas frame for a Parquet file.

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

import csv
import functools
import io
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from evotune.errors import EnvironmentProblem
from evotune.report.data import RunData
from evotune.report.escape import csv_text
from evotune.report.records import leaderboard_records, ordered_records
from evotune.trial import Json

if TYPE_CHECKING:
    import pandas as pd

Columns: TypeAlias = dict[str, list[Json]]

_FIXED = (
    *("rank", "trial", "outcome", "reason", "speedup", "speedup_low", "speedup_high"),
    *("time_us", "error", "error_limit", "confirmed", "flags", "duplicate_of", "finished_s"),
)
_COLD = " cold"
_ALWAYS = ("time_us", "speedup", "baseline")
_EAGER = ("eager_us", "eager_baseline_us")
_INTEGERS = ("rank", "trial", "duplicate_of")
_ROWS_AT_ONCE = 1000


def run_columns(data: RunData) -> Columns:
    """Every trial: the leaderboard first, then the rest by number."""
    return _columns(data, ordered_records(data))


def leaderboard_columns(data: RunData, count: int | None = None) -> Columns:
    """The first `count` rows of the leaderboard."""
    return _columns(data, leaderboard_records(data, count))


def run_frame(data: RunData) -> pd.DataFrame:
    """`run_columns` as a frame."""
    import pandas as pd

    columns = run_columns(data)
    frame = pd.DataFrame({name: pd.Series(cells, dtype=object) for name, cells in columns.items()})
    return frame.astype(dict.fromkeys(_whole(columns), "Int64"))


def csv_lines(columns: Columns) -> Iterator[str]:
    """RFC 4180 with `\\n` line ends; no text in it acts as a spreadsheet formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([csv_text(name) for name in columns])
    whole = _whole(columns)
    safe = functools.lru_cache(4096)(csv_text)
    rows = zip(
        *(_cells(cells, name in whole, safe) for name, cells in columns.items()), strict=True
    )
    while True:
        yield text.getvalue()
        text.seek(0)
        text.truncate()
        some = list(itertools.islice(rows, _ROWS_AT_ONCE))
        if not some:
            return
        writer.writerows(some)


def _cells(cells: list[Json], whole: bool, safe: Callable[[str], str]) -> Iterable[Json]:
    """As the CSV has them: booleans among whole numbers as 0 and 1, NaN as no value."""
    kinds = set(map(type, cells))
    if whole and bool in kinds:
        return (None if cell is None else int(cell) for cell in cells)
    if float in kinds and any(isinstance(cell, float) and math.isnan(cell) for cell in cells):
        cells = [None if isinstance(cell, float) and math.isnan(cell) else cell for cell in cells]
    if str in kinds:
        return (safe(cell) if isinstance(cell, str) else cell for cell in cells)
    return cells


def to_parquet(frame: pd.DataFrame) -> bytes:
    """Parquet with the same columns, typed: missing values are nulls, parameters keep their type.

    EnvironmentProblem without pyarrow."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise EnvironmentProblem(
            "parquet needs pyarrow; get it with: pip install 'evotune[parquet]'"
        ) from error
    typed = frame.convert_dtypes()
    mixed = [name for name in typed.columns if typed[name].dtype == object]
    typed[mixed] = typed[mixed].map(lambda cell: None if cell is None else str(cell))
    buffer = io.BytesIO()
    typed.to_parquet(buffer, engine="pyarrow", index=False)
    return buffer.getvalue()


def _columns(data: RunData, records: Iterable[Mapping[str, Json]]) -> Columns:
    found: Columns = {name: [] for name in _FIXED}
    count = 0
    for record in records:
        row = _flat(record)
        for name, value in row.items():
            if name not in found:
                found[name] = [None] * count
            found[name].append(value)
        count += 1
        if len(row) < len(found):
            for column in found.values():
                column.extend([None] * (count - len(column)))
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
    # A case that only failed trials were measured on comes after those of the leaders.
    names += [name for name in found if name not in names]
    return {name: found.get(name) or [None] * count for name in names}


def _whole(columns: Columns) -> list[str]:
    """Names of the columns of integers."""
    resources = [name for name in columns if name.startswith("resource.")]
    return [
        *_INTEGERS,
        *(n for n in resources if all(isinstance(c, int) for c in columns[n] if c is not None)),
    ]


def _flat(record: Mapping[str, Json]) -> dict[str, Json]:
    row = {name: record.get(name) for name in _FIXED}
    row["trial"] = record["number"]
    row["flags"] = " ".join(record["flags"])
    row |= {f"stage_s.{stage}": seconds for stage, seconds in record["stage_s"].items()}
    row |= {
        f"resource.{name}": value
        for name, value in record["resources"].items()
        if isinstance(value, int | float)
    }
    for measurement in record["measurements"]:
        case = measurement["case"] + (_COLD if measurement["cache"] == "cold" else "")
        row[f"time_us.{case}"] = measurement["time_us"]
        row[f"speedup.{case}"] = measurement["speedup"]
        row[f"baseline.{case}"] = measurement["baseline"]
        for figure in _EAGER:
            if measurement[figure] is not None:
                row[f"{figure}.{case}"] = measurement[figure]
    row |= {f"param.{name}": value for name, value in record["configuration"].items()}
    return row
