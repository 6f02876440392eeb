"""The report as one Markdown page, and the questions that a page answers first (`answers`).

The questions are: who won, by how much, is it sure, why, and what now.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from evotune.report import wording
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
from evotune.report.leaderboard import Leaderboard, Row, rank
from evotune.report.summary import RunSummary, more_budget, summarize
from evotune.report.whole import failures, in_proposal_order
from evotune.report.wording import alike_reasons
from evotune.timing.processes import agreement
from evotune.trial import CUT_SHORT, Json, Measurement
from evotune.util.commands import package_commands, run_command
from evotune.util.words import counted, markdown_code, markdown_text, printable, shorten

_SHOWN_ROWS = 20
_SHOWN_REASONS = 10
_COMPILER_CHARACTERS = 160  # its text with all flags fills several lines; the JSON report has it


def page(data: RunData, why: str = "", explained: Explained | None = None) -> str:
    """The page: answers, facts, baselines, the leaderboard's head, outcomes and reasons of
    failures. `why`: what limits the champion, in sentences; "" for none. `explained`: the
    explanation from which the answers are made."""
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
        "its own tolerance": data.facts.problem.tolerance,
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
        "Rows that share a rank (`1=`) have overlapping intervals: "
        "their times do not distinguish them."
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


_WHY, _NEXT = "Why?", "What next?"
_MEASURES = "measures what limits its speed and what each of its values is worth"
_SHOWN_CHANGES = 4
_SHOWN_EFFECTS = 3
_RESUMABLE = ("interrupted", "killed")
_FEW_TRIALS = 10
"""A search of fewer trials has hardly begun."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One question with its answer. `commands`: lines to paste, each with the reason for it."""

    question: str
    sentences: tuple[str, ...] = ()
    commands: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Json]:
        """The answer as a JSON value in which every text is `printable`."""
        return {
            "question": self.question,
            "sentences": [printable(text) for text in self.sentences],
            "commands": [[printable(line), printable(why)] for line, why in self.commands],
        }


@dataclass(frozen=True, slots=True)
class Explained:
    """An explanation of a run's winner, as a page shows it.

    - `section`: the data of its section, for `explain.js`.
    - `why`: sentences for the beginning of the page.
    - `complete`: whether nothing is left that `evotune explain` could measure.
    - `tries`: suggestions, each as a sentence.
    - `triable`: whether `explain --try` can measure one of them.
    """

    section: Mapping[str, Json]
    why: Sequence[str] = ()
    complete: bool = False
    tries: Sequence[str] = ()
    triable: bool = False


def answers(
    data: RunData, summary: RunSummary, leader: Row | None, explained: Explained | None = None
) -> list[Answer]:
    """The questions that a reader has about a run, with their answers, in the order of the page."""
    if leader is None:
        return [Answer(_NEXT, _no_winner(data), tuple(_steps(data, summary, None, None)))]
    found = [Answer("What won?", (_winner(data, leader),))]
    if not data.recorded:
        found += [
            Answer("By how much?", (_gain(leader),)),
            Answer("Is it sure?", tuple(_certainty(data, leader))),
            _why(data, leader, explained),
            _use(data),
        ]
    tries = tuple(explained.tries) if explained is not None else ()
    return [*found, Answer(_NEXT, tries, tuple(_steps(data, summary, leader, explained)))]


def _winner(data: RunData, leader: Row) -> str:
    number, speedup = f"{leader.number} of {data.totals.trials}", leader.figures.speedup
    text = f"Trial {number}"
    low, high = leader.figures.speedup_low, leader.figures.speedup_high
    if not data.recorded and speedup is not None and (low or speedup) <= 1:
        slower = (high or speedup) < 1
        surely = "faster" if slower else "surely faster"
        text = f"Nothing is {surely} than the baseline. The best is trial {number}"
    if data.facts.default is None:
        return f"{text}."
    changed = wording.difference(leader.configuration, data.facts.default)
    if not changed:
        text += ": the space's default. "
        if data.totals.trials < _FEW_TRIALS:
            return f"{text}So few trials say little."
        return f"{text}The search found nothing better."
    text += f". {len(changed)} of its {counted(len(leader.configuration), 'value')} "
    text += "differs from the default's" if len(changed) == 1 else "differ from the default's"
    if len(changed) > _SHOWN_CHANGES:
        return f"{text}."
    return f"{text}: {wording.configuration_text(changed)}."


def _gain(leader: Row) -> str:
    cases = leader.timed
    speedups = [m.speedup for m in cases]
    baselines = ", ".join(dict.fromkeys(m.baseline for m in cases))
    if len(cases) == 1:
        (only,) = cases
        if (only.baseline_us > only.time_us) != (only.speedup > 1):  # medians of noisy samples
            return f"{only.speedup:.2f} times as fast as {baselines}, measured alternating with it."
        times = f"{wording.time_text(only.time_us)} instead of"
        return f"{times} {wording.time_text(only.baseline_us)} of {baselines}."
    least, most = f"{min(speedups):.2f}", f"{max(speedups):.2f}"
    if least == most:
        return f"{least} times as fast as {baselines} in each of {len(cases)} cases."
    return (
        f"{least} to {most} times as fast as {baselines}, by case; the figure above is the "
        f"geometric mean of {len(cases)} cases."
    )


