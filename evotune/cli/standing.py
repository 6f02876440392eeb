"""What is known of a run while it goes on, and how that reads."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from evotune.engine.observer import Progress, RunInfo
from evotune.report import wording
from evotune.report.evidence import figures
from evotune.trial import Json, Outcome, Trial

_CONFIRMATION_S = 20.0  # of a champion, roughly, where nobody knows better
_STATE_FORMS = {
    "sm_mhz": "SM {:.0f} MHz",
    "power_w": "{:.0f} W",
    "temperature_c": "{:.0f} °C",
    "clock_mhz": "{:.0f} MHz",
    "load_1min": "load {:.1f}",
}


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
    unseen: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    stage_s: Counter[str] = field(default_factory=Counter)
    confirmed: dict[int, Outcome] = field(default_factory=dict)
    """What fresh processes found of the best, by trial."""
    ended_s: float | None = None
    """Time at work over all sessions, once that is known for good."""
    began_s: float = field(init=False)
    curve: list[float] = field(default_factory=list)
    """The best fitness after each told trial; NaN before there was one."""
    state: Mapping[str, Json] = field(default_factory=dict)
    """The device's own figures, as the last measured trial found them."""

    def __post_init__(self) -> None:
        self.began_s = self.clock()

    def start(self, info: RunInfo) -> None:
        self.info = info
        self.began_s = self.clock()

    def tell(self, trial: Trial, progress: Progress) -> bool:
        """True when there is a new best, unless it was read back from the store."""
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
        """Time at work over all sessions, as reports will say it."""
        if self.ended_s is not None:
            return self.ended_s
        return (self.info.elapsed_s if self.info else 0.0) + self.clock() - self.began_s

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

    def confirmations(self) -> str:
        """The figures of fresh processes, the best first and with its interval; then failures."""
        sound = sorted(
            (-outcome.fitness, number, outcome)
            for number, outcome in self.confirmed.items()
            if outcome.fitness is not None
        )
        parts = [
            f"{self.figure(-slowness) if at else result(outcome)} (trial {number})"
            for at, (slowness, number, outcome) in enumerate(sound)
        ]
        failed = (number for number, outcome in self.confirmed.items() if not outcome.ok)
        return ", ".join((*parts, *(f"trial {number} failed" for number in failed)))

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

    def stages(self) -> str:
        """`compile 51 s, verify 12 s`, the longest first."""
        return ", ".join(
            f"{stage} {wording.duration_text(spent_s)}"
            for stage, spent_s in self.stage_s.most_common()
            if spent_s >= 0.5
        )

    def device_state(self) -> str:
        """`1980 MHz, 140 W, 46 °C`, with what lowers the clocks; "" where nothing is known."""
        parts = [
            form.format(self.state[name])
            for name, form in _STATE_FORMS.items()
            if isinstance(self.state.get(name), int | float)
        ]
        reasons = ", ".join(map(str, self.state.get("throttled_by") or ()))
        return ", ".join((*parts, *([f"clocks lowered by {reasons}"] if reasons else [])))

    def elites(self, count: int) -> list[tuple[str, str]]:
        """(figure, what its configuration changes in the first one's) of the best few."""
        known = sorted(self.progress.elites if self.progress else (), key=lambda e: -e[0])[:count]
        return [
            (self.figure(fitness), wording.difference_text(configuration, known[0][1]))
            for fitness, configuration in known
        ]

    def figure(self, fitness: float) -> str:
        """A fitness as people read it: a speedup, or a recorded time."""
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
            if self.ended_s is None:
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
    return not outcome.measurements and "time_ms" in outcome.resources


def result(outcome: Outcome) -> str:
    """The speedup, or the recorded time."""
    return wording.result_text(figures(outcome, recorded=is_recorded(outcome)))
