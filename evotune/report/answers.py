"""The questions that a page answers first: who won, by how much, is it sure, why, and what now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from evotune.report import wording
from evotune.report.data import RunData
from evotune.report.leaderboard import Row
from evotune.report.summary import RunSummary, more_budget
from evotune.trial import CUT_SHORT, Json, Measurement
from evotune.util.commands import package_commands, run_command
from evotune.util.words import counted, printable

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
        """With every text `printable`."""
        return {
            "question": self.question,
            "sentences": [printable(text) for text in self.sentences],
            "commands": [[printable(line), printable(why)] for line, why in self.commands],
        }


@dataclass(frozen=True, slots=True)
class Explained:
    """An explanation of a run's winner, as a page shows it.

    - `section`: the data of its section, for `explain.js`.
    - `why`: sentences for the opening.
    - `complete`: nothing is left that `evotune explain` could measure.
    - `tries`: suggestions, each as a sentence; `triable`: `explain --try` can measure one of them.
    """

    section: Mapping[str, Json]
    why: Sequence[str] = ()
    complete: bool = False
    tries: Sequence[str] = ()
    triable: bool = False


def answers(
    data: RunData, summary: RunSummary, leader: Row | None, explained: Explained | None = None
) -> list[Answer]:
    """The questions that a reader asks of a run, in the order of asking."""
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
            nothing += " A package of it can be made all the same, with evotune export."
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
        why = "searches on: more trials may find better" if more else "goes on where it stopped"
        yield run_command("resume", data.path, *more), why
    if leader is not None and not data.recorded:
        yield run_command("verify", data.path), "checks the leader once more, and lists every check"


def _no_winner(data: RunData) -> tuple[str, ...]:
    if not data.totals.trials:
        return ("No trial has ended.",)
    kinds = wording.counts_text(data.totals.outcomes)
    return (f"No candidate is valid ({kinds}). The outcomes below have the reasons.",)
