"""The report as one Markdown page."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from evotune.report import wording
from evotune.report.answers import Explained, answers
from evotune.report.data import RunData
from evotune.report.front import DEVICES_MEANING as MEANING_OF_DEVICES
from evotune.report.front import DOMAIN_MEANING as DOMAIN
from evotune.report.front import (
    FRONT_MEANING,
    TextTable,
    devices_table,
    domain_table,
    domain_text,
    front_table,
    leaderboard_table,
    pareto_front,
)
from evotune.report.leaderboard import Leaderboard, rank
from evotune.report.summary import RunSummary, summarize
from evotune.report.whole import failures, in_proposal_order
from evotune.report.wording import alike_reasons
from evotune.timing.processes import agreement
from evotune.trial import Json
from evotune.util.commands import run_command
from evotune.util.words import markdown_code, markdown_text, shorten

_SHOWN_ROWS = 20
_SHOWN_REASONS = 10
_COMPILER_CHARACTERS = 160  # its text with all flags fills several lines; the JSON report has it


def page(data: RunData, why: str = "", explained: Explained | None = None) -> str:
    """Facts, baselines, the leaderboard's head, outcomes and reasons of failures. `why`: what holds
    the champion, in sentences; "" for none.
    `explained`: for the answers to a reader's questions."""
    board = rank(data)
    summary = summarize(data, board)
    blocks = [
        f"# {markdown_text(data.space or 'run')}: run {markdown_text(data.id)}",
        headline(summary),
        *([markdown_text(why)] if why else []),
        *_answers(data, board, summary, explained),
        _facts(data, summary),
        *_baselines(data),
        *_devices(data),
        *_ranking(data, board),
        *_domain(board),
        *_front(data),
        *_disqualified(board),
        *_outcomes(data, summary),
        *_times(summary),
    ]
    return "\n\n".join(blocks) + "\n"


def _answers(
    data: RunData, board: Leaderboard, summary: RunSummary, explained: Explained | None
) -> Iterator[str]:
    """A paragraph for each question, and its commands as a list."""
    leader = board.rows[0] if board.rows else None
    for answer in answers(data, summary, leader, explained):
        said = markdown_text(" ".join(answer.sentences))
        yield f"**{answer.question}** {said}".rstrip()
        if answer.commands:
            yield "\n".join(
                f"- {markdown_code(line)} {markdown_text(why)}" for line, why in answer.commands
            )


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[bool]) -> str:
    """A pipe table of plain-text cells; numeric columns align right."""
    lines = [
        _line(markdown_text(name) for name in columns),
        _line("---:" if right else "---" for right in numeric),
        *(_line(markdown_text(cell) for cell in row) for row in rows),
    ]
    return "\n".join(lines)


def leaderboard_page(data: RunData, count: int | None = None) -> str:
    """The leaderboard's table alone."""
    return _table(leaderboard_table(data, rank(data).rows[:count])) + "\n"


def headline(summary: RunSummary) -> str:
    """The result in one sentence, as Markdown."""
    return markdown_text(sentence(summary))


def sentence(summary: RunSummary) -> str:
    """The result in one sentence of plain text."""
    best = summary.best
    if best is None:
        return f"No valid candidate in {summary.done} trials."
    standing = "confirmed in a fresh process" if best.confirmed else "not confirmed"
    if best.figures.speedup is None:
        figure = f"{wording.time_ms_text(best.figures.time_us)} ms (recorded)"
    else:
        figure = f"{wording.speedup_text(best.figures)} over the baseline ({standing})"
    return f"Best of {summary.done} trials: {figure}, trial {best.number}."


def _table(cells: TextTable) -> str:
    return table(cells.columns, cells.rows, cells.numeric)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _facts(data: RunData, summary: RunSummary) -> str:
    packages: Mapping[str, Json] = data.environment.get("packages") or {}
    facts = {
        "state": wording.state_text(summary.state),
        "device": summary.device_text,
        "beside": wording.beside_text(summary.beside),
        "problem": data.facts.problem.text,
        "search": f"{summary.strategy}, seed {summary.seed}",
        "trials": f"{summary.done} of {summary.trials or '?'}",
        "elapsed": wording.duration_text(summary.elapsed_s),
        "created": data.facts.created,
        "command": shlex.join(str(word) for word in data.facts.command),
        "versions": ", ".join(
            f"{name} {version}"
            for name, version in {
                **{name: data.environment.get(name) for name in ("evotune", "python")},
                **packages,
            }.items()
            if version
        ),
        "compiler": shorten(str(data.environment.get("compiler", "")), _COMPILER_CHARACTERS),
    }
    shown = [(name, text) for name, text in facts.items() if text]
    return table(("run", ""), shown, (False, False))


