"""`check`, `compile` and `schema`: examine a space without searching it.

`check` validates the file, `compile` shows the resources that each configuration needs, and
`schema` prints the schema of the file.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

import evotune
from evotune.cli.options import (
    Command,
    cases_option,
    compile_device_option,
    format_option,
    output_option,
    space_argument,
    trust_option,
)
from evotune.cli.terminal import (
    Terminal,
    opened_output,
    pass_terminal,
    print_tables,
    text_table,
    write_output,
)

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from evotune.api.checking import CheckReport, CompileRow, CompileSummary
    from evotune.space.counting.blame import ConstraintReport
    from evotune.trial import Value


_SAMPLE = 16
_OF_FAMILY = 4  # of each space that races for a group
_SHOWN_VALUES = 12
_NOT_COUNTED = "?"


@click.command(cls=Command, example="evotune check search_spaces/attention_cpu.yaml")
@space_argument()
@trust_option
@compile_device_option
@cases_option(
    "Check with the cases of this file instead of the space's. Names the cases that no kernel can "
    "compute."
)
@click.option("--no-compile", is_flag=True, help="Do not compile a sample.")
@pass_terminal
def check(
    terminal: Terminal, *, space: str, device: str, cases: Path | None, no_compile: bool
) -> int:
    """Validate SPACE and measure its size.

    Shows what each constraint removes, in up to 10 seconds: how many configurations break it
    (`removes alone`), and how many break only it (`removes last`). Shows whether a sample compiles.
    A mistake in the file is reported as file:line:column, with exit code 2. The methods of a
    problem's Python file are tried on a tiny shape; a mistake there is reported as file:line.
    If no configuration of the sample compiles, the exit code is 1.

    `attention` names all shipped attention spaces. With --cases it shows which case goes to which
    spaces on the device, or why one goes nowhere, and checks each of these spaces.
    """
    from evotune.api.family_run import is_family

    if is_family(space):
        from evotune.cli.family_views import check_family

        return check_family(terminal, cases, device, 0 if no_compile else _OF_FAMILY)
    found = evotune.check(space, device=device, cases=cases)
    print_tables(terminal, _check_parts(found))
    for name in found.unread:
        terminal.note(
            f"warning: {name} changes nothing: no kernel's source and no launch has the name"
        )
    for warning in found.warnings:
        terminal.note(f"warning: {warning}")
    for advice in (found.skipped, *found.advice):
        if advice:
            terminal.note(f"note: {advice}")
    if no_compile or not found.kernels:
        return 0
    terminal.note(f"compiling a sample of {_SAMPLE}")
    on_row = ProgressNotes(terminal).on_row
    summary = evotune.compile(space, device=device, sample=_SAMPLE, cases=cases, on_row=on_row)
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


_COMPILED_SAMPLE = 16
_MOST_ROWS = 200  # of a table; jsonl has all
_MOST_REASONS = 10
_MOST_FAILURE_NOTES = 10
_PROGRESS_S = 5.0


@click.command("compile", cls=Command, example="evotune compile attention-l4 --device l4 --all")
@space_argument()
@trust_option
@compile_device_option
@cases_option("Compile for the cases of this file in place of the space's.")
@click.option("--all", "every", is_flag=True, help="Compile every valid configuration.")
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    help=f"How many random valid configurations to compile.  [default:  {_COMPILED_SAMPLE}]",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Which configurations --sample draws.",
)
@format_option(("table", "json", "jsonl"), "table")
@output_option
@pass_terminal
def compile_command(
    terminal: Terminal,
    *,
    space: str,
    device: str,
    cases: Path | None,
    every: bool,
    sample: int | None,
    seed: int,
    style: str,
    output: str,
) -> int:
    """Compile configurations of SPACE; no GPU is needed.

    Uses all cores. Shows registers, spills, shared memory and occupancy of CUDA kernels. The exit
    code is 0 if every configuration that was tried compiles. A configuration that exceeds the
    device's limits is not tried; one that breaks `after_compile` counts as compiled.

    `attention` names all shipped attention spaces. With --cases it compiles for each group of cases
    the spaces that race for it, and shows a line for each.
    """
    from evotune.api.family_run import is_family

    if every and sample is not None:
        raise click.UsageError("--all and --sample exclude each other")
    count = None if every else sample or _COMPILED_SAMPLE
    if is_family(space):
        from evotune.cli.family_views import compile_family

        return compile_family(terminal, cases, device, count, seed, style, output)
    with _writer(terminal, style, output) as (keep, finish):
        summary = _compile(
            terminal, keep, space=space, device=device, cases=cases, sample=count, seed=seed
        )
        finish(summary)
    if style != "table":
        for line in summary_lines(summary):
            terminal.note(line)
    return 0 if summary.all_compile else 1


def _compile(
    terminal: Terminal,
    keep: Callable[[CompileRow], None],
    *,
    space: str,
    device: str,
    cases: Path | None,
    sample: int | None,
    seed: int,
) -> CompileSummary:
    notes = ProgressNotes(terminal)

    def on_row(row: CompileRow, summary: CompileSummary) -> None:
        keep(row)
        notes.on_row(row, summary)

    return evotune.compile(
        space, device=device, sample=sample, seed=seed, cases=cases, on_row=on_row
    )


class ProgressNotes:
    """Writes a line to stderr for the first failure of each reason, and a line every few
    seconds."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._noted_s = time.monotonic()
        self._reasons: set[str] = set()

    def on_row(self, row: CompileRow, summary: CompileSummary) -> None:
        failed = not row.compiled and row.outcome != "rejected"
        new = failed and row.reason not in self._reasons
        if new and len(self._reasons) < _MOST_FAILURE_NOTES:
            self._reasons.add(row.reason)
            self._terminal.note(f"{_progress(summary)}: {row.outcome} {row.reason}")
        elif time.monotonic() - self._noted_s > _PROGRESS_S:
            self._terminal.note(_progress(summary))
            self._noted_s = time.monotonic()


