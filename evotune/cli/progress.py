"""Progress of a run on stderr: a live panel on a terminal, plain lines anywhere else.

`Standing` has the known facts of a running run, and the lines that show them. `panel` lays the
lines out for a terminal.
"""

from __future__ import annotations

import contextlib
import math
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from evotune.api.observing import (
    CONFIRMING,
    OTHER_WORK,
    WARNING,
    Observer,
    Progress,
    RunInfo,
    SilentObserver,
)
from evotune.cli.terminal import Terminal, say
from evotune.report import wording
from evotune.report.leaderboard import figures
from evotune.trial import DeviceState, Outcome, Trial, throttled_by
from evotune.util.words import printable, shorten

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group, RenderResult
    from rich.text import Text


_PLAIN_EVERY_S = 10.0
_PLAIN_COLUMNS = 118  # log viewers and CI pages cut or fold longer lines
_REFRESH_PER_SECOND = 4


class PlainProgress:
    """Writes a line at each new best and about every ten seconds.

    While a resumed run replays its stored trials, it writes no such lines. An OSError of stderr
    does not end the run.
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
    """A live panel with the facts of a run. rich's own thread redraws it in place a few times a
    second."""

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
        # One line less than the terminal has, because the cursor is on a separate line below the
        # last panel.
        height = options.size.height - 1
        yield panel(self._standing, options.max_width, options.encoding, height)


class KnowsTheRun:
    """Passes every call on to the observer. Once the run has a folder, tracebacks of bugs are
    written into it."""

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
    """The observer that fits stderr: a silent one with --quiet, plain lines, or the live panel,
    which ends with the block."""
    console = terminal.stderr()
    if terminal.quiet:
        yield SilentObserver()
    elif not console.file.isatty() or console.is_dumb_terminal:
        yield PlainProgress()
    else:
        from rich.live import Live

        standing = Standing()
        # Live takes over stderr: a line written meanwhile appears above the panel. It starts only
        # with the run, because evotune may ask the user a question before that.
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


_CONFIRMATION_S = 20.0  # a rough guess of the time that confirming one champion takes
_STATE_FORMS = {
    "sm_mhz": "SM {:.0f} MHz",
    "power_w": "{:.0f} W",
    "temperature_c": "{:.0f} °C",
    "clock_mhz": "{:.0f} MHz",
    "load_1min": "load {:.1f}",
}


@dataclass(slots=True)
class Standing:
    """The facts of the run right now, and its lines.

    A resumed run replays its stored trials, beginning at the last snapshot; meanwhile `replaying`
    is true. `unseen` counts the trials before the snapshot: they are not replayed, so their
    outcomes are missing from the counts.
    """

    clock: Callable[[], float] = time.monotonic
    info: RunInfo | None = None
    phase: str = "starting"
    progress: Progress | None = None
    previous_best: Trial | None = None
    unseen: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    stage_s: Counter[str] = field(default_factory=Counter)
    confirmed: dict[int, Outcome] = field(default_factory=dict)
    """The outcomes of the confirmations in fresh processes, by the trial's number."""
    confirming: bool = False
    """Whether the search has ended and champions are being confirmed."""
    ended_s: float | None = None
    """Time at work over all parts of the run, once the run has ended."""
    began_s: float = field(init=False)
    curve: list[float] = field(default_factory=list)
    """The best fitness after each told trial; NaN as long as no trial was valid."""
    state: DeviceState = field(default_factory=dict)
    """The device's clocks, power and temperature at the last measured trial."""

    def __post_init__(self) -> None:
        self.began_s = self.clock()

    def enter(self, phase: str) -> None:
        """Notes a new phase. Remarks that come while champions are confirmed change nothing."""
        self.phase = phase
        self.confirming |= phase.startswith(CONFIRMING)

    def start(self, info: RunInfo) -> None:
        self.info = info
        self.began_s = self.clock()

    def tell(self, trial: Trial, progress: Progress) -> bool:
        """Adds a trial. Returns True if it is a new best and was not replayed from the store."""
        if self.progress is None:
            self.unseen = progress.told - 1
        self.previous_best = self.progress.best if self.progress else None
        self.outcomes[trial.outcome.kind.value] += 1
        self.progress = progress
        self.stage_s.update(trial.outcome.stage_s)
        best = progress.best.outcome.fitness if progress.best else None
        self.curve.append(math.nan if best is None else best)
        if trial.outcome.measurements:
            self.state = trial.outcome.measurements[-1].state
        improved = progress.best is not None and progress.best is not self.previous_best
        return improved and not self.replaying

    @property
    def replaying(self) -> bool:
        known = self.info.already_done if self.info else 0
        return self.progress is not None and self.progress.told <= known

    @property
    def elapsed_s(self) -> float:
        """The time at work over all parts of the run, as in reports."""
        if self.ended_s is not None:
            return self.ended_s
        return (self.info.elapsed_s if self.info else 0.0) + self.clock() - self.began_s

    def heading(self) -> str:
        info = self.info
        if info is None:
            return ""
        return f"{info.space} on {info.device}: {info.strategy}, seed {info.seed}"

    def counts(self) -> str:
        """`12 ok, 3 timeout`: the valid trials first, then the most frequent failures."""
        ranked = sorted(self.outcomes.items(), key=lambda item: (item[0] != "ok", -item[1]))
        text = wording.counts_text(dict(ranked))
        return f"{text} ({self.unseen} earlier ones not counted)" if self.unseen else text

    def best(self) -> str:
        """The best trial's result and number, without its configuration."""
        trial = self.progress.best if self.progress else None
        return f"{result(trial.outcome)} (trial {trial.number})" if trial else "none yet"

    def best_configuration(self) -> str:
        trial = self.progress.best if self.progress else None
        return wording.configuration_text(trial.configuration) if trial else ""

    def confirmations(self) -> str:
        """The results of the confirmations, the best first and with its interval; then the
        failures."""
        sound = sorted(
            (-outcome.fitness, number, outcome)
            for number, outcome in self.confirmed.items()
            if outcome.fitness is not None
        )
        parts = [
            f"{self.figure(-slowness) if at else result(outcome)} (trial {number})"
            for at, (slowness, number, outcome) in enumerate(sound)
        ]
        for number, outcome in self.confirmed.items():
            if not outcome.ok:
                parts.append(f"trial {number} {'undecided' if outcome.undecided else 'failed'}")
        return ", ".join(parts)

    def best_in_full(self) -> str:
        configuration = self.best_configuration()
        return f"{self.best()}: {configuration}" if configuration else self.best()

    def best_change(self) -> str:
        """The parameters in which the best trial differs from the previous best; for the first best
        its whole configuration."""
        if self.previous_best is None or self.progress is None or self.progress.best is None:
            return self.best_configuration()
        return wording.difference_text(
            self.progress.best.configuration, self.previous_best.configuration
        )

    def stages(self) -> str:
        """The time by stage, the longest first: `compile 51 s, verify 12 s`."""
        return ", ".join(
            f"{stage} {wording.duration_text(spent_s)}"
            for stage, spent_s in self.stage_s.most_common()
            if spent_s >= 0.5
        )

    def device_state(self) -> str:
        """`SM 1980 MHz, 140 W, 46 °C`, then the reasons why the clocks are lowered; "" when no
        figure is known."""
        parts = [
            form.format(self.state[name])
            for name, form in _STATE_FORMS.items()
            if isinstance(self.state.get(name), int | float)
        ]
        reasons = ", ".join(throttled_by(self.state))
        return ", ".join((*parts, *([f"clocks lowered by {reasons}"] if reasons else [])))

    def wins(self, outcome: Outcome | None) -> bool:
        """Whether the whole interval of the outcome's speedup is above 1. A recording has no
        speedup."""
        if outcome is None or is_recorded(outcome):
            return False
        low = outcome.fitness if outcome.fitness_low is None else outcome.fitness_low
        return low is not None and low > 0

    @property
    def best_wins(self) -> bool:
        best = self.progress.best if self.progress else None
        return self.wins(best.outcome if best else None)

    @property
    def confirmed_wins(self) -> bool:
        """Whether the confirmed trial with the greatest fitness wins."""
        sound = [each for each in self.confirmed.values() if each.fitness is not None]
        return self.wins(max(sound, key=lambda each: each.fitness or 0.0, default=None))

    def elites(self, count: int) -> list[tuple[str, str]]:
        """The best trials, at most `count`: each one's figure, and the parameters in which it
        differs from the first."""
        known = sorted(self.progress.elites if self.progress else (), key=lambda e: -e[0])[:count]
        return [
            (self.figure(fitness), wording.difference_text(configuration, known[0][1]))
            for fitness, configuration in known
        ]

    def figure(self, fitness: float) -> str:
        """A fitness as a speedup, or as a time in ms if the trials are recorded."""
        best = self.progress.best if self.progress else None
        if best is not None and is_recorded(best.outcome):
            return f"{wording.time_ms_text(1000 * math.exp(-fitness))} ms"
        return f"{math.exp(fitness):.3f}x"

    def pace(self) -> str:
        """A line with the generation, the number of trials, the trials per minute and the time
        left."""
        if self.info is None or self.progress is None:
            return ""
        told, searched_s = self.progress.told, self.progress.searched_s
        parts = [f"generation {self.progress.generation}", f"trial {told}/{self.info.trials}"]
        if searched_s > 0:
            parts.append(f"{told / searched_s * 60:.0f}/min")
            if self.ended_s is None and self.confirming:
                parts.append("confirming")
            elif self.ended_s is None:
                parts.append(f"{wording.duration_text(self._left_s(told, searched_s))} left")
        return ", ".join(parts)

    def _left_s(self, told: int, searched_s: float) -> float:
        assert self.info is not None
        left_s = (self.info.trials - told) * searched_s / max(told, 1)
        left_s += (self.info.champions - len(self.confirmed)) * _CONFIRMATION_S
        if self.info.minutes is not None:
            left_s = min(left_s, self.info.minutes * 60 - self.elapsed_s)
        return max(0.0, left_s)


