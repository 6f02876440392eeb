"""An internal error: the user reads one line, and a file keeps the traceback."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import click

from evotune.cli.terminal import Terminal, say
from evotune.version import __version__


def report(error: BaseException, terminal: Terminal) -> None:
    """Names the error and the file with its traceback on stderr; --verbose shows the traceback
    there too."""
    text = "".join(traceback.format_exception(error))
    path = _write(text, terminal)
    if terminal.verbose or path is None:
        click.echo(text, err=True, nl=False)
    what = str(error).strip().partition("\n")[0]
    name = type(error).__name__
    kept = f"; the traceback is in {path}" if path else ""
    say(f"error: internal error, please report it: {name}{f': {what}' if what else ''}{kept}")


def _write(text: str, terminal: Terminal) -> Path | None:
    """Writes the traceback into the run's logs when there is a run, else into the cache, else into
    the temporary folder. None when no folder takes it."""
    name = f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    for folder in _folders(terminal):
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / name
            path.write_text(f"evotune {__version__}\n{text}", encoding="utf-8")
            return path
    return None


def _folders(terminal: Terminal) -> Iterator[Path]:
    if terminal.crash_folder is not None:
        yield terminal.crash_folder
    with contextlib.suppress(ImportError):
        from evotune.execute.build_cache import default_cache_dir

        yield default_cache_dir() / "crashes"
    yield Path(tempfile.gettempdir())
