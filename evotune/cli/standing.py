"""The known facts of a run while it is going on, and the lines that show them."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from evotune.api.observing import CONFIRMING, Progress, RunInfo
from evotune.report import wording
from evotune.report.leaderboard import figures
from evotune.trial import DeviceState, Outcome, Trial, throttled_by

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

    A resumed run is told its stored trials again, from the last snapshot on; `replaying` is true
    while that lasts. `unseen` counts the trials before the snapshot: they are not told again, so
    their outcomes are missing from the counts.
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
        """Takes a new phase in. Remarks that come while champions are confirmed change nothing."""
        self.phase = phase
        self.confirming |= phase.startswith(CONFIRMING)

    def start(self, info: RunInfo) -> None:
        self.info = info
        self.began_s = self.clock()

    def tell(self, trial: Trial, progress: Progress) -> bool:
        """Takes the trial in. True when it is a new best and was not told again from the store."""
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
        """Time at work over all parts of the run, as reports will say it."""
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
        """The parameters that differ between the best and the best before it. The first best shows
        its whole configuration."""
        if self.previous_best is None or self.progress is None or self.progress.best is None:
            return self.best_configuration()
        return wording.difference_text(
            self.progress.best.configuration, self.previous_best.configuration
        )

    def stages(self) -> str:
        """`compile 51 s, verify 12 s`: time by stage, the longest first."""
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
        """Whether the whole interval of its speedup is above 1; a recording has no speedup."""
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
        """Of the confirmed trial that stands first in `confirmations`."""
        sound = [each for each in self.confirmed.values() if each.fitness is not None]
        return self.wins(max(sound, key=lambda each: each.fitness or 0.0, default=None))

    def elites(self, count: int) -> list[tuple[str, str]]:
        """For each of the best few: its figure, and the parameters that differ from the first."""
        known = sorted(self.progress.elites if self.progress else (), key=lambda e: -e[0])[:count]
        return [
            (self.figure(fitness), wording.difference_text(configuration, known[0][1]))
            for fitness, configuration in known
        ]

    def figure(self, fitness: float) -> str:
        """A fitness as a speedup, or as a time in ms where the trials are recorded."""
        best = self.progress.best if self.progress else None
        if best is not None and is_recorded(best.outcome):
            return f"{wording.time_ms_text(1000 * math.exp(-fitness))} ms"
        return f"{math.exp(fitness):.3f}x"

    def pace(self) -> str:
        """Generation, trials told, trials a minute, time left."""
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