def is_recorded(outcome: Outcome) -> bool:
    return not outcome.measurements and outcome.recorded_time_us is not None


def result(outcome: Outcome) -> str:
    """The outcome's speedup as text, or its recorded time."""
    return wording.result_text(figures(outcome, recorded=is_recorded(outcome)))


_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-=+*#@"
_ELITES = 5
_FIRST_TO_GO = ("elites", "configuration", "stages", "device", "curve")
_ROW_BY_ROW = ("elites",)  # parts whose rows stand alone: cut between two rows, no ellipsis needed


def panel(
    standing: Standing, width: int, encoding: str = "utf-8", height: int | None = None
) -> Group:
    """The panel: at most `height` lines, each narrower than `width`.

    The height is limited because a line that has scrolled out of the terminal cannot be redrawn.
    The number of lines changes only when a new fact is known.
    """
    from rich.console import Group
    from rich.text import Text

    width = max(20, width - 1)
    phase = f"{standing.phase} ({wording.duration_text(standing.elapsed_s)})"
    parts = {
        "heading": [Text(shorten(printable(standing.heading()), width), style="bold")],
        "phase": [Text(line) for line in _wrapped(phase, width)],
        "bar": _bar(standing, width, encoding),
        "pace": _labelled("trials", standing.pace(), width),
        "counts": _labelled("outcomes", standing.counts(), width),
        "best": _labelled("best", standing.best(), width, _style(wins=standing.best_wins)),
        "configuration": _labelled("", standing.best_configuration(), width),
        "confirmed": _labelled(
            "confirmed", standing.confirmations(), width, _style(wins=standing.confirmed_wins)
        ),
        "curve": _curve(standing, width, encoding),
        "elites": _elites(standing, width),
        "device": _labelled("device", standing.device_state(), width),
        "stages": _labelled("time in", standing.stages(), width),
    }
    if height is not None:
        _cut(parts, height)
    return Group(*(row for rows in parts.values() for row in rows))


