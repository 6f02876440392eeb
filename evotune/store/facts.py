"""The facts of a run that its store has in addition to the trials, each with its type.

`read_facts` reads and checks all of them. Writers use `stored` to turn one into JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from evotune.backends.base.launch import DeviceProfile
from evotune.run_options import RunOptions
from evotune.store.run_store import RunStore
from evotune.trial import Calibration, Json, NamedFigures, Value

if TYPE_CHECKING:
    from evotune.backends.base.evidence import GatheredEvidence


class ProblemFact(msgspec.Struct, frozen=True):
    """What a run computes: the problem's name and its dtype. Both are "" for a recorded space.
    `tolerance`: the problem's own, with its reason; "" if evotune derives it."""

    name: str = ""
    dtype: str = ""
    tolerance: str = ""

    @property
    def text(self) -> str:
        return " ".join(filter(None, (self.name, self.dtype)))


class TimedBaseline(msgspec.Struct, frozen=True):
    """One baseline on one case, timed alone when the run began."""

    case: str
    name: str
    time_us: float
    passed: bool
    reason: str = ""


class Baselines(msgspec.Struct, frozen=True):
    """The baselines of a run.

    - `chosen`: the baseline that candidates are measured against, by case.
    - `copy_gbps`: bandwidth of a large copy on the device, bytes read plus written.
    """

    timings: Sequence[TimedBaseline] = ()
    chosen: Mapping[str, str] = msgspec.field(default_factory=dict)
    copy_gbps: float | None = None


class Ratio(NamedTuple):
    """A ratio of two times with its 95% interval."""

    value: float
    low: float
    high: float


class AblatedChange(msgspec.Struct, frozen=True):
    """One change of a champion and its effect on the speed.

    - `parameter`: "" in the row of the champion against itself.
    - `also`: other parameters that change with it.
    - `ratio`: champion time / changed time, with its interval; None if the change failed.
    """

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

    @property
    def speed(self) -> Ratio | None:
        """The `ratio` with its interval; None if the change failed."""
        if self.ratio is None or self.ratio_low is None or self.ratio_high is None:
            return None
        return Ratio(self.ratio, self.ratio_low, self.ratio_high)

    @property
    def values(self) -> tuple[Value, Value]:
        """The parameter's value in the champion, and the changed one."""
        assert self.before is not None
        assert self.after is not None
        return self.before, self.after


class Ablation(msgspec.Struct, frozen=True):
    """The rows of one trial's ablation. `date` is "" for an ablation that has not ended; `left`
    counts the changes that it has not measured yet."""

    trial: int
    configuration: Mapping[str, Value]
    rows: Sequence[AblatedChange]
    date: str = ""
    left: int = 0
    fitnesses: Sequence[float] = ()
    binary: str = ""


class Try(msgspec.Struct, frozen=True):
    """A result of `explain --try`: one configuration, timed in alternation with `own`, a
    configuration of the run."""

    own: Mapping[str, Value]
    configuration: Mapping[str, Value]
    outcome: str
    measured: float | None
    measured_low: float | None
    measured_high: float | None


_USUAL = RunOptions()
_NO_DEVICE, _NO_PROBLEM, _NO_BASELINES = DeviceProfile("", "", "", {}), ProblemFact(), Baselines()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All facts of a run that reports, explanations and exports use. A fact that the store lacks
    has its default, because an older evotune stored fewer facts.

    - `kind`: kernels or recorded.
    - `default`: the space's starting point.
    - `around_search_s`: seconds of work before and after the search.
    - `unconfirmed`: why champions that should have been confirmed are missing.
    - `phases`: the seconds of each phase, over all sessions.
    - `beside`: other work on the machine; the key is the number of trials that were stored when it
      was seen.
    - `devices`: the calibration of each device, if the run had several.
    - `earlier_ablations`: ablations of other configurations, oldest first.
    - `ablation_part`: an ablation that has not ended.
    """

    space: str = ""
    kind: str = ""
    state: str = "unknown"
    created: str = ""
    command: Sequence[str] = ()
    device: DeviceProfile = _NO_DEVICE
    problem: ProblemFact = _NO_PROBLEM
    settings: RunOptions = _USUAL
    default: Mapping[str, Value] | None = None
    around_search_s: float = 0.0
    unconfirmed: str = ""
    phases: Mapping[str, float] = field(default_factory=dict)
    beside: Mapping[int, Sequence[str]] = field(default_factory=dict)
    devices: Sequence[Calibration] = ()
    baselines: Baselines = _NO_BASELINES
    ablation: Ablation | None = None
    ablation_part: Ablation | None = None
    earlier_ablations: Sequence[Ablation] = ()
    tries: Sequence[Try] = ()
    evidence: Sequence[GatheredEvidence] = ()

    @property
    def ablations(self) -> list[Ablation]:
        """The finished ablations, newest first, each of a different configuration."""
        found = (self.ablation, *reversed(self.earlier_ablations))
        return [each for each in found if each is not None and each.rows]


_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("space", "kind", "state", "created", "unconfirmed"), str),
    "command": list[str],
    "problem": ProblemFact,
    "default": dict[str, Value],
    "around_search_s": float,
    "phases": dict[str, float],
    "beside": dict[int, list[str]],
    "devices": list[Calibration],
    "baselines": Baselines,
    "ablation": Ablation,
    "ablation_part": Ablation,
    "earlier_ablations": list[Ablation],
    "tries": list[Try],
}
_UNNAMED = {"name": "", "backend": "", "arch": "", "attributes": {}}


def read_facts(store: RunStore) -> Facts:
    """The facts of a run. Raises the errors of `facts_of`."""
    names = (*_TYPES, "device", "settings", "evidence")
    return facts_of({name: store.meta(name) for name in names})


def facts_of(kept: Mapping[str, Json]) -> Facts:
    """Reads the facts from their JSON by name. None counts as missing; unknown names are ignored.

    Raises ValueError or TypeError if a fact has another form than a run stores.
    """
    found: dict[str, Json] = {
        name: msgspec.convert(kept[name], wanted, str_keys=True)
        for name, wanted in _TYPES.items()
        if kept.get(name) is not None
    }
    if (device := kept.get("device")) is not None:
        found["device"] = DeviceProfile.from_json({**_UNNAMED, **device})
    if (settings := kept.get("settings")) is not None:
        found["settings"] = RunOptions.from_json(settings)
    if evidence := kept.get("evidence"):
        # Its types bring a device's libraries along; most runs have none.
        from evotune.backends.base.evidence import read_gathered

        found["evidence"] = read_gathered(evidence)
    return Facts(**found)


def stored(fact: object) -> Json:
    """The fact as JSON, in the form that `RunStore.set_facts` takes."""
    return msgspec.to_builtins(fact)
