"""Progress of a run on stderr: a live panel on a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from evotune.cli.terminal import Terminal, say
from evotune.engine.observer import Observer, Progress, RunInfo, SilentObserver
from evotune.report import wording
from evotune.report.evidence import figures
from evotune.trial import Outcome, Trial

if TYPE_CHECKING:
    from rich.console import Group

_PLAIN_EVERY_S = 10.0
_PLAIN_COLUMNS = 118  # log viewers and CI pages cut or fold what is longer
_REFRESH_PER_SECOND = 4


@dataclass(slots=True)
class Standing:
    """What is known of the run right now, and how its lines read.

    A resumed run is told its stored trials again, from the last snapshot on: `replaying` while
    that lasts. `unseen` trials lie before the snapshot; their outcomes are not among the counts.
    """

    clock: Callable[[], float] = time.monotonic
    info: RunInfo | None = None
    phase: str = "starting"
    progress: Progress | None = None
    previous_best: Trial | None = None
    told_at_s: float = 0.0
    unseen: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)

    def tell(self, trial: Trial, progress: Progress) -> bool:
        """True when there is a new best, unless it was read back from the store."""
        if self.progress is None:
            self.unseen = progress.told - 1
        self.previous_best = self.progress.best if self.progress else None
        self.outcomes[trial.outcome.kind.value] += 1
        self.progress = progress
        self.told_at_s = self.clock()
        improved = progress.best is not None and progress.best is not self.previous_best
        return improved and not self.replaying

    @property
    def replaying(self) -> bool:
        known = self.info.already_done if self.info else 0
        return self.progress is not None and self.progress.told <= known

    @property
    def elapsed_s(self) -> float:
        if self.progress is None:
            return 0.0
        return self.progress.elapsed_s + self.clock() - self.told_at_s

    def heading(self) -> str:
        info = self.info
        if info is None:
            return ""
        return f"{info.space} on {info.device}: {info.strategy}, seed {info.seed}"

    def counts(self) -> str:
        """`12 ok, 3 timeout`: valid ones first, then the most frequent failures."""
        ranked = sorted(self.outcomes.items(), key=lambda item: (item[0] != "ok", -item[1]))
        text = wording.counts_text(dict(ranked))
        return f"{text} ({self.unseen} earlier ones not counted)" if self.unseen else text

    def best(self) -> str:
        """The best trial's figure; the configuration is `best_configuration`."""
        trial = self.progress.best if self.progress else None
        return f"{result(trial.outcome)} (trial {trial.number})" if trial else "none yet"

    def best_configuration(self) -> str:
        trial = self.progress.best if self.progress else None
        return wording.configuration_text(trial.configuration) if trial else ""

    def best_in_full(self) -> str:
        configuration = self.best_configuration()
        return f"{self.best()}: {configuration}" if configuration else self.best()

    def best_change(self) -> str:
        """What the best changes in the one before it; the whole configuration of the first."""
        if self.previous_best is None or self.progress is None or self.progress.best is None:
            return self.best_configuration()
        return wording.difference_text(
            self.progress.best.configuration, self.previous_best.configuration
        )

    def pace(self) -> str:
        """Generation, trials told, trials a minute, time left."""
        if self.info is None or self.progress is None:
            return ""
        told, elapsed_s = self.progress.told, self.progress.elapsed_s
        parts = [f"generation {self.progress.generation}", f"trial {told}/{self.info.trials}"]
        if elapsed_s > 0:
            parts.append(f"{told / elapsed_s * 60:.0f}/min")
            parts.append(f"{wording.duration_text(self._left_s(told, elapsed_s))} left")
        return ", ".join(parts)

    def _left_s(self, told: int, elapsed_s: float) -> float:
        assert self.info is not None
        left_s = (self.info.trials - told) * elapsed_s / max(told, 1)
        if self.info.minutes is not None:
            left_s = min(left_s, self.info.minutes * 60 - self.elapsed_s)
        return max(0.0, left_s)


