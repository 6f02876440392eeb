"""`doctor`: shows whether everything that tuning needs is here, and how to get the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from evotune.cli.options import Command, format_option, output_option
from evotune.cli.terminal import Terminal, pass_terminal, write_output

if TYPE_CHECKING:
    from rich.table import Table

    from evotune.api.machine import Finding


_ENVIRONMENT = 3


@click.command(cls=Command, example="evotune doctor --format json")
@format_option(("table", "json"), "table")
@output_option
@pass_terminal
def doctor(terminal: Terminal, style: str, output: str) -> int:
    """Check that this machine has everything that tuning needs.

    Packages, compiler, CPU, GPUs, cache. The exit code is 3 when something must be fixed.
    """
    from evotune.api.machine import examine

    found = examine()
    if style == "json":
        from evotune.report.formats import to_json

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
