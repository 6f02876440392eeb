"""All trials of a run one after the other, and their ranks: a million need no objects at once.

Both come from what the run's data hold, or from the run's store where that was opened with them
(`RunData.opened`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from evotune.report.data import RunData
from evotune.report.evidence import Evidence, interval, judge, verdicts_by_twin, weigh
from evotune.report.leaderboard import rank, ranks_of, sort_key
from evotune.report.twins import stored_leaders
from evotune.store import RunStore, survey
from evotune.trial import Outcome


def ranks(data: RunData) -> dict[int, int]:
    """Trial number -> rank, in rank order; duplicates hold none: their twin's row is theirs."""
    if data.store is None:
        return {row.number: row.rank for row in rank(data).rows}
    twins = stored_leaders(data.store)
    verdicts = verdicts_by_twin(data.confirmations, twins)
    own = str(data.device.get("name", ""))
    by_model: dict[str, list[_Standing]] = {own: []}
    for model, standing in _standings(data.store, twins, verdicts):
        by_model.setdefault(model or own, []).append(standing)

    def place(standing: _Standing) -> tuple[float, ...]:
        number, low, _ = standing
        verdict = verdicts.get(number)
        if verdict is None or verdict.fitness is None:
            return _UNCONFIRMED
        return sort_key(True, verdict.fitness, low, number)

    found: dict[int, int] = {}
    for standings in by_model.values():
        standings.sort(key=place)
        places = ranks_of((low, high) for _, low, high in standings)
        found.update(zip((number for number, _, _ in standings), places, strict=True))
    return found


def in_proposal_order(data: RunData) -> Iterator[Evidence]:
    if data.store is None:
        yield from weigh(data).values()
        return
    twins = stored_leaders(data.store)
    verdicts = verdicts_by_twin(data.confirmations, twins)
    for trial in data.store.trials():
        twin = twins.get(trial.number, trial.number)
        yield judge(trial, twin, verdicts.get(twin))


def failures(data: RunData) -> Iterator[tuple[str, str]]:
    """Kind and reason of every trial that failed, in proposal order."""
    if data.store is not None:
        yield from survey.failures(data.store)
        return
    for trial in data.trials:
        if not trial.outcome.ok:
            yield trial.outcome.kind.value, trial.outcome.reason


_Standing = tuple[int, float, float]
"""Number of a row's trial, and its interval."""
_UNCONFIRMED = (True,)  # after whatever was confirmed, otherwise in the order they come in


def _standings(
    store: RunStore, twins: Mapping[int, int], verdicts: Mapping[int, Outcome]
) -> Iterator[tuple[str, _Standing]]:
    """Model of the device, and standing, of every row of the leaderboard, the fittest first."""
    for number, _, low, high, model in survey.standings(store):
        if twins.get(number, number) != number:
            continue
        verdict = verdicts.get(number)
        if verdict is None:
            yield model, (number, low, high)
        elif verdict.fitness is not None:
            yield verdict.device_model, (number, *interval(verdict))