def _cut(parts: dict[str, list[Text]], height: int) -> None:
    """Removes rows until at most `height` are left.

    The parts of `_FIRST_TO_GO` lose their last rows first, one part after the other. A text that is
    cut in the middle ends with an ellipsis.
    """
    for name in (*_FIRST_TO_GO, *reversed(parts)):
        rows = parts[name]
        excess = sum(map(len, parts.values())) - height
        if excess <= 0:
            return
        if excess < len(rows) and name not in _ROW_BY_ROW:
            last = rows[len(rows) - excess - 1]
            last.plain = f"{last.plain[:-1]}…"
        del rows[max(0, len(rows) - excess) :]


def sparkline(values: Sequence[float], width: int, blocks: str = _BLOCKS) -> str:
    """Draws `values` as at most `width` characters. Each stands for a stretch of values and shows
    the last of them; NaN is a space."""
    count = min(width, len(values))
    picked = [values[(at + 1) * len(values) // count - 1] for at in range(count)]
    known = [value for value in picked if math.isfinite(value)]
    if not known:
        return ""
    low, high = min(known), max(known)
    step = (high - low) / (len(blocks) - 1) or 1.0
    return "".join(
        blocks[round((value - low) / step)] if math.isfinite(value) else " " for value in picked
    )


def _labelled(label: str, text: str, width: int, style: str = "") -> list[Text]:
    """The wrapped text after its dim label. No lines if the text is empty."""
    from rich.text import Text

    indent = 10
    lines = _wrapped(text, width - indent)
    return [
        Text.assemble((f"{label if at == 0 else '':{indent}}", "dim"), (line, style))
        for at, line in enumerate(lines)
    ]


def _style(*, wins: bool) -> str:
    """Green is for a speedup that is surely above 1."""
    return "bold green" if wins else "bold"


def _wrapped(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(printable(text), width, break_on_hyphens=False)


def _bar(standing: Standing, width: int, encoding: str) -> list[Text]:
    from rich.text import Text

    if standing.info is None or standing.progress is None or not standing.info.trials:
        return []
    full, empty = ("━", "─") if _can_show("━─", encoding) else ("#", ".")
    done = min(width, round(width * standing.progress.told / standing.info.trials))
    return [Text.assemble((full * done, "green"), (empty * (width - done), "dim"))]


def _can_show(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _curve(standing: Standing, width: int, encoding: str) -> list[Text]:
    blocks = _BLOCKS if _can_show(_BLOCKS, encoding) else _ASCII_BLOCKS
    known = [value for value in standing.curve if math.isfinite(value)]
    if len(standing.curve) < 2 or not known:
        return []
    first, last = standing.figure(known[0]), standing.figure(known[-1])
    room = width - 10 - len(first) - len(last) - 2
    line = sparkline(standing.curve, max(1, room), blocks)
    return _labelled("so far", f"{first} {line.replace(' ', blocks[0])} {last}", width, "cyan")


def _elites(standing: Standing, width: int) -> list[Text]:
    rows = []
    for at, (figure, changes) in enumerate(standing.elites(_ELITES)):
        text = f"{figure}: {changes or 'the same'}" if at else f"{figure}: the best"
        rows += _labelled("elites" if at == 0 else "", shorten(printable(text), width - 10), width)
    return rows
