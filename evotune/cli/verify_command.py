"""`verify`: checks configurations of a run once more in the correctness gate."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evotune.cli.options import (
    Command,
    format_option,
    output_option,
    run_argument,
    runs_dir_option,
    trust_option,
)
from evotune.cli.terminal import Terminal, pass_terminal, print_tables, text_table, write_output
from evotune.errors import UsageError
from evotune.trial import ACCEPTED, Check, Json, Outcome, Value

if TYPE_CHECKING:
    from rich.table import Table

    from evotune.api.run import Run, Verified


_FAILED = 1
_UNDECIDED = 6


@click.command(cls=Command, example="evotune verify latest --top 3")
@run_argument
@click.option(
    "--config",
    metavar="JSON",
    help='One configuration: {"NAME": value, …}. Left-out parameters are those of the first row.',
)
@click.option(
    "--top",
    "count",
    type=click.IntRange(min=1),
    help="How many of the leaderboard's first rows; defaults to 1.",
)
@trust_option
@runs_dir_option
@format_option(("table", "json", "jsonl"), "table")
@output_option
@pass_terminal
def verify(
    terminal: Terminal,
    *,
    run: str,
    config: str | None,
    count: int | None,
    runs_dir: Path,
    style: str,
    output: str,
) -> int:
    """Check configurations of RUN again.

    Runs every check of a champion in a fresh process, from the run's own sources: every kind of
    inputs, edge and held-out shapes, variants that were not tuned, random tests and, on a GPU,
    compute-sanitizer if it is installed. The run does not change. Launches are timed because the
    last checks replay timed launches; the times are not shown. A configuration that passes has a
    domain: the checked cases, from the least to the greatest value of each quantity. Exit code 1 if
    a check fails, 6 if the machine is too noisy to decide; skipped checks are listed.
    """
    from evotune.api.run import open_run

    if config is not None and count is not None:
        raise UsageError("--config and --top exclude each other")
    opened = open_run(run, runs_dir)
    wanted = None if config is None else configuration_of(opened, config)
    total = 1 if wanted is not None else len(opened.leaderboard(count or 1))
    found = []
    terminal.note(f"verifying {total} of run {opened.id}")
    for item in opened.verifying(wanted, top=count or 1):
        found.append(item)
        terminal.note(f"{len(found)} of {total}: {'passed' if item.passed else 'failed'}")
    failed = [item.outcome for item in found if not item.passed]
    terminal.verdict = _FAILED if failed else 0
    if failed and all(outcome.undecided for outcome in failed):
        terminal.verdict = _UNDECIDED
    _write(terminal, found, style, output)
    return terminal.verdict


def configuration_of(opened: Run, text: str) -> Mapping[str, Value]:
    """The values that the JSON text gives; other parameters have the values of the leaderboard's
    first row, if there is one."""
    rows = opened.leaderboard(1)
    return {**(rows[0].configuration if rows else {}), **_parse(text)}


def _parse(text: str) -> Mapping[str, Value]:
    try:
        values: Json = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--config is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise UsageError('--config: expected {"NAME": value, …}')
    return values


def _write(terminal: Terminal, found: list[Verified], style: str, output: str) -> None:
    if style == "table":
        print_tables(terminal, _parts(found), output)
        return
    from evotune.report.formats import to_json, to_jsonl

    records = [
        verification_record(item.number, item.configuration, item.outcome, passed=item.passed)
        for item in found
    ]
    write_output(to_json(records) if style == "json" else to_jsonl(records), output)


def _parts(found: list[Verified]) -> Iterator[Table | str]:
    from evotune.report import wording
    from evotune.report.front import domain_table, domain_text

    for item in found:
        trial = "not tried in the run" if item.number is None else f"trial {item.number}"
        yield f"{trial}: {wording.configuration_text(item.configuration)}"
        yield checks_text(item.outcome)
        if item.outcome.checks:
            rows = [check_cells(check) for check in item.outcome.checks]
            yield text_table(CHECK_COLUMNS, rows, CHECK_NUMERIC)
            yield from check_details(item.outcome)
        if item.outcome.domain is not None:
            regions = domain_table(item.outcome.domain)
            yield f"domain: {domain_text(item.outcome.domain)}"
            yield text_table(regions.columns, regions.rows, regions.numeric)
        if item.outcome.checks:  # the tables above fill more than a screen
            yield f"{trial}: {checks_text(item.outcome)}"


CHECK_COLUMNS = (*("case", "inputs", "status", "max error", "limit", "RMS error", "limit"),)
CHECK_NUMERIC = (False, False, False, True, True, True, True)


def check_cells(check: Check) -> tuple[str, ...]:
    """The cells of a row in the order of CHECK_COLUMNS; `check_details` has more lines."""
    from evotune.report import wording

    figures = (check.max_error, check.max_limit, check.rms_error, check.rms_limit)
    errors = (
        wording.NONE if figure is None or check.rounding else f"{figure:.1e}" for figure in figures
    )
    return (check.case, check.inputs, check.status, *errors)


def check_details(outcome: Outcome) -> list[str]:
    """A line for each check with a detail of its own: `skipped: edge shapes, memcheck: not
    installed`."""
    return [
        f"{check.status}: {check.case}, {check.inputs}: {check.detail}"
        for check in outcome.checks
        if check.detail not in ("", ACCEPTED)
    ]


def checks_text(outcome: Outcome) -> str:
    """The checks in a few words: `ok: 61 passed, 2 skipped`, or how the trial ended and why."""
    counts = Counter(check.status for check in outcome.checks)
    known = (status for status in ("passed", "failed", "skipped") if counts[status])
    found = ", ".join(f"{counts[status]} {status}" for status in known) or "no check was made"
    reason = f" ({outcome.reason})" if outcome.reason else ""
    return f"{outcome.kind.value}{reason}: {found}"


def verification_record(
    number: int | None, configuration: Mapping[str, Value], outcome: Outcome, *, passed: bool
) -> dict[str, Json]:
    """The record of one configuration in `verify --format json`."""
    return {
        "number": number,
        "configuration": dict(configuration),
        "passed": passed,
        "outcome": outcome.kind.value,
        "reason": outcome.reason,
        "checks": [check.to_json() for check in outcome.checks],
        "domain": None if outcome.domain is None else outcome.domain.to_json(),
    }