def _certainty(data: RunData, leader: Row) -> Iterator[str]:
    if not leader.confirmed:
        yield (
            "No. This is the search's own figure: few samples, and the best of many noisy figures "
            "flatters. No fresh process has confirmed it."
        )
        return
    noise = wording.noise_text(leader.outcome)
    if noise:
        yield f"No. The figure is {noise}. Measure again on a quiet machine."
    else:
        yield _verdict(leader)
    yield _confirmation(leader)
    if CUT_SHORT in leader.outcome.flags:
        yield (
            "The confirmation was cut short: some checks are skipped, and the domain holds only "
            "what was executed."
        )
    slower = [m for m in leader.outcome.measurements if m.speedup_high < 1]
    if slower:
        surely = "probably" if noise else "surely"
        yield f"It is {surely} slower than the baseline at {_cases(slower)}."
    if data.beside:
        yield f"Times may be disturbed: {wording.beside_text(data.beside)}."


def _verdict(leader: Row) -> str:
    low, high = leader.figures.speedup_low, leader.figures.speedup_high
    if low is not None and low > 1:
        return "Yes: the results are right, and the whole 95% interval of the speedup is above 1."
    if high is not None and high < 1:
        return "Yes: the results are right, and it is slower than the baseline."
    return "The results are right. It may be faster or slower: the 95% interval contains 1."


def _confirmation(leader: Row) -> str:
    processes = max((len(m.processes) for m in leader.timed), default=0)
    where = f"{processes} fresh processes" if processes > 1 else "a fresh process"
    held_out = any(m.held_out for m in leader.outcome.measurements)
    unseen = "inputs and shapes" if held_out else "inputs"
    statuses = [check.status for check in leader.outcome.checks]
    skipped = statuses.count("skipped")
    text = f"It was timed again in {where}, on {unseen} that the search never saw, and passed "
    text += counted(statuses.count("passed"), "check")
    return f"{text}; {skipped} skipped, evotune verify says why." if skipped else f"{text}."


def _cases(measured: Sequence[Measurement]) -> str:
    named = [
        f"{m.case}{' (held out)' * m.held_out}{' from cold caches' * (m.cache == 'cold')}"
        for m in measured
    ]
    return ", ".join(named)


def _why(data: RunData, leader: Row, explained: Explained | None) -> Answer:
    """The explanation in short, and the command that completes it; without an explanation the
    values that matter most, as an ablation measured them."""
    command = (run_command("explain", data.path), _MEASURES)
    if explained is not None and explained.why:
        return Answer(_WHY, tuple(explained.why), () if explained.complete else (command,))
    stored = next((each for each in data.facts.ablations if each.trial == leader.number), None)
    if stored is None:
        return Answer(_WHY, (), (command,))
    costly = [
        row
        for row in stored.rows
        if row.parameter
        and not row.also  # two changes at once have no single worth
        and row.ratio is not None
        and row.ratio_high is not None
        and row.ratio_high < 1
    ]
    if not costly:
        return Answer(_WHY, ("No parameter changed alone makes it surely slower.",))
    costly.sort(key=lambda row: row.ratio or 0.0)
    shown = ", ".join(
        f"{wording.change_text(row)} ({row.ratio:.2f} times as fast)"
        for row in costly[:_SHOWN_EFFECTS]
    )
    return Answer(_WHY, (f"The changes that harm it most, each made alone: {shown}.",))


def _use(data: RunData) -> Answer:
    question = "How do I use it?"
    problem = data.facts.problem.name
    if not data.won:
        nothing = (
            "Not yet: no confirmed champion is surely faster than the baseline in a timed case."
        )
        if ":" in problem and any(each.ok for each in data.confirmations.values()):
            nothing += " You can still make a package of it, with evotune export."
        elif data.won_held_out:
            held_out = " and ".join(data.won_held_out)
            nothing = (
                "Not yet: no confirmed champion is surely faster than the baseline in a case that "
                f"it was tuned for. A package, made by evotune export, may serve {held_out}."
            )
        return Answer(question, (nothing,))
    found = package_commands(data.path, data.space, problem)
    return Answer(
        question,
        (),
        (
            (found.export, "writes a Python package that needs PyTorch and not evotune"),
            (found.install, "installs it, without a network"),
            (found.use, "in your program"),
        ),
    )


def _steps(
    data: RunData, summary: RunSummary, leader: Row | None, explained: Explained | None
) -> Iterator[tuple[str, str]]:
    if explained is not None and explained.triable:
        yield run_command("explain", data.path, "--try"), "measures these suggestions"
    kind, _, reason = summary.state.partition(":")
    more = more_budget("interrupted" if kind in _RESUMABLE else reason, data.facts.settings)
    if more is not None and (leader is not None or not more):
        why = (
            "continues the search: more trials may find something faster"
            if more
            else "continues where it stopped"
        )
        yield run_command("resume", data.path, *more), why
    if leader is not None and not data.recorded:
        yield run_command("verify", data.path), "checks the leader once more, and lists every check"


def _no_winner(data: RunData) -> tuple[str, ...]:
    if not data.totals.trials:
        return ("No trial has ended.",)
    kinds = wording.counts_text(data.totals.outcomes)
    return (f"No candidate is valid ({kinds}). The outcomes below have the reasons.",)
