"""`check`, `compile` and `schema`: a space looked at without searching it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from evotune.cli.options import Command, device_option, format_option, output_option
from evotune.cli.terminal import Terminal, pass_terminal, write_output

if TYPE_CHECKING:
    from rich.table import Table

    from evotune.engine.inspect import CheckReport, CompileRow

_SAMPLE = 16
_SHOWN_VALUES = 12


@click.command(cls=Command, example="evotune check search_spaces/attention_cpu.yaml")
@click.argument("space")
@device_option
@click.option("--no-compile", is_flag=True, help="Do not compile a sample.")
@pass_terminal
def check(terminal: Terminal, *, space: str, device: str, no_compile: bool) -> int:
    """Validate SPACE and measure its size.

    Shows what each constraint removes, and whether a sample compiles.
    A mistake in the file is reported as file:line:column, with exit code 2.
    """
    from evotune.cli.tables import print_tables
    from evotune.engine.inspect import check_space, compile_space

    found = check_space(space, device)
    print_tables(terminal, _check_parts(found))
    if no_compile or not found.kernels:
        return 0
    terminal.note(f"compiling a sample of {_SAMPLE}")
    rows = compile_space(space, device, sample=_SAMPLE, seed=0, on_row=lambda row: None)
    print_tables(terminal, _sample_parts(rows))
    return 0


@click.command("compile", cls=Command, example="evotune compile attention-cpu --sample 32")
@click.argument("space")
@device_option
@click.option("--all", "every", is_flag=True, help="Every valid configuration.")
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    help=f"So many random valid configurations.  [default: {_SAMPLE}]",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@format_option(("table", "json", "jsonl"), "table")
@output_option
@pass_terminal
def compile_command(
    terminal: Terminal,
    *,
    space: str,
    device: str,
    every: bool,
    sample: int | None,
    seed: int,
    style: str,
    output: str,
) -> int:
    """Compile configurations of SPACE.

    The exit code is 0 only when every configuration tried compiles.
    """
    from evotune.engine.inspect import compile_space

    if every and sample is not None:
        raise click.UsageError("--all and --sample exclude each other")
    count = None if every else sample or _SAMPLE
    done = Counter[bool]()

    def on_row(row: CompileRow) -> None:
        done[row.ok] += 1
        if not row.ok or done.total() % 50 == 0:
            failure = "" if row.ok else f": {row.kind} {row.reason}"
            terminal.note(f"{done.total()} compiled, {done[False]} failed{failure}")

    rows = compile_space(space, device, sample=count, seed=seed, on_row=on_row)
    _write_rows(terminal, rows, style, output)
    return 0 if all(row.ok for row in rows) else 1


@click.command(cls=Command, example="evotune schema -o space.schema.json")
@output_option
def schema(output: str) -> int:
    """Print the JSON schema of a space file, for editors."""
    from evotune.space.reading.schema import schema_text

    write_output(schema_text(), output)
    return 0


def _write_rows(terminal: Terminal, rows: Sequence[CompileRow], style: str, output: str) -> None:
    if style == "table":
        from evotune.cli.tables import print_tables

        print_tables(terminal, _compile_parts(rows), output)
        return
    from evotune.report.records import to_json, to_jsonl

    records = [
        {
            "configuration": row.configuration.to_json(),
            "ok": row.ok,
            "outcome": row.kind,
            "reason": row.reason,
            "resources": dict(row.resources),
            "seconds": row.seconds,
            "cached": row.cached,
        }
        for row in rows
    ]
    write_output(to_json(records) if style == "json" else to_jsonl(records), output)


def _check_parts(found: CheckReport) -> Iterator[Table | str]:
    from evotune.cli.tables import text_table

    yield text_table((found.name, found.path), list(_size_facts(found)))
    parameters = [
        (
            parameter.name,
            parameter.kind,
            str(parameter.cardinality),
            _first(parameter.values, _SHOWN_VALUES),
        )
        for parameter in found.parameters
    ]
    yield text_table(
        ("parameter", "kind", "count", "values"), parameters, (False, False, True, False)
    )
    if found.constraints:
        about = "" if all(row.exact for row in found.constraints) else " (estimated)"
        constraints = [
            (row.text, f"{row.removes_alone:,}", f"{row.removes_last:,}", row.reason)
            for row in found.constraints
        ]
        yield text_table(
            ("constraint", f"removes alone{about}", "removes last", "reason"),
            constraints,
            (False, True, True, False),
        )
    if found.kernels:
        kernels = [
            (kernel.name, kernel.source, kernel.language, kernel.supports)
            for kernel in found.kernels
        ]
        yield text_table(("kernel", "source", "language", "supports"), kernels)


def _size_facts(found: CheckReport) -> Iterator[tuple[str, str]]:
    size = found.size
    about = "" if size.exact else " (estimated)"
    yield "device", found.device
    yield "cartesian", f"{size.cartesian:,}"
    yield "valid", f"{size.valid:,}{about}"
    if size.cartesian:
        yield "valid share", f"{size.valid / size.cartesian:.3%}{about}"
    if found.cases:
        yield "cases", f"{len(found.cases)}: {_first(found.cases)}"


def _first(values: Sequence[object], count: int = 4) -> str:
    return ", ".join(map(str, values[:count])) + (", …" if len(values) > count else "")


def _sample_parts(rows: Sequence[CompileRow]) -> Iterator[Table | str]:
    from evotune.cli.tables import text_table

    yield _tally(rows)
    reasons = Counter((row.kind, row.reason) for row in rows if not row.ok)
    if reasons:
        failures = [(str(n), kind, reason) for (kind, reason), n in reasons.most_common(5)]
        yield text_table(("count", "outcome", "reason"), failures, (True, False, False))


def _compile_parts(rows: Sequence[CompileRow]) -> Iterator[Table | str]:
    from evotune.cli.tables import text_table
    from evotune.report.wording import configuration_text

    cells = [
        (
            row.kind,
            f"{row.seconds:.2f}",
            "yes" if row.cached else "no",
            configuration_text(row.resources),
            configuration_text(row.configuration),
            row.reason,
        )
        for row in rows
    ]
    yield text_table(
        ("outcome", "seconds", "cached", "resources", "configuration", "reason"),
        cells,
        (False, True, False, False, False, False),
    )
    yield _tally(rows)


def _tally(rows: Sequence[CompileRow]) -> str:
    compiled = sum(row.ok for row in rows)
    cached = sum(row.cached for row in rows)
    from_cache = f", {cached} from the cache" if cached else ""
    return f"{compiled} of {len(rows)} compile{from_cache}"
