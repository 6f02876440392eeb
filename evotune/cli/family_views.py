"""What `run`, `resume`, `status`, `top` and `report` show of a family's run."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from evotune.cli.terminal import (
    Terminal,
    print_leaderboard,
    print_tables,
    text_table,
    write_output,
)
from evotune.errors import UsageError
from evotune.util.commands import run_command

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from evotune.api.checking import CompileRow, CompileSummary
    from evotune.api.family_run import FamilyRun
    from evotune.api.run import Run
    from evotune.report.front import TextTable
    from evotune.trial import Json

_NO_VALID_CANDIDATE = 1
_UNDECIDED = 6
_INTERRUPTED = 130
_EVERY_S = 0.5
_NOT_OF_A_FAMILY = ("compiles", "warm_start", "gpus", "cluster")
_OF_EACH_RUN = ("seed", "strategy", "lookahead", "racing", "speedup", "no_improvement")


def run_family(
    terminal: Terminal,
    cases: Path | None,
    device: str,
    runs_dir: Path,
    given: Mapping[str, bool | float | str | None],
) -> int:
    """`evotune run attention`: sends the cases to the spaces, and runs the family to its end."""
    from evotune.api.family import new_family
    from evotune.api.family_run import all_families

    refused = [name for name in _NOT_OF_A_FAMILY if given.get(name) is not None]
    if refused:
        words = ", ".join(f"--{name.replace('_', '-')}" for name in refused)
        raise UsageError(f"the family attention takes no {words}: leave it out, or name a space")
    options = {name: value for name in _OF_EACH_RUN if (value := given.get(name)) is not None}
    before = {family.id for family in all_families(runs_dir)}
    try:
        family = new_family(
            cases,
            _watched(terminal),
            terminal.note,
            trials=given["trials"],  # type: ignore[arg-type]
            minutes=given["minutes"],  # type: ignore[arg-type]
            champions=given["champions"],  # type: ignore[arg-type]
            options=options,
            device=device,
            runs_dir=runs_dir,
            command=("evotune", *sys.argv[1:]),
        )
    except KeyboardInterrupt:
        new = [family for family in all_families(runs_dir) if family.id not in before]
        if not new:
            raise
        return conclude(terminal, new[-1], interrupted=True)
    return conclude(terminal, family)


def resume_family(
    terminal: Terminal,
    family: FamilyRun,
    trials: int | None,
    minutes: float | None,
    champions: int | None,
) -> int:
    """`evotune resume` of a family."""
    terminal.crash_folder = family.folder.logs
    try:
        family.resumed(
            _watched(terminal), terminal.note, trials=trials, minutes=minutes, champions=champions
        )
    except KeyboardInterrupt:
        return conclude(terminal, family, interrupted=True)
    return conclude(terminal, family)


def conclude(terminal: Terminal, family: FamilyRun, *, interrupted: bool = False) -> int:
    """Prints the spaces of the cases and the races on stdout, and the next commands on stderr.
    Returns the exit code."""
    confirmed = family.confirmed
    failed = 0 if confirmed or not family.confirms else _NO_VALID_CANDIDATE
    if failed and family.undecided:
        failed = _UNDECIDED
    terminal.verdict = _INTERRUPTED if interrupted else failed
    print_tables(terminal, [_table(family.where()), _table(family.races())])
    sys.stdout.flush()
    if interrupted:
        terminal.note(f"resume: {run_command('resume', family.path)}")
    if confirmed:
        package = ("-o", "attention_package")
        terminal.note(f"export: {run_command('export', family.path, *package)}")
    page = ("--format", "html", "-o", "report.html")
    terminal.note(f"report: {run_command('report', family.path, *page)}")
    return terminal.verdict


def print_status(terminal: Terminal, family: FamilyRun, style: str, output: str) -> None:
    """Prints `evotune status` of a family."""
    if style == "json":
        from evotune.report.formats import to_json

        write_output(to_json(family.to_json()), output)
        return
    facts = text_table(("family", family.id), list(_facts(family)))
    print_tables(terminal, [facts, _table(family.where()), _table(family.races())], output)


def watch_family(terminal: Terminal, family: FamilyRun) -> None:
    """Follows one run of the family after the other, as long as a process works on the family."""
    from evotune.cli.status_views import watch

    while family.folder.holder() is not None:
        working = [run for run in family.runs if run.folder.holder() is not None]
        if not working:
            time.sleep(_EVERY_S)  # between two searches
            continue
        if not watch(terminal, working[0].folder):
            return


def print_top(terminal: Terminal, family: FamilyRun, count: int, style: str, output: str) -> None:
    """Prints `evotune top` of a family: the leaderboard of each winner."""
    from evotune.report.data import RunData
    from evotune.report.formats import LEADERBOARDS

    winners = family.winners
    if style != "table":
        run = only_run(family, winners, f"--format {style}")
        write_output(LEADERBOARDS[style](RunData.load(run.folder, count), count), output)
        return
    if output != "-" or not winners:
        print_tables(terminal, [_table(family.races())], output)
        return
    for group, run in winners.items():
        print_tables(terminal, [group])
        print_leaderboard(terminal, RunData.load(run.folder, count), count)


def report_runs(family: FamilyRun, style: str) -> list[Run]:
    """The runs that a report of the family shows: all of them on a page, else the only winner's."""
    if style == "html":
        found = family.runs
        if not found:
            raise UsageError(f"the family {family.id} has no run yet")
        return found
    return [only_run(family, family.winners, f"--format {style}")]


