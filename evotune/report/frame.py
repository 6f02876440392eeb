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
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from evotune.errors import EnvironmentProblem
from evotune.report.data import RunData
from evotune.report.escape import csv_text
from evotune.report.evidence import Evidence, figures, weigh
from evotune.report.leaderboard import rank
from evotune.report.whole import in_proposal_order, ranks
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
    ranked = ranks(data)
    items = ((item, ranked.get(item.trial.number)) for item in in_proposal_order(data))
    columns = _columns(data, items)
    places = {number: place for place, number in enumerate(columns["trial"])}
    order = [places[number] for number in ranked]
    order += [place for place, rank in enumerate(columns["rank"]) if rank is None]
    return {name: [cells[place] for place in order] for name, cells in columns.items()}


def leaderboard_columns(data: RunData, count: int | None = None) -> Columns:
    """The first `count` rows of the leaderboard."""
    evidence = weigh(data)
    rows = rank(data, evidence).rows[:count]
    return _columns(data, ((evidence[row.number], row.rank) for row in rows))


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


def _columns(data: RunData, items: Iterable[tuple[Evidence, int | None]]) -> Columns:
    """Of trials and their ranks."""
    found: Columns = {name: [] for name in _FIXED}
    count = 0
    flat = (_flat(data, item, place) for item, place in items)
    while rows := list(itertools.islice(flat, _ROWS_AT_ONCE)):
        for name in dict.fromkeys(itertools.chain(found, *rows)):
            if name not in found:
                found[name] = [None] * count
            found[name].extend([row.get(name) for row in rows])
        count += len(rows)
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


def _flat(data: RunData, item: Evidence, place: int | None) -> dict[str, Json]:
    trial, outcome = item.trial, item.outcome
    numbers = figures(outcome, recorded=data.recorded)
    row: dict[str, Json] = {
        "rank": place,
        "trial": trial.number,
        "outcome": outcome.kind.value,
        "reason": item.reason,
        **numbers.columns(),
        "confirmed": item.confirmed,
        "flags": " ".join(dict.fromkeys((*trial.outcome.flags, *outcome.flags))),
        "duplicate_of": trial.outcome.duplicate_of,
        "finished_s": data.finish_times_s.get(trial.number),
    }
    for stage, seconds in trial.outcome.stage_s.items():
        row[f"stage_s.{stage}"] = seconds
    for name, value in trial.outcome.resources.items():
        if isinstance(value, int | float):
            row[f"resource.{name}"] = value
    for measurement in outcome.measurements:
        case = measurement.case + (_COLD if measurement.cache == "cold" else "")
        row[f"time_us.{case}"] = measurement.time_us
        row[f"speedup.{case}"] = measurement.speedup
        row[f"baseline.{case}"] = measurement.baseline
        for figure in _EAGER:
            if getattr(measurement, figure) is not None:
                row[f"{figure}.{case}"] = getattr(measurement, figure)
    for name, value in trial.configuration.to_json().items():
        row[f"param.{name}"] = value
    return row
