"""`check` and `schema`: read a space without searching it, and print the schema of its file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

import evotune
from evotune.cli.options import (
    Command,
    compile_device_option,
    output_option,
    space_argument,
    trust_option,
)
from evotune.cli.terminal import Terminal, pass_terminal, write_output

if TYPE_CHECKING:
    from rich.table import Table

    from evotune.api.looking import CheckReport
    from evotune.space.counting.blame import ConstraintReport

_SAMPLE = 16
_SHOWN_VALUES = 12
_NOT_COUNTED = "?"


@click.command(cls=Command, example="evotune check search_spaces/attention_cpu.yaml")
@space_argument()
@trust_option
@compile_device_option
@click.option("--no-compile", is_flag=True, help="Do not compile a sample.")
@pass_terminal
def check(terminal: Terminal, *, space: str, device: str, no_compile: bool) -> int:
    """Validate SPACE and measure its size.

    Shows what each constraint removes, in up to 10 seconds: how many configurations break it
    (`removes alone`), and how many break it and no other one (`removes last`). Shows whether a
    sample compiles.
    A mistake in the file is reported as file:line:column, with exit code 2. The methods of a
    problem's Python file are tried on a tiny shape; a mistake there is reported as file:line.
    If no configuration of the sample compiles, the exit code is 1.
    """
    from evotune.cli.compile_command import ProgressNotes, failure_parts
    from evotune.cli.tables import print_tables

    found = evotune.check(space, device=device)
    print_tables(terminal, _check_parts(found))
    for name in found.unread:
        terminal.note(
            f"warning: {name} changes nothing: no kernel's source and no launch has the name"
        )
    for warning in found.warnings:
        terminal.note(f"warning: {warning}")
    for advice in found.advice:
        terminal.note(f"note: {advice}")
    if no_compile or not found.kernels:
        return 0
    terminal.note(f"compiling a sample of {_SAMPLE}")
    on_row = ProgressNotes(terminal).on_row
    summary = evotune.compile(space, device=device, sample=_SAMPLE, on_row=on_row)
    print_tables(terminal, failure_parts(summary))
    return 1 if summary.failed and not summary.compiled else 0


@click.command(cls=Command, example="evotune schema -o space.schema.json")
@output_option
def schema(output: str) -> int:
    """Print the JSON schema of a space file, for editors."""
    from evotune.space.reading.schema import schema_text

    write_output(schema_text(), output)
    return 0


def _check_parts(found: CheckReport) -> Iterator[Table | str]:
    from evotune.cli.tables import text_table
    from evotune.report.wording import value_text
    from evotune.space.counting.expansion import SHOWN_S

    yield text_table((found.name, found.path), list(_size_facts(found)))
    parameters = [
        (
            parameter.name,
            parameter.kind,
            str(parameter.cardinality),
            _first([value_text(value) for value in parameter.values], _SHOWN_VALUES),
        )
        for parameter in found.parameters
    ]
    yield text_table(
        ("parameter", "kind", "count", "values"), parameters, (False, False, True, False)
    )
    if found.constraints:
        yield _constraint_table(found.constraints)
        if any(
            None in (row.removes_alone, row.removes_last, row.without_value)
            for row in found.constraints
        ):
            yield f"{_NOT_COUNTED}: not counted within {SHOWN_S:g} s"
    if found.after_compile:
        yield text_table(("after compile",), [(text,) for text in found.after_compile])
    if found.kernels:
        kernels = [
            (kernel.name, kernel.source, kernel.language, kernel.supports)
            for kernel in found.kernels
        ]
        yield text_table(("kernel", "source", "language", "supports"), kernels)


def _constraint_table(rows: Sequence[ConstraintReport]) -> Table:
    from evotune.cli.tables import text_table

    about = "" if all(row.exact for row in rows) else " (estimated)"
    cells = [
        (
            row.text,
            _counted(row.removes_alone),
            "" if row.without_value == 0 else _counted(row.without_value),
            _counted(row.removes_last),
            row.reason,
        )
        for row in rows
    ]
    columns = ("constraint", f"removes alone{about}", "without a value", "removes last", "reason")
    return text_table(columns, cells, (False, True, True, True, False))


def _counted(number: int | None) -> str:
    return _NOT_COUNTED if number is None else f"{number:,}"


def _size_facts(found: CheckReport) -> Iterator[tuple[str, str]]:
    from evotune.space.counting.expansion import FULL

    size = found.size
    about = "" if size.exact else " (estimated)"
    yield "device", found.device
    yield "cartesian", f"{size.cartesian:,}"
    yield "valid", f"{size.valid:,}{about}"
    if not size.exact:
        yield "counting", f"not finished within {FULL.steps:,} steps"
    if size.cartesian:
        yield "valid share", f"{size.valid / size.cartesian:.3%}{about}"
    if found.cases:
        yield "cases", f"{len(found.cases)}: {_first(found.cases)}"


def _first(values: Sequence[object], count: int = 4) -> str:
    return ", ".join(map(str, values[:count])) + (", …" if len(values) > count else "")
