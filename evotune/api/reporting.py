"""`Run.report`: a run written to a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from evotune.engine.folder import RunFolder
from evotune.errors import UsageError
from evotune.report.data import RunData
from evotune.report.formats import REPORTS

STYLES = ("html", "md", "csv", "json", "jsonl", "parquet", "t4")


def write_report(run: RunFolder, path: Path, style: str | None = None) -> Path:
    """UsageError for an unknown style or suffix, or a file that cannot be written. A report that
    could not be finished leaves no file."""
    style = path.suffix.removeprefix(".").lower() if style is None else style
    if style not in STYLES:
        raise UsageError(f"{path}: expected a report's suffix, one of {', '.join(STYLES)}")
    try:
        with path.open("wb") as file:
            for piece in _pieces(run, style):
                file.write(piece)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path


def _pieces(run: RunFolder, style: str) -> Iterator[bytes]:
    if style == "html":
        from evotune.report.html import MOST_TRIALS, html_page

        with RunData.thinned(run, MOST_TRIALS) as data:
            yield html_page([data]).encode()
        return
    with RunData.opened(run) as data:
        if style == "parquet":
            from evotune.report.frame import run_columns, to_parquet

            yield to_parquet(run_columns(data))
            return
        for piece in REPORTS[style](data):
            yield piece.encode()
