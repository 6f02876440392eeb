"""Progress of a run on stderr: a live panel on a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from evotune.api.observing import (
    OTHER_WORK,
    WARNING,
    Observer,
    Progress,
    RunInfo,
    SilentObserver,
)
from evotune.cli.live_view import panel
from evotune.cli.standing import Standing, result
from evotune.cli.terminal import Terminal, say
from evotune.report import wording
from evotune.trial import Outcome, Trial

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_PLAIN_EVERY_S = 10.0
_PLAIN_COLUMNS = 118  # log viewers and CI pages cut or fold longer lines
_REFRESH_PER_SECOND = 4


class PlainProgress:
    """Writes a line at each new best and about every ten seconds.

    While a resumed run is told its stored trials again, it writes no such lines. An OSError of
    stderr does not end the run.
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
        if text != self._standing.phase:
            self._standing.enter(text)
            self._say(text)

    def started(self, info: RunInfo) -> None:
        self._standing.start(info)
        self._say(self._standing.heading())
        if info.already_done:
            stored = "1 trial is" if info.already_done == 1 else f"{info.already_done} trials are"
            self._say(f"{stored} stored already")

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

    def step(self, text: str) -> None:
        if text != self._standing.phase and self._clock() - self._line_at_s >= _PLAIN_EVERY_S:
            self._standing.phase = text
            self._say(text)

    def confirmed(self, trial: Trial, outcome: Outcome) -> None:
        self._say(confirmation(trial, outcome))

    def finished(self, reason: str, elapsed_s: float) -> None:
        self._say(f"ended: {wording.ended_text(reason)} ({wording.duration_text(elapsed_s)})")

    def _say(self, line: str) -> None:
        self._line_at_s = self._clock()
        parts = textwrap.wrap(line, _PLAIN_COLUMNS, subsequent_indent="  ", break_on_hyphens=False)
        with contextlib.suppress(OSError):
            for part in parts:
                self._write(part)


class LiveProgress:
    """A panel of the same facts. rich's own thread redraws it in place a few times a second."""

    def __init__(
        self,
        standing: Standing,
        write: Callable[[str], None] = say,
        start: Callable[[], object] = lambda: None,
    ) -> None:
        self._standing = standing
        self._write = write
        self._start = start

    def phase(self, text: str) -> None:
        self._standing.enter(text)
        if text.startswith((OTHER_WORK, WARNING)):  # they stay; the next phase takes their place
            with contextlib.suppress(OSError):
                self._write(text)

    def started(self, info: RunInfo) -> None:
        self._standing.start(info)
        self._start()

    def told(self, trial: Trial, progress: Progress) -> None:
        self._standing.tell(trial, progress)

    def step(self, text: str) -> None:
        self._standing.phase = text

    def confirmed(self, trial: Trial, outcome: Outcome) -> None:
        self._standing.confirmed[trial.number] = outcome
        with contextlib.suppress(OSError):
            self._write(confirmation(trial, outcome))

    def finished(self, reason: str, elapsed_s: float) -> None:
        self._standing.phase = f"ended: {wording.ended_text(reason)}"
        self._standing.ended_s = elapsed_s

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # One line less than the terminal has: the cursor stands on a line of its own below the
        # last panel.
        height = options.size.height - 1
        yield panel(self._standing, options.max_width, options.encoding, height)


class KnowsTheRun:
    """Passes every call on to the observer. Once the run has a folder, tracebacks of bugs go
    there."""

    def __init__(self, observer: Observer, terminal: Terminal) -> None:
        self._terminal = terminal
        self.phase = observer.phase
        self._started = observer.started
        self.told = observer.told
        self.step = observer.step
        self.confirmed = observer.confirmed
        self.finished = observer.finished

    def started(self, info: RunInfo) -> None:
        self._terminal.crash_folder = Path(info.path) / "logs"
        self._terminal.note(f"run {info.id}")
        self._started(info)


@contextlib.contextmanager
def show_progress(terminal: Terminal) -> Iterator[Observer]:
    """The observer for a run that this process works on."""
    with progress_observer(terminal) as observer:
        yield KnowsTheRun(observer, terminal)


@contextlib.contextmanager
def progress_observer(terminal: Terminal) -> Iterator[Observer]:
    """The observer that suits stderr: none of it with --quiet, plain lines or the live panel. The
    panel ends with the block."""
    console = terminal.stderr()
    if terminal.quiet:
        yield SilentObserver()
    elif not console.file.isatty() or console.is_dumb_terminal:
        yield PlainProgress()
    else:
        from rich.live import Live

        standing = Standing()
        # Live takes over stderr: a line written meanwhile appears above the panel. It starts only
        # with the run, since the user may be asked a question before that.
        panels = Live(console=console, refresh_per_second=_REFRESH_PER_SECOND)
        live = LiveProgress(standing, start=panels.start)
        panels.update(live)
        try:
            yield live
        finally:
            panels.stop()


def confirmation(trial: Trial, outcome: Outcome) -> str:
    if outcome.ok:
        noise = wording.noise_text(outcome)
        return f"confirmed trial {trial.number}: {result(outcome)}{noise and f', {noise}'}"
    if outcome.undecided:
        return f"trial {trial.number} is undecided and was not confirmed: {outcome.reason}"
    return f"trial {trial.number} failed its confirmation: {outcome.kind} {outcome.reason}"
