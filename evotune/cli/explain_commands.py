"""`explain`, `ablate` and `compare`: why a candidate is fast, or faster than another one.

`explain` says why a run's champion is fast, what limits it, and what to try next. `ablate` measures
the worth of each of its choices. `compare` compares two runs or two configurations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evotune.cli.options import (
    POSITIVE,
    Command,
    complete_run,
    format_option,
    output_option,
    run_argument,
    runs_dir_option,
    trust_option,
)
from evotune.cli.terminal import Terminal, pass_terminal, print_tables, text_table, write_output
from evotune.errors import EvotuneError, UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from evotune.api.run import AblationRow, Run
    from evotune.report.comparison import Comparison, Side
    from evotune.trial import Outcome


@click.command(cls=Command, example="evotune explain latest --against baseline")
@run_argument
@click.option(
    "--trial",
    type=click.IntRange(min=0),
    help="The trial to explain; defaults to the leaderboard's first.",
)
@click.option(
    "--against",
    metavar="baseline|default|N|RUN[:N]",
    default="",
    help="Also list the differences in the machine from the baseline, the space's default, trial "
    "N, or a trial of another run.",
)
@click.option(
    "--measure/--no-measure",
    default=None,
    help="Measure the missing parts: counters, and each choice in alternation with the trial. "
    "Without either option they are measured if this machine has the run's device. --no-measure "
    "compiles and launches nothing.",
)
@click.option(
    "--effects/--no-effects",
    default=True,
    show_default=True,
    help="Whether to measure each choice in alternation with the trial, which takes longest.",
)
@click.option(
    "--minutes",
    type=POSITIVE,
    help="Stop measuring after this many minutes. The time of --try is not counted. The "
    "explanation names what was not measured, and the next call measures it.  [default:  3 on a "
    "CPU, no limit on a GPU]",
)
@click.option(
    "--try",
    "tries",
    is_flag=True,
    help="Measure the suggestions that are configurations of the space, in alternation with the "
    "trial.",
)
@trust_option
@runs_dir_option
@format_option(("text", "json", "html"), "text")
@output_option
@pass_terminal
def explain(
    terminal: Terminal,
    *,
    run: str,
    trial: int | None,
    against: str,
    measure: bool | None,
    effects: bool,
    minutes: float | None,
    tries: bool,
    runs_dir: Path,
    style: str,
    output: str,
) -> int:
    """Explain what limits RUN's champion, and what to try.

    Names the part of the device that limits it, found by counters, machine code and ceilings; the
    worth of each choice; the parameters that matter most over the space; and at most five things to
    try, each with an estimate. Measurements are stored in the run, so it can be explained again
    without its device. Lists the parts that were not measured, with the reason.
    """
    from evotune.api.run import open_run

    found = open_run(run, runs_dir).explain(
        trial,
        against=against,
        measure=measure,
        effects=effects,
        minutes=minutes,
        tries=tries,
        on_note=terminal.note,
    )
    if style == "json":
        from evotune.report.formats import to_json

        write_output(to_json(found.to_json()), output)
    elif style == "html":
        from evotune.explain.explanation import html_page_of

        write_output(html_page_of(found), output)
    else:
        write_output(found.text(terminal.columns(output)), output)
    return 0


@click.command(cls=Command, example="evotune ablate latest")
@run_argument
@click.option(
    "--trial",
    type=click.IntRange(min=0),
    help="The trial to change; defaults to the leaderboard's first.",
)
@trust_option
@runs_dir_option
@format_option(("table", "json"), "table")
@output_option
@pass_terminal
def ablate(
    terminal: Terminal,
    *,
    run: str,
    trial: int | None,
    runs_dir: Path,
    style: str,
    output: str,
) -> int:
    """Measure the worth of each choice of RUN's champion.

    Sets one parameter at a time to the space's default, to a neighbouring value or, if it is a
    number, to its smallest one. Checks the changed candidate and times it in alternation with the
    champion. The rows are stored in the run, and the HTML report shows them.
    """
    from evotune.api.run import open_run

    opened = open_run(run, runs_dir)
    chosen = opened.candidate(trial)
    which = f"trial {chosen.number} of run {opened.id}"
    terminal.note(f"changing {which}, one parameter at a time")
    found = []
    for item in opened.ablating(chosen):
        found.append(item)
        terminal.note(" ".join(_cells(item)))
    if style == "json":
        from evotune.report.formats import to_json

        write_output(to_json([item.to_json() for item in found]), output)
    else:
        print_tables(terminal, _parts(found), output)
    return 0


def _parts(found: list[AblationRow]) -> Iterator[Table | str]:

    ranked = sorted(found[1:], key=lambda item: (item.ratio is None, item.ratio))
    yield text_table(
        ("change", "why", "speed against the champion [95%]"),
        [_cells(item) for item in (*found[:1], *ranked)],
    )


def _cells(item: AblationRow) -> tuple[str, str, str]:
    from evotune.report.wording import change_text, ratio_text

    row = item.fact()
    return change_text(row), row.why, ratio_text(row)


# The conditions of `compare --fail-if`: `median>3%`, a figure, a comparison, a percentage.
# median   how much slower the second candidate is: the median over the cases
# mean     the same, as the geometric mean over the cases
# worst    the same, in the case that lost most
# sure     how much slower it is even at the end of the interval that favours it

FIGURES = ("median", "mean", "worst", "sure")
_FORM = re.compile(r"\s*([a-z]+)\s*(>=|>)\s*(\d{1,6}(?:\.\d{1,6})?)\s*%\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of `--fail-if`. `share`: the percentage / 100."""

    figure: str
    sign: str
    share: float
    text: str

    def holds(self, slowdowns: Mapping[str, float]) -> bool:
        """Whether the condition holds. Raises UsageError if the figure is unknown: `sure` needs
        intervals."""
        if self.figure not in slowdowns:
            raise UsageError(
                f"--fail-if {self.text}: these figures have no interval; add --remeasure"
            )
        found = slowdowns[self.figure]
        return found >= self.share if self.sign == ">=" else found > self.share