def _progress(summary: CompileSummary) -> str:
    of_all = f" of {summary.expected:,}" if summary.expected else ""
    return f"{summary.rows:,}{of_all} done, {summary.failed:,} failed"


@contextlib.contextmanager
def _writer(
    terminal: Terminal, style: str, output: str
) -> Iterator[tuple[Callable[[CompileRow], None], Callable[[CompileSummary], None]]]:
    """A function to call with each row, and one to call with the summary at the end. Only the
    `json` format keeps all rows in memory."""
    from evotune.report.formats import to_json, to_jsonl

    if style == "jsonl":
        with opened_output(output) as write:
            yield lambda row: write(to_jsonl([row.to_json()])), lambda summary: None
    elif style == "json":
        records: list[object] = []
        yield (
            lambda row: records.append(row.to_json()),
            lambda summary: write_output(to_json(records), output),
        )
    else:
        shown = _Shown()
        yield (
            shown.add,
            lambda summary: print_tables(terminal, _parts(shown.rows(), summary), output),
        )


@dataclass(slots=True)
class _Shown:
    """The rows that fit into a table: failures first, then broken limits, spills, and the rest."""

    kinds: tuple[list[CompileRow], ...] = field(default_factory=lambda: ([], [], [], []))

    def add(self, row: CompileRow) -> None:
        kind = self.kinds[_urgency(row)]
        if len(kind) < _MOST_ROWS:
            kind.append(row)

    def rows(self) -> list[CompileRow]:
        return [row for kind in self.kinds for row in kind][:_MOST_ROWS]


def _urgency(row: CompileRow) -> int:
    if not row.compiled:
        return 0
    if row.outcome != "ok":
        return 1
    return 2 if row.spill_bytes else 3


def _parts(rows: Sequence[CompileRow], summary: CompileSummary) -> Iterator[Table | str]:
    from evotune.report.wording import configuration_text

    cuda = any("registers" in row.resources for row in rows)
    varying = _varying(rows)
    cells = [
        (
            row.outcome.value,
            *(_cuda_figures(row) if cuda else (_figure(row, "code_bytes"),)),
            f"{row.seconds:.2f}",
            configuration_text({name: row.configuration[name] for name in varying})
            + (f": {row.reason}" if row.reason else ""),
        )
        for row in rows
    ]
    heads = ("regs", "spill B", "shared B", "occ.") if cuda else ("code B",)
    yield text_table(
        ("outcome", *heads, "s", "configuration"),
        cells,
        (False, *(True for _ in heads), True, False),
    )
    same = {name: value for name, value in _first_values(rows) if name not in varying}
    if same:
        yield f"in all of them: {configuration_text(same)}"
    if summary.rows > len(rows):
        yield f"{summary.rows - len(rows):,} more rows: --format jsonl has all"
    yield from failure_parts(summary)


def _first_values(rows: Sequence[CompileRow]) -> Iterable[tuple[str, Value]]:
    return rows[0].configuration.items() if rows else ()


def _varying(rows: Sequence[CompileRow]) -> list[str]:
    """The parameters whose values differ between the rows; all parameters for a single row."""
    if len(rows) == 1:
        return list(rows[0].configuration)
    names = (name for name, _ in _first_values(rows))
    return [name for name in names if len({repr(row.configuration[name]) for row in rows}) > 1]


def _cuda_figures(row: CompileRow) -> tuple[str, str, str, str]:
    share = row.resources.get("occupancy")
    return (
        _figure(row, "registers"),
        _figure(row, "spill_bytes"),
        _figure(row, "shared_bytes_total"),
        "-" if share is None else f"{share:.0%}",
    )


def _figure(row: CompileRow, name: str) -> str:
    return str(row.resources.get(name, "-"))


def failure_parts(summary: CompileSummary) -> Iterator[Table | str]:
    """A table of the failures' reasons, the most frequent first, and the summary's lines."""

    if summary.reasons:
        reasons = [
            (f"{count:,}", outcome, reason)
            for (outcome, reason), count in summary.reasons.most_common(_MOST_REASONS)
        ]
        yield text_table(("count", "outcome", "reason"), reasons, (True, False, False))
    yield from summary_lines(summary)


def summary_lines(summary: CompileSummary) -> Iterator[str]:
    from evotune.report.wording import compiled_text

    from_cache = f", {summary.cached:,} from the cache" if summary.cached else ""
    yield f"{summary.compiled:,} of {summary.tried:,} compile{from_cache}"
    facts = [
        f"{summary.rejected:,} rejected before compiling" if summary.rejected else "",
        f"{summary.limited:,} break a limit once compiled" if summary.limited else "",
    ]
    if summary.most_registers:
        spills = f"{summary.spilling:,} spill" if summary.spilling else "none spills"
        spills += f" (at most {summary.most_spill_bytes:,} bytes)" if summary.spilling else ""
        facts += [spills, f"at most {summary.most_registers} registers"]
    facts.append(f"compiled for {summary.device} in {summary.wall_s:.1f} s")
    yield ", ".join(filter(None, facts))
    if summary.default is not None and (figures := compiled_text(summary.default.resources)):
        yield f"the default: {figures}"
    if summary.no_default:
        yield summary.no_default
