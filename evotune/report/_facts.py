"""The facts about a run that reports show, and the shape that the engine stores them in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from evotune.store import AROUND_SEARCH, UNCONFIRMED, RunStore
from evotune.trial import Json, NamedFigures, Value


class _Timing(msgspec.Struct):
    """The shape of a stored `evotune.workers.executor.BaselineTiming`."""

    case: str
    name: str
    time_us: float
    passed: bool


class _Baselines(msgspec.Struct):
    timings: Sequence[_Timing] = ()
    chosen: Mapping[str, str] = msgspec.field(default_factory=dict)
    copy_gbps: float | None = None


class _Calibration(msgspec.Struct):
    """The shape of a stored result of `evotune.runs._calibration.calibrate`."""

    id: str
    model: str
    reason: str
    baseline_us: Mapping[str, float]
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None

    def __post_init__(self) -> None:
        speedups = (self.speedup, self.speedup_low, self.speedup_high)
        figures = [*self.baseline_us.values(), *(s for s in speedups if s is not None)]
        if not all(figure > 0 for figure in figures):
            raise ValueError("a device without figures")


class _Change(msgspec.Struct):
    """The shape of a stored `evotune.runs.ablation.AblationRow`."""

    parameter: str
    before: Value | None
    after: Value | None
    also: Mapping[str, Value]
    why: str
    outcome: str
    reason: str
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    same_code: bool = False
    resources: NamedFigures = msgspec.field(default_factory=dict)


class _Ablation(msgspec.Struct):
    trial: int
    configuration: Mapping[str, Value]
    date: str
    rows: Sequence[_Change]


class _BegunAblation(msgspec.Struct):
    """An ablation that has not ended. `left`: the changes that are not measured yet."""

    trial: int
    configuration: Mapping[str, Value]
    rows: Sequence[_Change]
    left: int = 0


class _Try(msgspec.Struct):
    """The shape of a stored result of `explain --try`: one configuration in turn with another."""

    own: Mapping[str, Value]
    configuration: Mapping[str, Value]
    outcome: str
    measured: float | None
    measured_low: float | None
    measured_high: float | None


_EVIDENCE = "evidence"

_FACTS: Mapping[str, type] = {
    **dict.fromkeys(("space", "kind", "state", "created"), str),
    **dict.fromkeys(("device", "problem", "settings", "default"), dict),
    "command": list,
    AROUND_SEARCH: float,
    UNCONFIRMED: str,
    "beside": dict[int, list[str]],
    "devices": list[_Calibration],
    "baselines": _Baselines,
    "ablation": _Ablation,
    "ablation_part": _BegunAblation,
    "earlier_ablations": list[_Ablation],
    "tries": list[_Try],
    _EVIDENCE: list,
}


def read_facts(store: RunStore) -> dict[str, Json]:
    """The stored facts; ValueError when one has another shape than the engine stores."""
    facts = {name: value for name in _FACTS if (value := store.meta(name)) is not None}
    for name, value in facts.items():
        msgspec.convert(value, _FACTS[name], str_keys=True)
    if facts.get(_EVIDENCE):
        # Its types bring a device's libraries along; most runs have none.
        from evotune.backends.base.evidence import read_gathered

        read_gathered(facts[_EVIDENCE])
    return facts
