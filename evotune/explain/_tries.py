"""Measures suggestions, for `explain --try`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from evotune.explain._subjects import Subject
from evotune.explain.explanation import Suggestion
from evotune.runs.ablation import Change, keep_tries, measured_rows, unchanged
from evotune.runs.folder import RunFolder
from evotune.runs.reopening import ReopenedRun
from evotune.trial import Configuration
from evotune.util.words import counted


def try_suggestions(
    run: RunFolder,
    reopened: ReopenedRun,
    subject: Subject,
    suggestions: Sequence[Suggestion],
    note: Callable[[str], object],
) -> None:
    """Measures the suggestions that are configurations, in turn with the explained one, and keeps
    the results in the run."""
    own = subject.configuration
    wanted = [Configuration(item.configuration) for item in suggestions if item.configuration]
    if not wanted:
        note("none of the suggestions is a configuration of this space: nothing to try")
        return
    changes = [unchanged(own)]
    for configuration in wanted:
        name = next(name for name, value in configuration.items() if value != own[name])
        changes.append(Change(configuration, name, own[name], configuration[name], "tried", {}))
    number = subject.trial.number
    note(f"trying {counted(len(wanted), 'suggestion')} in turn with trial {number}")
    with run.locked():
        rows = list(measured_rows(reopened, number, own, changes))[1:]
        keep_tries(run, own, rows)