def _baselines(data: RunData) -> Iterator[str]:
    if not data.facts.baselines.timings:
        return
    rows = [
        (
            str(timing.case),
            str(timing.name),
            wording.time_us_text(timing.time_us),
            "yes" if timing.passed else "no",
            "yes" if data.facts.baselines.chosen.get(timing.case) == timing.name else "",
        )
        for timing in data.facts.baselines.timings
    ]
    yield "## Baselines"
    yield wording.TIMED_ALONE
    yield table(
        ("case", "baseline", "time µs", "passes the gate", "chosen"),
        rows,
        (False, False, True, False, False),
    )


def _devices(data: RunData) -> Iterator[str]:
    found = devices_table(data.facts.devices)
    if found is not None:
        yield "## Devices"
        yield f"{MEANING_OF_DEVICES} {markdown_text(agreement(data.facts.devices))}."
        yield _table(found)


def _ranking(data: RunData, board: Leaderboard) -> Iterator[str]:
    if not board.rows:
        return
    yield "## Leaderboard"
    yield _table(leaderboard_table(data, board.rows[:_SHOWN_ROWS]))
    notes = [
        "Rows that share a rank (`1=`) have overlapping intervals: time does not tell them apart."
    ]
    hidden = len(board.rows) + data.totals.unloaded_rows - _SHOWN_ROWS
    if hidden > 0:
        rows = "1 more row" if hidden == 1 else f"{hidden} more rows"
        notes.append(
            f"{rows}: {markdown_code(run_command('report', data.path, '--format', 'csv'))}."
        )
    yield " ".join(notes)
    warnings = [
        f"- Trial {row.number}: {markdown_text(warning)}"
        for row in board.rows[:_SHOWN_ROWS]
        for warning in row.warnings
    ]
    if warnings:
        yield "\n".join(("Warnings, for the reader to judge:", "", *warnings))


def _domain(board: Leaderboard) -> Iterator[str]:
    """The leader's domain."""
    found = board.rows[0].outcome.domain if board.rows else None
    if found is not None:
        yield "## Domain"
        yield f"Trial {board.rows[0].number} {markdown_text(domain_text(found))}. {DOMAIN}"
        yield _table(domain_table(found))


def _front(data: RunData) -> Iterator[str]:
    found = pareto_front(data, in_proposal_order(data))
    if found:
        yield "## Pareto front"
        yield FRONT_MEANING
        yield _table(front_table(found))


def _disqualified(board: Leaderboard) -> Iterator[str]:
    if not board.disqualified:
        return
    yield "## Failed confirmations"
    rows = [
        (
            str(item.trial.number),
            item.outcome.kind.value,
            item.reason,
            wording.configuration_text(item.trial.configuration),
        )
        for item in board.disqualified
    ]
    yield table(("trial", "outcome", "reason", "configuration"), rows, (True, False, False, False))


def _outcomes(data: RunData, summary: RunSummary) -> Iterator[str]:
    if not data.trials:
        return
    yield "## Outcomes"
    counts = [(kind, str(count)) for kind, count in summary.outcomes.items()]
    yield table(("outcome", "trials"), counts, (False, True))
    reasons = alike_reasons(failures(data))
    if reasons:
        yield "Most frequent reasons, each with an example of its numbers:"
        rows = [
            (str(reason.trials), reason.kind, reason.example) for reason in reasons[:_SHOWN_REASONS]
        ]
        yield table(("trials", "outcome", "reason"), rows, (True, False, False))


def _times(summary: RunSummary) -> Iterator[str]:
    if summary.phases:
        yield "## Time by phase"
        spent = [(phase, f"{seconds:.1f}") for phase, seconds in summary.phases.items()]
        yield table(("phase", "s"), spent, (False, True))
    if not summary.stages:
        return
    yield "## Time by stage"
    for what, stages in (
        ("trials", summary.stages),
        ("confirmations", summary.confirmation_stages),
    ):
        rows = [
            (
                stage.stage,
                str(stage.trials),
                f"{stage.total_s:.1f}",
                wording.stage_text(stage.median_s),
            )
            for stage in stages
        ]
        if rows:
            yield table(("stage", what, "sum s", "median"), rows, (False, True, True, True))
