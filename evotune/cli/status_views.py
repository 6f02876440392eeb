"""The other views of `status`: all runs of a folder and, with `--watch`, a running run.

`watch` follows a running run from any terminal, only by reading its store.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from evotune.api.family_run import FamilyRun, all_families
from evotune.api.observing import Follower
from evotune.api.run import Run, all_runs
from evotune.cli.progress import progress_observer
from evotune.cli.terminal import Terminal, print_tables, text_table, write_output
from evotune.errors import StoreError
from evotune.report import wording
from evotune.report.data import RunData
from evotune.report.summary import RunSummary, summarize
from evotune.util.processes import interruptible
from evotune.util.words import counted

if TYPE_CHECKING:
    from evotune.api.run import RunFolder
    from evotune.trial import Json


def print_runs(terminal: Terminal, runs_dir: Path, style: str, output: str) -> None:
    """Prints a row for each run, in the order of `list_runs`. A damaged run has a row too."""
    found = list(_summaries(runs_dir))
    families = all_families(runs_dir)
    if style == "json":
        from evotune.report.formats import to_json

        records = [_record(run, summary) for run, summary in found]
        write_output(to_json([*records, *(family.to_json() for family in families)]), output)
    elif not found and not families:
        terminal.note(f"no runs in {runs_dir}")
    else:
        rows = [_row(run, summary) for run, summary in found]
        rows += [_family_row(family) for family in families]
        columns = ("run", "state", "trials", "best")
        print_tables(terminal, [text_table(columns, rows, (False, False, True))], output)


def _summaries(runs_dir: Path) -> Iterator[tuple[Run, RunSummary | StoreError]]:
    for run in all_runs(runs_dir):
        try:
            yield run, summarize(RunData.load(run.folder, 1))
        except StoreError as error:
            yield run, error


def _record(run: Run, summary: RunSummary | StoreError) -> Json:
    if isinstance(summary, StoreError):
        return {"id": run.id, "path": str(run.path), "error": str(summary)}
    return summary.to_json()


def _row(run: Run, summary: RunSummary | StoreError) -> tuple[str, ...]:
    if isinstance(summary, StoreError):
        return run.id, "damaged", "", ""
    state = summary.state.partition(":")[0]
    return run.id, state, f"{summary.done}/{summary.trials or '?'}", _best(summary)


def _family_row(family: FamilyRun) -> tuple[str, ...]:
    """A family has no best: its winners are for different cases."""
    trials = sum(row.data.totals.trials for row in family.rows())
    wanted = family.found.budget.trials
    winners = counted(len(family.winners), "winner")
    return family.id, family.state, f"{trials}/{wanted or '?'}", winners


def _best(summary: RunSummary) -> str:
    """The speedup of the run's best, without its interval. `(search)` follows a speedup that no
    fresh process has confirmed."""
    row = summary.best
    if row is None:
        return wording.NONE
    if row.figures.speedup is None:
        return wording.result_text(row.figures)
    return f"{row.figures.speedup:.3f}x" + ("" if row.confirmed else " (search)")


_EVERY_S = 0.5


def watch(terminal: Terminal, run: RunFolder) -> bool:
    """Follows the run until no process works on it any more, or until Ctrl-C. Returns whether it
    followed to the end."""
    from evotune.report import wording

    with interruptible(), progress_observer(terminal) as observer:
        follower = Follower(run, observer)
        follower.start()
        try:
            while True:
                working = run.holder() is not None
                state = follower.look()
                if not working:
                    break
                time.sleep(_EVERY_S)
        except KeyboardInterrupt:
            return False
        stored = "killed" if state == "running" else state
        observer.finished(wording.state_text(stored), follower.elapsed_s)
    return True