def parse_condition(text: str) -> Condition:
    """The condition in `text`. Raises UsageError, which names the expected form, for any other
    text."""
    found = _FORM.fullmatch(text)
    if found is None or found[1] not in FIGURES:
        raise UsageError(
            f"--fail-if {text!r}: expected FIGURE>NUMBER%, as in median>3%; "
            f"FIGURE is {', '.join(FIGURES[:-1])} or {FIGURES[-1]}"
        )
    return Condition(found[1], found[2], float(found[3]) / 100, text.strip())


_REGRESSION = 1
_UNDECIDED = 6
_BASES = {
    "paired": "measured now, in alternation",
    "baseline": "each measured in alternation with the same baseline, in its own run",
    "times": "by their times alone: without a common baseline there is no interval",
}


@click.command(cls=Command, example="evotune compare yesterday latest --fail-if 'median>3%'")
@click.argument("first", metavar="A", shell_complete=complete_run)
@click.argument("second", metavar="B", shell_complete=complete_run)
@click.option(
    "--fail-if",
    "conditions",
    multiple=True,
    metavar="'FIGURE>P%'",
    help="Exit code 1 when B is slower than A by more than P percent; FIGURE is median, mean or "
    "worst of the cases, or sure (beyond the interval). May be given several times. Exit code 6 "
    "when --remeasure found the machine too noisy for a verdict.",
)
@click.option("--remeasure", is_flag=True, help="Time both now on the device, in alternation.")
@trust_option
@runs_dir_option
@format_option(("table", "json"), "table")
@output_option
@pass_terminal
def compare(
    terminal: Terminal,
    *,
    first: str,
    second: str,
    conditions: tuple[str, ...],
    remeasure: bool,
    runs_dir: Path,
    style: str,
    output: str,
) -> int:
    """Show the differences between A and B, and which is faster.

    A and B are runs (their first trial on the leaderboard), RUN:TRIAL, or RUN:default for the
    configuration that the search starts from. Ratios are A's time / B's: above 1, B is faster.
    """
    from evotune.report.comparison import compare as compare_sides
    from evotune.report.wording import noise_text

    limits = [parse_condition(text) for text in conditions]
    (run_a, a), (run_b, b) = (_side(text, runs_dir) for text in (first, second))
    measured = _measured((run_a, a), (run_b, b), terminal) if remeasure else None
    found = compare_sides(a, b, measured)
    if found is None:
        raise EvotuneError(_why_not(a, b))
    noise = noise_text(measured) if measured is not None else ""
    broken = [limit for limit in limits if limit.holds(found.slowdowns())]
    terminal.verdict = _verdict(bool(noise and limits), bool(broken))
    if style == "json":
        from evotune.report.formats import to_json

        write_output(to_json({**found.to_json(), "failed": [c.text for c in broken]}), output)
    else:
        print_tables(terminal, _compared(found), output)
    if noise:
        terminal.note(f"undecided, {noise}" if limits else noise)
    else:
        for limit in broken:
            slower = found.slowdowns()[limit.figure]
            terminal.note(f"failed: {limit.text} (B is {slower:.1%} slower)")
    return terminal.verdict


