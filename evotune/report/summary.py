"""The state of a run: counts by outcome, the best so far, pace, and time by stage."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from evotune.report import wording
from evotune.report.data import RunData
from evotune.report.leaderboard import Leaderboard, Row, rank
from evotune.run_options import RunOptions
from evotune.store.facts import stored
from evotune.trial import Calibration, Json, Outcome
from evotune.util.commands import run_command


@dataclass(frozen=True, slots=True)
class StageTime:
    """The seconds of one stage, over all trials (or confirmations) that went through it. Stages
    overlap in time."""

    stage: str
    trials: int
    total_s: float
    median_s: float


_STAGES = ("stages", "confirmation_stages")


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The state of a run.

    - `holder`: the process that works on the run now.
    - `elapsed_s`: see `RunStore.elapsed_s`.
    - `trials_per_minute`: the rate over the time of searching.
    - `outcomes`: counts of the search's outcomes.
    - `threads`: the threads of candidate and baseline, on a CPU.
    """

    id: str
    path: str
    space: str
    device: str
    strategy: str
    seed: int | None
    state: str
    holder: int | None
    done: int
    trials: int | None
    minutes: float | None
    elapsed_s: float
    trials_per_minute: float | None
    outcomes: Mapping[str, int]
    duplicates: int
    confirmed: int
    disqualified: int
    best: Row | None
    stages: tuple[StageTime, ...]
    confirmation_stages: tuple[StageTime, ...]
    devices: Sequence[Calibration] = ()
    """The calibration of each device, in a run with several."""
    beside: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """See `RunData.beside`."""
    threads: int | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    """See `Facts.phases`."""
    unconfirmed: str = ""
    """See `RunData.unconfirmed`."""

    @property
    def device_text(self) -> str:
        return wording.device_text(self.device, self.threads)

    def to_json(self) -> dict[str, Json]:
        data: dict[str, Json] = {
            name: getattr(self, name) for name in self.__slots__ if name not in ("best", *_STAGES)
        }
        data["outcomes"] = dict(self.outcomes)
        data["beside"] = {str(trials): list(work) for trials, work in self.beside.items()}
        data["phases"] = dict(self.phases)
        data["devices"] = stored(self.devices)
        for kind in _STAGES:
            data[kind] = [
                {name: getattr(stage, name) for name in stage.__slots__}
                for stage in getattr(self, kind)
            ]
        data["best"] = _best_json(self.best)
        return data


def summarize(data: RunData, board: Leaderboard | None = None) -> RunSummary:
    """The state of a run. `board` is its leaderboard; without it the trials are ranked again."""
    board = board or rank(data)
    settings = data.facts.settings
    searched_s, done = data.totals.searched_s, data.totals.trials
    return RunSummary(
        id=data.id,
        path=data.path,
        space=data.space,
        device=data.facts.device.name,
        strategy=settings.strategy,
        seed=settings.seed,
        state=data.state,
        holder=data.holder,
        done=done,
        trials=settings.trials,
        minutes=settings.minutes,
        elapsed_s=data.totals.elapsed_s,
        trials_per_minute=done / searched_s * 60 if searched_s > 0 else None,
        outcomes=data.totals.outcomes,
        duplicates=data.totals.duplicates,
        confirmed=sum(row.confirmed for row in board.rows),
        disqualified=len(board.disqualified),
        best=board.rows[0] if board.rows else None,
        stages=_stages(data.totals.stage_s),
        confirmation_stages=_stages(_by_stage(data.confirmations.values())),
        devices=data.facts.devices,
        beside=data.beside,
        threads=data.threads,
        unconfirmed=data.facts.unconfirmed,
        phases=data.facts.phases,
    )


def _by_stage(outcomes: Iterable[Outcome]) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {}
    for outcome in outcomes:
        for stage, duration_s in outcome.stage_s.items():
            seconds.setdefault(stage, []).append(duration_s)
    return seconds


def _stages(seconds: Mapping[str, Sequence[float]]) -> tuple[StageTime, ...]:
    return tuple(
        StageTime(stage, len(spent), sum(spent), statistics.median(spent))
        for stage, spent in seconds.items()
    )


def _best_json(row: Row | None) -> Json:
    if row is None:
        return None
    return {
        "number": row.number,
        "configuration": row.configuration.to_json(),
        "confirmed": row.confirmed,
        "speedup": row.figures.speedup,
        "speedup_low": row.figures.speedup_low,
        "speedup_high": row.figures.speedup_high,
        "time_us": row.figures.time_us,
    }


def more_budget(reason: str, settings: RunOptions) -> list[str] | None:
    """The options with which `resume` continues a run that ended for this reason.

    An interrupted run needs none. A run that ended at its trials or minutes needs twice as many.
    The result is None if the run ended for another reason, so that no option continues it.
    """
    if reason == "interrupted":
        return []
    limit = getattr(settings, reason) if reason in ("trials", "minutes") else None
    return [f"--{reason}", f"{2 * limit:.15g}"] if limit else None  # 1e+06 is no number of trials


def no_win(data: RunData) -> str:
    """A sentence for a run whose confirmed champions win no timed case, which says what to do."""
    champions = [outcome for outcome in data.confirmations.values() if outcome.ok]
    if not champions:
        again = run_command("resume", data.path, "--champions", "3")
        return f"no win: nothing is confirmed; this confirms the best: {again}"
    timed = [m for outcome in champions for m in outcome.measurements if m.counts]
    if any(m.speedup_high >= 1 for m in timed):
        return (
            "no win yet: the best may be faster or slower than the baseline, since the 95% "
            "interval of its speedup contains 1; run again on a quiet machine, or continue the "
            "search with more trials"
        )
    why = run_command("explain", data.path)
    return f"no win: all that is confirmed is slower than the baseline; what limits the best: {why}"