def only_run(family: FamilyRun, winners: dict[str, Run], what: str) -> Run:
    """The run of the only winner. Raises UsageError, with the names of the runs, if there are
    several winners or none."""
    if len(winners) == 1:
        return next(iter(winners.values()))
    names = ", ".join(str(run.path) for run in winners.values()) or "none has won yet"
    raise UsageError(f"{what} takes one run, and {family.id} is a family; name one: {names}")


def check_family(terminal: Terminal, cases: Path | None, device: str, sample: int) -> int:
    """`evotune check attention`: shows the spaces to which each case is sent, and checks each
    search that a run would make."""
    from evotune.api.family import sent_cases

    sent = sent_cases(cases, device)
    print_tables(terminal, [_table(sent.table())])
    if not sent.groups:
        return _NO_VALID_CANDIDATE
    rows = []
    for search in sent.searches():
        size = search.check().size
        about = "" if size.exact else " (estimated)"
        compiled = ""
        if sample:
            terminal.note(f"compiling a sample of {sample}: {search.space} for {search.group.name}")
            summary = search.compile(sample=sample)
            compiled = f"{summary.compiled:,} of {summary.tried:,}"
            if summary.failed and not summary.compiled:
                terminal.verdict = 1
        rows.append((search.group.name, search.space, f"{size.valid:,}{about}", compiled))
    columns = ("group", "space", "valid", "compile")
    print_tables(terminal, [text_table(columns, rows, (False, False, True, True))])
    return terminal.verdict


def compile_family(  # noqa: PLR0917
    terminal: Terminal,
    cases: Path | None,
    device: str,
    sample: int | None,
    seed: int,
    style: str,
    output: str,
) -> int:
    """`evotune compile attention`: a row for each search that a run would make, or, as json and
    jsonl, one for each configuration."""
    from evotune.api.family import sent_cases
    from evotune.report.formats import to_json, to_jsonl

    sent = sent_cases(cases, device)
    if not sent.groups:
        print_tables(terminal, [_table(sent.table())])
        return _NO_VALID_CANDIDATE
    records: list[Json] = []
    rows, failed = [], False
    for search in sent.searches():
        terminal.note(f"compiling {search.space} for {search.group.name}")
        beside = {"group": search.group.name, "space": search.space}

        def keep(row: CompileRow, summary: CompileSummary, beside: Json = beside) -> None:
            records.append({**beside, **row.to_json()})

        summary = search.compile(sample=sample, seed=seed, on_row=keep)
        failed |= not summary.all_compile
        for (outcome, reason), count in summary.reasons.most_common(1):
            terminal.note(f"{search.space}: {count} {outcome}: {reason}")
        registers = str(summary.most_registers or "")
        tried = f"{summary.compiled:,} of {summary.tried:,}"
        spills = f"{summary.spilling:,}" if summary.most_registers else ""
        rows.append((search.group.name, search.space, tried, registers, spills))
    if style == "json":
        write_output(to_json(records), output)
    elif style == "jsonl":
        write_output(to_jsonl(records), output)
    else:
        columns = ("group", "space", "compile", "most regs", "spill")
        numeric = (False, False, True, True, True)
        parts = [_table(sent.table()), text_table(columns, rows, numeric)]
        print_tables(terminal, parts, output)
    return 1 if failed else 0


def _facts(family: FamilyRun) -> Iterator[tuple[str, str]]:
    found, holder = family.found, family.folder.holder()
    worked_on = "" if holder is None else f", by process {holder}"
    yield "state", family.state + worked_on
    yield "device", found.device_name
    done = sum(row.data.totals.trials for row in family.rows())
    minutes = "" if found.budget.minutes is None else f", at most {found.budget.minutes:g} minutes"
    of = "" if found.budget.trials is None else f" of {found.budget.trials}"
    yield "trials", f"{done}{of}{minutes}"


def _table(found: TextTable) -> Table:
    return text_table(found.columns, found.rows, found.numeric)


def _watched(terminal: Terminal) -> functools.partial:  # type: ignore[type-arg]
    from evotune.cli.progress import show_progress

    return functools.partial(show_progress, terminal)
