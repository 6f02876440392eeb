"""A run as one flat table: a pandas frame, its CSV and its Parquet file.

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

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from evotune.errors import EnvironmentProblem
from evotune.report.data import RunData
from evotune.report.escape import csv_text
from evotune.report.records import leaderboard_records, ordered_records
from evotune.trial import Json

if TYPE_CHECKING:
    import pandas as pd

_FIXED = (
    *("rank", "trial", "outcome", "reason", "speedup", "speedup_low", "speedup_high"),
    *("time_us", "error", "error_limit", "confirmed", "flags", "duplicate_of", "finished_s"),
)
_COLD = " cold"
_ALWAYS = ("time_us", "speedup", "baseline")
_EAGER = ("eager_us", "eager_baseline_us")
_INTEGERS = ("rank", "trial", "duplicate_of")


def run_frame(data: RunData) -> pd.DataFrame:
    """Every trial: the leaderboard first, then the rest by number."""
    return _frame(data, ordered_records(data))


def leaderboard_frame(data: RunData, count: int | None = None) -> pd.DataFrame:
    """The first `count` rows of the leaderboard."""
    return _frame(data, leaderboard_records(data, count))


def to_csv(frame: pd.DataFrame) -> str:
    """RFC 4180 with `\\n` line ends; no text in it acts as a spreadsheet formula."""
    header = [csv_text(name) for name in frame.columns]
    safe = frame.astype(object).map(_csv_cell)
    return safe.to_csv(index=False, header=header, lineterminator="\n")


def to_parquet(frame: pd.DataFrame) -> bytes:
    """Parquet with the same columns, typed: missing values are nulls, parameters keep their type.

    EnvironmentProblem without pyarrow."""
    import io

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


def _csv_cell(cell: object) -> object:
    return csv_text(cell) if isinstance(cell, str) else cell


def _frame(data: RunData, rows: Iterable[Mapping[str, Json]]) -> pd.DataFrame:
    import pandas as pd

    flat = [_flat(row) for row in rows]
    stages = dict.fromkeys(
        f"stage_s.{stage}" for trial in data.trials for stage in trial.outcome.stage_s
    )
    names = dict.fromkeys(name for row in flat for name in row)
    resources = [name for name in names if name.startswith("resource.")]
    labels = [*data.cases, *data.held_out_cases]
    sometimes = {name for name in names if name.endswith(_COLD) or name.startswith(_EAGER)}
    cases = [
        f"{figure}.{label}"
        for case in labels
        for label in (case, case + _COLD)
        for figure in (*_ALWAYS, *_EAGER)
        if (label == case and figure in _ALWAYS) or f"{figure}.{label}" in sometimes
    ]
    parameters = [f"param.{name}" for name in data.parameters]
    columns = [*_FIXED, *stages, *resources, *cases, *parameters]
    frame = pd.DataFrame(
        {name: pd.Series([row.get(name) for row in flat], dtype=object) for name in columns}
    )
    whole = [name for name in resources if all(isinstance(row.get(name, 0), int) for row in flat)]
    return frame.astype(dict.fromkeys((*_INTEGERS, *whole), "Int64"))


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