def _verdict(undecided: bool, broken: bool) -> int:
    if undecided:
        return _UNDECIDED
    return _REGRESSION if broken else 0


def _why_not(a: Side, b: Side) -> str:
    """The reason why A and B cannot be compared."""
    for one in (a, b):
        if one.outcome is None:
            return f"{one.name} was not tried; --remeasure times both now"
        if not one.outcome.ok:
            return f"{one.name} has no times: {one.outcome.kind}: {one.outcome.reason}"
    return f"{a.name} and {b.name} have no timed case in common"


def _side(text: str, runs_dir: Path) -> tuple[Run, Side]:
    """The run and the configuration that RUN, RUN:NUMBER or RUN:default names.

    The text after the last colon counts only when it is a number or `default`: a run's path may
    hold a colon too.
    """
    from evotune.api.run import open_run
    from evotune.report.comparison import side
    from evotune.report.data import RunData

    name, colon, wanted = text.rpartition(":")
    if not colon or not (wanted == "default" or (wanted.isdecimal() and wanted.isascii())):
        name, wanted = text, ""
    run = open_run(name, runs_dir)
    found = side(RunData.load(run.folder), wanted)
    if found is None and not wanted:
        raise EvotuneError(f"run {run.id} has no valid candidate")
    if found is None:
        what = (
            "has no outcome of the default configuration"
            if wanted == "default"
            else f"has no trial {wanted}"
        )
        raise UsageError(f"run {run.id} {what}")
    return run, found


def _measured(first: tuple[Run, Side], second: tuple[Run, Side], terminal: Terminal) -> Outcome:
    terminal.note(f"measuring {second[1].name} in alternation with {first[1].name}")
    outcome = first[0].remeasured(first[1].configuration, second[0], second[1].configuration)
    if not outcome.ok:
        raise EvotuneError(f"{second[1].name} ended in {outcome.kind}: {outcome.reason}")
    return outcome


def _compared(found: Comparison) -> Iterator[Table | str]:
    from evotune.report import wording
    from evotune.util.words import shorten

    yield f"A: {found.first.name}"
    yield f"B: {found.second.name}"
    if found.facts:
        facts = [(name, shorten(a), shorten(b)) for name, a, b in found.facts]
        yield text_table(("differs", "A", "B"), facts)
    else:
        yield "nothing differs in configuration, device and versions"
    rows = [
        (case.case, wording.time_us_text(case.first_us), wording.time_us_text(case.second_us),
         _ratio(case.ratio, case.low, case.high))
        for case in found.cases
    ]  # fmt: skip
    if len(rows) > 1:
        rows.append(("geometric mean", "", "", _ratio(*found.mean)))
    yield text_table(("case", "A µs", "B µs", "A / B [95%]"), rows, (False, True, True, True))
    yield f"above 1, B is faster; {_BASES[found.basis]}"


def _ratio(ratio: float, low: float | None, high: float | None) -> str:
    return f"{ratio:.3f}x" if low is None else f"{ratio:.3f}x [{low:.3f}, {high:.3f}]"
