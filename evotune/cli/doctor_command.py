"""`doctor`: shows whether everything that tuning needs is here, and how to get the rest."""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from evotune import plugins
from evotune.backends import registry
from evotune.backends.base.backend import Finding, Status, optional
from evotune.cli import packages
from evotune.cli.options import Command, format_option, output_option
from evotune.cli.terminal import Terminal, pass_terminal, write_output
from evotune.problems.libraries.library_catalog import LIBRARIES, version
from evotune.runs.stop_signal import interruptible
from evotune.version import __version__
from evotune.workers.build_cache import default_cache_dir

if TYPE_CHECKING:
    from rich.table import Table

    from evotune.backends.base.backend import Finding


_ENVIRONMENT = 3


@click.command(cls=Command, example="evotune doctor --format json")
@format_option(("table", "json"), "table")
@output_option
@pass_terminal
def doctor(terminal: Terminal, style: str, output: str) -> int:
    """Check that this machine has everything that tuning needs.

    Packages, compiler, CPU, GPUs, cache. The exit code is 3 when something must be fixed.
    """

    found = examine()
    if style == "json":
        from evotune.report.records import to_json

        usable = all(finding.status.fine for finding in found)
        findings = [finding.to_json() for finding in found]
        write_output(to_json({"usable": usable, "findings": findings}), output)
    else:
        from evotune.cli.tables import print_tables

        print_tables(terminal, _parts(found), output)
    return 0 if all(finding.status.fine for finding in found) else _ENVIRONMENT


def _parts(found: Sequence[Finding]) -> Iterator[Table | str]:
    from evotune.cli.tables import text_table

    rows = [(finding.name, finding.status.value, finding.detail) for finding in found]
    yield text_table(("what", "status", "found"), rows)
    wrong = [finding for finding in found if not finding.status.fine]
    yield "everything needed is here" if not wrong else f"{len(wrong)} to fix:"
    for finding in wrong:
        yield f"  {finding.name}: {finding.fix or finding.detail}"
    optional = [finding for finding in found if finding.status.fine and finding.fix]
    if optional:
        yield "for more:"
    for finding in optional:
        yield f"  {finding.name}: {finding.fix}"


def examine() -> list[Finding]:
    """All findings, in the order in which they are shown. Does not import torch."""
    with interruptible():
        found = [backend.doctor() for backend in registry.every()]
    return [
        Finding("python", Status.OK, f"{platform.python_version()} ({sys.executable})"),
        Finding("evotune", Status.OK, __version__),
        *(_package(name) for name in packages.REQUIRED),
        optional("pyarrow", "parquet", "only `report --format parquet` needs it"),
        *(_library(name) for name in LIBRARIES if name != "flex"),
        *(finding for needed, _ in found for finding in needed),
        *(finding for _, rest in found for finding in rest),
        *(_broken(line) for line in plugins.broken()),
        _cache(),
    ]


def _package(name: str) -> Finding:
    version = packages.version(name)
    if version:
        return Finding(name, Status.OK, version)
    return Finding(name, Status.MISSING, "not installed", packages.fix(name))


def _library(name: str) -> Finding:
    """The finding on a library whose attention can be a baseline."""
    library, found = LIBRARIES[name], version(name)
    if found:
        return Finding(library.package, Status.OK, f"{found} (`baseline: {name}`)")
    detail = f"not installed; only `baseline: {name}` needs it"
    return Finding(library.package, Status.ABSENT, detail)


def _broken(line: str) -> Finding:
    """The finding for a plugin that cannot be loaded."""
    what, _, fix = line.partition("; fix: ")
    return Finding("plugin", Status.BROKEN, what, fix)


def _cache() -> Finding:
    folder = default_cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-"):
            pass
    except OSError as error:
        fix = "make it writable, or set EVOTUNE_CACHE_DIR to a folder that is"
        return Finding("build cache", Status.BROKEN, f"{folder}: {error.strerror}", fix)
    return Finding("build cache", Status.OK, f"{folder} (writable)")