class PlainProgress:
    """A line at each new best and about every ten seconds, none for the replay of a resumed run.

    A lost stderr never ends a run.
    """

    def __init__(
        self,
        write: Callable[[str], None] = say,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._clock = clock
        self._standing = Standing(clock)
        self._line_at_s = clock()

    def phase(self, text: str) -> None:
        self._say(text)

    def started(self, info: RunInfo) -> None:
        self._standing.info = info
        self._say(self._standing.heading())
        if info.already_done:
            self._say(f"{info.already_done} trials are stored already")

    def told(self, trial: Trial, progress: Progress) -> None:
        standing = self._standing
        improved = standing.tell(trial, progress)
        if standing.replaying:
            if standing.info and progress.told == standing.info.already_done:
                self._say(f"so far: {standing.counts()}; best {standing.best_in_full()}")
            return
        if improved:
            self._say(f"new best: {standing.best()}: {standing.best_change()}")
        if self._clock() - self._line_at_s >= _PLAIN_EVERY_S:
            self._say(f"{standing.pace()}; {standing.counts()}; best {standing.best()}")

    def confirmed(self, trial: Trial, outcome: Outcome) -> None:
        self._say(confirmation(trial, outcome))

    def finished(self, reason: str) -> None:
        self._say(f"ended: {reason}")

    def _say(self, line: str) -> None:
        self._line_at_s = self._clock()
        parts = textwrap.wrap(line, _PLAIN_COLUMNS, subsequent_indent="  ", break_on_hyphens=False)
        with contextlib.suppress(OSError):
            for part in parts:
                self._write(part)


class LiveProgress:
    """The same facts in place, redrawn a few times a second by rich's own thread."""

    def __init__(self, standing: Standing, write: Callable[[str], None] = say) -> None:
        self._standing = standing
        self._write = write

    def phase(self, text: str) -> None:
        self._standing.phase = text

    def started(self, info: RunInfo) -> None:
        self._standing.info = info

    def told(self, trial: Trial, progress: Progress) -> None:
        self._standing.tell(trial, progress)

    def confirmed(self, trial: Trial, outcome: Outcome) -> None:
        with contextlib.suppress(OSError):
            self._write(confirmation(trial, outcome))

    def finished(self, reason: str) -> None:
        self._standing.phase = f"ended: {reason}"

    def __rich__(self) -> Group:
        return panel(self._standing)


class KnowsTheRun:
    """Passes everything on; as soon as the run has a folder, tracebacks of bugs go there."""

    def __init__(self, observer: Observer, terminal: Terminal) -> None:
        self._terminal = terminal
        self.phase = observer.phase
        self._started = observer.started
        self.told = observer.told
        self.confirmed = observer.confirmed
        self.finished = observer.finished

    def started(self, info: RunInfo) -> None:
        self._terminal.crash_folder = Path(info.path) / "logs"
        self._terminal.note(f"run {info.id}")
        self._started(info)


@contextlib.contextmanager
def show_progress(terminal: Terminal) -> Iterator[Observer]:
    """The observer that suits stderr; the live panel ends with the block."""
    console = terminal.stderr()
    if terminal.quiet:
        yield KnowsTheRun(SilentObserver(), terminal)
    elif not console.file.isatty() or console.is_dumb_terminal:
        yield KnowsTheRun(PlainProgress(), terminal)
    else:
        from rich.live import Live

        live = LiveProgress(Standing())
        # Live takes over stderr: a line written meanwhile appears above the panel.
        with Live(live, console=console, refresh_per_second=_REFRESH_PER_SECOND):
            yield KnowsTheRun(live, terminal)


def panel(standing: Standing) -> Group:
    """The live panel: heading, bar, pace, outcomes, best and its configuration."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    from evotune.report.escape import printable

    lines = [
        standing.heading(),
        f"{standing.phase} ({wording.duration_text(standing.elapsed_s)})",
        standing.pace(),
        standing.counts(),
        f"best {standing.best()}",
        standing.best_configuration(),
    ]
    told = standing.progress.told if standing.progress else 0
    total = standing.info.trials if standing.info else None
    bar = ProgressBar(total=total, completed=told, width=60)
    return Group(*(Text(printable(line)) for line in lines if line), bar)


def result(outcome: Outcome) -> str:
    """The speedup, or the recorded time."""
    recorded = not outcome.measurements and "time_ms" in outcome.resources
    return wording.result_text(figures(outcome, recorded=recorded))


def confirmation(trial: Trial, outcome: Outcome) -> str:
    if outcome.ok:
        return f"confirmed trial {trial.number}: {result(outcome)}"
    return f"trial {trial.number} failed its confirmation: {outcome.kind} {outcome.reason}"
